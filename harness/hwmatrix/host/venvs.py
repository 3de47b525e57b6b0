"""Virtual environments as a replacement for images without a container engine: the same requirements, layer by layer.

A layer is a small virtual environment that sees the packages of the layers below it through a ``.pth`` file, as an image layer sees the
files below. So PyTorch is installed once for all targets, and a change of the harness costs a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import platform
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import ImageBuildError
from hwmatrix.host.process import Processes
from hwmatrix.host.requirements import Layer, layers
from hwmatrix.host.wheel import build_wheel
from hwmatrix.models.folder import LOCKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hwmatrix.matrix.spec import MatrixSpec

LAYOUT: Final = "hwmatrix/venv/1"
MARKER: Final = "hwmatrix-layer"
LAYERS: Final = "hwmatrix-layers.pth"
"""The file of an environment that names the layers below it."""
# The variables that the images set, so that a model sees the same in both.
RUNTIME_ENVIRONMENT: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class VenvTarget:
    """An environment that is ready: its interpreter, extra variables, and a digest.

    ``digest`` is the SHA-256 of Python, requirements, constraints and harness, used in place of an image id.
    """

    target: str
    python: Path
    digest: str
    environment: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Venv:
    """One layer on disk. ``below`` are the site-packages of the layers below it, the nearest first."""

    folder: Path
    below: tuple[Path, ...]

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        return Path(sysconfig.get_path("purelib", scheme="venv", vars={"base": str(self.folder)}))


def ensure_venv(
    *,
    project_root: Path,
    spec: MatrixSpec,
    target: str,
    cache_dir: Path,
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
) -> VenvTarget:
    """Find or make the virtual environment of a target, under ``cache_dir``/venvs.

    Packages come from this machine's usual pip index, as set in ``environment`` and pip's own settings. If two processes want the same
    layer, only one makes it. An unfinished layer is made again.

    Raises:
        ImageBuildError: Python cannot make virtual environments, pip failed, or the disk is full.
        ConfigError: the target's requirements are missing.
    """
    wanted = spec.targets[target]
    root = cache_dir / "venvs"
    root.mkdir(parents=True, exist_ok=True)
    clean = {name: value for name, value in environment.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
    index = spec.images.indexes.get(wanted.base)
    maker = _Maker(
        environment={**clean, "PYTHONNOUSERSITE": "1", **({"TORCH_INDEX": index} if index else {})},
        on_line=lambda line: on_line(f"[{target}] {line}"),
    )
    key = _interpreter()
    below: tuple[Path, ...] = ()
    for layer in layers(project_root, base=wanted.base, image=wanted.image):
        key = hashlib.sha256(f"{key}:{layer.digest}:{index if layer.index_file else None}".encode()).hexdigest()
        venv = _Venv(folder=root / f"{layer.name}-{key[:16]}", below=below)
        _ensure(venv, key, maker, _pip_commands(layer))
        below = (venv.site, *below)
    with tempfile.TemporaryDirectory(prefix="hwmatrix-wheel-") as folder:
        wheel = build_wheel(project_root, Path(folder))
        key = hashlib.sha256(f"{key}:".encode() + wheel.read_bytes()).hexdigest()
        venv = _Venv(folder=root / f"{target}-harness-{key[:16]}", below=below)
        _ensure(venv, key, maker, [("install", "--no-deps", "--no-index", str(wheel)), ("check",)])
    return VenvTarget(target=target, python=venv.python, digest=f"sha256:{key}", environment=dict(RUNTIME_ENVIRONMENT))


def _interpreter() -> str:
    """The facts of this Python that decide what is installed, and whether an environment still works."""
    return json.dumps([LAYOUT, platform.python_implementation(), sys.version, sysconfig.get_platform(), sys.base_prefix])


def _pip_commands(layer: Layer) -> list[tuple[str, ...]]:
    """The pip commands, as in images/base/Dockerfile: packages from a special index first, with few retries and a short timeout."""
    constraint = ("install", "--constraint", str(layer.constraints))
    commands: list[tuple[str, ...]] = [(*constraint, "--requirement", str(layer.requirements))]
    if layer.index_file:
        commands.insert(0, (*constraint, "--no-deps", "--retries", "2", "--timeout", "15", "--requirement", str(layer.index_file)))
    return commands


def _ensure(venv: _Venv, key: str, maker: _Maker, pip_commands: list[tuple[str, ...]]) -> None:
    """Make a layer unless it exists, is finished, and was made from the same inputs."""
    with _lock(venv.folder.parent / LOCKS / venv.folder.name, maker.on_line):
        marker = venv.folder / MARKER
        if marker.is_file() and marker.read_text(encoding="utf-8") == key:
            return
        maker.on_line(f"making {venv.folder.name}")
        try:
            if venv.folder.exists():
                shutil.rmtree(venv.folder)
            maker.make(venv, pip_commands)
            marker.write_text(key, encoding="utf-8")  # last: a layer without a marker is unfinished
        except OSError as error:
            shutil.rmtree(venv.folder, ignore_errors=True)
            raise ImageBuildError(f"making {venv.folder} failed", command=("python", "-m", "venv"), code=None, output=str(error)) from error
        except BaseException:
            shutil.rmtree(venv.folder, ignore_errors=True)
            raise


@contextlib.contextmanager
def _lock(path: Path, on_line: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock that the kernel releases when its holder dies. The file stays, because removing it would race."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_line(f"waiting for another process that makes {path.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Maker:
    """Makes layers with the interpreter that runs this program."""

    def __init__(self, *, environment: Mapping[str, str], on_line: Callable[[str], None]) -> None:
        self._environment = environment
        self.on_line = on_line

    def make(self, venv: _Venv, pip_commands: list[tuple[str, ...]]) -> None:
        """Create the environment, link the layers below, and install. Only the lowest layer has its own pip."""
        without_pip = ("--without-pip",) if venv.below else ()
        advice = "Install Python's venv module (on Debian: apt-get install python3-venv)."
        self._run((sys.executable, "-m", "venv", *without_pip, str(venv.folder)), "making a virtual environment failed", advice)
        if venv.below:
            (venv.site / LAYERS).write_text("".join(f"{path}\n" for path in venv.below), encoding="utf-8")
        for arguments in pip_commands:
            command = (str(venv.python), "-m", "pip", "--disable-pip-version-check", *arguments)
            self._run(command, "pip failed", "See `pip config list` for where packages come from, and docs/images.md.")

    def _run(self, command: tuple[str, ...], what: str, advice: str) -> None:
        with Processes() as processes:
            done = processes.run(command, environment=self._environment, on_line=self.on_line)
        if done.code != 0:
            raise ImageBuildError(what, command=command, code=done.code, output=done.output, advice=advice)
