"""The labels that a machine should have as a CI runner, each derived from a detected fact."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from hwmatrix.records import Backend
from hwmatrix.records.backends import descriptors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.host.engine import Engine
    from hwmatrix.records import Detection

SELF_HOSTED: Final = "self-hosted"
SYSTEMS: Final = {"Linux": "linux", "Darwin": "macos", "Windows": "windows"}
MACHINES: Final = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64", "armv7l": "arm", "armv6l": "arm"}
"""Python's names of systems and processors, and GitHub's labels for them. GitHub has no runners for others."""
_OPENVINO: Final = ("GPU", "NPU")
DOCKER: Final = "docker"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Label:
    """A label, whether this machine should have it, and the reason."""

    name: str
    carried: bool
    why: str


def needed_here() -> tuple[str, ...]:
    """The kinds of hardware that no image includes, so that the machine itself must have them."""
    return tuple(each.name for each in descriptors() if each.hardware.needed_here)


def labels(found: Mapping[str, Detection], *, system: str, machine: str, engine: Engine | None, engine_problem: str) -> tuple[Label, ...]:
    """Return all known labels, those that apply first.

    ``found`` has the kinds of :func:`needed_here` and OpenVINO. ``system`` and ``machine`` are the values of Python's ``platform``.
    ``engine_problem`` says why there is no ``engine``.
    """
    processor = machine.lower()
    known = [
        Label(name=SELF_HOSTED, carried=True, why="every runner that is not GitHub-hosted has it"),
        Label(name=SYSTEMS.get(system, system.lower()), carried=system in SYSTEMS, why=f"the system is {system}"),
        Label(name=MACHINES.get(processor, processor), carried=processor in MACHINES, why=f"the processor is {machine}"),
        *(_hardware(found[kind]) for kind in needed_here()),
        *(_openvino(found[Backend.OPENVINO], device) for device in _OPENVINO),
        _docker(engine, engine_problem),
    ]
    return tuple(sorted(known, key=lambda label: not label.carried))


def _hardware(found: Detection) -> Label:
    why = found.name or "it is here" if found.available else found.reason or "not found"
    driver = found.features.get("driver") if found.available else None
    return Label(name=found.hardware_type, carried=found.available, why=f"{why}, driver {driver}" if driver else why)


def _openvino(found: Detection, device: str) -> Label:
    """The label of an OpenVINO device. OpenVINO numbers the devices of a kind (GPU.0, GPU.1) if there are several."""
    name = f"openvino-{device.lower()}"
    if not found.available:
        return Label(name=name, carried=False, why=found.reason or "OpenVINO is not installed here")
    devices = {key: told for key, told in found.features.get("devices", {}).items() if key.partition(".")[0] == device}
    if not devices:
        there = ", ".join(found.features.get("devices", {})) or "none"
        return Label(name=name, carried=False, why=f"OpenVINO lists no {device} (it lists: {there})")
    return Label(name=name, carried=True, why=f"OpenVINO lists {', '.join(f'{key} ({told})' for key, told in devices.items())}")


def _docker(engine: Engine | None, problem: str) -> Label:
    if engine is None:
        return Label(name=DOCKER, carried=False, why=problem)
    if engine.builder is None:
        return Label(name=DOCKER, carried=False, why=f"engine {engine.version} answers, but no client can build: {engine.builder_problem}")
    return Label(name=DOCKER, carried=True, why=f"engine {engine.version} answers, {engine.builder} builds")
