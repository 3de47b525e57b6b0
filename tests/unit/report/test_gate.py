"""The gate: each rule with its message, and that it passes for expected failures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import Database, steady, unmeasured

from hwmatrix.errors import ConfigError
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.report.comparing import Kind
from hwmatrix.report.diff import make_diff, read_side
from hwmatrix.report.gate import GateRules, Rule, Violation, check
from hwmatrix.report.gate_text import annotation, row

if TYPE_CHECKING:
    from pathlib import Path

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


def matrix(tmp_path: Path, expect: str = "  []\n") -> LoadedMatrix:
    (tmp_path / "matrix.yaml").write_text(MATRIX + "".join(f"  {line}\n" for line in expect.splitlines()), encoding="utf-8")
    return load(tmp_path / "matrix.yaml")


def run(path: Path, *, rejected: bool = False, detected: dict[str, Any] | None = None, **cells: dict[str, Any] | None) -> Path:
    """A run whose cells pass; ``bert_openvino={...}`` changes one, None leaves it unexecuted. ``detected`` is of openvino's CPU."""
    with Database(path) as database:
        database.run()
        for target in ("cpu", "openvino"):
            database.shard(target, target)
        if detected is not None:
            database.detection("openvino", features=json.dumps(detected))
            database.detection("openvino", "openvino", features=json.dumps({"instructions": ["of a device"]}))
            database.detection("cpu", features=json.dumps({"instructions": ["of another machine"]}))
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


def test_a_known_problem_of_a_cell_that_was_not_run_is_ignored(tmp_path: Path) -> None:
    assert violations(matrix(tmp_path, KNOWN), run(tmp_path / "m.duckdb", bert_openvino=None)) == []
    assert violations(matrix(tmp_path, KNOWN), run(tmp_path / "n.duckdb", bert_openvino=unmeasured("unavailable"))) == []


def test_an_expectation_that_is_not_strict_also_allows_a_pass(tmp_path: Path) -> None:
    lenient = matrix(tmp_path, KNOWN.replace("status: crash", "status: crash, strict: false"))
    assert violations(lenient, run(tmp_path / "m.duckdb")) == []
    assert violations(lenient, run(tmp_path / "n.duckdb", bert_openvino=unmeasured("crash"))) == []
    (found,) = violations(lenient, run(tmp_path / "o.duckdb", bert_openvino=unmeasured("timeout")))
    assert found.rule is Rule.UNEXPECTED_FAILURE


@pytest.mark.parametrize(
    ("detected", "may_fail", "may_pass"),
    [
        ({"instructions": ["avx2"]}, True, False),
        ({"instructions": ["avx2", "avx512_vnni"]}, False, True),
        ({"instructions": ["neon"]}, False, True),
        ({"instructions": None}, True, True),  # the system does not tell
        ({"instructions": {"avx2": "another form"}}, True, True),
        (None, True, True),
    ],
)
def test_an_expectation_can_be_of_some_processors(tmp_path: Path, detected: Any, *, may_fail: bool, may_pass: bool) -> None:
    known = matrix(tmp_path, KNOWN.replace("status: crash", "processor: {has: [avx2], lacks: [avx512_vnni]}, status: crash"))
    failed = run(tmp_path / "failed.duckdb", detected=detected, bert_openvino=unmeasured("crash"))
    assert [each.rule for each in violations(known, failed)] == ([] if may_fail else [Rule.UNEXPECTED_FAILURE])
    passed = run(tmp_path / "passed.duckdb", detected=detected)
    assert [each.rule for each in violations(known, passed)] == ([] if may_pass else [Rule.EXPECTATION_GONE])


@pytest.mark.parametrize(
    ("processor", "told"),
    [
        ("{has: [avx3]}", "'avx3'"),
        ("{has: [avx2], lacks: [fma, avx2]}", "no processor both has and lacks avx2"),
        ("{}", "it chooses no processors"),
        ("{name: EPYC}", "name"),
    ],
)
def test_a_processor_that_cannot_be_is_refused(tmp_path: Path, processor: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        matrix(tmp_path, KNOWN.replace("status: crash", f"processor: {processor}, status: crash"))
    assert told in str(caught.value)
    assert ":12" in str(caught.value)


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
    assert [found.rule for found in violations(matrix(tmp_path), run(tmp_path / "m.duckdb", **nothing))] == [Rule.NOTHING_TESTED]


def test_required_targets_need_verdicts(tmp_path: Path) -> None:
    path = run(tmp_path / "m.duckdb", bert_openvino=unmeasured("unavailable"))
    assert violations(matrix(tmp_path), path) == []
    (found,) = violations(matrix(tmp_path), path, required=("cpu", "openvino"))
    assert (found.rule, found.target) == (Rule.NO_VERDICT, "openvino")
    assert "1 of 2 cells have no verdict: no such device" in found.what
    (never,) = violations(matrix(tmp_path), path, required=("cuda",))
    assert "planned nothing on it" in never.what


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
    found = violations(matrix(tmp_path), run(tmp_path / "new.duckdb"), tmp_path / "old.duckdb")
    assert [each.rule for each in found] == [Rule.NOTHING_COMPARED]


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
