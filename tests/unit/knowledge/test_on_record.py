"""The measurements behind an answer: the precedence of the sources, and how they are reported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import Database, steady, unmeasured

from hwmatrix.errors import StoreError
from hwmatrix.knowledge import on_record as module
from hwmatrix.knowledge import snapshot
from hwmatrix.knowledge.on_record import Place, in_step, on_record, published_databases
from hwmatrix.records import Backend, Size, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.knowledge.on_record import OnRecord

BERT: dict[str, Any] = {"family": "embedding", "architecture": "bert", "hub_id": "google-bert/bert-base-uncased"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with its own published results."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "PUBLISHED", Path("reports/published"))
    return tmp_path


def database(path: Path, cells: Sequence[tuple[str, str, str]], *, day: int = 2, size: str = "full", timed: bool = True) -> Path:
    """A database with cells (name, target, status) executed on that day."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Database(path) as filled:
        filled.run(f"run-{day}", created_at=f"2026-01-{day:02} 03:04:05")
        for target in sorted({target for _, target, _ in cells}):
            filled.shard(f"s-{target}", target, f"run-{day}", started_at=f"2026-01-{day:02} 03:04:05")
        for model, target, status in cells:
            planned = filled.plan(model, target, f"run-{day}", size=size, **BERT | {"hub_id": None})
            changes = {} if status == "pass" else unmeasured(status)
            wall = steady(50.0 if target == "openvino" else 100.0) if status == "pass" and timed else ()
            filled.cell(planned, f"s-{target}", wall=wall, started_at=f"2026-01-{day:02} 03:04:06", **changes)
    return path


def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **databases: Path) -> Path:
    """Replace the packaged snapshot by one of these databases."""
    path = tmp_path / "shipped.json.gz"
    snapshot.write(snapshot.collect({f"{name}/matrix.duckdb": each for name, each in databases.items()}), path)
    monkeypatch.setattr(module, "SNAPSHOT", path)
    return path


def verdicts(found: OnRecord) -> dict[tuple[str, str], Status]:
    return {(record.model, record.target): record.status for record in found.evidence}


def test_an_empty_folder_has_no_measurements() -> None:
    assert on_record().evidence == ()
    assert on_record().answer() == []


def test_each_cell_comes_from_the_first_source_that_has_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [("bert", "cpu", "error")]
    database(folder / "reports" / "latest" / "matrix.duckdb", own, day=5)
    database(folder / "reports" / "published" / "a" / "matrix.duckdb", [("bert", "cpu", "pass"), ("vit", "cpu", "pass")], day=6)
    theirs = [("bert", "cpu", "timeout"), ("vit", "cpu", "timeout"), ("gpt2", "cpu", "pass")]
    shipped(folder, monkeypatch, theirs=database(folder / "theirs.duckdb", theirs, day=7))
    found = on_record()
    assert [source.place for source in found.sources] == [Place.LATEST, Place.PUBLISHED, Place.SNAPSHOT]
    assert verdicts(found) == {("bert", "cpu"): Status.ERROR, ("vit", "cpu"): Status.PASS, ("gpt2", "cpu"): Status.PASS}
    assert {record.model for record in found.own} == {"bert"}
    assert {cell.model for cell in found.memory} == {"vit", "gpt2", "bert"}  # a peak that no earlier source has


def test_a_given_database_is_the_only_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = database(folder / "elsewhere" / "matrix.duckdb", [("vit", "cpu", "pass")])
    database(folder / "reports" / "latest" / "matrix.duckdb", [("bert", "cpu", "pass")])
    shipped(folder, monkeypatch, theirs=database(folder / "theirs.duckdb", [("gpt2", "cpu", "pass")]))
    assert set(verdicts(on_record(named))) == {("vit", "cpu")}
    assert set(verdicts(on_record(named.parent))) == {("vit", "cpu")}
    with pytest.raises(StoreError, match=r"no such file"):
        on_record(folder / "none.duckdb")


def test_one_merged_database_replaces_many(folder: Path) -> None:
    published = folder / "reports" / "published"
    for name in ("a", "b"):
        database(published / name / "matrix.duckdb", [(name, "cpu", "pass")])
    assert list(published_databases(published)) == ["a/matrix.duckdb", "b/matrix.duckdb"]
    assert {model for model, _ in verdicts(on_record())} == {"a", "b"}
    database(published / "matrix.duckdb", [("c", "cpu", "pass")])
    assert list(published_databases(published)) == ["matrix.duckdb"]
    assert {model for model, _ in verdicts(on_record())} == {"c"}


def test_an_answer_names_its_sources_dates_and_versions(folder: Path) -> None:
    database(folder / "reports" / "latest" / "matrix.duckdb", [("bert", "cpu", "pass"), ("bert", "openvino", "pass")])
    (told,) = on_record().answer()
    assert (told["place"], told["where"], told["cells"]) == ("latest", "reports/latest/matrix.duckdb", 2)
    assert (told["first"], told["last"]) == ("2026-01-02T03:04:06", "2026-01-02T03:04:06")
    assert told["versions"]
    assert all(told["versions"].values())
    text = str(on_record().sources[0])
    assert "2026-01-02" in text
    assert all(package in text for package in told["versions"])


def test_changed_databases_are_read_again(folder: Path) -> None:
    path = folder / "reports" / "latest" / "matrix.duckdb"
    database(path, [("bert", "cpu", "pass")])
    assert set(verdicts(on_record())) == {("bert", "cpu")}
    path.unlink()
    database(path, [("vit", "cpu", "pass"), ("bert", "cpu", "error")])
    assert verdicts(on_record()) == {("vit", "cpu"): Status.PASS, ("bert", "cpu"): Status.ERROR}


def test_published_results_and_their_snapshot_give_the_same_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = database(folder / "reports" / "published" / "a" / "matrix.duckdb", [("bert", "cpu", "pass"), ("bert", "openvino", "pass")])
    from_databases = on_record()
    path = shipped(folder, monkeypatch, a=one)
    assert in_step(published_databases(folder / "reports" / "published"), snapshot.read(path))
    from_snapshot = on_record()
    assert from_snapshot == from_databases
    assert [source.place for source in from_snapshot.sources] == [Place.PUBLISHED]  # counted once
    assert from_snapshot.on(Backend.OPENVINO)[0].speed_up == 2.0
    with Database(folder / "more.duckdb"):
        pass
    assert not in_step({"a/matrix.duckdb": folder / "more.duckdb"}, snapshot.read(path))
    assert not in_step({"b/matrix.duckdb": one}, snapshot.read(path))


def test_the_latest_verdict_of_a_cell_is_kept(tmp_path: Path) -> None:
    old = database(tmp_path / "old.duckdb", [("bert", "cpu", "pass"), ("vit", "cpu", "error"), ("vit", "openvino", "unavailable")], day=2)
    new = database(tmp_path / "new.duckdb", [("bert", "cpu", "crash"), ("vit", "cpu", "pass")], day=3)
    for databases in ({"a": old, "b": new}, {"b": new, "a": old}):
        made = snapshot.collect(databases)
        kept = {(cell.model, cell.target): cell.status for cell in made.cells}
        assert kept == {("bert", "cpu"): "crash", ("vit", "cpu"): "pass"}  # unavailable hardware proves nothing
        assert (made.executed.first, made.executed.last) == ("2026-01-02T03:04:06", "2026-01-03T03:04:06")


def test_a_later_untimed_pass_does_not_remove_the_speed(tmp_path: Path) -> None:
    both = [("bert", "cpu", "pass"), ("bert", "openvino", "pass")]
    timed = database(tmp_path / "timed.duckdb", both, day=2)
    untimed = database(tmp_path / "untimed.duckdb", both, day=3, timed=False)
    kept = [cell for cell in snapshot.collect({"a": timed, "b": untimed}).cells if cell.target == "openvino"]
    assert [(cell.run_id, cell.speed_up) for cell in kept] == [("run-3", None), ("run-2", 2.0)]
    failing = database(tmp_path / "failing.duckdb", [("bert", "openvino", "error")], day=4)
    kept = [cell for cell in snapshot.collect({"a": timed, "b": untimed, "c": failing}).cells if cell.target == "openvino"]
    assert [cell.status for cell in kept] == ["error"]


def test_peaks_of_tiny_models_are_not_published(folder: Path) -> None:
    published = folder / "reports" / "published"
    database(published / "tiny" / "matrix.duckdb", [("bert", "cpu", "pass")], size="tiny")
    assert (len(on_record().evidence), on_record().memory) == (1, ())
    database(published / "full" / "matrix.duckdb", [("bert", "cpu", "pass")])
    assert [cell.size for cell in on_record().memory] == [Size.FULL]


@pytest.mark.parametrize("content", [b"", b"no gzip", b"\x1f\x8b\x08\x00broken"])
def test_a_damaged_snapshot_is_an_error_with_advice(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "broken.json.gz"
    path.write_bytes(content)
    monkeypatch.setattr(module, "SNAPSHOT", path)
    with pytest.raises(StoreError, match=r"broken\.json\.gz.*(?s:.)*hwmatrix evidence --write"):
        on_record()


@pytest.mark.published_evidence
def test_the_packaged_snapshot_is_small_and_up_to_date() -> None:
    databases = published_databases(Path(__file__).parents[3] / "reports" / "published")
    assert databases
    assert in_step(databases, snapshot.read(module.SNAPSHOT)), "update it: hwmatrix evidence --write"
    assert snapshot.collect(databases) == snapshot.read(module.SNAPSHOT)
    assert module.SNAPSHOT.stat().st_size < 2**20
