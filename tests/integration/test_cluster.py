"""A run on a cluster whose workers are threads of this process and execute nothing: what is delivered, retried and told."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import socket
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest
from distributed import Client, LocalCluster, get_worker
from fake_executor import FakeExecutor
from rich.console import Console

from hwmatrix.app import cluster, cluster_member, cluster_snapshots
from hwmatrix.app import execution as executing
from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import workshop_of
from hwmatrix.basics.cache_folder import CACHE_VARIABLE
from hwmatrix.errors import EngineError, HwmatrixError
from hwmatrix.host.ci_machines import pruning
from hwmatrix.host.cluster import connection, offers, parts
from hwmatrix.host.cluster.keys import make_keys, security
from hwmatrix.host.console import PlainView
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.shipped import MATRIX_FILE, shipped_root
from hwmatrix.store.merge import merge
from hwmatrix.store.shard import finished_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwmatrix.host.executors import Ended, Job
    from hwmatrix.records import Plan


MODELS = ("m0", "m1", "m2", "m3")
TARGETS = ("cpu", "openvino")


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

    def run(self, folder: RunFolder, **options: Any) -> None:
        view = PlainView(Console(file=self.printed, width=300), verbose=False)
        workshop = workshop_of(self.loaded, read_environment(), None, view)
        cluster.run_on(self.client, self.loaded, folder, folder.plan(), output=self.output, workshop=workshop, view=view, **options)

    def statuses(self, folder: RunFolder) -> dict[str, str]:
        database = self.output / "check.duckdb"
        assert merge([folder.path], database, fresh=True).rejected == ()
        with duckdb.connect(str(database), read_only=True) as connection:
            return dict(connection.execute("SELECT cell_key, status FROM results ORDER BY position").fetchall())


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cluster, "_LOOK_S", 0.05)
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
            assert archive.is_relative_to(cache.parent)
            assert folder.path.is_dir()
            assert archive.read_bytes().decode().split() == [model.name for model in plan.models]
            return frozenset(model.key for model in plan.models)

        monkeypatch.setattr(cluster_member, "pack_bundles", pack)
        monkeypatch.setattr(cluster_member, "choose", lambda *_: lab.executor)
        monkeypatch.setattr(executing.bundle_archive, "unpack", unpack)
        monkeypatch.setattr(cluster, "merge_and_report", lambda *_: None)
        yield lab


def test_every_cell_is_run_once_and_every_bundle_is_made_once(lab: Lab) -> None:
    forgotten = lab.output.parent / "cache" / "cluster" / "runs" / "20260101T000000Z-0ld000"
    forgotten.mkdir(parents=True)
    os.utime(forgotten, (0, 0))
    folder = RunFolder.create(lab.output, lab.plan())
    lab.run(folder)
    keys = [cell.key for cell in lab.plan().cells]
    assert lab.statuses(folder) == dict.fromkeys(keys, "pass")
    assert sorted(lab.executor.ran) == sorted(keys)
    assert sorted(lab.made) == sorted(MODELS)
    printed = lab.printed.getvalue()
    assert "cpu: done" in printed
    assert "[4/4]" in printed
    assert not list((lab.output.parent / "cache" / "cluster" / "runs").iterdir())  # the members kept nothing


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


def test_without_a_worker_that_can_run_a_target_its_cells_are_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_GIVE_UP_S", 0.2)
    plan = make.plan(models=("m0",), targets=("cpu", "onnxruntime"), matrix_sha256=lab.loaded.sha256, timing=False)
    folder = RunFolder.create(lab.output, plan)
    with pytest.raises(EngineError, match="no worker that can run onnxruntime is left in the cluster"):
        lab.run(folder)
    assert lab.statuses(folder) == {"m0/tiny/cpu": "pass", "m0/tiny/onnxruntime": "infra_error"}


def test_finished_cells_that_an_earlier_client_never_got_are_taken_over(lab: Lab) -> None:
    plan = lab.plan()
    folder = RunFolder.create(lab.output, plan)
    left = RunFolder.create(lab.output.parent / "cache" / "cluster" / "runs" / plan.run_id / "cpu 1 of 6", plan)
    make.write_shard(left.shards, plan, results=[make.result(cell) for cell in plan.cells if cell.target == "cpu"])
    lab.run(folder)
    assert sorted(lab.executor.ran) == sorted(cell.key for cell in plan.cells if cell.target == "openvino")
    assert set(lab.statuses(folder).values()) == {"pass"}


def finished_in(archive: Path) -> set[str]:
    """The cells with a verdict in an archive of shards."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
        return finished_cells(list(Path(folder).glob("shards/*.duckdb")))


def test_a_machine_that_is_lost_costs_only_its_unfinished_cells(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine is gone with its disk in the middle of a part. Its finished cell counts, since the client has a snapshot of it."""
    monkeypatch.setattr(cluster_snapshots, "COLLECT_S", 0.05)
    plan = make.plan(models=MODELS, targets=("cpu",), matrix_sha256=lab.loaded.sha256, timing=False)
    folder = RunFolder.create(lab.output, plan)
    lost = threading.Lock()

    class Lost(FakeExecutor):
        def run(self, job: Any, on_line: Any) -> Any:
            if not lost.acquire(blocking=False):
                return super().run(job, on_line)
            ended = FakeExecutor(dies_after={job.target: 1}, ran=self.ran).run(job, on_line)
            until = time.monotonic() + 60
            part = job.out.parents[2]
            while not [key for file in (folder.path / "snapshots").glob(f"{part.name} *.tar") for key in finished_in(file)]:
                assert time.monotonic() < until
                time.sleep(0.05)
            while part.exists():  # while the member makes a snapshot in it
                assert time.monotonic() < until
                shutil.rmtree(part, ignore_errors=True)
            running = (worker for worker in lab.client.cluster.workers.values() if worker.state.executing)
            (worker,) = (each for each in running if any(part.name.replace(" ", "-") in task.key for task in each.state.executing))
            worker.loop.add_callback(worker.close, executor_wait=False, nanny=False)
            assert self.stopped.wait(20)
            return ended

    lab.executor = Lost()
    lab.client.cluster.scheduler.allowed_failures = 0  # as hwmatrix cluster scheduler does
    lab.run(folder)
    keys = [cell.key for cell in plan.cells]
    assert lab.statuses(folder) == dict.fromkeys(keys, "pass")
    assert sorted(lab.executor.ran) == sorted(keys)
    assert "1 of its 2 cells are tried again" in lab.printed.getvalue()
    assert not (folder.path / "snapshots").exists()


def test_an_interrupted_run_keeps_what_was_finished(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One part is interrupted in the middle. Its finished cell is taken over; the other has no verdict, not even a failure."""
    plan = lab.plan()
    folder = RunFolder.create(lab.output, plan)
    first = threading.Event()

    def run(self: FakeExecutor, job: Any, on_line: Any) -> Any:
        self.dies_after = {job.target: 1}
        ended = FakeExecutor.run(self, job, on_line)
        assert first.wait(20)
        self.started.set()
        assert self.stopped.wait(20)
        return ended

    class Interrupted(FakeExecutor):
        pass

    Interrupted.run = run  # type: ignore[method-assign]
    lab.executor = Interrupted()

    def report(_self: Any, _title: str, _event: Any) -> None:
        if not first.is_set():
            first.set()
            assert lab.executor.started.wait(20)
            raise KeyboardInterrupt

    monkeypatch.setattr(cluster._ClusterRun, "_report", report)
    with pytest.raises(KeyboardInterrupt):
        lab.run(folder)
    found = lab.statuses(folder)
    assert set(found.values()) == {"pass", "not_run"}
    assert sorted(key for key, status in found.items() if status == "pass") == sorted(lab.executor.ran)
    assert not list((lab.output.parent / "cache" / "cluster" / "runs").iterdir())


def test_a_lost_scheduler_ends_the_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster._ClusterRun, "_report", lambda self, *_: self._client.close(1))
    folder = RunFolder.create(lab.output, lab.plan())
    with pytest.raises(EngineError, match=r"the scheduler is gone\nStart it again, then continue with --resume"):
        lab.run(folder)
    assert "the members do not know that the run has ended" in lab.printed.getvalue()


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
