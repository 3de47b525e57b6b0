"""Checks whether a machine can run the jobs of each target: what is available, what is missing, and how to fix it."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final

from hwmatrix.host.engine import BUILDER_ADVICE, INSTALL_ADVICE
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hwmatrix.host.ci_machines.facts import Facts, Node
    from hwmatrix.matrix.spec import MatrixSpec, TargetSpec
    from hwmatrix.records import Detection

DISK_MB: Final = {"python": 3_000, "torch-cpu": 5_000, "torch-cuda": 16_000, "torch-rocm": 40_000}
"""MiB to build on each base: its images (docs/images.md), and as much again for downloading and unpacking packages."""
WORK_MB: Final = 2_000
"""MiB for bundles, exports and shards of the models in matrix.yaml."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Readiness:
    """Whether a target can run here, and the names of what it lacks."""

    target: str
    ready: bool
    missing: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """All findings, and the readiness of each target."""

    findings: tuple[Finding, ...]
    targets: tuple[Readiness, ...]


def check(spec: MatrixSpec, targets: Sequence[str], facts: Facts) -> Report:
    """Evaluate the facts of a machine for the given targets."""
    chosen = {name: spec.targets[name] for name in targets}
    contained = tuple(name for name, target in chosen.items() if not target.native)
    native = tuple(name for name, target in chosen.items() if target.native)
    findings = [
        _git(facts),
        *_python(facts, native),
        *(_engine(facts, contained) if contained else ()),
        *(_images_space(facts, chosen, contained) if contained else ()),
        _cache_space(facts),
        *_hardware(facts, chosen),
    ]
    return Report(findings=tuple(findings), targets=tuple(_readiness(name, findings) for name in targets))


def _readiness(target: str, findings: Iterable[Finding]) -> Readiness:
    missing = tuple(
        finding.what for finding in findings if finding.state is State.MISSING and (not finding.targets or target in finding.targets)
    )
    return Readiness(target=target, ready=not missing, missing=missing)


def _git(facts: Facts) -> Finding:
    if facts.git is None:
        return Finding(what="git", state=State.MISSING, fact="not on PATH", mend="Install git: jobs check the project out with it.")
    return Finding(what="git", state=State.OK, fact=facts.git)


def _python(facts: Facts, native: tuple[str, ...]) -> list[Finding]:
    found = [Finding(what="python", state=State.OK, fact=facts.python)]
    if native and not facts.venv:
        mend = "Install Python's venv module (on Debian: apt-get install python3-venv)."
        found.append(Finding(what="venv", state=State.MISSING, fact="Python cannot make environments", mend=mend, targets=native))
    if facts.pip is None:
        mend = "Fix that file: images are built with this machine's pip settings."
        return [*found, Finding(what="pip", state=State.MISSING, fact=facts.pip_problem, mend=mend)]
    return [*found, Finding(what="pip", state=State.OK, fact=facts.pip)]


def _engine(facts: Facts, targets: tuple[str, ...]) -> list[Finding]:
    engine = facts.engine
    if engine is None:
        return [Finding(what="engine", state=State.MISSING, fact=facts.engine_problem, mend=INSTALL_ADVICE, targets=targets)]
    fact = f"{engine.version} ({engine.operating_system}), API {engine.api_version}, cgroups {engine.cgroup_version}"
    found = [Finding(what="engine", state=State.OK, fact=fact, targets=targets)]
    if engine.builder is None:
        found.append(Finding(what="builder", state=State.MISSING, fact=engine.builder_problem, mend=BUILDER_ADVICE, targets=targets))
    else:
        found.append(Finding(what="builder", state=State.OK, fact=f"{engine.builder} builds", targets=targets))
    if engine.rootless:
        found.append(Finding(what="rights", state=State.OK, fact="the engine is rootless", targets=targets))
    else:
        found.append(Finding(what="rights", state=State.ADVICE, fact="the engine runs as root", mend=_ROOT, targets=targets))
    return found


def _images_space(facts: Facts, chosen: dict[str, TargetSpec], contained: tuple[str, ...]) -> list[Finding]:
    """Check the space for images that are not built yet. Each base is counted once."""
    if facts.engine is None:
        return []
    if facts.engine_space is None or facts.engine_space.free_mb is None:
        fact = "the free space on the engine's disk cannot be read from here"
        return [Finding(what="space for images", state=State.ADVICE, fact=fact, mend="See docker system df.", targets=contained)]
    free, folder = facts.engine_space.free_mb, facts.engine_space.folder
    absent = {kind for kind, found in _needed_here(facts) if not found.available}  # nothing is built for missing hardware
    needy = tuple(name for name in contained if name not in facts.images and chosen[name].backend not in absent)
    if not needy:
        return [
            Finding(
                what="space for images", state=State.OK, fact=f"{free} MB free in {folder}; nothing is left to build", targets=contained
            )
        ]
    needed = sum(DISK_MB.get(base, max(DISK_MB.values())) for base in {chosen[name].base for name in needy})
    fact = f"{free} MB free in {folder}; building {', '.join(needy)} takes up to {needed} MB"
    if free >= needed:
        return [Finding(what="space for images", state=State.OK, fact=fact, targets=contained)]
    mend = "Free space: hwmatrix runner prune, docker builder prune; or build fewer --targets."
    return [Finding(what="space for images", state=State.MISSING, fact=fact, mend=mend, targets=needy)]


def _cache_space(facts: Facts) -> Finding:
    free, folder = facts.cache_space.free_mb, facts.cache_space.folder
    if free is None:
        return Finding(
            what="space for the cache", state=State.ADVICE, fact=f"{folder}: the free space cannot be read", mend="Set HWMATRIX_CACHE."
        )
    fact = f"{free} MB free in {folder}, {WORK_MB} MB needed"
    if free >= WORK_MB:
        return Finding(what="space for the cache", state=State.OK, fact=fact)
    mend = "Free space: hwmatrix runner prune; or set HWMATRIX_CACHE to a folder on a larger disk."
    return Finding(what="space for the cache", state=State.MISSING, fact=fact, mend=mend)


def _needed_here(facts: Facts) -> list[tuple[str, Detection]]:
    """The detections of hardware that no image includes."""
    return [(kind, found) for kind, found in facts.found.items() if descriptor_of(kind).hardware.needed_here]


def _hardware(facts: Facts, chosen: dict[str, TargetSpec]) -> list[Finding]:
    findings: list[Finding] = []
    for backend, found in _needed_here(facts):
        names = tuple(name for name, target in chosen.items() if target.backend == backend)
        if names:
            what, state = f"{backend} hardware", State.OK if found.available else State.MISSING
            fact = (found.name or "it is here") if found.available else (found.reason or "not found")
            findings.append(
                Finding(
                    what=what,
                    state=state,
                    fact=fact,
                    mend=None if found.available else descriptor_of(backend).hardware.if_missing,
                    targets=names,
                )
            )
    gpus = tuple(name for name, target in chosen.items() if target.gpus)
    if gpus:
        findings.append(_toolkit(facts, gpus))
    paths = dict.fromkeys(path for target in chosen.values() for path in target.devices)
    findings += [_device(path, facts.nodes[path], tuple(name for name, it in chosen.items() if path in it.devices)) for path in paths]
    return findings


def _toolkit(facts: Facts, targets: tuple[str, ...]) -> Finding:
    """Check for NVIDIA's container toolkit. The engine's own report counts first: an installed toolkit that it does not use is no help."""
    if "nvidia" in facts.runtimes:
        return Finding(what="container toolkit", state=State.OK, fact="the engine has the runtime nvidia", targets=targets)
    if "nvidia.com/gpu" in facts.around.cdi:
        return Finding(what="container toolkit", state=State.OK, fact="CDI describes nvidia.com/gpu", targets=targets)
    if "nvidia-container-runtime-hook" in facts.around.toolkit:
        return Finding(what="container toolkit", state=State.OK, fact="nvidia-container-runtime-hook is on PATH", targets=targets)
    installed = ", ".join(facts.around.toolkit)
    fact = f"{installed} is installed, but the engine does not use it" if installed else "not installed"
    return Finding(what="container toolkit", state=State.MISSING, fact=fact, mend=_TOOLKIT, targets=targets)


def _device(path: str, nodes: tuple[Node, ...], targets: tuple[str, ...]) -> Finding:
    here = [node for node in nodes if node.exists]
    if not here:
        mend = "Load the device's driver; without it, containers cannot use the node."
        return Finding(what=path, state=State.MISSING, fact="not here", mend=mend, targets=targets)
    denied = [node for node in here if not node.usable]
    groups = ", ".join(sorted({node.group for node in denied if node.group}))
    if denied:
        mend = f"Add this user to the groups {groups}: sudo usermod -aG {groups.replace(' ', '')} $USER, and log in again."
        fact = f"this user may not use {', '.join(node.path for node in denied)}"
        return Finding(what=path, state=State.MISSING, fact=fact, mend=mend, targets=targets)
    return Finding(what=path, state=State.OK, fact=f"this user may use {', '.join(node.path for node in here)}", targets=targets)
