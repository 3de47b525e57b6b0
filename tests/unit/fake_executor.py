"""A fake executor: it executes nothing, writes real shards, and fails as requested."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import uuid
from typing import TYPE_CHECKING, Any

import factory_plans as make

from hwmatrix.basics.clock import utc_now
from hwmatrix.errors import HwmatrixError, ImageBuildError
from hwmatrix.host.executors import Ended, Job
from hwmatrix.records import CellPlan, Isolation, Plan, cell_command, plan_from_json
from hwmatrix.store.shard import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    OnLine = Callable[[str], None]


@dataclasses.dataclass
class FakeExecutor:
    """Implements ``host.executors.Executor``, and records its calls in ``jobs``, ``ran``, ``prepared`` and ``stops``."""

    isolation: Isolation = Isolation.CONTAINER
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    """Targets that cannot run here, with the reasons."""
    broken_images: frozenset[str] = frozenset()
    dies_after: dict[str, int] = dataclasses.field(default_factory=dict)
    """Targets whose container is killed after this many cells, in the middle of its shard."""
    raises: dict[str, BaseException] = dataclasses.field(default_factory=dict)
    """Targets, or ``bundles``, whose job raises instead of running."""
    ends: dict[str, Ended] = dataclasses.field(default_factory=dict)
    """Targets, or ``bundles``, whose job ends in this way before it does anything."""
    hangs: frozenset[str] = frozenset()
    """Targets whose job ends only when all jobs are stopped."""
    oom_killed: bool = False
    outcomes: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    """For a cell's key, the changes to a passed result, one for each execution; after the last one it passes."""
    keys: dict[str, str] = dataclasses.field(default_factory=dict)
    """The bundle keys by model that the job ``bundles`` writes into the index."""
    jobs: list[Job] = dataclasses.field(default_factory=list)
    built: list[list[str]] = dataclasses.field(default_factory=list)
    """The models of each job ``bundles``."""
    ran: list[str] = dataclasses.field(default_factory=list)
    prepared: list[tuple[str, ...]] = dataclasses.field(default_factory=list)
    stops: int = 0
    started: threading.Event = dataclasses.field(default_factory=threading.Event)
    stopped: threading.Event = dataclasses.field(default_factory=threading.Event)

    def prepare(self, targets: Sequence[str]) -> dict[str, HwmatrixError]:
        self.prepared.append(tuple(targets))
        broken = [target for target in targets if target in self.broken_images]
        return {name: ImageBuildError(f"no image {name}", command=("docker", "build"), code=1, output="no such package") for name in broken}

    def unavailable(self, target: str) -> str | None:
        return self.missing.get(target)

    def identity(self, target: str) -> tuple[str | None, str | None]:
        return f"hwmatrix/{target}:0.1.0", "sha256:" + "0" * 64

    def run(self, job: Job, on_line: OnLine) -> Ended:
        self.jobs.append(job)
        name = "bundles" if job.work == "bundles" else job.target
        if name in self.hangs:
            self.started.set()
            assert self.stopped.wait(20)
            return Ended(code=130, output="", oom_killed=False)
        if name in self.raises:
            for other in self.hangs:
                assert other
                assert self.started.wait(20)
            raise self.raises[name]
        if name in self.ends:
            return self.ends[name]
        on_line("a library's own words")
        on_line('["no event"]')
        return self._make_bundles(job, on_line) if name == "bundles" else self._run_cells(job, on_line)

    def stop(self) -> None:
        self.stops += 1
        self.stopped.set()

    def _make_bundles(self, job: Job, on_line: OnLine) -> Ended:
        listed = json.loads((job.plan_dir / "models-bundles.json").read_text(encoding="utf-8"))
        self.built.append([name for name, *_ in listed])
        for name, size, *_ in [["canary-good", "tiny"], ["canary-wrong", "tiny"], *listed]:
            on_line(json.dumps({"event": "bundle", "model": name, "size": size, "ok": True, "message": None}))
        if not self.keys:
            return Ended(code=0, output="", oom_killed=False)
        tiny = {"size": "tiny", "batch": 1, "sequence_length": 16}
        entries = [{"model": name, **tiny, "key": key, "digest": key} for name, key in self.keys.items()]
        (job.out / "bundles.json").write_text(json.dumps({"schema": "hwmatrix/bundle-index/2", "bundles": entries}), encoding="utf-8")
        return Ended(code=0, output="", oom_killed=False)

    def _run_cells(self, job: Job, on_line: OnLine) -> Ended:
        plan = plan_from_json((job.plan_dir / "plan.json").read_bytes(), where="plan.json")
        wanted = json.loads((job.plan_dir / f"cells-{job.target}.json").read_text(encoding="utf-8"))
        cells = [cell for cell in plan.cells if cell.key in wanted]
        identity = make.identity(job.target, uuid.uuid4().hex[:12])
        with contextlib.ExitStack() as stack:
            shard = stack.enter_context(ShardWriter(job.out, plan, identity))
            shard.set_canaries(ok=True, detail=None)
            for number, cell in enumerate(cells):
                if number == self.dies_after.get(job.target):
                    return Ended(code=137, output="the last words", oom_killed=self.oom_killed)
                self._run_cell(shard, plan, cell, on_line)
            shard.seal()
        return Ended(code=0, output="", oom_killed=False)

    def _run_cell(self, shard: ShardWriter, plan: Plan, cell: CellPlan, on_line: OnLine) -> None:
        on_line(json.dumps({"event": "cell_started", "key": cell.key, "role": "model"}))
        others = self.outcomes.get(cell.key)
        result = make.result(cell, started_at=utc_now(), **(others.pop(0) if others else {}))
        model = plan.model_of(cell)
        shard.add_cell(result, command=cell_command(model, cell, plan))
        self.ran.append(cell.key)
        event: dict[str, Any] = {
            "event": "cell",
            "key": cell.key,
            "role": result.role.value,
            "status": result.status.value,
            "stage": "measure",
            "p50_ms": 1.0,
        }
        on_line(json.dumps(event | {"wall_ms": 1.0, "error": None}))
