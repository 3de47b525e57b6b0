"""Collects the facts about a machine as a runner, once. Nothing is built or pulled: it only runs quick queries."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import ConfigError, EngineError
from hwmatrix.hardware import container
from hwmatrix.hardware.detector import detect
from hwmatrix.host import base_image, pip_settings
from hwmatrix.host.engine import Engine, connect
from hwmatrix.host.images import image_tag
from hwmatrix.records import Detection
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from hwmatrix.host.pip_settings import PipSettings
    from hwmatrix.matrix.spec import MatrixSpec

_MIB: Final = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """A device node that a target's container needs: whether it exists, its group, and whether this user may use it."""

    path: str
    exists: bool
    usable: bool
    group: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Space:
    """A folder and the free MiB on its disk; None if unknown."""

    folder: Path
    free_mb: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts about a machine.

    ``found`` is the hardware that targets need on this machine, ``images`` are the engine's tags of this version. A ``*_problem`` says why
    something is missing.
    """

    system: str
    machine: str
    python: str
    venv: bool
    git: str | None
    pip: str | None
    pip_problem: str
    engine: Engine | None
    engine_problem: str
    runtimes: frozenset[str]
    images: frozenset[str]
    engine_space: Space | None
    cache_space: Space
    around: container.Surroundings
    found: Mapping[str, Detection]
    nodes: Mapping[str, tuple[Node, ...]]


def _needed_here(spec: MatrixSpec) -> list[str]:
    """The backends of the targets whose hardware no image includes."""
    backends = dict.fromkeys(target.backend for target in spec.targets.values())
    return [backend for backend in backends if descriptor_of(backend).hardware.needed_here]


def gather(spec: MatrixSpec, environment: Mapping[str, str], cache: Path) -> Facts:
    """Query this machine. It takes a second, or three if an engine must prove that it can build."""
    engine, engine_problem = connected(environment)
    runtimes, images, root = _engine_facts(engine, spec)
    try:
        pip, pip_problem = _pip(pip_settings.read(environment)), ""
    except ConfigError as error:
        pip, pip_problem = None, str(error)
    return Facts(
        system=platform.system(),
        machine=platform.machine(),
        python=platform.python_version(),
        venv=importlib.util.find_spec("ensurepip") is not None,
        git=shutil.which("git", path=environment.get("PATH")),
        pip=pip,
        pip_problem=pip_problem,
        engine=engine,
        engine_problem=engine_problem,
        runtimes=runtimes,
        images=images,
        engine_space=space(root) if root else None,
        cache_space=space(cache),
        around=container.look(path=environment.get("PATH")),
        found={kind: detect(kind, light=True) for kind in _needed_here(spec)},
        nodes={path: nodes(Path(path)) for path in sorted({path for target in spec.targets.values() for path in target.devices})},
    )


def connected(environment: Mapping[str, str], *, need_builder: bool = True) -> tuple[Engine | None, str]:
    """Connect to the engine. Return it, or None with the reason."""
    try:
        return connect(environment, need_builder=need_builder), ""
    except EngineError as error:
        return None, error.message


def space(folder: Path) -> Space:
    """Return the free space on a folder's disk. The folder need not exist yet."""
    near = next((path for path in (folder, *folder.parents) if path.exists()), None)
    try:
        return Space(folder=folder, free_mb=shutil.disk_usage(near).free // _MIB if near else None)
    except OSError:
        return Space(folder=folder, free_mb=None)


def nodes(path: Path) -> tuple[Node, ...]:
    """Return the node at a path, or the nodes in it if it is a folder (/dev/dri)."""
    try:
        paths = sorted(node for node in path.iterdir() if not node.is_dir()) if path.is_dir() else [path]
    except OSError:
        paths = [path]
    return tuple(_node(each) for each in paths)


def _node(path: Path) -> Node:
    try:
        group: str | None = _group(path.stat().st_gid)
    except OSError:
        return Node(path=str(path), exists=False, usable=False, group=None)
    return Node(path=str(path), exists=True, usable=os.access(path, os.R_OK | os.W_OK), group=group)


def _group(number: int) -> str:
    if sys.platform == "win32":
        return str(number)
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _engine_facts(engine: Engine | None, spec: MatrixSpec) -> tuple[frozenset[str], frozenset[str], Path | None]:
    """Return the runtimes, the images of this version, and the engine's storage folder if it is on this machine."""
    if engine is None:
        return frozenset(), frozenset(), None
    client = engine.client()
    try:
        info = client.info()
        images = frozenset(target for target in spec.targets if base_image.image_digest(client, image_tag(target)))
    finally:
        client.close()
    root = Path(info.get("DockerRootDir") or "/nowhere")
    here = engine.url.startswith("unix://") and root.exists()
    return frozenset(info.get("Runtimes") or ()), images, root if here else None


def _pip(settings: PipSettings) -> str:
    """Name the settings of pip, but never their values, which may contain passwords."""
    named = sorted({*settings.single, *settings.lists})
    certificates = f", certificates of {settings.certificates}" if settings.certificates else ""
    problem = f"; {settings.problem}" if settings.problem else ""
    return f"{', '.join(named) if named else 'the public package index'}{certificates}{problem}"
