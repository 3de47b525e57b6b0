"""A run that is killed, damaged, continued and merged in any order, against a model in which each finished cell counts exactly once."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import factory_plans as make
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from hwmatrix.host.run_folder import RunFolder
from hwmatrix.records import Status
from hwmatrix.store.latest import merge_latest
from hwmatrix.store.merge import merge
from hwmatrix.store.shard import ShardWriter

PLAN = make.plan(models=("bert", "gpt2", "vit"), targets=("cpu", "openvino"))
CELLS = {target: [cell for cell in PLAN.cells if cell.target == target] for target in ("cpu", "openvino")}
STATUSES = (Status.PASS, Status.MISMATCH, Status.CRASH, Status.INFRA_ERROR)
AGAIN = {Status.INFRA_ERROR.value}
"""What ``--resume`` runs again, since it says nothing about the model."""


class Runs(RuleBasedStateMachine):
    """The model: for each shard that can be read, the statuses of its cells in the order of the runs."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="hwmatrix-states-"))
        self.shards: dict[str, dict[str, str]] = {}
        self.number = 0

    @initialize()
    def plan(self) -> None:
        self.folder = RunFolder.create(self.root, PLAN)

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @property
    def expected(self) -> dict[str, str]:
        """The status of every cell: of its last execution that says something about the model, else of its last one."""
        found = {cell.key: "not_run" for cell in PLAN.cells}
        for statuses in self.shards.values():
            found |= {key: status for key, status in statuses.items() if status not in AGAIN or found[key] in {*AGAIN, "not_run"}}
        return found

    @rule(
        place=st.sampled_from(sorted(CELLS)),
        count=st.integers(0, 3),
        outcomes=st.lists(st.sampled_from(STATUSES), min_size=3, max_size=3),
        ending=st.tuples(st.sampled_from(["sealed", "killed", "torn"]), st.floats(0, 0.9)),
        second=st.integers(0, 59),
    )
    def run_or_resume(self, place: str, count: int, outcomes: list[Status], ending: tuple[str, float], second: int) -> None:
        """A runner of one target does what is missing, as far as it gets, and ends well, by SIGKILL, or with its file torn.

        Its clock (``second``) may be behind that of an earlier runner.
        """
        how, torn_at = ending
        self.folder.salvage()
        settled = self.folder.settled()
        todo = [cell for cell in CELLS[place] if cell.key not in settled][:count]
        self.number += 1
        name = f"{self.number:012x}"
        written: dict[str, str] = {}
        with ShardWriter(self.folder.shards, PLAN, make.identity(place, name)) as shard:
            shard.set_canaries(ok=True, detail=None)
            for cell, status in zip(todo, outcomes, strict=False):
                changes = make.failure(status) if status is not Status.PASS else {}
                shard.add_cell(make.result(cell, started_at=f"2026-01-02T03:04:{second:02}.000000", **changes), command="hwmatrix matrix")
                written[cell.key] = status.value
            if how == "sealed":
                shard.seal()
            else:
                left = {file: file.read_bytes() for file in self.folder.shards.glob(f"{place}-{name}.duckdb*")}
        if how != "sealed":
            for file, content in left.items():
                file.write_bytes(content if how == "killed" else content[: int(len(content) * torn_at)])
        if how != "torn":
            self.shards[name] = written

    @precondition(lambda self: self.shards)
    @rule(data=st.data())
    def damage(self, data: Any) -> None:
        """A bit of a finished shard flips on the disk. Its cells are lost, and nothing else."""
        sealed = sorted(self.folder.shards.glob("*.duckdb"))
        if not sealed:
            return
        shard = data.draw(st.sampled_from(sealed))
        content = bytearray(shard.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        shard.write_bytes(content)
        del self.shards[shard.name.removesuffix(".duckdb").rpartition("-")[2]]

    @rule()
    def merge_again(self) -> None:
        """Merging the same run into its own database again changes nothing."""
        database = self.root / "again.duckdb"
        with contextlib.suppress(FileNotFoundError):
            database.unlink()
        self.folder.salvage()
        for _ in range(2):
            merge([self.folder.path], database)
        assert statuses(database) == self.expected

    @rule()
    def publish(self) -> None:
        """A published database has the same verdicts, and none for what never ran."""
        whole, published = self.root / "whole.duckdb", self.root / "published.duckdb"
        self.folder.salvage()
        merge([self.folder.path], whole, fresh=True)
        merge_latest([whole], published, publish=True)
        merge_latest([published, whole], published, publish=True)
        assert statuses(published) == {key: status for key, status in self.expected.items() if status != "not_run"}
        published.unlink()

    @invariant()
    def every_finished_cell_counts_once(self) -> None:
        if not hasattr(self, "folder"):
            return
        self.folder.salvage()
        assert self.folder.settled() == {key for key, status in self.expected.items() if status not in {"not_run", *AGAIN}}
        database = self.root / "merged.duckdb"
        merge([self.folder.path], database, fresh=True)
        assert statuses(database) == self.expected
        executed = [key for found in self.shards.values() for key in found]
        with duckdb.connect(str(database), read_only=True) as connection:
            rows = connection.execute("SELECT cell_key FROM cells WHERE role = 'model'").fetchall()
        assert sorted(key for (key,) in rows) == sorted(executed)


def statuses(database: Path) -> dict[str, str]:
    """The status of every planned cell, as reports have it."""
    with duckdb.connect(str(database), read_only=True) as connection:
        return dict(connection.execute("SELECT cell_key, status FROM results").fetchall())


def test_each_finished_cell_counts_exactly_once() -> None:
    """HWMATRIX_STATES is the number of examples, at random, for a longer search than a test run has time for."""
    asked = os.environ.get("HWMATRIX_STATES")
    chosen = settings(max_examples=int(asked or 4), stateful_step_count=8, deadline=None, derandomize=not asked)
    run_state_machine_as_test(Runs, settings=settings(chosen, suppress_health_check=list(HealthCheck)))


def test_a_verdict_stands_beside_a_failure_of_ours_whose_clock_was_ahead(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, PLAN)
    cell = CELLS["cpu"][0]
    for name, second, changes in (("a" * 12, 30, make.failure(Status.INFRA_ERROR)), ("b" * 12, 10, {})):
        with ShardWriter(folder.shards, PLAN, make.identity("cpu", name)) as shard:
            shard.set_canaries(ok=True, detail=None)
            shard.add_cell(make.result(cell, started_at=f"2026-01-02T03:04:{second}.000000", **changes), command="hwmatrix matrix")
            shard.seal()
    merge([folder.path], tmp_path / "m.duckdb")
    assert statuses(tmp_path / "m.duckdb")[cell.key] == "pass"
