"""A validated request to the resource pool: which model, its constructor, and the hardware in order."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.knowledge.priorities import order_of
from hwmatrix.knowledge.resolving import AUTO
from hwmatrix.pool.devices import Device, device_of, has_several
from hwmatrix.records import Backend, Classification, Dtype, Family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PREFERENCES: Final = frozenset({"device", "priority_list", "preferred_index"})
_DEVICE_ARGUMENT: Final = "device"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """The identity of a model in the pool: requests with equal keys get the same object."""

    family: str
    name: str
    device: Device
    dtype: str | None

    def answers(self, asked: Key) -> bool:
        """Whether ``asked`` names no GPU index and otherwise equals this key: any GPU of the kind will do."""
        return asked.device.index is None and dataclasses.replace(self, device=dataclasses.replace(self.device, index=None)) == asked

    def __str__(self) -> str:
        return f"{self.family}/{self.name} on {self.device}" + (f" in {self.dtype}" if self.dtype else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A request for a model. ``order`` is the hardware to try; ``asked``: the caller chose it.

    ``one_device``: the caller named a single device, and the rest of ``order`` are fallbacks. ``takes_device``: the constructor has an
    argument ``device``.
    """

    family: str
    name: str
    dtype: str | None
    order: tuple[str, ...]
    asked: bool
    one_device: bool
    constructor: Callable[..., Any] | None
    takes_device: bool
    memory_mb: float | None

    def key(self, device: Device) -> Key:
        """The model's key on a device."""
        return Key(family=self.family, name=self.name, device=device, dtype=self.dtype)

    @property
    def identity(self) -> tuple[str, str, str | None, tuple[str, ...]]:
        """What makes two requests the same."""
        return self.family, self.name, self.dtype, self.order


def request_for(
    family: str | None,
    name: str,
    constructor: Callable[..., Any] | None,
    preferences: Mapping[str, Any] | None,
    *,
    dtype: object = None,
    memory_mb: float | None = None,
) -> Request:
    """Validate the arguments of a request.

    Raises:
        ConfigError: lists every invalid argument, each with a hint.
    """
    problems = [*_name_problems(family, name), *_constructor_problems(constructor), *_memory_problems(memory_mb)]
    kind = _classification(family, name)
    order: tuple[str, ...] = ()
    try:
        order = _order(preferences, kind)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    wanted = (preferences or {}).get("device")
    return Request(
        family=str(family or ""),
        name=name,
        dtype=None if dtype is None else dtype_word(dtype),
        order=order,
        asked=wanted not in {None, AUTO} or "priority_list" in (preferences or {}),
        one_device=wanted not in {None, AUTO},
        constructor=constructor,
        takes_device=constructor is not None and _DEVICE_ARGUMENT in _required_arguments(constructor),
        memory_mb=memory_mb,
    )


def dtype_word(dtype: object) -> str:
    """The name of a precision: ``float16`` for ``torch.float16``, ``Dtype.FLOAT16`` and ``"float16"``."""
    return dtype.value if isinstance(dtype, Dtype) else str(dtype).removeprefix("torch.")


def _order(preferences: Mapping[str, Any] | None, kind: Classification) -> tuple[str, ...]:
    """The hardware to try. The CPU always comes last: it is always available, and falling back to it is reported.

    Raises:
        ConfigError: the preferences are contradictory, or name unknown hardware.
    """
    given = dict(preferences or {})
    problems = [
        Problem(where="hardware_preferences", what=f"{key!r} is not a known preference", hint=near_miss(str(key), _PREFERENCES))
        for key in given
        if key not in _PREFERENCES
    ]
    if "device" in given and "priority_list" in given:
        what = "device and priority_list contradict each other"
        problems.append(Problem(where="hardware_preferences", what=what, hint="give only one of them: a list's first entry is the device"))
    index = given.get("preferred_index")
    if index is not None and (isinstance(index, bool) or not isinstance(index, int) or index < 0):
        what = f"preferred_index {index!r} is not a valid GPU index"
        problems.append(Problem(where="hardware_preferences", what=what, hint="GPUs are counted from 0"))
    if problems:
        raise ConfigError(problems)
    if "priority_list" in given:
        return _with_cpu(_with_index(_device_names(given["priority_list"]), index))
    device = given.get("device")
    if device is None or device == AUTO:
        return _with_cpu(_with_index(order_of(kind), index))
    chosen = str(device_of(str(device)))
    after = order_of(kind, preferred=device_of(chosen).hardware)[1:]
    return _with_cpu((*_with_index((chosen,), index), *after))


def _device_names(words: object) -> tuple[str, ...]:
    if isinstance(words, str) or not isinstance(words, list | tuple) or not words:
        what = f"priority_list {words!r} is not a list of hardware"
        raise ConfigError([Problem(where="hardware_preferences", what=what, hint='for example ["cuda", "cpu"]')])
    return tuple(dict.fromkeys(str(device_of(str(word))) for word in words))


def _with_index(words: Sequence[str], index: int | None) -> tuple[str, ...]:
    """Add the GPU index to each kind that may have several devices. An index above 0 is followed by the kind alone, as a fallback.

    Raises:
        ConfigError: an entry names another index.
    """
    if index is None:
        return tuple(words)
    numbered: list[str] = []
    for word in words:
        device = device_of(word)
        if device.index not in {None, index}:
            what = f"{word} and preferred_index {index} contradict each other"
            raise ConfigError([Problem(where="hardware_preferences", what=what, hint="give only one of them")])
        several = has_several(device.hardware)
        numbered += [f"{device.hardware}:{index}", *([device.hardware] if index and device.index is None else [])] if several else [word]
    return tuple(dict.fromkeys(numbered))


def _with_cpu(order: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*order, Backend.CPU.value)))


def _classification(family: object, name: object) -> Classification:
    """A classification with nothing but the family. An unknown family only becomes part of the key."""
    known = Family(str(family)) if family in set(Family) else None
    return Classification(
        model_name=str(name),
        architecture=None,
        model_class=None,
        family=known,
        subfamily=None,
        structure=None,
        confidence=1.0 if known else 0.0,
        evidence="class" if known else "none",
        source="the caller",
    )


def _name_problems(family: object, name: object) -> list[Problem]:
    problems = []
    if not isinstance(name, str) or not name.strip():
        problems.append(Problem(where="name", what=f"{name!r} is not a valid model name", hint="any text that identifies the model"))
    if family is not None and not isinstance(family, str):
        problems.append(Problem(where="family", what=f"{family!r} is not a known family", hint=f"one of: {', '.join(Family)}; or None"))
    return problems


def _memory_problems(memory_mb: object) -> list[Problem]:
    if memory_mb is None or (isinstance(memory_mb, int | float) and not isinstance(memory_mb, bool) and memory_mb > 0):
        return []
    return [Problem(where="memory_mb", what=f"{memory_mb!r} is not a size in MiB", hint="leave it out if it is not known")]


def _constructor_problems(constructor: object) -> list[Problem]:
    """A constructor is called without arguments, or with the device alone."""
    hint = "give a function without required arguments other than device: lambda: AutoModel.from_pretrained(...)"
    if constructor is None:
        return []
    if not callable(constructor):
        return [Problem(where="constructor", what=f"{constructor!r} cannot be called", hint=hint)]
    if inspect.iscoroutinefunction(constructor):
        return [Problem(where="constructor", what="it is a coroutine function, which the pool cannot await", hint=hint)]
    wrong = [name for name in _required_arguments(constructor) if name != _DEVICE_ARGUMENT]
    return [Problem(where="constructor", what=f"it needs the arguments {', '.join(wrong)}", hint=hint)] if wrong else []


def _required_arguments(constructor: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the required arguments; none if the signature is not available (functions in C)."""
    try:
        parameters = inspect.signature(constructor).parameters.values()
    except (ValueError, TypeError):
        return ()
    optional = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return tuple(each.name for each in parameters if each.default is inspect.Parameter.empty and each.kind not in optional)
