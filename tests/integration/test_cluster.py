"""A run on a cluster whose workers are threads of this process and execute nothing: what is delivered, retried and printed."""

from __future__ import annotations

import dataclasses
import errno
import io
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest
from distributed import Client, Future, LocalCluster, get_worker
from fake_executor import FakeExecutor
from rich.console import Console

from hwmatrix.app import cluster, cluster_member
from hwmatrix.app import execution as executing
from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import workshop_of
from hwmatrix.basics.cache_folder import CACHE_VARIABLE
from hwmatrix.errors import EngineError, HwmatrixError, StoreError
from hwmatrix.host.ci_machines import pruning
from hwmatrix.host.cluster import connection, offers, parts
from hwmatrix.host.cluster.keys import make_keys, security
from hwmatrix.host.console import PlainView
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.shipped import MATRIX_FILE, shipped_root
from hwmatrix.store.merge import merge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hwmatrix.host.executors import Ended, Job
    from hwmatrix.records import Plan


MODELS = ("m0", "m1", "m2", "m3")
TARGETS = ("cpu", "openvino")


class Watched(PlainView):
    """A view that calls a function after each finished cell."""

    on_cell: Callable[[], object]

    def event(self, target: str, event: dict[str, Any]) -> None:
        super().event(target, event)
        if event["event"] == "cell":
            self.on_cell()


@dataclasses.dataclass
class Lab:
    """A cluster of two workers, and a run to give it."""

    client: Client
    loaded: LoadedMatrix
    output: Path
    executor: FakeExecutor = dataclasses.field(default_factory=FakeExecutor)
    made: list[str] = dataclasses.field(default_factory=list)
    printed: io.StringIO = dataclasses.field(default_factory=io.StringIO)

    def plan(self, **changes: Any) -> Plan:
        return make.plan(models=MODELS, targets=TARGETS, matrix_sha256=self.loaded.sha256, timing=False, **changes)

    def run(self, folder: RunFolder, on_cell: Callable[[], object] = lambda: None, **options: Any) -> None:
        view = Watched(Console(file=self.printed, width=300), verbose=False)
        view.on_cell = on_cell
        workshop = workshop_of(self.loaded, read_environment(), None, view)
        cluster.run_on(self.client, self.loaded, folder, folder.plan(), output=self.output, workshop=workshop, view=view, **options)

    def left_behind(self) -> list[Path]:
        """The folders of projects and parts that the members still have."""
        return [path for path in (self.output.parent / "cluster").glob("*/worker-*/*") if path.is_dir() and path.name != "storage"]

    def statuses(self, folder: RunFolder) -> dict[str, str]:
        database = self.output / "check.duckdb"
        assert merge([folder.path], database, fresh=True).rejected == ()
        with duckdb.connect(str(database), read_only=True) as connection:
            return dict(connection.execute("SELECT cell_key, status FROM results ORDER BY position").fetchall())


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(parts, "PART_S", 1.0)  # two models each
    resources = {"hwmatrix-turn": 1, "hwmatrix-memory-mb": 8192, f"hwmatrix-code-{offers.code_digest()}": 1}
    resources |= {f"hwmatrix-target-{target}": 1 for target in TARGETS}
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            host="127.0.0.1",
            protocol="tcp://",
            dashboard_address="127.0.0.1:0",
            resources=resources,
            local_directory=str(tmp_path / "cluster"),
        ) as members,
        Client(members, set_as_default=False) as client,
    ):
        lab = Lab(client=client, loaded=load(shipped_root() / MATRIX_FILE), output=tmp_path / "out")
        lab.output.mkdir()
        lock = threading.Lock()

        def pack(whole: Plan, archive: Path, *_: Any, **__: Any) -> int:
            with lock:
                lab.made.extend(model.name for model in whole.models)
            archive.write_bytes("\n".join(model.name for model in whole.models).encode())
            return len(whole.models)

        def unpack(archive: Path, folder: RunFolder, plan: Plan, cache: Path, *, failures: bool) -> frozenset[Any]:
            assert failures
            assert cache == tmp_path / "cache" / "bundles"
            assert folder.path.is_dir()
            assert archive.read_bytes().decode().split() == [model.name for model in plan.models]
            return frozenset(model.key for model in plan.models)

        monkeypatch.setattr(cluster_member, "pack_bundles", pack)
        monkeypatch.setattr(cluster_member, "choose", lambda *_: lab.executor)
        monkeypatch.setattr(executing.bundle_archive, "unpack", unpack)
        monkeypatch.setattr(cluster, "merge_and_report", lambda *_: None)
        yield lab


def test_every_cell_is_run_once_and_every_bundle_is_made_once(lab: Lab) -> None:
    folder = RunFolder.create(lab.output, lab.plan())
    lab.run(folder)
    keys = [cell.key for cell in lab.plan().cells]
    assert lab.statuses(folder) == dict.fromkeys(keys, "pass")
    assert sorted(lab.executor.ran) == sorted(keys)
    assert sorted(lab.made) == sorted(MODELS)
    printed = lab.printed.getvalue()
    assert "cpu: done" in printed
    assert "[4/4]" in printed
    assert lab.left_behind() == []


def test_a_member_keeps_its_cache_below_the_limit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "others", lambda: [(1, ["hwmatrix", "cluster", "scheduler"])])
    old = lab.output.parent / "cache" / "bundles" / "0123456789abcdef"
    old.mkdir(parents=True)
    (old / "manifest.json").write_text("{}", encoding="utf-8")
    (old / "weights").write_bytes(bytes(2**20))
    folder = RunFolder.create(lab.output, lab.plan())
    lab.run(folder, cache_limit_gb=1.0)
    assert old.exists()
    lab.run(RunFolder.create(lab.output, lab.plan(run_id="20260102T000000Z-bbbbbb")), cache_limit_gb=0.0005)
    assert not old.exists()
    assert "the cache has 0.0 GiB of bundles, and the limit is 0.0005: removed 1 of them" in lab.printed.getvalue()


def test_what_is_settled_is_not_run_again(lab: Lab) -> None:
    plan = lab.plan()
    folder = RunFolder.create(lab.output, plan)
    done = [cell for cell in plan.cells if cell.target == "cpu"]
    make.write_shard(folder.shards, plan, results=[make.result(cell) for cell in done])
    lab.run(folder)
    assert sorted(lab.executor.ran) == sorted(cell.key for cell in plan.cells if cell.target == "openvino")
    lab.run(folder)
    assert "nothing is missing: every cell has a verdict" in lab.printed.getvalue()
    assert len(lab.executor.ran) == len(MODELS)


def test_a_part_whose_runner_dies_is_continued(lab: Lab) -> None:
    """Each time, the container dies after one cell. What it finished counts, and only the rest is tried again."""
    lab.executor.dies_after["openvino"] = 1
    folder = RunFolder.create(lab.output, lab.plan())
    lab.run(folder)
    keys = [cell.key for cell in lab.plan().cells]
    assert lab.statuses(folder) == dict.fromkeys(keys, "pass")
    assert sorted(lab.executor.ran) == sorted(keys)
    printed = lab.printed.getvalue()
    assert printed.count("1 of its 2 cells are tried again") == 2
    assert printed.count("[4/4]") == 2


def test_a_part_that_always_fails_is_given_up(lab: Lab) -> None:
    lab.executor.dies_after["openvino"] = 0
    folder = RunFolder.create(lab.output, lab.plan())
    with pytest.raises(EngineError, match=r"openvino: the runner ended before all cells were done \(exit code 137\)"):
        lab.run(folder)
    assert lab.statuses(folder) == {
        key: "pass" if key.endswith("cpu") else "infra_error" for key in (cell.key for cell in lab.plan().cells)
    }
    assert lab.printed.getvalue().count("2 of its 2 cells are tried again") == 4  # two parts, each tried three times


class Stumbles(FakeExecutor):
    """Fails once, in a way that nobody expects."""

    stumbled = False

    def run(self, job: Job, on_line: Any) -> Ended:
        if not self.stumbled:
            self.stumbled = True
            raise FileNotFoundError(2, "No such file or directory", "gone")
        return super().run(job, on_line)


def test_an_unexpected_failure_of_one_part_does_not_stop_the_next_ones(lab: Lab) -> None:
    lab.executor = Stumbles()
    folder = RunFolder.create(lab.output, lab.plan())
    lab.run(folder)
    assert lab.statuses(folder) == dict.fromkeys((cell.key for cell in lab.plan().cells), "pass")
    printed = lab.printed.getvalue()
    assert ": FileNotFoundError: [Errno 2] No such file or directory: 'gone'; 2 of its 2 cells are tried again" in printed
    assert "it was stopped" not in printed


def test_a_machine_that_fails_at_once_does_not_take_every_part(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real = executing.run_part
    given: list[str] = []

    def run_part(whole: Plan, *arguments: Any, **options: Any) -> Any:
        given.append(str(get_worker().name))
        if given[-1] == given[0]:
            raise EngineError("its engine is broken")
        time.sleep(1.0)
        return real(whole, *arguments, **options)

    monkeypatch.setattr(cluster_member, "run_part", run_part)
    folder = RunFolder.create(lab.output, lab.plan())
    lab.run(folder)
    assert lab.statuses(folder) == dict.fromkeys((cell.key for cell in lab.plan().cells), "pass")
    assert given.count(given[0]) <= 4  # none of the four parts twice
    assert len(given) - given.count(given[0]) == 4
    assert lab.printed.getvalue().count(f"what failed on {given[0]} is tried on another member first") == 1


def test_parts_that_only_a_dead_machine_may_run_go_to_any_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real = executing.run_part
    failed: list[str] = []
    dead: list[str] = []

    def run_part(whole: Plan, *arguments: Any, **options: Any) -> Any:
        worker = get_worker()
        if not failed:
            failed.append(worker.address)
            raise EngineError("its engine is broken for a moment")  # from now on, its part may run on the other member only
        if worker.address not in failed and not dead:
            dead.append(worker.address)
            worker.loop.add_callback(worker.close, nanny=False)
            time.sleep(3.0)
        return real(whole, *arguments, **options)

    monkeypatch.setattr(cluster_member, "run_part", run_part)
    lab.client.cluster.scheduler.no_workers_timeout = 0.2
    folder = RunFolder.create(lab.output, lab.plan())
    lab.run(folder)
    assert len(dead) == 1
    assert lab.statuses(folder) == dict.fromkeys((cell.key for cell in lab.plan().cells), "pass")


def test_a_failure_that_no_other_machine_can_mend_ends_the_part(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def pack(*_: Any, **__: Any) -> int:
        raise HwmatrixError("the models cannot be read")

    monkeypatch.setattr(cluster_member, "pack_bundles", pack)
    folder = RunFolder.create(lab.output, lab.plan())
    with pytest.raises(HwmatrixError, match="the models cannot be read"):
        lab.run(folder)
    assert set(lab.statuses(folder).values()) == {"infra_error"}
    assert lab.executor.ran == []


def test_without_a_worker_that_can_run_a_target_its_cells_are_given_up(lab: Lab) -> None:
    lab.client.cluster.scheduler.no_workers_timeout = 0.2
    plan = make.plan(models=("m0",), targets=("cpu", "onnxruntime"), matrix_sha256=lab.loaded.sha256, timing=False)
    folder = RunFolder.create(lab.output, plan)
    with pytest.raises(EngineError, match="no worker that can run onnxruntime is left in the cluster"):
        lab.run(folder)
    assert lab.statuses(folder) == {"m0/tiny/cpu": "pass", "m0/tiny/onnxruntime": "infra_error"}


class Deadly(FakeExecutor):
    """Ends the worker that runs a model for the first time, before its part is complete."""

    def __init__(self, lab: Lab, model: str) -> None:
        super().__init__()
        self.lab = lab
        self.model = model
        self.is_done = False

    def run(self, job: Job, on_line: Any) -> Ended:
        ended = super().run(job, on_line)
        if not self.is_done and f'"{self.model}/' in (job.plan_dir / f"cells-{job.target}.json").read_text(encoding="utf-8"):
            self.is_done = True
            workers = [worker for worker in self.lab.client.cluster.workers.values() if worker.state.executing]
            (worker,) = (each for each in workers if job.out.is_relative_to(each.local_directory))
            worker.loop.add_callback(worker.close, executor_wait=False, nanny=False)
            assert self.stopped.wait(20)
            self.stopped.clear()
        return ended


def test_a_machine_that_is_lost_costs_only_its_unfinished_parts(lab: Lab) -> None:
    """A machine is gone with its disk in the middle of a part. What it had finished before counts."""
    plan = make.plan(models=MODELS, targets=("cpu",), matrix_sha256=lab.loaded.sha256, timing=False)
    folder = RunFolder.create(lab.output, plan)
    lab.executor = Deadly(lab, "m3")
    lab.run(folder)
    keys = [cell.key for cell in plan.cells]
    assert lab.statuses(folder) == dict.fromkeys(keys, "pass")
    assert len(lab.executor.ran) == len(keys) + 2
    assert lab.printed.getvalue().count(" died\n") == 1
    assert "tried again" not in lab.printed.getvalue()  # Dask does it


def test_a_part_whose_workers_die_is_given_up(lab: Lab) -> None:
    plan = make.plan(models=MODELS, targets=("cpu",), matrix_sha256=lab.loaded.sha256, timing=False)
    folder = RunFolder.create(lab.output, plan)
    lab.executor = Deadly(lab, "m3")
    lab.client.cluster.scheduler.allowed_failures = 0
    with pytest.raises(EngineError, match="1 workers died while they had cpu"):
        lab.run(folder)
    assert sorted(lab.statuses(folder).values()) == ["infra_error", "infra_error", "pass", "pass"]


def test_a_part_that_only_waited_on_a_worker_that_died_is_not_blamed(lab: Lab) -> None:
    plan = make.plan(models=[f"m{number}" for number in range(8)], targets=("cpu",), matrix_sha256=lab.loaded.sha256, timing=False)
    folder = RunFolder.create(lab.output, plan)
    lab.executor = Deadly(lab, "m0")
    lab.client.cluster.scheduler.allowed_failures = 0
    with pytest.raises(EngineError, match="1 workers died while they had cpu"):
        lab.run(folder)
    lost = [key.partition("/")[0] for key, status in lab.statuses(folder).items() if status != "pass"]
    assert "m0" in lost
    assert len(lost) == 2  # of one part


def test_an_interrupt_while_a_result_arrives_loses_no_cell(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(lab.output, lab.plan())
    received = Future.result
    interrupted = threading.Event()

    def result(future: Future[Any], *arguments: Any) -> Any:
        value = received(future, *arguments)
        if future.key.startswith("run_cells") and not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        return value

    monkeypatch.setattr(Future, "result", result)
    with pytest.raises(KeyboardInterrupt):
        lab.run(folder)
    assert sorted(key for key, status in lab.statuses(folder).items() if status == "pass") == sorted(lab.executor.ran)


def test_one_archive_that_is_refused_at_the_end_does_not_lose_the_others(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(lab.output, lab.plan())
    unpack, arrived = cluster.artifacts.unpack, []

    def refused(archive: Path, *arguments: Any, **options: Any) -> Any:
        arrived.append(archive)
        if len(arrived) == 2:
            archive.write_bytes(b"no archive")
        return unpack(archive, *arguments, **options)

    def interrupt() -> None:
        if len(arrived) > 1:
            return
        deadline = time.monotonic() + 20
        tasks = lab.client.cluster.scheduler.tasks
        while sum(key.startswith("run_cells") and task.state == "memory" for key, task in tasks.copy().items()) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.1)  # meanwhile the others finish
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster.artifacts, "unpack", refused)
    with pytest.raises(KeyboardInterrupt):
        lab.run(folder, interrupt)
    assert list(lab.statuses(folder).values()).count("pass") >= 6  # a part has two of the eight cells


def test_a_full_disk_here_ends_the_run_and_blames_no_member(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(lab.output, lab.plan())
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name == "shards.tar" and path.is_relative_to(folder.path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(StoreError, match=r"cannot be stored: .*No space left on device\n.*continue with --resume"):
            lab.run(folder)
    assert set(lab.statuses(folder).values()) == {"not_run"}
    lab.run(folder)
    assert set(lab.statuses(folder).values()) == {"pass"}


def test_a_worker_without_hwmatrix_gets_no_work_and_ends_no_run(lab: Lab) -> None:
    folder = RunFolder.create(lab.output, lab.plan())
    program = "import sys; sys.modules['hwmatrix'] = None; from distributed.cli.dask_worker import main; main()"
    options = ("--no-nanny", "--no-dashboard", "--nthreads=1", f"--local-directory={lab.output.parent / 'cluster' / 'foreign'}")
    address = lab.client.cluster.scheduler_address
    with subprocess.Popen([sys.executable, "-c", program, address, *options], stderr=subprocess.DEVNULL) as foreign:
        try:
            lab.client.wait_for_workers(3, timeout=60)
            lab.run(folder)
        finally:
            foreign.terminate()
    assert set(lab.statuses(folder).values()) == {"pass"}
    assert "not every worker of the cluster takes part" in lab.printed.getvalue()


def test_an_interrupted_run_keeps_what_was_finished(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are interrupted in the middle. Their finished cells are taken over; the others have no verdict, not even a failure."""
    plan = lab.plan()
    folder = RunFolder.create(lab.output, plan)
    ran: list[str] = []
    halfway, interrupted = threading.Event(), threading.Event()

    class Interrupted(FakeExecutor):
        def run(self, job: Job, on_line: Any) -> Ended:
            if not ran:
                return super().run(job, on_line)
            ended = FakeExecutor(dies_after={job.target: 1}, ran=ran).run(job, on_line)
            halfway.set()
            assert self.stopped.wait(20)
            return ended

    def interrupt() -> None:
        if not interrupted.is_set():
            interrupted.set()
            assert halfway.wait(20)
            raise KeyboardInterrupt

    monkeypatch.setattr(cluster_member, "choose", lambda *_: Interrupted(ran=ran))
    with pytest.raises(KeyboardInterrupt):
        lab.run(folder, interrupt)
    found = lab.statuses(folder)
    assert set(found.values()) == {"pass", "not_run"}
    assert sorted(key for key, status in found.items() if status == "pass") == sorted(ran)
    assert lab.left_behind() == []


def test_a_lost_scheduler_ends_the_run(lab: Lab) -> None:
    folder = RunFolder.create(lab.output, lab.plan())
    with pytest.raises(EngineError, match=r"the scheduler is gone\nStart it again, then continue with --resume"):
        lab.run(folder, lambda: lab.client.close(1))
    assert "not every member knows that the run has ended" in lab.printed.getvalue()


def test_a_scheduler_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the keys of the cluster, and accepts the connection."""
    monkeypatch.setattr(connection, "_CONNECT_S", 1.0)
    make_keys(tmp_path / "keys", days=1)
    context = security(tmp_path / "keys").get_listen_args("scheduler")["ssl_context"]
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            client, _ = server.accept()
            accepted.append(context.wrap_socket(client, server_side=True))

        serving = threading.Thread(target=accept)
        serving.start()
        address = f"tls://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EngineError, match=r"no scheduler answers there \(it accepts connections, but says nothing\)"):
            connection.connected(address, tmp_path / "keys").__enter__()
        serving.join()
    for each in accepted:
        each.close()


def test_a_worker_with_other_code_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = dataclasses.replace(offers.offer({}), code="of another commit")
    monkeypatch.setattr(cluster_member, "offer_here", lambda: offer)
    with pytest.raises(EngineError, match=r"has another hwmatrix .*code of another commit"):
        cluster.members_of(lab.client)
