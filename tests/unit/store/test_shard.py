from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest

from hwmatrix.errors import StoreError
from hwmatrix.records import Classification, Detection, ErrorRecord, Family, Role, Severity, Stage, Status, Structure
from hwmatrix.store import shard as shards
from hwmatrix.store.shard import (
    ShardWriter,
    finished_cells,
    salvage,
    seal_file,
    settled_cells,
    sha256_of,
    write_atomically,
)
from hwmatrix.store.sidecar import COUNTED, read_sidecar, sidecar_path

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.records import Plan

PLAN = make.plan()
CELL = PLAN.cells[0]
FOUND = Detection(hardware_type="cpu", available=True, name="x", features={"cores": 2}, reason=None, detected_at="2026-01-02T03:04:05")


KNOWN = Classification(
    model_name="bert",
    architecture="bert",
    model_class="BertForMaskedLM",
    family=Family.EMBEDDING,
    subfamily="masked_lm",
    structure=Structure.ENCODER_ONLY,
    confidence=0.98,
    evidence="class",
    source="the class's head ForMaskedLM",
)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(query).fetchall()


def unfinished(folder: Path, plan: Plan = PLAN, shard_id: str = "0123456789ab") -> Path:
    """A shard with one cell, whose writer did not finish it."""
    with ShardWriter(folder, plan, make.identity("cpu", shard_id)) as shard:
        shard.add_detections([FOUND])
        shard.set_canaries(ok=True, detail=None)
        shard.add_cell(make.result(plan.cells[0]), command="again")
    return folder / f"cpu-{shard_id}.duckdb.partial"


def test_every_table_has_its_rows(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, PLAN, make.identity()) as shard:
        shard.add_detections([FOUND])
        shard.add_classifications([KNOWN])
        shard.set_canaries(ok=True, detail="as they must")
        shard.add_cell(make.result(CELL), command="nox -s matrix -- again")
        shard.add_cell(make.result(PLAN.cells[2], **make.failure(Status.CRASH, signal=11, exit_code=None)), command="again")
        path = shard.seal()
    counts = {table: rows(path, f"SELECT count(*) FROM {table}")[0][0] for table in COUNTED}  # noqa: S608
    assert counts == {"runs": 1, "shards": 1, "detections": 1, "cells": 2, "stages": 10, "outputs": 2, "samples": 40} | {
        "operators": 0,
        "classifications": 1,
    }
    assert rows(path, "SELECT model, family, structure, confidence, parameters FROM classifications") == [
        ("bert", "embedding", "encoder-only", 0.98, None)
    ]
    assert rows(path, "SELECT value FROM meta WHERE key = 'schema_version'") == [(shards.SCHEMA_VERSION,)]
    assert rows(path, "SELECT target, canary_ok, canary_detail, versions->>'torch', finished_at IS NOT NULL FROM shards") == [
        ("cpu", True, "as they must", "2.13.0", True)
    ]
    assert rows(path, "SELECT features->>'cores', available FROM detections") == [("2", True)]


def test_a_cell_is_stored_completely(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, PLAN, make.identity()) as shard:
        shard.add_cell(make.result(CELL), command="nox -s matrix -- again")
        path = shard.seal()
    columns = "status, stage, on_target, relative_error, top1, load_ms, peak_mb, delta_mb, parameters, method, command, started_at::VARCHAR"
    assert rows(path, f"SELECT {columns} FROM cells") == [  # noqa: S608
        ("pass", "measure", 1.0, 1e-6, 1.0, 64.0, 350.0, 50.0, 30_000, "torch eager", "nox -s matrix -- again", "2026-01-02 03:04:06")
    ]
    assert rows(path, "SELECT inputs, text_path FROM cells") == [(["image", "text"], False)]
    assert rows(path, "SELECT origin, columns('diverges_.*') FROM cells") == [
        ("step", "node_7", "TopK", 0.5, 1e-3, "the same graph elsewhere", "a test")
    ]
    assert rows(path, "SELECT n, wall_ns, cpu_ns FROM samples ORDER BY n")[39] == (39, 1_000_039, 999_039)
    assert rows(path, "SELECT name, shape, dtype, cosine FROM outputs ORDER BY name") == [
        ("extra", [1], "int64", None),
        ("logits", [1, 16, 256], "float32", 1.0),
    ]
    assert rows(path, "SELECT stage, wall_ms FROM stages ORDER BY wall_ms LIMIT 1") == [("compare", 0.5)]


def test_values_that_were_not_measured_are_missing(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, PLAN, make.identity()) as shard:
        shard.add_cell(make.result(CELL, **make.failure(Status.OOM)), command="again")
        path = shard.seal()
    columns = "on_target, relative_error, first_ms, peak_mb, converged, warmup_samples"
    assert rows(path, f"SELECT {columns} FROM cells") == [(None,) * 6]  # noqa: S608
    assert rows(path, "SELECT error_type, severity, message, needs FROM cells") == [("unmatched", "error", "a test", ["op"])]


def test_the_sidecar_describes_the_shard(tmp_path: Path) -> None:
    path = make.write_shard(tmp_path, PLAN)
    sidecar = read_sidecar(path)
    assert sidecar.sha256 == sha256_of(path)
    assert (sidecar.shard_id, sidecar.run_id, sidecar.target) == ("0123456789ab", PLAN.run_id, "cpu")
    assert sidecar.counts == {
        "runs": 1,
        "shards": 1,
        "detections": 0,
        "cells": 2,
        "stages": 10,
        "outputs": 4,
        "samples": 80,
        "operators": 0,
        "classifications": 0,
    }
    assert json.loads(sidecar_path(path).read_text())["bytes"] == path.stat().st_size
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, f"{path.name}.json"]


def test_a_small_shard_is_a_small_file(tmp_path: Path) -> None:
    assert make.write_shard(tmp_path, PLAN).stat().st_size < 1_000_000


def test_finished_cells_of_a_killed_writer_are_saved(tmp_path: Path) -> None:
    partial = unfinished(tmp_path)
    assert partial.exists()
    (path,) = salvage(tmp_path)
    assert not partial.exists()
    assert rows(path, "SELECT cell_key, status FROM cells") == [(CELL.key, "pass")]
    assert rows(path, "SELECT finished_at FROM shards") == [(None,)]
    assert read_sidecar(path).counts["samples"] == 40
    assert salvage(tmp_path) == []


def test_a_write_ahead_log_of_a_killed_writer_is_replayed(tmp_path: Path) -> None:
    """A copy of a live writer's files simulates a power cut."""
    live, left = tmp_path / "live", tmp_path / "left"
    live.mkdir()
    left.mkdir()
    with ShardWriter(live, PLAN, make.identity()) as shard:
        shard.add_cell(make.result(CELL), command="again")
        assert shard._connection is not None
        shard._connection.execute("BEGIN")
        shard._connection.execute("INSERT INTO stages VALUES ('x', 'load', 1.0)")
        for file in live.iterdir():
            shutil.copy(file, left)
    (path,) = salvage(left)
    assert rows(path, "SELECT count(*) FROM cells") == [(1,)]
    assert rows(path, "SELECT count(*) FROM stages WHERE cell_id = 'x'") == [(0,)]


def test_salvage_of_one_target_leaves_the_others(tmp_path: Path) -> None:
    unfinished(tmp_path)
    assert salvage(tmp_path, "openvino") == []
    assert len(salvage(tmp_path, "cpu")) == 1


@pytest.mark.parametrize("content", [b"", b"not a database", b"\0" * 20_000])
def test_an_unreadable_file_is_renamed(tmp_path: Path, content: bytes) -> None:
    broken = tmp_path / "cpu-bad.duckdb.partial"
    broken.write_bytes(content)
    good = unfinished(tmp_path)
    assert [path.name for path in salvage(tmp_path)] == [good.name.removesuffix(".partial")]
    assert not broken.exists()
    assert broken.with_name("cpu-bad.duckdb.partial.broken").exists()


def test_a_truncated_partial_file_is_renamed(tmp_path: Path) -> None:
    partial = unfinished(tmp_path)
    partial.write_bytes(partial.read_bytes()[:20_000])
    assert salvage(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [f"{partial.name}.broken"]


def test_a_shard_whose_writer_was_killed_while_sealing_is_sealed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between writing the sidecar and renaming it is still a partial file, never a finished shard that cannot be merged."""
    partial = unfinished(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(partial), "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            seal_file(partial)
    assert list(tmp_path.glob("*.duckdb")) == []
    (path,) = salvage(tmp_path)
    assert read_sidecar(path).sha256 == sha256_of(path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path / "file"):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(StoreError, match="cannot be written") as caught, ShardWriter(folder, PLAN, make.identity()):
            pass
        assert "--resume" in caught.value.advice


def test_a_full_disk_is_reported_wherever_it_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise duckdb.IOException("No space left on device")

    with ShardWriter(tmp_path, PLAN, make.identity()) as shard:
        monkeypatch.setattr(shards, "_insert", full)
        with pytest.raises(StoreError, match="No space left"):
            shard.add_detections([FOUND])
    with pytest.raises(StoreError, match="No space left"), ShardWriter(tmp_path, PLAN, make.identity(shard_id="other")):
        pass


def test_a_cell_that_cannot_be_stored_completely_is_not_stored(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, PLAN, make.identity()) as shard:
        shard.add_cell(make.result(CELL), command="again")
        with pytest.raises(StoreError):
            shard.add_cell(make.result(CELL), command="again")
    (path,) = salvage(tmp_path)
    assert read_sidecar(path).counts["cells"] == 1
    assert read_sidecar(path).counts["samples"] == 40


def test_a_closed_writer_writes_nothing(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, PLAN, make.identity()) as shard:
        shard.seal()
        with pytest.raises(StoreError, match="is closed"):
            shard.add_cell(make.result(CELL), command="again")


@pytest.mark.parametrize(("canary_ok", "finished"), [(True, 2), (False, 0), (None, 0)])
def test_only_cells_with_good_canaries_are_finished(tmp_path: Path, *, canary_ok: bool | None, finished: int) -> None:
    path = make.write_shard(tmp_path, PLAN, canary_ok=canary_ok)
    assert len(finished_cells([path])) == finished


def test_unavailable_is_a_verdict_without_canaries(tmp_path: Path) -> None:
    results = [make.result(CELL, **make.failure(Status.UNAVAILABLE)), make.result(PLAN.cells[2], **make.failure(Status.INFRA_ERROR))]
    path = make.write_shard(tmp_path, PLAN, canary_ok=None, results=results)
    assert finished_cells([path]) == {CELL.key}


@pytest.mark.parametrize(
    ("status", "stage", "kind", "settled"),
    [
        (Status.TIMEOUT, Stage.PREPARE, "export_timeout", False),
        (Status.OOM, Stage.PREPARE, "export_out_of_memory", False),
        (Status.FACTORY_ERROR, Stage.BUILD, "bundle_unfinished", False),
        (Status.INFRA_ERROR, Stage.LOAD, "infrastructure", False),
        (Status.TIMEOUT, Stage.RUN, "timeout", True),
        (Status.FACTORY_ERROR, Stage.BUILD, "factory_failed", True),
        (Status.CRASH, Stage.RUN, "segmentation_fault", True),
    ],
)
def test_failures_that_a_busy_machine_may_have_caused_are_finished_but_not_settled(
    tmp_path: Path, status: Status, stage: Stage, kind: str, *, settled: bool
) -> None:
    error = ErrorRecord(type=kind, severity=Severity.ERROR, message="why")
    path = make.write_shard(tmp_path, PLAN, results=[make.result(CELL, **make.failure(status, stage, error=error))])
    assert finished_cells([path]) == {CELL.key}
    assert settled_cells([path]) == ({CELL.key} if settled else set())


def test_canaries_are_not_models(tmp_path: Path) -> None:
    path = make.write_shard(tmp_path, PLAN, results=[make.result(CELL, role=Role.CANARY_GOOD)])
    assert finished_cells([path]) == set()


def test_an_unreadable_shard_is_reported_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "cpu-x.duckdb"
    path.write_text("garbage")
    with pytest.raises(StoreError, match=r"cpu-x\.duckdb: cannot be read"):
        finished_cells([path])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "its sidecar cannot be read"),
        ("[]", "its version is None"),
        (
            '{"schema": "hwmatrix/shard/9"}',
            "its version is 'hwmatrix/shard/9', this hwmatrix reads 'hwmatrix/shard/2': run the target again",
        ),
        ('{"schema": "hwmatrix/shard/2"}', "its sidecar is broken: shard_id is None"),
    ],
)
def test_a_broken_sidecar(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "cpu-x.duckdb"
    sidecar_path(path).write_text(text)
    with pytest.raises(StoreError, match=reason):
        read_sidecar(path)


@pytest.mark.parametrize("counts", [{}, [], {"cells": 1}, None, {"cells": "many"}])
def test_a_sidecar_with_wrong_counts_is_broken(tmp_path: Path, counts: object) -> None:
    path = make.write_shard(tmp_path, PLAN)
    data = json.loads(sidecar_path(path).read_text()) | {"counts": counts}
    sidecar_path(path).write_text(json.dumps(data))
    with pytest.raises(StoreError, match="its sidecar is broken"):
        read_sidecar(path)


def test_files_are_written_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
