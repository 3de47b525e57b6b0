"""The places where the runner can run: in containers, in virtual environments, or in this interpreter. One class each."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib.util
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from hwmatrix.errors import EngineError, HwmatrixError, ImageBuildError
from hwmatrix.hardware.detector import detect
from hwmatrix.host import base_image, containers, images, venvs
from hwmatrix.host.engine import connect
from hwmatrix.host.events import BadEventError, read_event
from hwmatrix.host.process import Processes
from hwmatrix.host.sharing import container_mb, scratch_mb
from hwmatrix.host.variables import for_models
from hwmatrix.matrix.spec import MatrixSpec
from hwmatrix.records import Isolation
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.host.engine import Engine

    OnLine = Callable[[str], None]

PIDS: Final = 1024
"""Limit of processes and threads for each parallel piece of work."""
_REASONS: Final = 20
"""Failure messages of a job that are kept: the last ones."""
_MAKING: Final = frozenset({"bundles", "operator-tests"})
"""Jobs of the reference image that write into the cache and need no device."""
_IN_CONTAINER: Final = {"plan": "/hwmatrix/plan", "cache": "/hwmatrix/cache", "out": "/hwmatrix/out"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workshop:
    """What all executors share: the project, the build inputs, the cache, the outer environment, and where to report.

    ``memory_mb`` is the memory in MiB that a run may use; None: the machine's. ``attest``: images get an SBOM and their provenance.
    """

    project_root: Path
    spec: MatrixSpec
    cache_dir: Path
    environment: Mapping[str, str]
    base_image: str | None
    commit: str | None
    say: OnLine
    detail: OnLine
    source: str | None = None
    memory_mb: int | None = None
    attest: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One job for the runner of a target's image. The folders are on this machine. ``also_read`` are checkpoints.

    ``memory_mb`` is the limit in MiB for one piece of work, and ``at_once`` the number of pieces that run at the same time.
    """

    target: str
    work: str
    plan_dir: Path
    cache: Path
    out: Path
    arguments: tuple[str, ...] = ()
    memory_mb: int = 4096
    at_once: int = 1
    cpuset: str | None = None
    also_read: tuple[Path, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended: the runner's exit code, the end of its output without events, and whether it was killed for memory."""

    code: int
    output: str
    oom_killed: bool


class Executor(Protocol):
    """Runs jobs in one kind of place."""

    isolation: Isolation

    def prepare(self, targets: Sequence[str]) -> dict[str, HwmatrixError]:
        """Build what the targets need. Return the errors of the targets that failed."""

    def unavailable(self, target: str) -> str | None:
        """Return why a target cannot run here at all, or None."""

    def identity(self, target: str) -> tuple[str | None, str | None]:
        """Return the image's tag (None outside containers) and the digest of what the target runs in."""

    def run(self, job: Job, on_line: OnLine) -> Ended:
        """Run a job to its end. May be called from several threads."""

    def stop(self) -> None:
        """End all running jobs. :meth:`run` then returns for each."""


class ContainerExecutor:
    """Runs each job in a hardened container."""

    isolation = Isolation.CONTAINER

    def __init__(self, workshop: Workshop, engine: Engine, base: str) -> None:
        self._workshop = workshop
        self._engine = engine
        self._base = base
        self._images: dict[str, images.BuiltImage] = {}
        self._running: set[containers.RunningContainer] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def prepare(self, targets: Sequence[str]) -> dict[str, HwmatrixError]:
        """Build all images at once. If that fails, build one by one, so that a broken image stops only its target."""
        try:
            self._build(targets)
        except ImageBuildError:
            failed: dict[str, HwmatrixError] = {}
            for target in targets:
                try:
                    self._build([target])
                except ImageBuildError as error:
                    failed[target] = error
            return failed
        return {}

    def _build(self, targets: Sequence[str]) -> None:
        workshop = self._workshop
        built = images.build_images(
            project_root=workshop.project_root,
            spec=workshop.spec,
            targets=targets,
            engine=self._engine,
            on_line=workshop.detail,
            base=self._base,
            commit=workshop.commit,
            source=workshop.source,
            attest=workshop.attest,
        )
        for image in built.values():
            verb = "built" if image.rebuilt else "unchanged"
            workshop.say(f"image {image.tag} {verb} in {image.seconds:.1f} s ({image.digest[:19]})")
        self._images |= built

    def unavailable(self, target: str) -> str | None:
        """Return the missing hardware: an image includes all software, but no hardware."""
        return missing_hardware(self._workshop.spec, target)

    def identity(self, target: str) -> tuple[str | None, str | None]:
        """Return the tag and the id of the image."""
        image = self._images[target]
        return image.tag, image.digest

    def run(self, job: Job, on_line: OnLine) -> Ended:
        """Start a container, follow its output, and remove it."""
        making = job.work in _MAKING
        job.cache.mkdir(parents=True, exist_ok=True)  # a survey may be the first job ever to run here
        for folder in (job.out, job.cache) if making else (job.out,):
            containers.prepare_writable(folder, self._engine)
        arguments = (job.work, *(part for name, path in _IN_CONTAINER.items() for part in _flag(name, path)), *job.arguments)
        spec = self._workshop.spec.targets[job.target]
        mounts = (
            containers.Mount(source=job.plan_dir, target=_IN_CONTAINER["plan"]),
            containers.Mount(source=job.cache, target=_IN_CONTAINER["cache"], read_only=not making),
            containers.Mount(source=job.out, target=_IN_CONTAINER["out"], read_only=False),
            *(containers.Mount(source=path, target=str(path)) for path in job.also_read),
        )
        limits = containers.Limits(
            memory_mb=container_mb(job.memory_mb, job.at_once),
            pids=PIDS * job.at_once,
            tmp_mb=scratch_mb(job.memory_mb) * job.at_once,
            executable_tmp=descriptor_of(spec.backend).compiling(spec.options),
            cpuset=job.cpuset,
        )
        with containers.running(
            self._engine,
            image=self._images[job.target].digest,  # the image built here, even if the tag has moved since
            argv=arguments,
            limits=limits,
            mounts=mounts,
            devices=() if making else spec.devices,
            gpus=not making and spec.gpus,
            name=job.target,
        ) as container:
            with self._lock:
                self._running.add(container)
                late = self._stopped
            if late:  # it was starting while stop() was called
                container.stop(grace_s=5)
            try:
                for line in container.lines():
                    on_line(line)
                return Ended(code=container.wait(), output=container.stderr_tail, oom_killed=container.oom_killed)
            finally:
                with self._lock:
                    self._running.discard(container)

    def stop(self) -> None:
        """Stop all running containers."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for container in running:
            with contextlib.suppress(EngineError):  # it may have just ended
                container.stop(grace_s=5)


class VenvExecutor:
    """Runs each target in a virtual environment, made from the same requirements as its image."""

    isolation = Isolation.VENV

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._venvs: dict[str, venvs.VenvTarget] = {}
        self._processes = Processes()

    def prepare(self, targets: Sequence[str]) -> dict[str, HwmatrixError]:
        """Make the environments one after the other, because they share their lower layers."""
        failed: dict[str, HwmatrixError] = {}
        workshop = self._workshop
        for target in targets:
            try:
                self._venvs[target] = venvs.ensure_venv(
                    project_root=workshop.project_root,
                    spec=workshop.spec,
                    target=target,
                    cache_dir=workshop.cache_dir,
                    environment=workshop.environment,
                    on_line=workshop.detail,
                )
            except ImageBuildError as error:
                failed[target] = error
            else:
                workshop.say(f"virtual environment for {target} ready")
        return failed

    def unavailable(self, target: str) -> str | None:
        """Return the missing hardware: the environment includes all software, but no hardware."""
        return missing_hardware(self._workshop.spec, target)

    def identity(self, target: str) -> tuple[str | None, str | None]:
        """Return no tag, and the digest of what the environment was made from."""
        return None, self._venvs[target].digest

    def run(self, job: Job, on_line: OnLine) -> Ended:
        """Run the job with the environment's interpreter."""
        venv = self._venvs[job.target]
        environment = _without_python_settings(for_models(self._workshop.environment)) | venv.environment
        return _run_here(self._processes, str(venv.python), environment, job, on_line)

    def stop(self) -> None:
        """End the running processes."""
        self._processes.__exit__(None, None, None)


class LocalExecutor:
    """Runs jobs in this interpreter, with whatever is installed in it: quick, but the least comparable."""

    isolation = Isolation.NONE

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._processes = Processes()

    def prepare(self, targets: Sequence[str]) -> dict[str, HwmatrixError]:  # noqa: ARG002 - the protocol's signature
        """Build nothing."""
        return {}

    def unavailable(self, target: str) -> str | None:
        """Name the modules that are not installed, or the missing hardware."""
        needed = descriptor_of(self._workshop.spec.targets[target].backend).requires
        missing = [module for module in needed if importlib.util.find_spec(module) is None]
        if missing:
            return f"not installed in {sys.executable}: {', '.join(missing)}"
        return missing_hardware(self._workshop.spec, target)

    def identity(self, target: str) -> tuple[str | None, str | None]:  # noqa: ARG002 - the protocol's signature
        """Return no tag and no digest: nothing identifies what is installed here. The shard lists the packages."""
        return None, None

    def run(self, job: Job, on_line: OnLine) -> Ended:
        """Run the job with this interpreter."""
        environment = for_models(self._workshop.environment) | venvs.RUNTIME_ENVIRONMENT
        return _run_here(self._processes, sys.executable, environment, job, on_line)

    def stop(self) -> None:
        """End the running processes."""
        self._processes.__exit__(None, None, None)


class MixedExecutor:
    """Runs native targets in virtual environments of this machine, and all others in containers."""

    isolation = Isolation.CONTAINER

    def __init__(self, containers_: ContainerExecutor, venvs_: VenvExecutor, native: frozenset[str]) -> None:
        self._containers = containers_
        self._venvs = venvs_
        self._native = native

    def _executor(self, target: str) -> Executor:
        return self._venvs if target in self._native else self._containers

    def prepare(self, targets: Sequence[str]) -> dict[str, HwmatrixError]:
        """Build images for the contained targets, and environments for the native ones."""
        contained = [target for target in targets if target not in self._native]
        native = [target for target in targets if target in self._native]
        return {**self._containers.prepare(contained), **(self._venvs.prepare(native) if native else {})}

    def unavailable(self, target: str) -> str | None:
        """Ask the target's own executor."""
        return self._executor(target).unavailable(target)

    def identity(self, target: str) -> tuple[str | None, str | None]:
        """Ask the target's own executor."""
        return self._executor(target).identity(target)

    def run(self, job: Job, on_line: OnLine) -> Ended:
        """Run the job with the target's own executor."""
        return self._executor(job.target).run(job, on_line)

    def stop(self) -> None:
        """End all running jobs."""
        self._containers.stop()
        self._venvs.stop()


class Watcher(Protocol):
    """Shows a job's events. ``hwmatrix.host.console`` has implementations."""

    def say(self, text: str) -> None:
        """Show a message."""

    def event(self, target: str, event: dict[str, Any]) -> None:
        """Show one event of the runner."""


def follow(executor: Executor, job: Job, view: Watcher, title: str) -> Ended:
    """Run a job and pass the runner's events to the view. Other lines come from libraries. Failure messages are added to its output.

    An invalid event is a message, and the job goes on: whatever it finished is in its shard.
    """
    reasons: collections.deque[str] = collections.deque(maxlen=_REASONS)
    invalid: list[str] = []

    def on_line(line: str) -> None:
        try:
            event = read_event(line)
        except BadEventError as error:
            if not invalid:
                view.say(f"{title}: an invalid line in its output, of a model or a library, is ignored: {error}")
                invalid.append(str(error))
            return
        if event is not None and event["event"] == "failed":
            reasons.append(event["message"])
        elif event is not None:
            view.event(title, event)

    ended = executor.run(job, on_line)
    reasons.extend(f"an invalid line in its output: {each}" for each in invalid)
    return dataclasses.replace(ended, output="\n".join([ended.output, *reasons]).strip())


def missing_hardware(spec: MatrixSpec, target: str) -> str | None:
    """Return why this machine lacks hardware that a target needs, before anything is built; None if it has it."""
    backend = spec.targets[target].backend
    if not descriptor_of(backend).hardware.needed_here:
        return None
    return detect(backend).reason


def choose(isolation: str, workshop: Workshop) -> Executor:
    """Return the executor for ``auto``, ``container``, ``venv`` or ``none``. ``auto`` reports its choice and the reason.

    Raises:
        EngineError: containers were requested, but no engine answers.
        ImageBuildError: containers were requested, but there is no builder or no base image.
    """
    if isolation == Isolation.NONE:
        return LocalExecutor(workshop)
    if isolation == Isolation.VENV:
        return VenvExecutor(workshop)
    try:
        engine = connect(workshop.environment)
        if isolation == "auto" and engine.builder is None:
            raise EngineError(engine.builder_problem)  # noqa: TRY301 - one handler for all reasons against containers
        # Resolved now, so that `auto` can still fall back.
        base = base_image.resolve(engine, requested=workshop.base_image, default=workshop.spec.images.base, on_line=workshop.say)
    except (EngineError, ImageBuildError) as error:
        if isolation != "auto":
            raise
        workshop.say(f"no containers: {error.message}")
        workshop.say("using virtual environments made from the same requirements instead (isolation: venv)")
        return VenvExecutor(workshop)
    workshop.say(f"using containers (engine {engine.version}, {engine.operating_system})")
    # Before anything reads the files of a killed run, because its container may still be writing them.
    for leftover in containers.remove_leftovers(engine):
        workshop.say(f"removed {leftover}, left behind by a killed run")
    native = frozenset(name for name, target in workshop.spec.targets.items() if target.native)
    executor = ContainerExecutor(workshop, engine, base)
    return MixedExecutor(executor, VenvExecutor(workshop), native) if native else executor


def _flag(name: str, path: str) -> tuple[str, str]:
    return (f"--{name}", f"{path}/plan.json" if name == "plan" else path)


def _run_here(processes: Processes, python: str, environment: Mapping[str, str], job: Job, on_line: OnLine) -> Ended:
    folders = {"plan": job.plan_dir, "cache": job.cache, "out": job.out}
    for folder in (job.cache, job.out):
        folder.mkdir(parents=True, exist_ok=True)
    arguments = (part for name, path in folders.items() for part in _flag(name, str(path)))
    command = (python, "-m", "hwmatrix.runner", job.work, *arguments, *job.arguments)
    done = processes.run(command, environment=environment, on_line=on_line)
    noise = [line for line in done.output.splitlines() if not line.startswith('{"event"')]
    return Ended(code=done.code, output="\n".join(noise), oom_killed=False)


def _without_python_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop the settings of the outer Python, which would make the inner one find the wrong packages."""
    return {name: value for name, value in environment.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
