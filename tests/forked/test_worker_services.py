"""Cells that need a service (a browser) and run at once: each worker keeps one of its own, and leaves none behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import factory_plans as make
import psutil
import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.records import Detection, Limits, Stage, Status
from hwmatrix.runner import crew, parent
from hwmatrix.runner.crew import Crew, Done
from hwmatrix.runner.forked import End
from hwmatrix.runner.keeper import Keeper
from hwmatrix.runner.parent import ShardOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from hwmatrix.records import CellPlan

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked where children are")
PLAN = make.plan(models=tuple(f"model-{number}" for number in range(8)), targets=("cpu",))


class Sleeper:
    """A service that is a process, and that dies when a cell asks it to."""

    shares_device = False
    start_s = 0.0

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Mapping[str, Any]:
        self._process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        return {"pid": self._process.pid}

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Slow(Sleeper):
    """Takes longer to start than a cell may take."""

    start_s = 20.0

    def start(self) -> Mapping[str, Any]:
        time.sleep(1.0)
        return super().start()


class NotThere(Sleeper):
    def start(self) -> Mapping[str, Any]:
        raise UnavailableError("the browser is not installed", error_type="browser_not_started")


def order(folder: Path) -> ShardOrder:
    return ShardOrder(
        plan=PLAN,
        target=PLAN.targets[0],
        cells=PLAN.cells,
        bundles={},
        cache=folder,
        out=folder,
        host="test",
        image=None,
        image_digest=None,
    )


def pieces(monkeypatch: pytest.MonkeyPatch, service: type[Sleeper], folder: Path) -> parent._CellWork:
    """The work of a crew whose cells tell what they were given, and of which the fourth ends its service."""

    class Backend:
        @staticmethod
        def service(_options: Mapping[str, Any]) -> Sleeper:
            return service()

    def run(_order: ShardOrder, cell: CellPlan, _model: object, *, service: dict[str, Any], **_: Any) -> End:
        time.sleep(0.05)  # so that both workers get some
        if cell is PLAN.cells[3]:
            psutil.Process(service["pid"]).kill()
        told = {"worker": os.getpid(), "service": service["pid"]}
        return End(messages=(told,), exit_code=0, signal=None, timed_out=False, oom_killed=False, log="", wall_ms=1.0)

    monkeypatch.setattr(parent, "target_class", lambda _backend: Backend)
    monkeypatch.setattr(parent, "_run", run)
    return parent._CellWork(order(folder))


def done_by(work: parent._CellWork, numbers: int) -> list[Done]:
    with Crew(work, size=2, patience=work.patience, ending=work.end) as crew:
        return list(crew.do(range(numbers), lambda _: None))


def test_each_worker_has_a_service_of_its_own_and_a_new_one_where_it_died(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = done_by(pieces(monkeypatch, Sleeper, tmp_path), len(PLAN.cells))
    told = [done.answer["messages"][0] for done in found if done.answer is not None]
    assert len(told) == len(PLAN.cells)
    used: dict[int, set[int]] = {}
    for each in told:
        used.setdefault(each["worker"], set()).add(each["service"])
    assert sorted(len(services) for services in used.values()) in ([1, 1], [1, 2])  # the last cell of a worker may have ended its service
    assert len(set.union(*used.values())) == sum(len(services) for services in used.values())
    assert os.getpid() not in used


def test_the_start_of_a_service_is_no_part_of_a_cell_s_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(crew, "_GRACE_S", 0.2)
    work = pieces(monkeypatch, Slow, tmp_path)
    cells = [dataclasses.replace(cell, limits=dataclasses.replace(cell.limits, timeout_s=0.3)) for cell in PLAN.cells]
    work._order = dataclasses.replace(work._order, cells=tuple(cells))
    assert [done.problem for done in done_by(work, 2)] == [None, None]


def test_no_service_stays_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = done_by(pieces(monkeypatch, Sleeper, tmp_path), 3)
    services = {done.answer["messages"][0]["service"] for done in found if done.answer is not None}
    assert services
    assert not any(psutil.pid_exists(pid) for pid in services)


def test_a_worker_ends_what_it_has_started_when_it_is_interrupted(tmp_path: Path) -> None:
    def work(number: int, _closing: tuple[int, ...]) -> dict[str, Any]:
        (tmp_path / f"begun-{number}").touch()
        time.sleep(30)
        return {}

    def ending() -> None:
        (tmp_path / f"ended-{os.getpid()}").touch()

    with Crew(work, size=2, patience=lambda _: 60.0, ending=ending) as crew:
        asked = crew.do(range(2), lambda _: None)
        with pytest.raises(TimeoutError):
            _within(asked, tmp_path)
    assert len(list(tmp_path.glob("ended-*"))) == 2


def _within(asked: Any, folder: Path) -> None:
    """Go on until both have begun, then give up, as an interrupt would have it."""

    def late(*_: object) -> None:
        if len(list(folder.glob("begun-*"))) == 2:
            raise TimeoutError
        signal.setitimer(signal.ITIMER_REAL, 0.2)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        next(asked)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_cell_whose_worker_has_no_service_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (done,) = done_by(pieces(monkeypatch, NotThere, tmp_path), 1)
    cells = parent._Cells(order(tmp_path), shard=None, keeper=None)  # type: ignore[arg-type]
    cell = PLAN.cells[0]
    result = cells._worker_result(done, cell, PLAN.model_of(cell), "2026-01-02T03:04:06")
    assert (result.status, result.stage) == (Status.UNAVAILABLE, Stage.LOAD)
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("browser_not_started", "the browser is not installed")


@pytest.mark.parametrize(("shares_device", "timing", "expected"), [(False, False, 2), (True, False, 1), (False, True, 1)])
def test_services_that_share_a_device_have_their_cells_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, shares_device: bool, timing: bool, expected: int
) -> None:
    monkeypatch.setattr(parent, "at_once", lambda asked, _threads: asked)
    asked = dataclasses.replace(order(tmp_path), at_once=2, plan=dataclasses.replace(PLAN, timing=timing))
    service = Sleeper()
    service.shares_device = shares_device  # type: ignore[misc]
    assert parent._parallel_cells(asked, service, []) == expected


def on_gpu(folder: Path, *, timing: bool = False) -> ShardOrder:
    """An order for cuda whose cells may take 4096 MiB each."""
    limits = Limits(timeout_s=60.0, memory_mb=4096)
    cells = tuple(dataclasses.replace(cell, limits=limits) for cell in PLAN.cells)
    target = dataclasses.replace(PLAN.targets[0], name="cuda", backend="cuda")
    return dataclasses.replace(order(folder), at_once=6, target=target, cells=cells, plan=dataclasses.replace(PLAN, timing=timing))


def gpus(*free_mb: int | None) -> list[Detection]:
    features = {"gpus": [{"name": "A GPU", "free_mb": free} for free in free_mb]}
    found = Detection(hardware_type="cuda", available=True, name="A GPU", features=features, reason=None, detected_at="2026-01-02T03:04:05")
    other = dataclasses.replace(found, hardware_type="rocm", features={"gpus": [{"free_mb": 10**6}]})
    return [other, found]


@pytest.mark.parametrize(
    ("free_mb", "expected"),
    [
        ([80_000], 6),  # as many as the order allows
        ([3 * 5120], 3),
        ([80_000, 2 * 5120 - 1], 1),  # the cells may run on either GPU
        ([100], 1),
        ([None], 1),
        ([], 1),
    ],
)
def test_cells_share_a_gpu_as_far_as_its_memory_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_mb: list[int | None], expected: int
) -> None:
    monkeypatch.setattr(parent, "at_once", lambda asked, _threads: asked)
    assert parent._parallel_cells(on_gpu(tmp_path), None, gpus(*free_mb)) == expected
    assert parent._parallel_cells(on_gpu(tmp_path, timing=True), None, gpus(*free_mb)) == 1


@pytest.mark.parametrize(("backend", "again"), [("cuda", ["model-2", "model-5"]), ("cpu", [])])
def test_a_cell_that_fails_beside_others_on_a_gpu_runs_again_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str, again: list[str]
) -> None:
    failed = {2: Status.OOM, 4: Status.MISMATCH, 5: Status.CRASH}
    kept: dict[str, str] = {}
    alone: list[str] = []

    class OneByOne:
        def do(self, numbers: Iterable[int], started: Callable[[int], None]) -> Iterator[Done]:
            for number in numbers:
                started(number)
                yield Done(number=number, answer={})

    def found(self: object, done: Done, cell: CellPlan, _model: object, _begun: str) -> Any:  # noqa: ARG001 - a method
        return SimpleNamespace(status=failed.get(done.number, Status.PASS))

    def run(self: object, cell: CellPlan, _model: object, *, canaries_failed: str | None) -> None:  # noqa: ARG001 - a method
        assert len(kept) == len(PLAN.cells) - len(again)  # when the others are done
        alone.append(cell.model)

    monkeypatch.setattr(parent._Cells, "_worker_result", found)
    monkeypatch.setattr(parent._Cells, "_keep", lambda _self, result, cell, _model: kept.update({cell.model: result.status.value}))
    monkeypatch.setattr(parent._Cells, "_result_without_run", lambda *_: None)
    monkeypatch.setattr(parent._Cells, "run", run)
    asked = dataclasses.replace(on_gpu(tmp_path), target=dataclasses.replace(PLAN.targets[0], backend=backend))
    cells = parent._Cells(asked, shard=None, keeper=Keeper(None))  # type: ignore[arg-type]
    cells.run_all(OneByOne(), canaries_failed=None)  # type: ignore[arg-type]
    assert alone == again
    assert sorted([*kept, *alone]) == [f"model-{number}" for number in range(8)]
