"""The rules for comparing two runs: each threshold from both sides."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import statistics
from pathlib import Path
from typing import Any

import duckdb
import pytest

from hwmatrix.records import Dtype, Execution, Family, Isolation, Size, Stage, Status
from hwmatrix.report.comparing import LEAST_SAMPLES, Change, ComparedCell, Kind, compare, machine_ratio, why_not_timed
from hwmatrix.report.diff import Installed, Side, make_diff, why_nothing_compared
from hwmatrix.report.rows import RunRow

RECORDED = Path(__file__).parents[2] / "recorded" / "default.duckdb"
CELL = ComparedCell(
    cell_key="bert/cpu",
    model="bert",
    size=Size.TINY,
    target="cpu",
    backend="cpu",
    family=Family.EMBEDDING,
    architecture="bert",
    dtype=Dtype.FLOAT32,
    precision=None,
    batch=1,
    sequence_length=16,
    threads=1,
    execution=Execution.HARDWARE,
    isolation=Isolation.CONTAINER,
    host="a host",
    matrix_line=7,
    status=Status.PASS,
    stage=Stage.MEASURE,
    level=None,
    error_type=None,
    message=None,
    on_target=1.0,
    placement_detail=None,
    method=None,
    bundle=None,
    p50_ms=20.0,
    p25_ms=20.0,
    samples=100,
    contended=False,
    noise_ms=0.0,
    yardstick=None,
    yardstick_ms=None,
    delta_mb=None,
    device_peak_mb=None,
    image_digest=None,
    command=None,
)
"""A cell that passed with 20 ms."""


def cell(**changes: Any) -> ComparedCell:
    return dataclasses.replace(CELL, **changes)


def failed(status: Status, error_type: str | None = None, **changes: Any) -> ComparedCell:
    return cell(status=status, error_type=error_type, **changes)


def timed(p25_ms: float | None, **changes: Any) -> ComparedCell:
    return cell(p25_ms=p25_ms, p50_ms=p25_ms, **changes)


def beside(yardstick_ms: float | None, yardstick: str | None = "a product") -> dict[str, Any]:
    return {"yardstick": yardstick, "yardstick_ms": yardstick_ms}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "gpt2"},
        {"size": Size.FULL},
        {"target": "openvino"},
        {"isolation": Isolation.VENV},
        {"dtype": Dtype.FLOAT16},
        {"batch": 2},
        {"sequence_length": 17},
        {"threads": 2},
        {"new_tokens": 8},
    ],
)
def test_cells_with_other_settings_are_different(changes: dict[str, Any]) -> None:
    assert cell(**changes).identity != CELL.identity


def test_cells_with_other_results_are_the_same() -> None:
    other = cell(cell_key="another", status=Status.CRASH, host="another", image_digest="another", matrix_line=9, p50_ms=1.0)
    assert other.identity == CELL.identity


@pytest.mark.parametrize(
    ("old", "new", "kind", "detail"),
    [
        (CELL, failed(Status.ERROR, "a"), Kind.BROKEN, "was pass, is error (a)"),
        (failed(Status.CRASH, "b"), CELL, Kind.WORKS, "was crash (b), is pass"),
        (failed(Status.OOM), failed(Status.TIMEOUT), Kind.FAILS_OTHERWISE, "was oom, is timeout"),
        (failed(Status.ERROR, "a"), failed(Status.ERROR, "b"), Kind.FAILS_OTHERWISE, "was error (a), is error (b)"),
        (CELL, failed(Status.UNAVAILABLE), Kind.LOST, "was pass, is unavailable"),
        (failed(Status.MISMATCH), failed(Status.NOT_RUN), Kind.LOST, "was mismatch, is not_run"),
        (failed(Status.NOT_RUN), CELL, Kind.TESTED, "was not_run, is pass"),
        (failed(Status.INFRA_ERROR), failed(Status.FALLBACK), Kind.TESTED, "was infra_error, is fallback"),
        (failed(Status.UNAVAILABLE), failed(Status.FACTORY_ERROR), None, None),
        (failed(Status.ERROR, "a"), failed(Status.ERROR, "a"), None, None),
        (CELL, cell(error_type="a"), None, None),
        (failed(Status.ERROR, "a"), failed(Status.CRASH, "a"), Kind.FAILS_OTHERWISE, "was error (a), is crash (a)"),
    ],
)
def test_verdicts(old: ComparedCell, new: ComparedCell, kind: Kind | None, detail: str | None) -> None:
    expected = [] if kind is None or detail is None else [Change(kind=kind, cell=new, old=old, detail=detail)]
    assert compare(old, new) == expected


@pytest.mark.parametrize(("was", "now"), [(Status.PASS, Status.CRASH), (Status.CRASH, Status.PASS), (Status.CRASH, Status.CRASH)])
def test_for_a_failed_cell_only_the_verdict_is_compared(was: Status, now: Status) -> None:
    """Its measurements from before the failure are incomplete."""
    old, new = cell(status=was), cell(status=now, p25_ms=60.0, on_target=0.5, delta_mb=900.0)
    assert len(compare(old, new)) == (was is not now)


@pytest.mark.parametrize(
    ("was", "now", "detail"),
    [
        (1.0, 0.5, "on the target: was 100.0%, is 50.0%"),
        (0.0, 0.125, "on the target: was 0.0%, is 12.5%"),
        (None, 0.5, None),
        (0.5, None, None),
        (0.0, 1e-10, None),  # rounding
    ],
)
def test_placement(was: float | None, now: float | None, detail: str | None) -> None:
    old, new = cell(on_target=was), cell(on_target=now)
    assert compare(old, new) == ([Change(kind=Kind.PLACEMENT, cell=new, old=old, detail=detail)] if detail else [])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"execution": Execution.EMULATED}, "emulated time is not a speed"),
        ({"execution": Execution.SOFTWARE, "p50_ms": None}, "software time is not a speed"),
        ({"p50_ms": None}, "one of them was not timed"),
        ({"host": "another"}, "different machines"),
        ({"samples": LEAST_SAMPLES}, None),
        ({"samples": LEAST_SAMPLES - 1}, f"fewer than {LEAST_SAMPLES} samples"),
        ({"samples": None}, f"fewer than {LEAST_SAMPLES} samples"),
        ({"contended": True}, "contended while timed"),
        ({"contended": None}, None),
        (beside(1.0), None),  # the other one has none
    ],
)
def test_the_reasons_why_speeds_cannot_be_compared_in_either_order(changes: dict[str, Any], reason: str | None) -> None:
    slower = changes | {"p25_ms": 60.0}
    for old, new in ((CELL, cell(**slower)), (cell(**slower), CELL)):
        assert why_not_timed(old, new) == reason
        assert bool(compare(old, new)) is (reason is None)


def test_two_untimed_cells() -> None:
    assert why_not_timed(cell(p50_ms=None), cell(p50_ms=None)) == "not timed"


@pytest.mark.parametrize(
    ("old", "new", "ratio"),
    [
        (beside(0.5), beside(1.0), 2.0),
        (beside(1.0), beside(0.5), 0.5),
        (beside(0.5), beside(1.0, "another product"), None),
        (beside(0.5, None), beside(1.0, None), None),
        (beside(None), beside(1.0), None),
        (beside(0.5), beside(None), None),
        (beside(0.0), beside(1.0), None),
    ],
)
def test_the_relative_speed_of_the_machine(old: dict[str, Any], new: dict[str, Any], ratio: float | None) -> None:
    assert machine_ratio(cell(**old), cell(**new)) == ratio


@pytest.mark.parametrize(
    ("old", "new", "kind", "ratio"),
    [
        (timed(20.0), timed(21.0), None, None),  # 5 % is not yet a change
        (timed(20.0), timed(21.5), Kind.SLOWER, 1.075),
        (timed(20.0), timed(19.0), None, None),
        (timed(20.0), timed(18.5), Kind.FASTER, 0.925),
        (timed(20.0, noise_ms=3.0), timed(30.0, noise_ms=4.0), None, None),  # 10 ms is twice the combined noise
        (timed(20.0, noise_ms=3.0), timed(30.5, noise_ms=4.0), Kind.SLOWER, 1.525),
        (timed(2.0, noise_ms=None), timed(2.5, noise_ms=None), Kind.SLOWER, 1.25),
        (timed(20.0, **beside(1.0)), timed(21.8, **beside(1.09)), None, None),  # the machine is slower, not the model
        (timed(20.0, **beside(1.0)), timed(23.0, **beside(1.0625)), Kind.SLOWER, 23 / 21.25),
        (timed(20.0, **beside(1.0625)), timed(23.0, **beside(1.0)), Kind.SLOWER, 1.15),
        (timed(20.0, **beside(0.92)), timed(20.0, **beside(1.0)), None, None),  # as it is, the time did not change
        (timed(20.0, **beside(1.0)), timed(19.9, **beside(0.92)), None, None),
        (timed(20.0, **beside(1.0)), timed(18.8, **beside(0.915)), None, None),  # faster as it is, slower if corrected
        (timed(20.0, **beside(1.0)), timed(60.0, **beside(1.11)), None, None),  # another machine, so to speak
        (timed(20.0, noise_ms=3.0, **beside(1.0)), timed(30.5, noise_ms=4.0, **beside(1.0625)), None, None),
        (timed(20.0, noise_ms=3.0, **beside(1.0)), timed(31.75, noise_ms=4.0, **beside(1.0625)), Kind.SLOWER, 31.75 / 21.25),
        (timed(20.0), cell(p25_ms=None), None, None),
        (cell(p25_ms=None), timed(20.0), None, None),
        (cell(p25_ms=0.0), timed(20.0), None, None),
    ],
)
def test_speed(old: ComparedCell, new: ComparedCell, kind: Kind | None, ratio: float | None) -> None:
    found = compare(old, new)
    assert [(change.kind, change.cell, change.old) for change in found] == ([(kind, new, old)] if kind else [])
    assert [change.ratio for change in found] == pytest.approx([ratio] if ratio else [])


def test_a_change_of_speed_has_the_compared_numbers() -> None:
    old, new = cell(p50_ms=2.25, p25_ms=2.0, noise_ms=0.03), cell(p50_ms=4.5, p25_ms=4.0, noise_ms=0.04)
    (change,) = compare(old, new)
    assert change.detail == "p50 was 2.25 ms, is 4.5 ms; p25 2 and 4 ms, noise 0.05 ms"
    (change,) = compare(dataclasses.replace(old, **beside(1.0)), dataclasses.replace(new, **beside(1.05)))
    assert change.detail == "p50 was 2.25 ms, is 4.5 ms; p25 2 and 4 ms, noise 0.05 ms; the machine itself took 1.05 times as long"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"delta_mb": 100.0}, {"delta_mb": 116.0}, None),  # 16 MiB is not yet a change
        ({"delta_mb": 100.0}, {"delta_mb": 117.0}, (Kind.MORE_MEMORY, "added memory was 100 MiB, is 117 MiB", 1.17)),
        ({"delta_mb": 100.0}, {"delta_mb": 84.0}, None),
        ({"delta_mb": 100.0}, {"delta_mb": 75.0}, (Kind.LESS_MEMORY, "added memory was 100 MiB, is 75 MiB", 0.75)),
        ({"delta_mb": 1000.0}, {"delta_mb": 1100.0}, None),  # neither is a tenth
        ({"delta_mb": 1000.0}, {"delta_mb": 1101.0}, (Kind.MORE_MEMORY, "added memory was 1000 MiB, is 1101 MiB", 1.101)),
        ({"device_peak_mb": 300.0}, {"device_peak_mb": 150.0}, (Kind.LESS_MEMORY, "device peak was 300 MiB, is 150 MiB", 0.5)),
        ({"delta_mb": None}, {"delta_mb": 900.0}, None),
        ({"delta_mb": 900.0}, {"delta_mb": None}, None),
        ({"delta_mb": 0.0}, {"delta_mb": 900.0}, None),  # no relative change from 0
        (
            {"device_peak_mb": 0.0, "delta_mb": 100.0},
            {"device_peak_mb": 90.0, "delta_mb": 200.0},
            (Kind.MORE_MEMORY, "added memory was 100 MiB, is 200 MiB", 2.0),
        ),
        (
            {"device_peak_mb": 100.0, "delta_mb": 100.0},
            {"device_peak_mb": 200.0, "delta_mb": 300.0},
            (Kind.MORE_MEMORY, "device peak was 100 MiB, is 200 MiB", 2.0),
        ),
        ({"delta_mb": 0.5}, {"delta_mb": 40.0}, (Kind.MORE_MEMORY, "added memory was 0 MiB, is 40 MiB", 80.0)),
    ],
)
def test_memory(old: dict[str, Any], new: dict[str, Any], expected: tuple[Kind, str, float] | None) -> None:
    was, now = cell(**old), cell(**new)
    changes = [] if expected is None else [Change(kind=expected[0], cell=now, old=was, detail=expected[1], ratio=expected[2])]
    assert compare(was, now) == changes


def test_all_changes_of_a_passed_cell_are_reported() -> None:
    found = compare(cell(delta_mb=100.0), cell(on_target=0.5, p25_ms=40.0, delta_mb=200.0))
    assert [change.kind for change in found] == [Kind.PLACEMENT, Kind.SLOWER, Kind.MORE_MEMORY]


RUN = RunRow(
    run_id="run",
    created_at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    command="hwmatrix matrix",
    hwmatrix_version="0.1.0",
    matrix_sha256="ab" * 32,
    commit_id=None,
    isolation=Isolation.CONTAINER,
)


def side(*cells: ComparedCell, installed: tuple[Installed, ...] = ()) -> Side:
    return Side(database=Path("matrix.duckdb"), run=RUN, cells=cells, installed=installed)


def named(model: str, **changes: Any) -> ComparedCell:
    return cell(model=model, **changes)


def test_the_most_urgent_kinds_come_first_and_the_largest_changes_within_a_kind() -> None:
    old = side(*(named(name) for name in "abcdef"))
    new = side(
        named("a", p25_ms=25.0),
        named("b", p25_ms=5.0),
        named("c", p25_ms=40.0),
        named("d", p25_ms=15.0),
        named("e", status=Status.CRASH),
        named("f", on_target=0.5),
        named("g"),
    )
    found = make_diff(old, new)
    assert [(change.kind.value, change.cell.model) for change in found.changes] == [
        ("broken", "e"),
        ("placement", "f"),
        ("slower", "c"),
        ("slower", "a"),
        ("faster", "b"),
        ("faster", "d"),
        ("appeared", "g"),
    ]
    assert [change.cell.model for change in found.of(Kind.BROKEN, Kind.APPEARED)] == ["e", "g"]
    assert found.counts == {Kind.BROKEN: 1, Kind.PLACEMENT: 1, Kind.SLOWER: 2, Kind.FASTER: 2, Kind.APPEARED: 1}
    assert list(found.counts) == sorted(found.counts, key=list(Kind).index)


def test_a_change_without_a_ratio_has_no_size() -> None:
    old = side(*(named(name, on_target=0.5, p25_ms=None) for name in "ab"), named("c"))
    new = side(*(named(name, on_target=1.0, p25_ms=None) for name in "ab"), named("c", status=Status.ERROR))
    assert [change.cell.model for change in make_diff(old, new).changes] == ["c", "a", "b"]


def test_cells_in_only_one_run_appeared_or_vanished_and_the_others_are_compared() -> None:
    before, after = named("gone", status=Status.CRASH), named("new", status=Status.ERROR)
    old, new = side(before, named("both")), side(after, named("both", p25_ms=40.0))
    found = make_diff(old, new)
    slower, vanished, appeared = found.changes
    assert slower.kind is Kind.SLOWER
    assert vanished == Change(kind=Kind.VANISHED, cell=before, old=before, detail="was crash")
    assert appeared == Change(kind=Kind.APPEARED, cell=after, old=None, detail="is error")
    assert (found.old, found.new, found.compared, found.timed, found.untimed) == (old, new, 1, 1, {})


def test_uncompared_speeds_are_counted_by_reason_the_most_frequent_first() -> None:
    rare, frequent, failing = {"host": "another"}, {"contended": True}, {"status": Status.ERROR, "host": "another"}
    changes = {"a": rare, "b": frequent, "c": frequent, "d": {}, "e": {}, "f": failing}
    found = make_diff(side(*map(named, changes)), side(*(named(name, **each) for name, each in changes.items())))
    assert (found.compared, found.timed) == (6, 2)
    assert list(found.untimed.items()) == [("contended while timed", 2), ("different machines", 1)]


def installed(target: str, isolation: Isolation = Isolation.CONTAINER, **packages: str) -> Installed:
    return Installed(
        target=target, isolation=isolation, image=None, image_digest=None, host="a host", interpreter="CPython 3.11", packages=packages
    )


def test_packages_are_compared_if_both_runs_have_the_target() -> None:
    old = side(CELL, installed=(installed("cpu", torch="1"), installed("cpu", Isolation.VENV, torch="1"), installed("gone", torch="1")))
    new = side(
        CELL,
        installed=(
            installed("new", torch="2"),
            installed("cpu", torch="1", onnx="3"),
            installed("cpu", Isolation.VENV, torch="2"),
            installed("cpu", Isolation.NONE, torch="4"),
        ),
    )
    assert [(each.target, each.isolation, each.package, each.old, each.new) for each in make_diff(old, new).packages] == [
        ("cpu", Isolation.CONTAINER, "onnx", None, "3"),
        ("cpu", Isolation.VENV, "torch", "1", "2"),
    ]


PARTS = {
    "ttft_ms": 10.0,
    "ttft_low_ms": 9.9,
    "ttft_high_ms": 10.1,
    "tpot_ms": 2.0,
    "tpot_low_ms": 1.98,
    "tpot_high_ms": 2.02,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"ttft_ms": 12.0, "ttft_low_ms": 11.9, "ttft_high_ms": 12.1}, [(Kind.SLOWER, "time to first token was 10 ms, is 12 ms", 1.2)]),
        ({"tpot_ms": 1.6, "tpot_low_ms": 1.5, "tpot_high_ms": 1.7}, [(Kind.FASTER, "time per output token was 2 ms, is 1.6 ms", 0.8)]),
        ({"ttft_ms": 12.0, "ttft_low_ms": 10.0, "ttft_high_ms": 14.0}, []),  # the intervals overlap
        ({"ttft_ms": 10.9, "ttft_low_ms": 10.8, "ttft_high_ms": 11.0}, []),  # less than a tenth
        ({"ttft_ms": 12.0, "ttft_low_ms": None, "ttft_high_ms": None}, []),
        (
            {"ttft_ms": None, "ttft_low_ms": None, "ttft_high_ms": None, "tpot_ms": 1.6, "tpot_low_ms": 1.5, "tpot_high_ms": 1.7},
            [(Kind.FASTER, "time per output token was 2 ms, is 1.6 ms", 0.8)],  # the other part was not measured
        ),
        ({"ttft_ms": 11.0, "ttft_low_ms": 10.9, "ttft_high_ms": 11.1}, []),  # a tenth, and not more
        ({"ttft_ms": 12.0, "ttft_low_ms": 10.1, "ttft_high_ms": 12.1}, []),  # the intervals touch
        ({"ttft_ms": 8.0, "ttft_low_ms": 7.9, "ttft_high_ms": 9.9}, []),
    ],
)
def test_the_parts_of_a_generation_are_compared(changes: dict[str, Any], expected: list[tuple[Kind, str, float]]) -> None:
    old, new = timed(20.0, **PARTS), timed(20.0, **PARTS | changes)
    found = compare(old, new)
    assert all(each.old == old and each.cell == new for each in found)
    assert [(each.kind, each.detail.partition(";")[0], each.ratio) for each in found] == [
        (kind, detail, pytest.approx(ratio)) for kind, detail, ratio in expected
    ]


def test_the_whole_generation_counts_before_its_parts() -> None:
    slower = PARTS | {"tpot_ms": 4.0, "tpot_low_ms": 3.9, "tpot_high_ms": 4.1}
    (change,) = compare(timed(20.0, **PARTS), timed(40.0, **slower))
    assert (change.kind, change.ratio) == (Kind.SLOWER, 2.0)


def test_a_machine_that_is_slower_itself_does_not_slow_the_parts() -> None:
    before = {"yardstick": "a", "yardstick_ms": 1.0}
    after = {"yardstick": "a", "yardstick_ms": 1.09, "ttft_ms": 11.2, "ttft_low_ms": 11.1, "ttft_high_ms": 11.3}
    later = PARTS | {"tpot_ms": 2.25, "tpot_low_ms": 2.23, "tpot_high_ms": 2.27}
    assert compare(timed(20.0, **PARTS, **before), timed(21.8, **later | after)) == []


def test_runs_without_a_common_cell_name_the_settings_that_differ() -> None:
    old = side(named("a"), named("a", target="onnxruntime"))
    new = side(named("a", target="onnxruntime", dtype=Dtype.INT4))
    assert make_diff(old, new).notes == (
        "no cell is in both: precision float32 / int4",
        "cpu is not in the new run (none of int4; it has float32)",
    )


@pytest.mark.parametrize("field", ["model", "target", "batch", "threads"])
def test_a_setting_that_alone_differs_is_the_only_one_named(field: str) -> None:
    values: tuple[Any, Any] = ("a", "b") if field in {"model", "target"} else (1, 2)
    old, new = (side(cell(**{field: value})) for value in values)
    assert make_diff(old, new).notes[0] == f"no cell is in both: {field} {values[0]} / {values[1]}"


@pytest.mark.parametrize("across_dtype", [False, True])
def test_a_setting_that_alone_keeps_cells_apart_is_named_though_both_runs_have_its_values(across_dtype: bool) -> None:  # noqa: FBT001
    """The published results have containers and none; a run on a machine without an engine has none."""
    other = {"dtype": Dtype.INT4} if across_dtype else {}
    old = side(named("a", isolation=Isolation.CONTAINER), named("b", isolation=Isolation.NONE))
    new = side(named("a", isolation=Isolation.NONE, **other))
    diff = make_diff(old, new, across_dtype=across_dtype)
    assert why_nothing_compared(diff) == "no cell is in both: isolation container / none"


def test_across_precisions_each_cell_is_compared_with_those_of_other_precisions() -> None:
    old = side(named("a"), named("b"), named("a", dtype=Dtype.INT8, p25_ms=5.0))
    new = side(named("a", dtype=Dtype.INT8, p25_ms=40.0, loss=0.02), named("c", dtype=Dtype.INT8))
    found = make_diff(old, new, across_dtype=True)
    assert [(change.kind, change.old, change.ratio) for change in found.changes] == [(Kind.SLOWER, old.cells[0], 2.0)]
    assert found.changes[0].detail.startswith("float32 to int8 (loss 0.02): p50 was")
    assert make_diff(old, old, across_dtype=True).compared == 2


def resampled(samples: list[int], generator: random.Random, machine: float, seen: float) -> ComparedCell:
    """A run of a recorded cell: blocks of its samples, on a machine that takes ``machine`` times as long, and is measured as ``seen``."""
    size = len(samples) // 20
    starts = [generator.randrange(len(samples) - size + 1) for _ in range(20)]
    wall = [samples[start + number] * machine / 1e6 for start in starts for number in range(size)]
    quarters = [sorted(wall[index * len(wall) // 10 : (index + 1) * len(wall) // 10])[len(wall) // 40] for index in range(10)]
    noise = 1.4826 * statistics.median(abs(quarter - statistics.median(quarters)) for quarter in quarters)
    lower = sorted(wall)[len(wall) // 4]
    return cell(p25_ms=lower, p50_ms=statistics.median(wall), noise_ms=noise, samples=len(wall), **beside(seen))


def test_of_a_hundred_pairs_of_runs_of_the_same_code_at_most_two_rows_are_slower_or_faster() -> None:
    """Recorded samples, drawn again for each run. The machine drifts by 5 %, and is now and then 1.6 times as slow while a neighbor works.

    Its own speed is measured with an error of 2 %. With an injected slowdown of 15 %, most rows are found where the machine is quiet.
    """
    with duckdb.connect(RECORDED, read_only=True) as connection:
        rows = connection.execute("SELECT list(wall_ns ORDER BY n) FROM samples GROUP BY cell_id HAVING count(*) >= 100 ORDER BY cell_id")
        recorded = [samples for (samples,) in rows.fetchmany(10)]
    generator = random.Random(7)  # noqa: S311 - statistics

    def run(samples: list[int], slowdown: float = 1.0) -> ComparedCell:
        machine = generator.uniform(1.0, 1.05) * (1.6 if generator.random() < 0.1 else 1.0)
        return resampled(samples, generator, machine * slowdown, machine * generator.gauss(1.0, 0.02))

    pairs = [(run(samples), run(samples)) for _ in range(100) for samples in recorded]
    assert sum(bool(compare(old, new)) for old, new in pairs) <= 2
    slowed = [(run(samples), run(samples, 1.15)) for _ in range(20) for samples in recorded]
    timed_ones = [(old, new) for old, new in slowed if why_not_timed(old, new) is None]
    assert len(timed_ones) > len(slowed) / 2
    assert sum(bool(compare(old, new)) for old, new in timed_ones) > 0.8 * len(timed_ones)
