"""Containers: whether this process runs in one, and which hardware a container started here would see.

Engines are not queried. Only files are read: device nodes, the container toolkit's programs, CDI specifications (which describe devices to
engines) and the settings of Docker's daemon.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.json_text import read_json
from hwmatrix.hardware import cgroups
from hwmatrix.records.backends import InContainer, descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hwmatrix.records import Detection

NODES: Final = ("nvidia*", "kfd", "dri/*", "accel/*", "dxg", "fastrpc-*")
"""Device nodes of accelerators in /dev: NVIDIA's, AMD's compute driver, GPUs, NPUs, WSL's GPU, Qualcomm's DSPs."""
_TOOLKIT: Final = ("nvidia-ctk", "nvidia-container-cli", "nvidia-container-runtime", "nvidia-container-runtime-hook")
_CDI: Final = ("etc/cdi", "var/run/cdi")
_CDI_KIND: Final = re.compile(r"""(?:^|[{,])\s*["']?kind["']?\s*:\s*["']?([\w.-]+/[\w.-]+)""", re.MULTILINE)
_DAEMON: Final = "etc/docker/daemon.json"
_MARKS: Final = (("docker", ".dockerenv"), ("podman", "run/.containerenv"))
_GROUPS: Final = re.compile(r"[/:](docker|kubepods|containerd|libpod|lxc|crio)\b")
_SYSTEMD: Final = "run/systemd/container"
"""The file in which systemd records the kind of container that it runs in."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Facts about containers here, from files.

    ``inside`` names the kind of container that this process runs in, with the evidence; None outside. ``nodes`` are the device nodes,
    ``toolkit`` NVIDIA's container programs on PATH, ``cdi`` the kinds of devices that CDI describes, ``runtimes`` those in the settings
    file of Docker's daemon.
    """

    inside: str | None
    nodes: tuple[str, ...]
    toolkit: tuple[str, ...]
    cdi: tuple[str, ...]
    runtimes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """Whether a container sees a kind of hardware, and why."""

    visible: bool
    why: str


def look(root: Path = cgroups.ROOT, path: str | None = None) -> Surroundings:
    """Collect the facts. Never raises. ``path`` replaces PATH."""
    return Surroundings(
        inside=_inside(root),
        nodes=tuple(f"/{node.relative_to(root)}" for pattern in NODES for node in sorted((root / "dev").glob(pattern))),
        toolkit=tuple(program for program in _TOOLKIT if shutil.which(program, path=path)),
        cdi=tuple(sorted(set(_cdi_kinds(root)))),
        runtimes=_runtimes(root),
    )


def view(kind: str, found: Detection, around: Surroundings) -> View:
    """Return what a container sees of a kind of hardware: this process's own container, or else one started here.

    Whether there is an engine at all is not checked. ``hwmatrix matrix`` does this when it starts a container.
    """
    if around.inside is not None:
        why = f"this is one ({around.inside})" if found.available else found.reason or "not found in this container"
        return View(visible=found.available, why=why)
    hardware = descriptor_of(kind).hardware
    seen = hardware.in_container
    if seen is InContainer.NVIDIA:
        return _cuda(found, around)
    if seen is InContainer.AMD:
        return _rocm(found, around)
    if seen is InContainer.SOFTWARE:
        return _software(hardware.container_reason, around)
    return View(visible=seen is InContainer.ALWAYS, why=hardware.container_reason)


def _cuda(found: Detection, around: Surroundings) -> View:
    if not found.available:
        return View(visible=False, why=found.reason or "no GPU here")
    if "nvidia.com/gpu" in around.cdi:
        return View(visible=True, why="CDI describes nvidia.com/gpu")
    if around.toolkit or "nvidia" in around.runtimes:
        how = f"{around.toolkit[0]} is here" if around.toolkit else "Docker's daemon has the runtime nvidia"
        return View(visible=True, why=f"NVIDIA's container toolkit: {how}")
    return View(
        visible=False, why="NVIDIA's container toolkit is not installed (no nvidia-ctk, no CDI specification, no runtime of Docker's)"
    )


def _rocm(found: Detection, around: Surroundings) -> View:
    if not found.available:
        return View(visible=False, why=found.reason or "no GPU here")
    if "/dev/kfd" in around.nodes and any(node.startswith("/dev/dri/renderD") for node in around.nodes):
        return View(visible=True, why="a container with /dev/kfd and /dev/dri sees it")
    return View(visible=False, why="/dev/kfd or /dev/dri/renderD* does not exist, so it cannot be passed to a container")


def _software(brought: str, around: Surroundings) -> View:
    """The image's software works on every CPU. It sees a GPU or an NPU only if its node is passed to the container."""
    given = sorted({node.rpartition("/")[0] for node in around.nodes if node.startswith(("/dev/dri/renderD", "/dev/accel/"))})
    more = f"; GPU or NPU with {' and '.join(given)} given to it" if given else "; no GPU or NPU has a node here"
    return View(visible=True, why=f"the image brings {brought}{more}")


def _inside(root: Path) -> str | None:
    for name, mark in _MARKS:
        if (root / mark).exists():
            return f"{name}: there is a /{mark}"
    told = cgroups.read(root / _SYSTEMD)
    if told:
        return f"{told}: /{_SYSTEMD} says so"
    group = _GROUPS.search(cgroups.read(root / "proc/self/cgroup") or "")
    return f"{group[1]}: /proc/self/cgroup names it" if group else None


def _cdi_kinds(root: Path) -> Iterable[str]:
    for folder in _CDI:
        for file in (root / folder).glob("*"):
            if file.suffix in {".yaml", ".json"}:
                yield from _CDI_KIND.findall(cgroups.read(file) or "")


def _runtimes(root: Path) -> tuple[str, ...]:
    try:
        told = read_json(cgroups.read(root / _DAEMON) or "{}")
    except ValueError:
        return ()
    runtimes = told.get("runtimes") if isinstance(told, dict) else None
    return tuple(sorted(runtimes)) if isinstance(runtimes, dict) else ()
