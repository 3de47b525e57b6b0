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
    from collections.abc import Mapping

_PREFERENCES: Final = ("device", "priority_list", "preferred_index")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """The identity of a model in the pool: requests with equal keys get the same object."""

    family: str
    name: str
    device: Device
    dtype: str | None

    @property
    def any_index(self) -> Key:
        """The key of requests for any GPU of this kind."""
        return dataclasses.replace(self, device=dataclasses.replace(self.device, index=None))

    def __str__(self) -> str:
        return f"{self.family}/{self.name} on {self.device}" + (f" in {self.dtype}" if self.dtype else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A request for a model. ``order`` is the hardware to try; ``chosen``: the caller named it.

    ``takes_device``: the constructor has a required argument ``device``.
    """

    family: str
    name: str
    dtype: str | None
    order: tuple[str, ...]
    chosen: bool
    constructor: Callable[..., Any] | None
    takes_device: bool
    memory_mb: float | None

    def key(self, device: Device) -> Key:
        """The model's key on a device."""
        return Key(family=self.family, name=self.name, device=device, dtype=self.dtype)


def request_for(
    family: str | None,
    name: str,
    constructor: Callable[..., Any] | None,
    preferences: Mapping[str, Any] | None,
    *,
    dtype: object = None,
    memory_mb: float | None = None,
) -> Request:
    """A request from the arguments of :meth:`ResourcePool.get_model`.

    Raises:
        ConfigError: the preferences are contradictory, or name unknown hardware; lists every problem.
    """
    preferences = preferences or {}
    return Request(
        family=str(family or ""),
        name=name,
        dtype=None if dtype is None else dtype.value if isinstance(dtype, Dtype) else str(dtype).removeprefix("torch."),
        order=_order(_classification(family, name), preferences),
        chosen=preferences.get("priority_list") is not None or preferences.get("device") not in {None, AUTO},
        constructor=constructor,
        takes_device=constructor is not None and _takes_device(constructor),
        memory_mb=memory_mb,
    )


def _order(kind: Classification, preferences: Mapping[str, Any]) -> tuple[str, ...]:
    """The hardware to try. The CPU always comes last: it is always available, and falling back to it is reported.

    ``preferred_index`` applies to each kind that may have several devices. An index above 0 is followed by the kind alone, as a fallback.

    Raises:
        ConfigError: the preferences are contradictory, or name unknown hardware.
    """
    device, words, index = (preferences.get(name) for name in _PREFERENCES)
    problems = [
        _problem(f"{key!r} is not a known preference", near_miss(str(key), _PREFERENCES)) for key in preferences.keys() - set(_PREFERENCES)
    ]
    if device is not None and words is not None:
        problems.append(_problem("device and priority_list contradict each other", "a list's first entry is the device"))
    if words is not None and (isinstance(words, str) or not isinstance(words, list | tuple) or not words):
        problems.append(_problem(f"priority_list {words!r} is not a list of hardware", 'for example ["cuda", "cpu"]'))
    if index is not None and (isinstance(index, bool) or not isinstance(index, int) or index < 0):
        problems.append(_problem(f"preferred_index {index!r} is not a valid GPU index", "GPUs are counted from 0"))
    if problems:
        raise ConfigError(problems)
    if words is None:
        first = None if device in {None, AUTO} else device_of(str(device))
        words = order_of(kind) if first is None else [first, *order_of(kind, preferred=first.hardware)[1:]]
    order: list[Device] = []
    for each in (device_of(str(word)) for word in words):
        if index is None or not has_several(each.hardware):
            order.append(each)
        elif each.index in {None, index}:
            order.append(dataclasses.replace(each, index=index))
            order += [each] if index else []
        else:
            raise ConfigError([_problem(f"{each} and preferred_index {index} contradict each other", "give only one of them")])
    return tuple(dict.fromkeys([*map(str, order), Backend.CPU.value]))


def _problem(what: str, hint: str) -> Problem:
    return Problem(where="hardware_preferences", what=what, hint=hint)


def _classification(family: str | None, name: str) -> Classification:
    """A classification with nothing but the family. An unknown family only becomes part of the key."""
    known = Family(family) if family in set(Family) else None
    return Classification(
        model_name=name,
        architecture=None,
        model_class=None,
        family=known,
        subfamily=None,
        structure=None,
        confidence=1.0 if known else 0.0,
        evidence="class" if known else "none",
        source="the caller",
    )


def _takes_device(constructor: Callable[..., Any]) -> bool:
    """Whether its argument ``device`` is required. Without a signature (functions in C) it is called without arguments."""
    try:
        parameter = inspect.signature(constructor).parameters.get("device")
    except (ValueError, TypeError):
        return False
    return parameter is not None and parameter.default is inspect.Parameter.empty
