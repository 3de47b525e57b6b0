"""Checks whether this machine can run the jobs of each target: what is available, what is missing, and how to fix it.

Nothing is built or pulled. It takes a second, or three if an engine must prove that it can build.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, EngineError
from hwmatrix.hardware import container
from hwmatrix.hardware.detector import detect
from hwmatrix.host import pip_settings
from hwmatrix.host.base_image import image_digest
from hwmatrix.host.engine import BUILDER_ADVICE, Engine, connect
from hwmatrix.host.images import image_tag
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hwmatrix.matrix.spec import MatrixSpec, TargetSpec

DISK_MB: Final = {"python": 3_000, "torch-cpu": 5_000, "torch-cuda": 16_000, "torch-rocm": 40_000}
"""MiB to build on each base: its images (docs/images.md), and as much again for downloading and unpacking packages."""
WORK_MB: Final = 2_000
"""MiB for bundles, exports and shards of the models in matrix.yaml."""
_MIB: Final = 2**20
_TOOLKIT: Final = (
    "Install nvidia-container-toolkit, then: nvidia-ctk runtime configure --runtime=docker, and restart Docker "
    "(or nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml)."
)
_ROOT: Final = "Fine on a dedicated machine. With a rootless engine, a process that escapes its container is not root."


class State(enum.StrEnum):
    """The state of a finding: present, missing (so that something cannot run), or usable but improvable."""

    OK = "ok"
    MISSING = "missing"
    ADVICE = "advice"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that jobs need: ``fact`` is what was found, ``mend`` how to fix it, ``targets`` which targets need it (empty: all)."""

    what: str
    state: State
    fact: str
    mend: str | None = None
    targets: tuple[str, ...] = ()


def check(spec: MatrixSpec, targets: Sequence[str], environment: Mapping[str, str], cache: Path) -> list[Finding]:
    """Check this machine for the given targets. ``cache`` is the cache folder, which need not exist yet."""
    chosen = {name: spec.targets[name] for name in targets}
    native = tuple(name for name, target in chosen.items() if target.native)
    contained = {name: target for name, target in chosen.items() if not target.native}
    engine, problem, advice = connected(environment)
    info, built = _asked(engine, contained)
    findings = [_git(environment), *_python(environment, native)]
    if contained:
        findings += _engine(engine, problem, advice, tuple(contained))
    if engine and engine.url.startswith("unix://"):  # else its disk is another machine's
        findings += _images_space(info, {name: target for name, target in contained.items() if name not in built})
    findings += [_cache_space(cache), *_hardware(chosen)]
    findings += _toolkit(info, environment, tuple(name for name, target in chosen.items() if target.gpus))
    for path in dict.fromkeys(path for target in chosen.values() for path in target.devices):
        findings.append(device(Path(path), tuple(name for name, target in chosen.items() if path in target.devices)))
    return findings


def missing(findings: Iterable[Finding], target: str) -> tuple[str, ...]:
    """The names of what a target lacks; empty: it can run here."""
    return tuple(each.what for each in findings if each.state is State.MISSING and (not each.targets or target in each.targets))


def connected(environment: Mapping[str, str], *, need_builder: bool = True) -> tuple[Engine | None, str, str]:
    """Connect to the engine. Return it, or None with the reason and what to do."""
    try:
        return connect(environment, need_builder=need_builder), "", ""
    except EngineError as error:
        return None, error.message, error.advice


def _finding(what: str, fact: str, mend: str | None = None, targets: tuple[str, ...] = ()) -> Finding:
    """A finding that is missing if there is something to ``mend``."""
    return Finding(what=what, state=State.OK if mend is None else State.MISSING, fact=fact, mend=mend, targets=targets)


def _asked(engine: Engine | None, contained: Iterable[str]) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return the engine's own description, and the targets whose images of this version it has."""
    if engine is None:
        return {}, frozenset()
    with contextlib.closing(engine.client()) as client:
        return client.info(), frozenset(name for name in contained if image_digest(client, image_tag(name)))


def _git(environment: Mapping[str, str]) -> Finding:
    git = shutil.which("git", path=environment.get("PATH"))
    return _finding("git", git) if git else _finding("git", "not on PATH", "Install git: jobs check the project out with it.")


def _python(environment: Mapping[str, str], native: tuple[str, ...]) -> list[Finding]:
    findings = [_finding("python", platform.python_version())]
    if native and importlib.util.find_spec("ensurepip") is None:
        mend = "Install Python's venv module (on Debian: apt-get install python3-venv)."
        findings.append(_finding("venv", "Python cannot make environments", mend, native))
    try:
        settings = pip_settings.read(environment)
    except ConfigError as error:
        return [*findings, _finding("pip", str(error), "Fix that file: images are built with this machine's pip settings.")]
    names = ", ".join(sorted({*settings.single, *settings.lists})) or "the public package index"  # values may contain passwords
    certificates = f"certificates of {settings.certificates}" if settings.certificates else ""
    return [*findings, _finding("pip", "; ".join(filter(None, (names, certificates, settings.problem))))]


def _engine(engine: Engine | None, problem: str, advice: str, targets: tuple[str, ...]) -> list[Finding]:
    if engine is None:
        return [_finding("engine", problem, advice, targets)]
    fact = f"{engine.version} ({engine.operating_system}), API {engine.api_version}, cgroups {engine.cgroup_version}"
    builder = f"{engine.builder} builds" if engine.builder else engine.builder_problem
    rights = ("the engine is rootless", State.OK, None) if engine.rootless else ("the engine runs as root", State.ADVICE, _ROOT)
    return [
        _finding("engine", fact, targets=targets),
        _finding("builder", builder, None if engine.builder else BUILDER_ADVICE, targets),
        Finding(what="rights", fact=rights[0], state=rights[1], mend=rights[2], targets=targets),
    ]


def _images_space(info: Mapping[str, Any], unbuilt: Mapping[str, TargetSpec]) -> list[Finding]:
    """Check the space for images that are not built yet, base by base."""
    root = Path(info.get("DockerRootDir") or "/nowhere")
    return [
        _space(
            f"space for {base} images",
            root,
            DISK_MB.get(base, max(DISK_MB.values())),
            "Free space: hwmatrix runner prune, docker builder prune; or build fewer --targets.",
            tuple(name for name, target in unbuilt.items() if target.base == base),
        )
        for base in dict.fromkeys(target.base for target in unbuilt.values())
        if root.exists()  # else the engine has a file system of its own
    ]


def _cache_space(cache: Path) -> Finding:
    mend = "Free space: hwmatrix runner prune; or set HWMATRIX_CACHE to a folder on a larger disk."
    return _space("space for the cache", cache, WORK_MB, mend)


def _space(what: str, folder: Path, needed: int, mend: str, targets: tuple[str, ...] = ()) -> Finding:
    try:
        free = _free_mb(folder)
    except OSError as error:
        return _finding(what, f"{folder} cannot be used: {error}", mend, targets)
    return _finding(what, f"{free} MB free in {folder}, up to {needed} MB needed", None if free >= needed else mend, targets)


def _free_mb(folder: Path) -> int:
    """The free MiB on a folder's disk. The folder need not exist yet."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free // _MIB


def _hardware(chosen: Mapping[str, TargetSpec]) -> list[Finding]:
    """Check for the hardware that no image includes."""
    findings = []
    for backend in dict.fromkeys(target.backend for target in chosen.values()):
        hardware = descriptor_of(backend).hardware
        if hardware.needed_here:
            detection = detect(backend, light=True)
            fact = (detection.name or "it is here") if detection.available else (detection.reason or "not found")
            names = tuple(name for name, target in chosen.items() if target.backend == backend)
            findings.append(_finding(f"{backend} hardware", fact, None if detection.available else hardware.if_missing, names))
    return findings


def _toolkit(info: Mapping[str, Any], environment: Mapping[str, str], targets: tuple[str, ...]) -> list[Finding]:
    """Check for NVIDIA's container toolkit. An installed toolkit that the engine does not use is no help."""
    if not targets:
        return []
    around = container.look(path=environment.get("PATH"))
    usable = "nvidia" in (info.get("Runtimes") or ()) or "nvidia.com/gpu" in around.cdi or "nvidia-container-runtime-hook" in around.toolkit
    installed = f"installed: {', '.join(around.toolkit) or 'nothing'}"
    fact = "the engine can use it" if usable else f"the engine does not use it ({installed})"
    return [_finding("container toolkit", fact, None if usable else _TOOLKIT, targets)]


def device(path: Path, targets: tuple[str, ...]) -> Finding:
    """Check a device node that containers get, or each node in a folder: it must exist, and this user must be allowed to use it."""
    nodes = sorted(node for node in (path.iterdir() if path.is_dir() else [path]) if node.exists() and not node.is_dir())
    denied = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if not nodes:
        return _finding(str(path), "not here", "Load the device's driver; without it, containers cannot use the node.", targets)
    if denied:
        groups = ",".join(sorted({str(node.stat().st_gid) for node in denied}))
        mend = f"Add this user to the nodes' groups, and log in again: sudo usermod -aG {groups} $USER."
        return _finding(str(path), f"this user may not use {', '.join(map(str, denied))}", mend, targets)
    return _finding(str(path), f"this user may use {', '.join(map(str, nodes))}", targets=targets)
