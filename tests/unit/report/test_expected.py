from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
from factory_rows import FAILURES, RUN, Database, example, steady, unmeasured

from hwmatrix.app.schemas import expected_schema
from hwmatrix.matrix.priors import all_priors
from hwmatrix.records import Execution, Family, Level
from hwmatrix.report.expected import compare_expected, compare_orders, expected_document, expected_json, expected_md
from hwmatrix.report.expected_contract import Expectation, FamilyOrder, Ranking, Verdict
from hwmatrix.report.rows import ReportRows, read

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORDED = Path(__file__).parents[2] / "recorded"


def fill(database: Database, family: str, hardware: str, statuses: Sequence[str], *, execution: str = "hardware", cpu: bool = True) -> None:
    """Add models of a family, one per status, on some hardware and (``cpu``) on cpu. A status can also be the speedup over cpu."""
    shard = f"s-{family}-{hardware}-{execution}"
    database.shard(shard, hardware)
    for number, status in enumerate(statuses):
        model = f"{family}-{number}"
        if cpu:
            database.cell(database.plan(model, "cpu", family=family), "s-cpu", wall=steady(2.0))
        planned = database.plan(model, hardware, family=family, execution=execution, cell_key=f"{model}/{hardware}/{execution}")
        if status in FAILURES:
            database.cell(planned, shard, **unmeasured(status))
        else:
            database.cell(planned, shard, wall=steady(2.0 / float(status)))


def measured(path: Path, family: str, hardware: str, statuses: Sequence[str], **how: object) -> ReportRows:
    with Database(path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        fill(database, family, hardware, statuses, **how)  # type: ignore[arg-type]
    return read(path / "m.duckdb")


def only(rows: ReportRows, hardware: str) -> Expectation:
    (found,) = (each for each in compare_expected(rows) if each.hardware == hardware)
    return found


@pytest.mark.parametrize(
    ("family", "hardware", "statuses", "verdict"),
    [
        ("vision", "openvino", ["2", "2"], Verdict.AGREES),  # High, High, REAL
        ("vision", "openvino", ["0.5", "0.5"], Verdict.WORSE),  # Medium satisfies REAL but not High
        ("vision", "openvino", ["mismatch", "mismatch", "2"], Verdict.WORSE),
        ("vision", "webgpu", ["0.5"], Verdict.AGREES),  # Medium, Medium, REAL
        ("vision", "webgpu", ["2"], Verdict.BETTER),
        ("vision", "webgpu", ["crash"], Verdict.WORSE),
        ("text_generation", "openvino", ["0.5"], Verdict.BETTER),  # Low, Low, REAL
        ("text_generation", "openvino", ["error"], Verdict.WORSE),
        ("text_generation", "openvino", ["fallback"], Verdict.WORSE),  # Low: not on the hardware, as REAL requires
        ("embedding", "openvino", ["2"], Verdict.CONTRADICTORY),  # Medium, High, REAL
        ("embedding", "openvino", ["oom"], Verdict.WORSE),  # they contradict each other and are all wrong
        ("text_generation", "webgpu", ["error"], Verdict.CONTRADICTORY),  # Low, none, REAL
        ("audio", "webgpu", ["unsupported"], Verdict.AGREES),  # none, none, SIMULATION
        ("audio", "webgpu", ["fallback"], Verdict.AGREES),  # not on the hardware itself
        ("audio", "webgpu", ["2", "error", "error"], Verdict.BETTER),  # one works, although none was expected to
        ("multimodal", "openvino", ["timeout"], Verdict.AGREES),  # Low but refused, none, SIMULATION
        ("multimodal", "openvino", ["0.5"], Verdict.BETTER),
        ("video", "webnn", ["error"], Verdict.AGREES),  # only SIMULATION
        ("video", "openvino", ["2", "error"], Verdict.WORSE),  # only REAL: half is not a majority
        ("video", "openvino", ["2", "2", "error"], Verdict.AGREES),
        ("vision", "qnn", ["2"], Verdict.UNEXPECTED),
        ("vision", "openvino", ["unavailable"], Verdict.NOT_MEASURED),
        ("vision", "openvino", ["factory_error", "infra_error"], Verdict.NOT_MEASURED),
    ],
)
def test_verdicts(tmp_path: Path, family: str, hardware: str, statuses: list[str], verdict: Verdict) -> None:
    found = only(measured(tmp_path, family, hardware, statuses), hardware)
    assert found.verdict is verdict
    assert (found.family, found.run_id) == (Family(family), RUN)
    assert len(found.priors) == sum(prior.family == family and prior.hardware == hardware for prior in all_priors())


def test_a_pass_in_software_is_compared_with_at_most_medium(tmp_path: Path) -> None:
    software = only(measured(tmp_path, "embedding", "webnn", ["9", "9"], execution="software"), "webnn")
    assert [(prior.expectation.value, prior.verdict) for prior in software.priors] == [
        ("High", Verdict.AGREES),
        ("Medium", Verdict.AGREES),
        ("REAL", Verdict.AGREES),
    ]
    assert (software.level, software.execution) == (Level.MEDIUM, Execution.SOFTWARE)


def test_hardware_without_a_cpu_comparison_can_be_high(tmp_path: Path) -> None:
    alone = only(measured(tmp_path, "vision", "openvino", ["2"], cpu=False), "openvino")
    assert (alone.level, alone.verdict) == (Level.HIGH, Verdict.AGREES)


def test_sizes_of_a_model_with_and_without_a_hub_id_count_once(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s", "openvino")
        database.cell(database.plan("albert", "openvino"), "s", wall=steady(1.0))
        full = database.plan("albert", "openvino", size="full", hub_id="albert/albert-base-v2", cell_key="full")
        database.cell(full, "s", wall=steady(9.0))
    assert only(read(tmp_path / "m.duckdb"), "openvino").models == 1


def test_a_model_that_passes_only_changed_does_not_pass(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s", "openvino")
        database.cell(database.plan("bert", "openvino"), "s", preparation=["replaced_operators"])
        database.cell(database.plan("roberta", "openvino"), "s")
    found = only(read(tmp_path / "m.duckdb"), "openvino")
    assert (found.models, found.passing, found.pass_share, found.passed_cells) == (2, 1, 0.5, 1)


def test_software_and_hardware_are_separate_rows(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        fill(database, "audio", "qnn", ["2"])
        fill(database, "audio", "qnn", ["error"], execution="emulated", cpu=False)
    found = {each.execution: each for each in compare_expected(read(tmp_path / "m.duckdb")) if each.hardware == "qnn"}
    assert {execution: each.level for execution, each in found.items()} == {Execution.HARDWARE: Level.HIGH, Execution.EMULATED: Level.NONE}


def test_cpu_is_the_baseline_for_every_model(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        fill(database, "vision", "cpu", ["1", "1"], cpu=False)
        fill(database, "audio", "cpu", ["1", "1", "mismatch"], cpu=False)
    found = {each.family: each.verdict for each in compare_expected(read(tmp_path / "m.duckdb"))}
    assert found == {Family.VISION: Verdict.AGREES, Family.AUDIO: Verdict.WORSE}


def test_a_model_counts_once_with_its_best_level(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s", "openvino")
        for dtype, status in (("float32", "pass"), ("float16", "mismatch"), ("bfloat16", "error")):
            planned = database.plan("vit", "openvino", family="vision", dtype=dtype, cell_key=dtype)
            database.cell(planned, "s", **({} if status == "pass" else unmeasured(status)))
    found = only(read(tmp_path / "m.duckdb"), "openvino")
    assert (found.models, found.passing, found.pass_share) == (1, 1, 1.0)
    assert (found.cells, found.passed_cells) == (3, 1)
    assert [(each.model, each.dtype, each.level) for each in found.evidence] == [("vit", "float32", Level.HIGH)]


def test_a_prior_is_never_a_result(tmp_path: Path) -> None:
    found = only(measured(tmp_path, "vision", "cuda", ["unavailable"]), "cuda")
    assert (found.level, found.levels, found.models, found.passing, found.pass_share) == (None, {}, 0, 0, None)
    assert [prior.verdict for prior in found.priors] == [None, None, None]
    assert found.reason == FAILURES["unavailable"]["message"]
    assert (found.place, [each.level for each in found.evidence]) == (1, [None])


def test_disagreements_come_first(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        fill(database, "vision", "cuda", ["unavailable"], cpu=False)
        fill(database, "vision", "qnn", ["2"], cpu=False)
        fill(database, "vision", "openvino", ["2"])
        fill(database, "vision", "webgpu", ["2"], cpu=False)
        fill(database, "vision", "rocm", ["error"], cpu=False)
        fill(database, "embedding", "openvino", ["2"])
    document = expected_document(read(tmp_path / "m.duckdb"))
    assert list(document.counts) == list(Verdict)
    assert [each.hardware for each in document.expectations][:3] == ["rocm", "webgpu", "openvino"]
    text = expected_md(read(tmp_path / "m.duckdb"))
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert headings[:-1] == [verdict.value.capitalize() for verdict in Verdict]


def order_of(rows: ReportRows, family: Family) -> FamilyOrder:
    (found,) = (each for each in compare_orders(rows) if each.family is family)
    return found


def test_the_order_against_the_fastest(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        fill(database, "text_generation", "openvino", ["4", "4", "error"])
        fill(database, "vision", "openvino", ["4", "4"])
        fill(database, "audio", "openvino", ["0.5"])
        fill(database, "video", "openvino", ["1"])
        fill(database, "embedding", "webgpu", ["9"], execution="software")
    rows = read(tmp_path / "m.duckdb")
    text = order_of(rows, Family.TEXT_GENERATION)
    assert (text.verdict, text.expected, text.fastest, text.compared, text.faster) == (Ranking.OTHER, "cpu", "openvino", 2, 2)
    assert text.ratio == pytest.approx(4)
    vision = order_of(rows, Family.VISION)
    assert (vision.verdict, vision.expected, vision.rival, vision.fastest) == (Ranking.AGREES, "openvino", "cpu", "openvino")
    assert vision.ratio == pytest.approx(0.25)
    audio = order_of(rows, Family.AUDIO)
    assert (audio.verdict, audio.expected, audio.fastest) == (Ranking.OTHER, "openvino", "cpu")
    assert order_of(rows, Family.VIDEO).verdict is Ranking.TIED
    embedding = order_of(rows, Family.EMBEDDING)  # software execution is never ranked
    assert (embedding.verdict, embedding.expected, embedding.rival, embedding.compared) == (Ranking.NOT_MEASURED, None, None, 0)


def test_unknown_hardware(tmp_path: Path) -> None:
    found = only(measured(tmp_path, "vision", "<b>|npu", ["2"]), "<b>|npu")
    assert (found.verdict, found.priors, found.place) == (Verdict.UNEXPECTED, (), None)
    assert "<b>|npu" not in expected_md(read(tmp_path / "m.duckdb"))


@pytest.mark.parametrize("planned", [True, False])
def test_a_run_without_measurements(tmp_path: Path, planned: bool) -> None:  # noqa: FBT001 - a parameter of the test
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        if planned:
            database.plan("vit", "cuda", family="vision")
    rows = read(tmp_path / "m.duckdb", RUN)
    assert [each.verdict for each in compare_expected(rows)] == ([Verdict.NOT_MEASURED] if planned else [])
    text = expected_md(rows)
    assert ("no cell was executed" in text) is planned
    assert ("The run has no cells." in text) is not planned
    jsonschema.validate(json.loads(expected_json(rows)), expected_schema())


def test_json_matches_its_schema_and_is_reproducible(tmp_path: Path) -> None:
    rows = read(example(tmp_path / "m.duckdb"))
    jsonschema.Draft202012Validator(expected_schema()).validate(json.loads(expected_json(rows)))
    assert expected_json(rows) == expected_json(read(tmp_path / "m.duckdb"))


def test_published_results_of_an_older_schema() -> None:
    rows = read(RECORDED / "default.duckdb")
    found = {(each.family, each.hardware): each for each in compare_expected(rows)}
    text = found[Family.TEXT_GENERATION, "openvino"]
    assert (text.verdict, text.levels, text.passing) == (Verdict.BETTER, {Level.HIGH: 5}, 5)
    assert found[Family.MULTIMODAL, "webgpu"].execution is Execution.SOFTWARE
    assert {each.verdict for each in found.values() if each.hardware in {"cuda", "rocm", "mps"}} == {Verdict.NOT_MEASURED}
    assert "text generation" in expected_md(rows)
