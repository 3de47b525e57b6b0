"""Changes between two runs: each kind of change once, and no false positives."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any

import duckdb
import jsonschema
import pytest
from factory_rows import BEGIN, HOST, RUN, Database, example, steady, unmeasured

from hwmatrix.app.schemas import diff_schema
from hwmatrix.errors import StoreError
from hwmatrix.report.comparing import LEAST_SAMPLES, Kind
from hwmatrix.report.diff import Diff, make_diff, read_side, side_of
from hwmatrix.report.diff_text import diff_html, diff_json, diff_md

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Fill = Callable[[Database], Any]

HOSTILE = "<script>alert(1)</script>|`x`\n# not a heading [link](http://example.com) \x1b[31mred"


def side(path: Path, *fills: Fill, **shard: Any) -> Path:
    """A run on cpu with the cells that the functions add."""
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu", **shard)
        for fill in fills:
            fill(database)
    return path


def passing(
    model: str, p50_ms: float = 2.0, *, wall: Sequence[int] | None = None, busy: float = 1.0, execution: str = "hardware", **changes: Any
) -> Fill:
    samples = steady(p50_ms) if wall is None else wall
    return lambda database: database.cell(database.plan(model, "cpu", execution=execution), "s", wall=samples, busy=busy, **changes)


def failing(model: str, status: str, **changes: Any) -> Fill:
    return lambda database: database.cell(database.plan(model, "cpu"), "s", **unmeasured(status) | changes)


def missing(model: str, **changes: Any) -> Fill:
    return lambda database: database.plan(model, "cpu", **changes)


def diff(tmp_path: Path, old: Fill | None, new: Fill | None, **new_shard: Any) -> Diff:
    before = side(tmp_path / "old.duckdb", passing("other"), *([old] if old else []))
    after = side(tmp_path / "new.duckdb", passing("other"), *([new] if new else []), **new_shard)
    return make_diff(read_side(before), read_side(after))


def kinds(found: Diff) -> list[Kind]:
    return [change.kind for change in found.changes]


DEVICE: dict[str, Any] = {"busy": 0.1, "device_processes": 0}


def beside(yardstick_ms: float | None, name: str = "a product") -> dict[str, Any]:
    """The machine's speed during a cell."""
    return {"yardstick": name if yardstick_ms is not None else None, "yardstick_ms": yardstick_ms}


def test_the_same_run_has_no_changes(tmp_path: Path) -> None:
    path = example(tmp_path / "m.duckdb")
    found = make_diff(read_side(path), read_side(path))
    assert (found.changes, found.packages) == ((), ())
    assert found.compared == len(found.old.cells) > 20
    assert found.timed > 0
    assert "**Nothing changed.**" in diff_md(found)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (passing("m"), failing("m", "error"), Kind.BROKEN),
        (passing("m"), failing("m", "fallback"), Kind.BROKEN),
        (failing("m", "crash"), passing("m"), Kind.WORKS),
        (failing("m", "crash"), failing("m", "mismatch"), Kind.FAILS_OTHERWISE),
        (failing("m", "error", error_type="a"), failing("m", "error", error_type="b"), Kind.FAILS_OTHERWISE),
        (passing("m"), failing("m", "unavailable"), Kind.LOST),
        (failing("m", "timeout"), missing("m"), Kind.LOST),
        (missing("m"), passing("m"), Kind.TESTED),
        (failing("m", "infra_error"), failing("m", "oom"), Kind.TESTED),
        (None, passing("m"), Kind.APPEARED),
        (passing("m"), None, Kind.VANISHED),
        (passing("m"), passing("m", on_target=0.5), Kind.PLACEMENT),
        (passing("m", 2.0), passing("m", 2.2), Kind.SLOWER),
        (passing("m", 2.0), passing("m", 1.8), Kind.FASTER),
        (passing("m", delta_mb=100.0), passing("m", delta_mb=130.0), Kind.MORE_MEMORY),
        (passing("m", device_peak_mb=300.0), passing("m", device_peak_mb=200.0), Kind.LESS_MEMORY),
    ],
)
def test_each_kind_of_change(tmp_path: Path, old: Fill | None, new: Fill | None, kind: Kind) -> None:
    found = diff(tmp_path, old, new)
    assert kinds(found) == [kind]
    assert found.changes[0].cell.model == "m"
    for text in (diff_md(found), diff_html(found)):
        assert re.search(r"\bm\b", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))
        assert found.changes[0].detail.split(";")[0][:20] in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (failing("m", "error"), failing("m", "error")),
        (failing("m", "unavailable"), missing("m")),
        (passing("m", 2.0), passing("m", 2.09)),  # below the minimum change
        (passing("m", delta_mb=100.0), passing("m", delta_mb=110.0)),
        (passing("m", delta_mb=10.0), passing("m", delta_mb=20.0)),  # twice as much, but only a few MiB
        (passing("m", delta_mb=None), passing("m", delta_mb=900.0)),  # not measured before
        (passing("m", on_target=None), passing("m", on_target=0.5)),
    ],
)
def test_small_differences_are_no_change(tmp_path: Path, old: Fill, new: Fill) -> None:
    assert kinds(diff(tmp_path, old, new)) == []


def wandering(p50_ms: float, seed: int, drift: float) -> tuple[int, ...]:
    """Samples that are steady for a while and then drift, as on a busy machine."""
    rng = random.Random(seed)  # noqa: S311 - noise, no secret
    levels = [1 + drift * rng.uniform(-1, 1) for _ in range(20)]
    return tuple(round(p50_ms * 1e6 * levels[n // 50] * rng.uniform(0.99, 1.01)) for n in range(1000))


def test_changes_below_the_cell_s_noise_are_not_reported(tmp_path: Path) -> None:
    quiet = diff(tmp_path, passing("m", wall=wandering(2.0, 1, 0.005)), passing("m", wall=wandering(2.3, 2, 0.005)))
    assert kinds(quiet) == [Kind.SLOWER]
    assert quiet.changes[0].ratio == pytest.approx(1.15, abs=0.02)
    (tmp_path / "old.duckdb").unlink()
    (tmp_path / "new.duckdb").unlink()
    assert kinds(diff(tmp_path, passing("m", wall=wandering(2.0, 1, 0.2)), passing("m", wall=wandering(2.3, 2, 0.2)))) == []


def disturbed(p50_ms: float, seed: int, share: float) -> tuple[int, ...]:
    """Steady samples, of which an evenly spread share took a third longer, as with other load on the machine."""
    rng = random.Random(seed)  # noqa: S311 - noise, no secret
    return tuple(round(p50_ms * 1e6 * rng.uniform(0.99, 1.01) * (1.33 if rng.random() < share else 1.0)) for _ in range(1000))


def test_a_slowdown_of_some_samples_is_no_change(tmp_path: Path) -> None:
    old = passing("m", wall=disturbed(2.0, 1, 0.0))
    some = diff(tmp_path, old, passing("m", wall=disturbed(2.0, 2, 0.65)))
    assert kinds(some) == []
    (tmp_path / "old.duckdb").unlink()
    (tmp_path / "new.duckdb").unlink()
    assert kinds(diff(tmp_path, old, passing("m", wall=disturbed(2.2, 3, 0.0)))) == [Kind.SLOWER]


@pytest.mark.parametrize(
    ("new", "shard", "reason"),
    [
        (passing("m", 9.0, execution="emulated"), {}, "emulated time is not a speed"),
        (passing("m", 9.0), {"host": "another"}, "different machines"),
        (passing("m", 9.0, busy=0.5), {}, "contended while timed"),
        (passing("m", wall=steady(9.0, count=LEAST_SAMPLES - 1)), {}, f"fewer than {LEAST_SAMPLES} samples"),
        (passing("m", wall=()), {}, "one of them was not timed"),
    ],
)
def test_speeds_that_cannot_be_compared_say_why(tmp_path: Path, new: Fill, shard: dict[str, Any], reason: str) -> None:
    found = diff(tmp_path, passing("m", 2.0), new, **shard)
    assert kinds(found) == []
    assert reason in found.untimed
    assert reason in diff_md(found)


def test_two_untimed_runs_are_compared_except_for_speed(tmp_path: Path) -> None:
    found = diff(tmp_path, passing("m", wall=()), passing("m", wall=(), on_target=0.5))
    assert kinds(found) == [Kind.PLACEMENT]
    assert found.untimed == {"not timed": 1}
    assert "Not compared: 1 cell (not timed)." in diff_md(found)


def test_packages_that_changed_are_listed(tmp_path: Path) -> None:
    old = {"torch": "2.13.0", "gone": "1"}
    before = side(tmp_path / "old.duckdb", passing("m"), packages=json.dumps(old))
    after = side(tmp_path / "new.duckdb", passing("m"), packages=json.dumps({"torch": "2.14.0", "new": "3"}))
    found = make_diff(read_side(before), read_side(after))
    assert [(each.package, each.old, each.new) for each in found.packages] == [
        ("gone", "1", None),
        ("new", None, "3"),
        ("torch", "2.13.0", "2.14.0"),
    ]
    for text in (diff_md(found), diff_html(found)):
        assert "2.14.0" in text


def test_json_matches_its_schema_and_is_complete(tmp_path: Path) -> None:
    found = diff(tmp_path, passing("m", 2.0), passing("m", 3.0))
    document = json.loads(diff_json(found))
    jsonschema.validate(document, diff_schema(), cls=jsonschema.Draft202012Validator)
    assert document["schema"] == "hwmatrix/diff/1"
    assert document["counts"] == {"slower": 1}
    (change,) = document["changes"]
    assert (change["old"]["p50_ms"], change["new"]["p50_ms"]) == (pytest.approx(2.0), pytest.approx(3.0))


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    found = diff(tmp_path, passing("m"), failing("m", "error", message=HOSTILE * 50, error_type=HOSTILE))
    page = diff_html(found)
    assert "<script>alert" not in page
    assert "\x1b" not in page + diff_md(found)
    table = [line for line in diff_md(found).splitlines() if line.startswith("| `m`")]
    assert len(table) == 1
    assert "<script>" not in table[0]
    assert "[link](" not in table[0]
    json.loads(diff_json(found))


def test_a_page_loads_nothing(tmp_path: Path) -> None:
    page = diff_html(diff(tmp_path, passing("m"), failing("m", "error")))
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "src=" not in page


def test_a_folder_of_reports_means_its_database(tmp_path: Path) -> None:
    side(tmp_path / "matrix.duckdb", passing("m"))
    assert [cell.model for cell in read_side(tmp_path).cells] == ["m"]


def test_a_side_has_the_installed_packages_and_rejected_shards(tmp_path: Path) -> None:
    path = side(tmp_path / "m.duckdb", passing("m"), packages=json.dumps({"torch": "2.14.0"}))
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO rejected VALUES (?, 'gpu.duckdb', 'it was damaged', ?)", [RUN, BEGIN])
    found = read_side(path)
    assert (found.database, found.run.run_id, found.rejected) == (path, RUN, ("gpu.duckdb: it was damaged",))
    assert [(each.target, each.host, each.packages) for each in found.installed] == [("cpu", HOST, {"torch": "2.14.0"})]


def test_a_run_can_be_selected(tmp_path: Path) -> None:
    path = tmp_path / "two.duckdb"
    with Database(path) as database:
        for run_id, status in (("first", "pass"), ("second", "crash")):
            database.run(run_id, created_at=BEGIN.replace(year=2026 if run_id == "first" else 2027))
            database.shard(run_id, "cpu", run_id)
            database.cell(database.plan("m", "cpu", run_id), run_id, **({} if status == "pass" else unmeasured(status)))
    assert kinds(make_diff(read_side(path, "first"), read_side(path))) == [Kind.BROKEN]
    with pytest.raises(StoreError, match="no run 'third'"):
        read_side(path, "third")


def test_a_run_can_be_selected_behind_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "kept@home"
    folder.mkdir()
    path = folder / "two.duckdb"
    with Database(path) as database:
        for run_id, year in (("first", 2026), ("second", 2027)):
            database.run(run_id, created_at=BEGIN.replace(year=year))
            database.shard(run_id, "cpu", run_id)
            database.cell(database.plan("m", "cpu", run_id), run_id)
    assert [side_of(f"{path}@{run_id}").run.run_id for run_id in ("first", "second")] == ["first", "second"]
    assert side_of(str(path)).run.run_id == "second", "an @ in the path of an existing file does not select a run"
    plain = side(tmp_path / "plain.duckdb", passing("m"))
    assert (side_of(str(plain)).database, side_of(str(plain)).run.run_id) == (plain, RUN)
    with pytest.raises(StoreError, match="no run 'third'"):
        side_of(f"{path}@third")
    with pytest.raises(StoreError, match=re.escape(f"{tmp_path / 'none.duckdb'}: there is no such file")):
        side_of(str(tmp_path / "none.duckdb"))


def test_a_run_without_cells_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.duckdb"
    with Database(path) as database:
        database.run()
    with pytest.raises(StoreError, match=f"^{re.escape(str(path))}: it holds no run"):
        read_side(path)
    with pytest.raises(StoreError, match="planned no cells") as refused:
        read_side(path, RUN)
    assert (str(path) in refused.value.message, "@RUN" in refused.value.advice) == (True, True)
    with pytest.raises(StoreError, match="no such file"):
        read_side(tmp_path / "none.duckdb")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (passing("m", 2.0, **beside(0.10)), passing("m", 2.2, **beside(0.11)), []),  # the machine is slower, not the model
        (passing("m", 2.0, **beside(0.10)), passing("m", 2.2, **beside(0.10)), [1.1]),
        (passing("m", 2.0, **beside(0.10)), passing("m", 2.0, **beside(0.09)), []),  # only the machine's own speed changed
        (passing("m", 2.0, **beside(0.10)), passing("m", 2.2, **beside(0.095)), [1.1]),
        (passing("m", 2.0, **beside(None)), passing("m", 2.2, **beside(0.11)), [1.1]),  # from before the yardstick existed
        (passing("m", 2.0, **beside(0.10)), passing("m", 2.2, **beside(0.11, "another product")), [1.1]),
        (
            passing("m", 2.0, **DEVICE, **beside(0.10)),
            passing("m", 2.2, **DEVICE, **beside(0.11)),
            [1.1],
        ),  # computed on another device
    ],
)
def test_speeds_are_compared_relative_to_the_machine_s_speed(tmp_path: Path, old: Fill, new: Fill, expected: list[float]) -> None:
    before, after = side(tmp_path / "old.duckdb", old), side(tmp_path / "new.duckdb", new)
    found = make_diff(read_side(before), read_side(after))
    assert [change.ratio for change in found.changes] == pytest.approx(expected)
    assert all(change.kind is Kind.SLOWER for change in found.changes)


def test_a_change_has_the_machine_s_speed(tmp_path: Path) -> None:
    before = side(tmp_path / "old.duckdb", passing("m", 2.0, **beside(0.10)))
    after = side(tmp_path / "new.duckdb", passing("m", 2.5, **beside(0.11)))
    (change,) = make_diff(read_side(before), read_side(after)).changes
    assert change.detail.endswith("; the machine itself took 1.1 times as long")
