"""Where a target's conformance is tested: in this interpreter, or in the target's own image. Both by the host's own code."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest
from fault_runs import MARK, PROJECT, environment, still_running

from hwmatrix.errors import EngineError, ImageBuildError
from hwmatrix.hardware.detector import detect
from hwmatrix.host import base_image
from hwmatrix.host.containers import LABEL
from hwmatrix.host.engine import Engine, connect
from hwmatrix.host.executors import ContainerExecutor, Executor, Job, LocalExecutor, Workshop
from hwmatrix.matrix.load import load
from hwmatrix.matrix.spec import TargetSpec
from hwmatrix.records import Backend
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fault_runs import Order

IN_IMAGES: Final = frozenset({Backend.WEBGPU, Backend.WEBNN})
"""Backends whose runtime no package brings to a host: a browser of a certain build, and the files that its pages load."""
SLOW: Final = frozenset({Backend.WEBGPU, Backend.WEBNN, Backend.EXECUTORCH, Backend.INDUCTOR})
"""Backends that take ten seconds a cell: a browser starts, or each model is compiled anew (webgpu's shaders for an adapter in software)."""
VICTIMS: Final = Path(__file__).with_name("victims.py")
PLAN_IN_CONTAINER: Final = "/hwmatrix/plan/plan.json"
MEMORY_MB: Final = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    """A target as matrix.yaml (or its page) has it, and the place that runs its cells. ``engine``: of containers, if it is one."""

    name: str
    target: TargetSpec
    executor: Executor
    engine: Engine | None = None

    def run(self, order: Order, *, victims: Mapping[str, str] = MappingProxyType({})) -> list[dict[str, Any]]:
        """Run a plan's cells; give the runner's events. It must end with 0.

        ``victims``: whom to end, by the keys of the cells to whom it happens.
        """
        events: list[dict[str, Any]] = []
        told: list[str] = []

        def on_line(line: str) -> None:
            if not line.startswith('{"event"'):
                told.append(line)
                return
            events.append(json.loads(line))
            if events[-1]["event"] == "cell_started" and events[-1]["key"] in victims:
                self.end(victims[events[-1]["key"]], order)

        image, digest = self.executor.identity(self.name)
        built = ("--image", image, "--image-digest", digest) if image and digest else ()
        job = Job(
            target=self.name,
            work="run",
            plan_dir=order.plan.parent,
            cache=order.cache,
            out=order.shards,
            arguments=("--target", self.name, "--host", "test", *built),
            memory_mb=MEMORY_MB,
        )
        ended = self.executor.run(job, on_line)
        assert ended.code == 0, "\n".join([*told, ended.output, *map(str, events[-3:])])
        return events

    def end(self, who: str, order: Order) -> None:
        """End one process of the run as soon as the cell that runs now is at work, as victims.py does."""
        if self.engine is None:
            subprocess.run([sys.executable, str(VICTIMS), who, str(order.plan)], check=True)
            return
        code = VICTIMS.read_text(encoding="utf-8")
        with contextlib.closing(self.engine.client()) as client:
            (container,) = client.containers.list(filters=self._ours, ignore_removed=True)
            done = container.exec_run(["python", "-c", code, who, PLAN_IN_CONTAINER])
        assert done.exit_code == 0, done.output.decode()

    def left(self, order: Order) -> list[str]:
        """What of a run is still there after its end: processes or containers."""
        if self.engine is None:
            return still_running(order)
        with contextlib.closing(self.engine.client()) as client:
            return [str(one.name) for one in client.containers.list(all=True, filters=self._ours, ignore_removed=True)]

    @property
    def _ours(self) -> dict[str, Any]:
        return {"label": [f"{LABEL}=1"], "name": f"hwmatrix-{self.name}-{os.getpid()}-"}


def marks(backend: str, *, long: bool = False) -> tuple[pytest.MarkDecorator, ...]:
    """The marks of tests of many cells on one backend. ``long``: they take minutes also where a backend is not slow."""
    in_image = (pytest.mark.containers,) if backend in IN_IMAGES else ()
    return (*in_image, *((pytest.mark.long,) if long or backend in SLOW else ()))


def where(backend: Backend, folder: Path) -> Where:
    """Where a backend can be tested on this machine, with an order that is laid in ``folder``. Skips the test where it cannot be."""
    return _in_its_image(backend, folder) if backend in IN_IMAGES else _here(backend, folder)


def _here(backend: Backend, folder: Path) -> Where:
    missing = [module for module in descriptor_of(backend).requires if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    if not (found := detect(backend)).available:
        pytest.skip(f"not here: {found.reason}")
    name, target, workshop = _workshop(backend, folder)
    return Where(name=name, target=target, executor=LocalExecutor(workshop))


def _in_its_image(backend: Backend, folder: Path) -> Where:
    try:
        engine = connect(dict(os.environ))
    except EngineError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"these tests must run in CI: {error}")
        pytest.skip(str(error))
    name, target, workshop = _workshop(backend, folder)
    try:
        base = base_image.resolve(engine, requested=workshop.base_image, default=workshop.spec.images.base, on_line=workshop.detail)
    except ImageBuildError as error:
        pytest.skip(f"its image cannot be built: {error}")
    executor = ContainerExecutor(workshop, engine, base)
    failed = executor.prepare([name])
    if failed:
        pytest.skip(f"its image cannot be built: {failed[name]}")
    return Where(name=name, target=target, executor=executor, engine=engine)


def _workshop(backend: Backend, folder: Path) -> tuple[str, TargetSpec, Workshop]:
    """A target of matrix.yaml."""
    spec = load(PROJECT / "matrix.yaml").spec
    name, target = next((name, target) for name, target in spec.targets.items() if target.backend == backend)
    workshop = Workshop(
        project_root=PROJECT,
        spec=dataclasses.replace(spec, targets={**spec.targets, name: target}),
        cache_dir=folder,
        environment=environment(armed=False) | {MARK: str(folder / "plan.json")},
        base_image=None,
        commit=None,
        say=print,
        detail=lambda line: None,  # noqa: ARG005 - an error of a build has the end of its output
    )
    return name, target, workshop
