"""Builds the images of the targets with BuildKit: the base stages once, then the targets in parallel."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hwmatrix
from hwmatrix.errors import ImageBuildError
from hwmatrix.host import pip_settings
from hwmatrix.host.base_image import image_digest
from hwmatrix.host.engine import BUILDER_ADVICE, Engine
from hwmatrix.host.local_index import serving
from hwmatrix.host.process import Processes
from hwmatrix.host.requirements import layers
from hwmatrix.host.wheel import build_wheel
from hwmatrix.matrix.shipped import IMAGES, image_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hwmatrix.host.pip_settings import PipSettings
    from hwmatrix.matrix.spec import MatrixSpec

CERTIFICATES_IN_BUILD: Final = "/run/secrets/ca.pem"
# Advice for the most common failures, by the messages of pip and BuildKit.
ADVICE: Final = (
    ("no space left on device", "The engine's disk is full: see `docker system df`, and free space with `docker builder prune`."),
    ("CERTIFICATE_VERIFY_FAILED", "Set your network's certificate authority in pip: `pip config set global.cert /path/to/bundle.pem`."),
    ("No matching distribution found", "The package index does not have a version that images/constraints.txt pins: see docs/images.md."),
    (
        "Temporary failure in name resolution",
        "The build cannot resolve the package index: see `pip config list`, and proxies in docs/images.md.",
    ),
    ("invalid secret size", "BuildKit accepts secrets of up to 500 KB: give pip a smaller certificate bundle (global.cert)."),
)


_NOT_FETCHED: Final = re.compile(r"hwmatrix: not fetched: (.+)")
"""What images/webgpu/fetch_npm.py prints if npm cannot fetch a package."""
_DIGITS: Final = 12
"""Of a digest in a tag, as the engine shows them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """An image that is ready. ``digest`` is its id; ``rebuilt`` says whether the build changed it.

    ``tag`` names the last build of this version, from whatever checkout. ``content_tag`` names this image forever.
    """

    target: str
    tag: str
    content_tag: str
    digest: str
    seconds: float
    rebuilt: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Build:
    """What all builds of one call share."""

    engine: Engine
    builder: Path
    processes: Processes
    context: Path
    options: tuple[str, ...]
    on_line: Callable[[str], None]

    def image(
        self,
        *,
        name: str,
        tag: str,
        dockerfile: str,
        arguments: dict[str, str],
        stage: str | None = None,
        labels: Mapping[str, str] | None = None,
        more: tuple[str, ...] = (),
    ) -> BuiltImage:
        """Run one build with ``more`` options. Output lines are prefixed with ``name``; ``labels`` are added to those of the Dockerfile."""
        before, start = self._digest(tag), time.monotonic()
        own = f"{tag}-{uuid.uuid4().hex}"  # another checkout that builds now may take the tag
        command = [
            *(str(self.builder), "build", "--progress=plain", "--file", str(self.context / dockerfile), "--tag", tag, "--tag", own),
            *(part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")),
            *(part for key, value in (labels or {}).items() for part in ("--label", f"{key}={value}")),
            *(("--target", stage) if stage else ()),
            *self.options,
            *more,
            str(self.context),
        ]
        done = self.processes.run(command, environment=self._environment(), on_line=lambda line: self.on_line(f"[{name}] {line}"))
        digest = self._digest(own)
        if done.code != 0 or digest is None:
            advice = next((advice for words, advice in ADVICE if words in done.output), "")
            raise ImageBuildError(
                f"building the image {tag} failed", command=done.command, code=done.code, output=done.output, advice=advice
            )
        content_tag = self._named(digest, tag, own)
        rebuilt = digest != before
        return BuiltImage(target=name, tag=tag, content_tag=content_tag, digest=digest, seconds=time.monotonic() - start, rebuilt=rebuilt)

    def _named(self, digest: str, tag: str, own: str) -> str:
        """Replace a build's own tag by one made of the image's digest; return that."""
        content_tag = f"{tag}-{digest.partition(':')[2][:_DIGITS]}"
        with contextlib.closing(self.engine.client()) as client:
            repository, _, name = content_tag.rpartition(":")
            client.images.get(own).tag(repository, tag=name)
            client.images.remove(own)
        return content_tag

    def _digest(self, tag: str) -> str | None:
        with contextlib.closing(self.engine.client()) as client:  # a separate connection, because builds run in threads
            return image_digest(client, tag)

    def _environment(self) -> dict[str, str]:
        """The environment of a build, in which the local package server on loopback bypasses proxies."""
        environment = self.engine.command_environment()
        without = ",".join(
            part for part in (environment.get("NO_PROXY", environment.get("no_proxy", "")), "127.0.0.1", "localhost") if part
        )
        return {**environment, "NO_PROXY": without, "no_proxy": without}


def image_tag(target: str) -> str:
    """Return the tag of a target's image in this version."""
    return f"hwmatrix/{target}:{hwmatrix.__version__}"


def build_images(
    *,
    project_root: Path,
    spec: MatrixSpec,
    targets: Sequence[str],
    engine: Engine,
    on_line: Callable[[str], None],
    base: str,
    commit: str | None = None,
    source: str | None = None,
    attest: bool = False,
) -> dict[str, BuiltImage]:
    """Build the images of ``targets`` (names in ``spec``). If they are already built, this takes seconds.

    They are built on ``base`` (from ``base_image.resolve``). ``on_line`` gets every line of output, from several threads. ``commit``
    becomes the label of the source's revision, ``source`` (the project's address) that of the source. ``attest``: add SBOM and
    provenance if the engine can keep them. If one build fails, or on Ctrl-C, the others are stopped.

    Raises:
        ImageBuildError: a build failed, or there is no builder or no base image.
        ConfigError: a target's image folder or requirements are missing.
        EngineError: the engine is gone.
    """
    for target in targets:
        layers(project_root, base=spec.targets[target].base, image=spec.targets[target].image)
    if engine.builder is None:
        output, command = engine.builder_problem, ("docker", "build")
        raise ImageBuildError("no docker client here can build", command=command, code=None, output=output, advice=BUILDER_ADVICE)
    settings = pip_settings.read(engine.environment)
    if settings.problem:
        on_line(settings.problem)
    with (
        _context(project_root) as context,
        serving(settings, on_line=on_line) as served,
        _secrets(served, npm_settings=_npm_settings(engine)) as secrets,
        concurrent.futures.ThreadPoolExecutor(thread_name_prefix="build") as pool,
        Processes() as processes,  # innermost, so that it kills the builds before the pool waits for them
    ):
        build = _Build(
            engine=engine,
            builder=engine.builder,
            processes=processes,
            context=context,
            options=(*_network(engine, served), *_proxies(engine), *secrets),
            on_line=on_line,
        )
        stages = _stages(build, spec, targets, base)
        more = attestations(engine) if attest else ()
        one = functools.partial(
            _target,
            build,
            spec,
            stages,
            commit=commit or "",
            labels={"org.opencontainers.image.source": source} if source else {},
            more=more,
        )
        futures = [pool.submit(one, target) for target in dict.fromkeys(targets)]
        done = [future.result() for future in concurrent.futures.as_completed(futures)]
    by_name = {image.target: image for image in done}
    return {target: by_name[target] for target in dict.fromkeys(targets)}


def _stages(build: _Build, spec: MatrixSpec, targets: Sequence[str], base: str) -> dict[str, BuiltImage]:
    """Build the stages of images/base that the targets need, in order, since each builds on the one before."""
    return {
        stage: build.image(
            name=f"base {stage}",
            tag=image_tag(f"base-{stage}"),
            dockerfile="base/Dockerfile",
            arguments={"BASE_IMAGE": base, **({"TORCH_INDEX": spec.images.indexes[stage]} if stage in spec.images.indexes else {})},
            stage=stage,
        )
        for stage in dict.fromkeys(spec.targets[target].base for target in targets)
    }


def _target(
    build: _Build,
    spec: MatrixSpec,
    stages: dict[str, BuiltImage],
    target: str,
    *,
    commit: str,
    labels: Mapping[str, str],
    more: tuple[str, ...] = (),
) -> BuiltImage:
    wanted = spec.targets[target]
    arguments = {"BASE": stages[wanted.base].content_tag, "VERSION": hwmatrix.__version__, "REVISION": commit}
    dockerfile = f"{wanted.image}/Dockerfile"
    one = functools.partial(build.image, name=target, tag=image_tag(target), dockerfile=dockerfile, labels=labels, more=more)
    try:
        return one(arguments=arguments)
    except ImageBuildError as error:
        missing = _NOT_FETCHED.search(error.output)
        if missing is None or "ARG WITHOUT" not in (build.context / dockerfile).read_text(encoding="utf-8"):
            raise
        build.on_line(f"[{target}] built without its browser: {missing[1]}")
        return one(arguments={**arguments, "WITHOUT": missing[1]})  # a failed step is not cached: the next build tries again


@contextlib.contextmanager
def _context(project_root: Path) -> Iterator[Path]:
    """Yield a folder with all files that a build may read: those of images/, and the harness as wheel/*.whl."""
    with tempfile.TemporaryDirectory(prefix="hwmatrix-build-") as folder:
        context = Path(folder) / IMAGES
        context.mkdir()
        for name, entry in image_files(project_root).items():
            if entry.is_dir():
                shutil.copytree(entry, context / name)
            else:
                shutil.copy(entry, context / name)
        build_wheel(project_root, context / "wheel")
        yield context


@contextlib.contextmanager
def _secrets(settings: PipSettings, *, npm_settings: Path | None = None) -> Iterator[tuple[str, ...]]:
    """Turn the settings of pip and npm, and certificates, into build options. Only this user can read the folder (mkdtemp: 0700)."""
    with tempfile.TemporaryDirectory(prefix="hwmatrix-secrets-") as folder:
        path = Path(folder) / "pip.conf"
        path.write_text(settings.render(certificates=CERTIFICATES_IN_BUILD if settings.certificates else None), encoding="utf-8")
        options = ["--secret", f"id=pip.conf,src={path}"]
        if settings.certificates:
            options += ["--secret", f"id=ca.pem,src={settings.certificates}"]
        if npm_settings is not None:
            options += ["--secret", f"id=npmrc,src={npm_settings}"]
        yield tuple(options)


def _npm_settings(engine: Engine) -> Path | None:
    """The user's npm settings, located like npm does. They may contain passwords, so they are mounted and never copied."""
    named = engine.environment.get("NPM_CONFIG_USERCONFIG") or engine.environment.get("npm_config_userconfig")
    file = Path(named) if named else Path(engine.environment.get("HOME", "/")) / ".npmrc"
    return file if file.is_file() else None


def attestations(engine: Engine) -> tuple[str, ...]:
    """The options of a build that add SBOM and provenance, if the engine can keep them.

    In its mode ``max``, the provenance would contain the values of all arguments, such as proxies with logins.
    """
    return ("--sbom=true", "--provenance=mode=min") if engine.keeps_attestations else ()


def _network(engine: Engine, settings: PipSettings) -> tuple[str, ...]:
    """Use the host's network only if necessary: the engine has no bridge network, or an index is on this machine's loopback."""
    return ("--network=host",) if settings.names_loopback or not engine.has_bridge else ()


def _proxies(engine: Engine) -> tuple[str, ...]:
    """Pass proxies by name only: BuildKit knows these arguments, and keeps their values out of history and cache keys."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    used = [name for name in names if engine.environment.get(name)]
    return tuple(part for name in (*used, "NO_PROXY", "no_proxy") for part in ("--build-arg", name)) if used else ()
