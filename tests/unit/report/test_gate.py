"""The gate: each rule with its message, and that it passes for expected failures."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import pytest
import yaml
from factory_rows import HOST, Database, steady, unmeasured
from hypothesis import given
from hypothesis import strategies as st

from hwmatrix.errors import ConfigError
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.spec import SPEC_ADAPTER, ExpectSpec
from hwmatrix.records import Dtype, Execution, Isolation, Size, Status
from hwmatrix.report.comparing import ComparedCell, Kind
from hwmatrix.report.diff import Side, make_diff, read_side
from hwmatrix.report.gate import GateRules, Rule, Violation, check, unmatched_expectations
from hwmatrix.report.gate_text import annotation, row
from hwmatrix.report.rows import RunRow

MATRIX = """\
version: 1
sizes: {tiny: {}, full: {}}
tolerances: {float32: {relative_error: 1.0e-3, reason: rounding}}
targets:
  cpu: {backend: cpu, image: cpu}
  openvino: {backend: openvino, image: openvino}
models:
  bert: {family: embedding, architecture: bert, class: BertModel}
  vit: {family: vision, architecture: vit, class: ViTModel}
suites: {default: {models: all}}
expect:
"""
KNOWN = "- {models: [bert], targets: [openvino], status: crash, reason: a bug there, link: 'https://example.com/1'}\n"

EMPTY = LoadedMatrix(spec=SPEC_ADAPTER.validate_python(yaml.safe_load(f"{MATRIX}  []")), path=Path("matrix.yaml"), sha256="", lines={})
RUN_ROW = RunRow(
    run_id="run",
    created_at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    command="hwmatrix matrix",
    hwmatrix_version="0.1.0",
    matrix_sha256="ab" * 32,
    commit_id=None,
    isolation=Isolation.CONTAINER,
)


def matrix(tmp_path: Path, expect: str = "  []\n") -> LoadedMatrix:
    (tmp_path / "matrix.yaml").write_text(MATRIX + "".join(f"  {line}\n" for line in expect.splitlines()), encoding="utf-8")
    return load(tmp_path / "matrix.yaml")


def run(path: Path, *, rejected: bool = False, host: str = HOST, **cells: dict[str, Any] | None) -> Path:
    """A run whose cells pass; ``bert_openvino={...}`` changes one, None leaves it unexecuted."""
    with Database(path) as database:
        database.run()
        for target in ("cpu", "openvino"):
            database.shard(target, target, host=host)
        for name in ("bert", "vit"):
            for target in ("cpu", "openvino"):
                changes = cells.get(f"{name}_{target}", {})
                planned = database.plan(name, target)
                if changes is not None:
                    database.cell(planned, target, wall=() if "status" in changes else steady(changes.pop("p50", 2.0)), **changes)
        if rejected:
            database.insert("rejected", {"run_id": "run-1", "file": "gpu.duckdb", "reason": "damaged", "rejected_at": "2026-01-02"})
    return path


def violations(loaded: LoadedMatrix, path: Path, baseline: Path | None = None, **rules: Any) -> list[Violation]:
    side = read_side(path)
    diff = make_diff(read_side(baseline), side) if baseline else None
    return list(check(loaded, side, diff, GateRules(**rules)))


def test_the_gate_passes_for_a_run_that_passes(tmp_path: Path) -> None:
    path = run(tmp_path / "m.duckdb")
    assert violations(matrix(tmp_path), path, path, required=("cpu", "openvino")) == []


def test_an_unexpected_failure_fails_it_with_the_model_s_line(tmp_path: Path) -> None:
    (found,) = violations(matrix(tmp_path), run(tmp_path / "m.duckdb", bert_openvino=unmeasured("crash")))
    assert (found.rule, found.model, found.target, found.line) == (Rule.UNEXPECTED_FAILURE, "bert", "openvino", 8)
    assert "segmentation_fault" in found.what
    assert found.command == "hwmatrix matrix --models bert --targets openvino"


def test_a_known_problem_may_fail_in_its_known_way(tmp_path: Path) -> None:
    path = run(tmp_path / "m.duckdb", bert_openvino=unmeasured("crash"))
    assert violations(matrix(tmp_path, KNOWN), path) == []
    (otherwise,) = violations(matrix(tmp_path, KNOWN.replace("crash", "oom")), path)
    assert otherwise.rule is Rule.UNEXPECTED_FAILURE
    (of_another_kind,) = violations(matrix(tmp_path, KNOWN.replace("status: crash", "status: crash, error_type: abort")), path)
    assert of_another_kind.rule is Rule.UNEXPECTED_FAILURE
    (in_another_precision,) = violations(matrix(tmp_path, KNOWN.replace("status: crash", "status: crash, sizes: [full]")), path)
    assert in_another_precision.rule is Rule.UNEXPECTED_FAILURE


def test_a_known_problem_that_is_gone_fails_it(tmp_path: Path) -> None:
    (found,) = violations(matrix(tmp_path, KNOWN), run(tmp_path / "m.duckdb"))
    assert (found.rule, found.line) == (Rule.EXPECTATION_GONE, 12)
    assert "a bug there" in found.what


def test_a_cell_that_was_not_run_fails_it_and_an_unavailable_one_does_not(tmp_path: Path) -> None:
    (found,) = violations(matrix(tmp_path, KNOWN), run(tmp_path / "m.duckdb", bert_openvino=None))
    assert (found.rule, found.target) == (Rule.NO_VERDICT, "openvino")
    assert found.what.startswith("1 of 2 cells on openvino have no verdict")
    assert violations(matrix(tmp_path, KNOWN), run(tmp_path / "n.duckdb", bert_openvino=unmeasured("unavailable"))) == []


def test_an_expectation_that_is_not_strict_also_allows_a_pass(tmp_path: Path) -> None:
    lenient = matrix(tmp_path, KNOWN.replace("status: crash", "status: crash, strict: false"))
    assert violations(lenient, run(tmp_path / "m.duckdb")) == []
    assert violations(lenient, run(tmp_path / "n.duckdb", bert_openvino=unmeasured("crash"))) == []
    (found,) = violations(lenient, run(tmp_path / "o.duckdb", bert_openvino=unmeasured("timeout")))
    assert found.rule is Rule.UNEXPECTED_FAILURE


@pytest.mark.parametrize(("generation", "covered"), [("true", {8}), ("false", {0}), (None, {0, 8})])
def test_an_expectation_can_be_of_generation_alone_or_of_forward_passes(tmp_path: Path, generation: str | None, covered: set[int]) -> None:
    known = KNOWN if generation is None else KNOWN.replace("status: crash", f"generation: {generation}, status: crash")
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("openvino", "openvino")
        for tokens in (0, 8):
            database.cell(
                database.plan("bert", "openvino", cell_key=f"bert-n{tokens}", new_tokens=tokens), "openvino", **unmeasured("crash")
            )
    unexpected = violations(matrix(tmp_path, known), path)
    assert len(unexpected) == 2 - len(covered)
    assert all(str(each.settings).endswith(" n8") == (8 not in covered) for each in unexpected)


@pytest.mark.parametrize(("precision", "unexpected"), [("bfloat16", 0), ("float32", 1)])
def test_an_expectation_also_covers_what_the_runtime_chose(tmp_path: Path, precision: str, unexpected: int) -> None:
    known = KNOWN.replace("status: crash", "dtypes: [bfloat16], status: mismatch")
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("openvino", "openvino")
        database.cell(database.plan("bert", "openvino", dtype="default"), "openvino", precision=precision, **unmeasured("mismatch"))
    assert len(violations(matrix(tmp_path, known), path)) == unexpected


def test_an_infra_error_is_never_expected(tmp_path: Path) -> None:
    (found,) = violations(matrix(tmp_path, KNOWN), run(tmp_path / "m.duckdb", bert_openvino=unmeasured("infra_error")))
    assert found.rule is Rule.OUR_FAILURE


def test_a_model_that_cannot_be_built(tmp_path: Path) -> None:
    """It is known if matrix.yaml marks it as unbuildable, otherwise not."""
    stated = run(tmp_path / "m.duckdb", bert_openvino=unmeasured("factory_error") | {"error_type": "unbuildable"})
    assert violations(matrix(tmp_path), stated, required=("openvino",)) == []
    (found,) = violations(matrix(tmp_path), run(tmp_path / "n.duckdb", bert_openvino=unmeasured("factory_error")))
    assert found.rule is Rule.UNEXPECTED_FAILURE


def test_a_gate_that_tested_nothing_fails(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("bert_cpu", "vit_cpu", "bert_openvino", "vit_openvino"))
    assert [found.rule for found in violations(matrix(tmp_path), run(tmp_path / "m.duckdb", **nothing))] == [
        Rule.NOTHING_TESTED,
        Rule.NO_VERDICT,
        Rule.NO_VERDICT,
    ]


def test_required_targets_need_verdicts(tmp_path: Path) -> None:
    path = run(tmp_path / "m.duckdb", bert_openvino=unmeasured("unavailable"))
    assert violations(matrix(tmp_path), path) == []
    (found,) = violations(matrix(tmp_path), path, required=("cpu", "openvino"))
    assert (found.rule, found.target) == (Rule.NO_VERDICT, "openvino")
    assert "1 of 2 cells on openvino have no verdict: no such device" in found.what


def test_a_required_target_without_the_precision_of_the_run_is_named_with_those_that_it_has(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("openvino", "openvino")
        database.cell(database.plan("bert", "openvino", dtype="int4"), "openvino", wall=steady(2.0))
    (found,) = violations(matrix(tmp_path), tmp_path / "m.duckdb", required=("cpu",))
    assert found.what == "cpu is required, but the run planned nothing on it (none of int4; it has float32)"


def test_a_rejected_shard_fails_it(tmp_path: Path) -> None:
    (found,) = violations(matrix(tmp_path), run(tmp_path / "m.duckdb", rejected=True))
    assert found.rule is Rule.REJECTED_SHARD
    assert "gpu.duckdb: damaged" in found.what


@pytest.mark.parametrize(
    ("change", "kinds", "told"),
    [
        ({"p50": 3.0}, (Kind.SLOWER,), "slower: p50 was 2 ms, is 3 ms"),
        ({"p50": 3.0}, (Kind.BROKEN,), None),
        ({"p50": 1.0}, (Kind.SLOWER, Kind.PLACEMENT), None),
        ({"on_target": 0.5}, (Kind.PLACEMENT,), "placement: on the target: was 100.0%, is 50.0%"),
        ({"delta_mb": 300.0}, (Kind.MORE_MEMORY,), "more memory"),
    ],
)
def test_regressions_against_a_baseline(tmp_path: Path, change: dict[str, Any], kinds: tuple[Kind, ...], told: str | None) -> None:
    baseline = run(tmp_path / "old.duckdb")
    found = violations(matrix(tmp_path), run(tmp_path / "new.duckdb", bert_openvino=change), baseline, kinds=kinds)
    assert [each.rule for each in found] == ([Rule.REGRESSION] if told else [])
    assert told is None or told in found[0].what


def test_a_larger_share_on_the_target_is_no_regression(tmp_path: Path) -> None:
    baseline = run(tmp_path / "old.duckdb", bert_openvino={"on_target": 0.5})
    assert violations(matrix(tmp_path), run(tmp_path / "new.duckdb"), baseline) == []


def test_a_baseline_with_other_cells_fails_it(tmp_path: Path) -> None:
    with Database(tmp_path / "old.duckdb") as database:
        database.run()
        database.shard("cpu", "cpu")
        database.cell(database.plan("gpt2", "cpu"), "cpu", wall=steady(2.0))
    (found,) = violations(matrix(tmp_path), run(tmp_path / "new.duckdb"), tmp_path / "old.duckdb", kinds=(Kind.VANISHED,))
    assert found.rule is Rule.NOTHING_COMPARED
    assert found.what.startswith("no cell is in both: model gpt2 / bert vit (run")


def test_a_slower_cell_fails_it_only_on_request(tmp_path: Path) -> None:
    baseline, slower = run(tmp_path / "old.duckdb"), run(tmp_path / "new.duckdb", bert_cpu={"p50": 3.0})
    assert violations(matrix(tmp_path), slower, baseline) == []
    (found,) = violations(matrix(tmp_path), slower, baseline, kinds=(Kind.SLOWER,))
    assert found.rule is Rule.REGRESSION


def test_limits_on_the_loss_and_on_the_time(tmp_path: Path) -> None:
    baseline, now = run(tmp_path / "old.duckdb"), run(tmp_path / "new.duckdb", bert_cpu={"p50": 3.0}, vit_cpu={"relative_error": 0.06})
    assert violations(matrix(tmp_path), now, baseline, max_loss=0.06, max_p50_ratio=1.5) == []
    loss, time = violations(matrix(tmp_path), now, baseline, max_loss=0.05, max_p50_ratio=1.4)
    assert (loss.rule, loss.model, loss.what) == (
        Rule.LIMIT,
        "vit",
        "its outputs differ from the reference's by 0.06; --max-loss is 0.05",
    )
    assert (time.rule, time.model) == (Rule.LIMIT, "bert")
    assert time.what.startswith("p50 is 3 ms, 1.5 times that of the baseline (tiny float32")
    elsewhere = run(tmp_path / "elsewhere.duckdb", host="another")
    (found,) = violations(matrix(tmp_path), elsewhere, baseline, max_p50_ratio=1.4)
    assert (found.rule, found.what) == (Rule.NOTHING_COMPARED, "the speed of no cell can be compared: different machines")


def test_expectations_that_match_no_cell_are_listed(tmp_path: Path) -> None:
    known = matrix(tmp_path, KNOWN + KNOWN.replace("[bert]", "['type:a_type_that_nobody_has']"))
    side = read_side(run(tmp_path / "m.duckdb"))
    assert unmatched_expectations(known, side) == ("matrix.yaml:13: a_type_that_nobody_has",)
    part = dataclasses.replace(side, cells=tuple(cell for cell in side.cells if cell.target == "cpu"))
    assert unmatched_expectations(known, part) == (), "a run of some targets need not cover them"


def planned(status: Status, index: int, target: str) -> ComparedCell:
    given = dict.fromkeys(field.name for field in dataclasses.fields(ComparedCell))
    values = {"model": f"model{index}", "target": target, "size": Size.TINY, "dtype": Dtype.FLOAT32, "batch": 1, "sequence_length": 16}
    values |= {"threads": 1, "new_tokens": 0, "isolation": Isolation.CONTAINER, "status": status, "execution": Execution.HARDWARE}
    error_type = "unbuildable" if status is Status.FACTORY_ERROR and index % 2 else status.value
    return ComparedCell(**given | values | {"error_type": error_type, "message": "why"})


@given(
    statuses=st.lists(st.tuples(st.sampled_from(Status), st.sampled_from(("cpu", "openvino"))), min_size=1, max_size=12),
    expected=st.lists(st.tuples(st.sampled_from((Status.CRASH, Status.MISMATCH, Status.FACTORY_ERROR)), st.integers(0, 11)), max_size=6),
    required=st.sets(st.sampled_from(("cpu", "openvino"))),
)
def test_if_the_gate_passes_each_planned_cell_has_a_verdict_or_an_allowance_names_it(
    statuses: list[tuple[Status, str]], expected: list[tuple[Status, int]], required: set[str]
) -> None:
    cells = tuple(planned(status, index, target) for index, (status, target) in enumerate(statuses))
    expect = tuple(
        ExpectSpec(models=(f"model{index}",), targets="all", status=status, reason="known", link="a link") for status, index in expected
    )
    loaded = dataclasses.replace(EMPTY, spec=dataclasses.replace(EMPTY.spec, expect=expect))
    side = Side(database=Path("m.duckdb"), run=RUN_ROW, cells=cells, installed=())
    if check(loaded, side, None, GateRules(required=tuple(sorted(required)))):
        return
    allowances = {(index, status) for status, index in expected}
    for index, cell in enumerate(cells):
        assert (
            cell.status is Status.PASS
            or (index, cell.status) in allowances
            or (cell.status is Status.UNAVAILABLE and cell.target not in required)
            or cell.error_type == "unbuildable"
        )


@pytest.mark.parametrize("missing", [1, 499])
def test_a_run_of_which_most_was_lost_fails_it(missing: int) -> None:
    cells = tuple(planned(Status.NOT_RUN if index < missing else Status.PASS, index, "cpu") for index in range(500))
    (found,) = check(EMPTY, Side(database=Path("m.duckdb"), run=RUN_ROW, cells=cells, installed=()), None, GateRules())
    assert found.what.startswith(f"{missing} of 500 cells on cpu have no verdict")


def test_a_known_problem_is_no_regression(tmp_path: Path) -> None:
    baseline = run(tmp_path / "old.duckdb")
    now = run(tmp_path / "new.duckdb", bert_openvino=unmeasured("crash"))
    assert violations(matrix(tmp_path, KNOWN), now, baseline) == []
    assert {each.rule for each in violations(matrix(tmp_path), now, baseline)} == {Rule.UNEXPECTED_FAILURE, Rule.REGRESSION}


@pytest.mark.parametrize(
    ("expect", "what"),
    [
        (KNOWN.replace("[bert]", "[brt]"), r"matrix.yaml:12: expect.0 names the unknown model 'brt' \(did you mean 'bert'"),
        (KNOWN.replace("[openvino]", "[opnvino]"), "unknown target 'opnvino'"),
        (KNOWN.replace("[openvino]", "['type:bert']"), "targets"),
        (KNOWN.replace("status: crash", "status: pass"), "expects 'pass'"),
        (KNOWN.replace("status: crash", "status: crsh"), "did you mean 'crash'"),
        (KNOWN.replace("reason: a bug there, ", ""), "reason is missing"),
        (KNOWN.replace("link:", "lnk:"), "unknown key 'lnk'"),
        (KNOWN.replace("[bert]", "[]"), "expect.0.models"),
    ],
)
def test_mistakes_in_expectations_are_reported_with_their_line(tmp_path: Path, expect: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        matrix(tmp_path, expect)


def test_annotations_are_safe_from_injections() -> None:
    violation = Violation(
        rule=Rule.REGRESSION, model="a,b:c", target="cpu\n::error::x", settings=None, what="100 %\r\n::set-output::", advice="so", line=7
    )
    told = annotation(violation, "dir,1/matrix.yaml")
    assert "\n" not in told
    assert told.startswith("::error file=dir%2C1/matrix.yaml,line=7,title=regression%3A a%2Cb%3Ac on cpu")
    assert "100 %25" in told
    assert len(row(violation)) == 3
