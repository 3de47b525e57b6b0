"""Chooses the device for PyTorch: the first in a list that is available, supported by this build, and visible."""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.hardware import torch_build, visible
from hwmatrix.hardware.torch_build import TorchBuild
from hwmatrix.records import Backend, Detection, Execution
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Sequence

AUTO: Final = "auto"
DEFAULT_ORDER: Final = (Backend.CUDA, Backend.ROCM, Backend.MPS, Backend.CPU)
"""GPUs before the CPU. Usually a machine has at most one of the three kinds of GPU."""
_SINCE_MPS: Final = (1, 12)
"""PyTorch 1.12 is the first version with MPS (its release notes)."""
_LOG: Final = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """One entry of a priority list: ``cuda``, or ``cuda:1`` with its own index."""

    kind: Backend
    index: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceChoice:
    """The chosen kind of hardware, PyTorch's name for the device, the reason, and what was passed over with reasons."""

    hardware: str
    torch_device: str
    reason: str
    passed_over: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Circumstances:
    """The inputs of a choice: how to detect a kind of hardware, the installed PyTorch, and the environment."""

    ask: Callable[[Backend], Detection]
    torch: TorchBuild | None
    environment: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HardwareChoice:
    """The chosen kind of hardware, the reason, and what was passed over with reasons."""

    hardware: str
    reason: str
    passed_over: tuple[tuple[str, str], ...]


def kind_of(name: str, *, where: str) -> Backend:
    """Return the kind of hardware with a name.

    Raises:
        ConfigError: there is no such kind. The message suggests a similar name.
    """
    try:
        return Backend(name)
    except ValueError:
        known = [kind.value for kind in Backend]
        close = difflib.get_close_matches(str(name).lower(), known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(
            [Problem(where=where, what=f"{name!r} is not a hardware name", hint=f"{hint}known: {', '.join(known)}")]
        ) from None


def parse(priorities: Sequence[str]) -> list[Wanted]:
    """Parse a priority list. ``auto`` stands for the default order.

    Raises:
        ConfigError: an entry is not a kind of hardware, or its index is not a number.
    """
    wanted: list[Wanted] = []
    for entry in priorities:
        name, colon, number = str(entry).partition(":")
        if entry == AUTO:
            wanted += [Wanted(kind=kind, index=None) for kind in DEFAULT_ORDER]
            continue
        kind = kind_of(name, where="priority_list")
        if colon and not number.isdigit():
            raise ConfigError([Problem(where="priority_list", what=f"{entry!r} has no device number", hint=f"such as {kind.value}:1")])
        wanted.append(Wanted(kind=kind, index=int(number) if colon else None))
    return wanted


def choose(wanted: Sequence[Wanted], preferred_index: int, given: Circumstances) -> DeviceChoice:
    """Choose the first entry that PyTorch can use, or else the CPU.

    An entry's own index overrides ``preferred_index``. An index that does not exist becomes 0, with a warning.

    Raises:
        ConfigError: ``preferred_index`` is negative or not a number.
    """
    if isinstance(preferred_index, bool) or not isinstance(preferred_index, int) or preferred_index < 0:
        what = f"{preferred_index!r} is not a valid device number"
        raise ConfigError([Problem(where="preferred_index", what=what, hint="devices are counted from 0")])
    passed: list[tuple[str, str]] = []
    for entry in wanted:
        count, why = _usable(entry.kind, given)
        if count:
            index = _index(entry, preferred_index, count)
            device = str(descriptor_of(entry.kind).torch_name(index))
            return DeviceChoice(hardware=entry.kind.value, torch_device=device, reason=why, passed_over=tuple(passed))
        _LOG.debug("%s is passed over: %s", entry.kind.value, why)
        passed.append((entry.kind.value, why))
    if wanted:
        _LOG.warning("none of %s can be used with PyTorch here: using the CPU", ", ".join(entry.kind.value for entry in wanted))
    reason = "nothing else in the list can be used" if wanted else "the list is empty"
    return DeviceChoice(hardware=Backend.CPU.value, torch_device="cpu", reason=reason, passed_over=tuple(passed))


def first_here(order: Sequence[str], ask: Callable[[Backend], Detection], *, asked_for: str | None = None) -> HardwareChoice:
    """Choose the first kind in an order that is here, whatever runtime uses it; the CPU if none is.

    Emulators and browsers are chosen only if ``asked_for``, because they are slower than the CPU that they run on.

    Raises:
        ConfigError: an entry is not a kind of hardware.
    """
    passed: list[tuple[str, str]] = []
    for kind in (kind_of(name, where="order") for name in order):
        found = ask(kind)
        slow = found.features.get("execution", descriptor_of(kind).execution) != Execution.HARDWARE
        if found.available and (not slow or kind == asked_for):
            return HardwareChoice(hardware=kind.value, reason=f"{found.name} is here", passed_over=tuple(passed))
        why = "here it is emulated or in a browser, slower than the CPU itself: used only if requested"
        passed.append((kind.value, why if found.available else found.reason or "it is not here"))
    return HardwareChoice(hardware=Backend.CPU.value, reason="nothing else in the order is here", passed_over=tuple(passed))


def _index(entry: Wanted, preferred: int, count: int) -> int:
    index = preferred if entry.index is None else entry.index
    if index < count:
        return index
    if descriptor_of(entry.kind).several or entry.index is not None:  # a preferred GPU index does not apply to a CPU
        _LOG.warning("there is no %s device %d, only %d: using device 0", entry.kind.value, index, count)
    return 0


def _usable(kind: Backend, given: Circumstances) -> tuple[int, str]:
    """Return how many devices of a kind PyTorch can use here and why, or 0 with the reason why not."""
    if kind is Backend.CPU:
        return 1, "it is always here"
    if kind not in DEFAULT_ORDER:
        return 0, "it is not a device of PyTorch: its own runtime executes models"
    found = given.ask(kind)
    if not found.available:
        return 0, found.reason or "it is not here"
    refusal = _REFUSALS[kind](found.features, given.torch) if given.torch is not None else None
    if refusal is not None:
        return 0, refusal
    count, hidden = _COUNTS[kind](found.features, given)
    here = f"{found.name} is here" + ("" if given.torch else ", but no PyTorch is installed to confirm it")
    return (count, here) if count else (0, hidden)


def _cuda_refusal(facts: Mapping[str, Any], torch: TorchBuild) -> str | None:
    if torch.cuda is None:
        return f"the installed PyTorch {torch.version} is built for {torch.purpose}, not for CUDA"
    needed, able = torch_build.number(torch.cuda)[:1], torch_build.number(str(facts.get("cuda")))[:1]
    if needed and able and needed > able:  # within a major version, every driver runs every CUDA (CUDA Compatibility, minor versions)
        return (
            f"PyTorch {torch.version} is built for CUDA {torch.cuda}, but driver {facts.get('driver')} runs CUDA up to {facts.get('cuda')}"
        )
    return None


def _rocm_refusal(_facts: Mapping[str, Any], torch: TorchBuild) -> str | None:
    return None if torch.hip else f"the installed PyTorch {torch.version} is built for {torch.purpose}, not for ROCm"


def _mps_refusal(_facts: Mapping[str, Any], torch: TorchBuild) -> str | None:
    return None if torch_build.number(torch.version) >= _SINCE_MPS else f"PyTorch {torch.version} has no MPS: it came with 1.12"


def _cuda_count(facts: Mapping[str, Any], given: Circumstances) -> tuple[int, str]:
    count = _started() or len(visible.cuda_gpus(facts["gpus"], given.environment))
    return count, _hidden(visible.CUDA, given)


def _rocm_count(facts: Mapping[str, Any], given: Circumstances) -> tuple[int, str]:
    count = _started() or len(visible.rocm_gpus(facts["gpus"], given.environment))
    return count, _hidden((*visible.ROCM, *visible.CUDA), given)


def _hidden(names: tuple[str, ...], given: Circumstances) -> str:
    return "hidden by " + ", ".join(f"{name}={given.environment[name]!r}" for name in names if name in given.environment)


def _started() -> int:
    """The number of devices if PyTorch has already started them; otherwise 0, because counting would start them."""
    torch = torch_build.imported()
    return int(torch.cuda.device_count()) if torch is not None and torch.cuda.is_initialized() else 0


_REFUSALS: Final = {Backend.CUDA: _cuda_refusal, Backend.ROCM: _rocm_refusal, Backend.MPS: _mps_refusal}
_COUNTS: Final[dict[Backend, Callable[[Mapping[str, Any], Circumstances], tuple[int, str]]]] = {
    Backend.CUDA: _cuda_count,
    Backend.ROCM: _rocm_count,
    Backend.MPS: lambda _facts, _given: (1, ""),
}
