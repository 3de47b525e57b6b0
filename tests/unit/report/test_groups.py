"""Failures grouped by the change that would fix them, and totals: what they count, and how reports of very many models show them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import jsonschema
import pytest
from factory_rows import Database, example, unmeasured
from factory_sweep import FAMILIES, sweep

from hwmatrix.app.schemas import groups_schema
from hwmatrix.cli.main import main
from hwmatrix.report.groups import FailureGroup, GroupKind, Scope, blocked_of, groups_of
from hwmatrix.report.markdown import LARGE, errors_md, matrix_md, summary_md
from hwmatrix.report.rows import read
from hwmatrix.report.totals import totals_of

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.report.rows import ReportRows

MODELS = 130


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep(tmp_path_factory.mktemp("sweep") / "matrix.duckdb", models=MODELS)


@pytest.fixture(scope="module")
def rows(swept: Path) -> ReportRows:
    return read(swept)


def of(rows: ReportRows, target: str | None) -> list[FailureGroup]:
    return [group for group in groups_of(rows) if group.target == target]


def test_operators_come_before_source_lines_and_those_before_messages(rows: ReportRows) -> None:
    found = {group.blocker.what: group for group in of(rows, "openvino")}
    lacking = [n for n in range(MODELS) if n % 13 != 12 and n % 11 != 4 and n % 9 == 2]
    assert found["aten::_fft_r2c"].blocker.kind is GroupKind.OPERATOR
    assert found["aten::_fft_r2c"].models == tuple(f"arch-{n:03}" for n in lacking)
    assert found["aten::unique_dim"].models == tuple(f"arch-{n:03}" for n in lacking if n % 2 == 0)
    rope = found["models/*/modeling_*.py::get_rope_index: for step in range(int(image_grid_thw.max())):"]
    assert rope.blocker.kind is GroupKind.CONSTRUCT
    assert rope.at is not None
    assert rope.at in rope.sites
    assert re.fullmatch(r"models/(\w+)/modeling_\1\.py:\d+ in get_rope_index", rope.at)
    assert found["relative L2 error <n> of <name> exceeds <n>"].blocker.kind is GroupKind.ERROR


def test_groups_that_block_most_come_first_and_targets_in_order(rows: ReportRows) -> None:
    assert [column.target for column in blocked_of(groups_of(rows))] == ["cpu", "openvino", "onnxruntime"]
    for target in ("openvino", "onnxruntime"):
        sizes = [len(group.architectures) for group in of(rows, target)]
        assert sizes == sorted(sizes, reverse=True)


def test_the_example_is_the_smallest(rows: ReportRows) -> None:
    assert groups_of(rows)
    for group in groups_of(rows):
        known = [cell.parameters for cell in group.cells if cell.parameters is not None]
        assert group.example.parameters == min(known)


def test_a_model_of_unknown_size_is_the_last_choice(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s", "cpu")
        database.cell(database.plan("unknown", "cpu"), "s", **unmeasured("crash") | {"parameters": None})
        database.cell(database.plan("known", "cpu"), "s", **unmeasured("crash") | {"parameters": 5})
    (group,) = groups_of(read(tmp_path / "m.duckdb"))
    assert (group.example.model, group.models) == ("known", ("unknown", "known"))


def test_unbuildable_models_count_once_and_against_no_target(rows: ReportRows) -> None:
    (group,) = of(rows, None)
    assert (group.scope, group.isolation) == (Scope.FACTORY, None)
    assert group.blocker.what == "<class> cannot be built: KeyError: 'rope_theta'"
    assert len(group.models) == len([n for n in range(MODELS) if n % 13 == 12])
    assert len(group.cells) == 3 * len(group.models)
    assert all(each.blocker.error_type != "build_failed" for groups in blocked_of(groups_of(rows)).values() for each in groups)


def test_a_model_that_was_executed_elsewhere_was_made_and_its_failure_is_listed(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        for target in ("cpu", "cuda"):
            database.shard(target, target)
        database.cell(database.plan("sd", "cpu"), "cpu")
        database.plan("jev", "mps", unavailable="no Mac")
        for model in ("sd", "jev"):
            database.cell(database.plan(model, "cuda"), "cuda", **unmeasured("factory_error"))
    found = read(tmp_path / "m.duckdb")
    (group,) = groups_of(found)
    assert (group.scope, group.models, totals_of(found).inputs.unmade) == (Scope.FACTORY, ("sd", "jev"), 1)


def test_every_failing_status_has_a_scope_and_other_cells_no_group(tmp_path: Path) -> None:
    found = groups_of(read(example(tmp_path / "m.duckdb")))
    scopes = {cell.status.value: group.scope.value for group in found for cell in group.cells}
    hardware = dict.fromkeys(("mismatch", "fallback", "unsupported", "error", "oom", "timeout", "crash"), "target")
    assert scopes == hardware | {"factory_error": "factory", "infra_error": "infrastructure"}


def test_the_same_message_at_another_stage_is_another_group(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s", "cpu")
        for number, stage in enumerate(("run", "run", "load")):
            database.cell(database.plan(f"m{number}", "cpu"), "s", **unmeasured("crash") | {"stage": stage})
    assert [(group.blocker.stage, len(group.cells)) for group in groups_of(read(tmp_path / "m.duckdb"))] == [("run", 2), ("load", 1)]


def test_a_source_line_may_be_only_in_the_message(tmp_path: Path) -> None:
    code = "/opt/venv/lib/python3.11/site-packages/transformers/models/fuyu/modeling_fuyu.py"
    message = f'no exporter made a graph: Could not guard on u0\n\nUser stack:\n  File "{code}", line 7, in gather\n    x[y]\n'
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s", "onnxruntime")
        database.cell(database.plan("fuyu", "onnxruntime"), "s", **unmeasured("error") | {"message": message, "traceback": None})
    (group,) = groups_of(read(tmp_path / "m.duckdb"))
    assert group.blocker.what == "models/*/modeling_*.py::gather: x[y]"
    assert (group.at, group.sites) == ("models/fuyu/modeling_fuyu.py:7 in gather", ("models/fuyu/modeling_fuyu.py:7 in gather",))
    assert "`models/fuyu/modeling_fuyu.py:7 in gather`" in errors_md(read(tmp_path / "m.duckdb"))
    assert group.blocker.message == "no exporter made a graph: Could not guard on <name>"


def test_totals_count_tried_models(rows: ReportRows) -> None:
    totals = totals_of(rows)
    assert totals.families == ("embedding", "text_generation", "vision", "audio", "multimodal", "video", "other")
    for line in totals.lines:
        tried = [cell for cell in rows.cells if cell.target == line.column.target and cell.status != "factory_error"]
        assert line.generating is None
        for family, found in ((None, line.models), *zip(totals.families, line.by_family, strict=True)):
            own = [cell for cell in tried if family in {None, cell.family}]
            assert found is not None
            assert (found.tried, found.passed) == (
                len({cell.model for cell in own}),
                len({cell.model for cell in own if cell.status == "pass"}),
            )
    inputs = totals.inputs
    assert (inputs.models, inputs.unmade) == (MODELS, 10)
    built = [n for n in range(MODELS) if n % 13 != 12]
    assert inputs.text_path == sum(FAMILIES[n % 7] == "multimodal" and n % 4 == 1 for n in built)
    more = sum(FAMILIES[n % 7] in {"vision", "video", "audio", "multimodal"} for n in built)
    assert inputs.given_more + inputs.text_path == more


def test_a_target_that_was_not_tried_has_no_line(tmp_path: Path) -> None:
    totals = totals_of(read(example(tmp_path / "m.duckdb")))
    assert {line.column.target for line in totals.lines} == {"cpu", "openvino"}


def test_a_large_matrix_begins_with_totals_then_causes_then_rows(rows: ReportRows) -> None:
    text = matrix_md(rows)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings[:5] == ["Models that pass", "What blocks most", "What could not be made", "What it ran on", "The matrix"]
    for family in set(FAMILIES):
        anchor = f"family-{family.replace('_', '-')}"
        assert f'<a id="{anchor}"></a>' in text
        assert f"](#{anchor})" in text
    assert "10 models of 130 could not be built here. This is never counted against the hardware." in text
    assert "hwmatrix matrix --models" in text
    assert text.index("`aten::_fft_r2c`") < text.index("## The matrix")
    matrix = text[text.index("## The matrix") : text.index("### Legend")]
    assert matrix.count("\n| `arch-") == MODELS


def test_the_most_frequent_preparation_methods_are_named(rows: ReportRows) -> None:
    section = matrix_md(rows).split("### How models were prepared", 1)[1].split("## ", 1)[0]
    assert section.index("`eager`") < section.index("`traced, because export")
    assert section.count("\n| ") - 1 == 20  # without the header
    assert f"And {len(rows.analysis.methods) - 20} other methods, each for fewer cells" in section


def test_cells_that_ran_only_the_text_path_are_marked_and_counted(rows: ReportRows) -> None:
    text = matrix_md(rows)
    assert "ran only the text path and are marked †" in text
    assert re.search(r"^\| `arch-017` .* ✅ High †", text, re.MULTILINE)
    assert re.search(r"^\| † +\| only the text path of a model", text, re.MULTILINE)
    assert not re.search(r"^\| `arch-000` .*†", text, re.MULTILINE)


@pytest.mark.parametrize("make", [matrix_md, summary_md, errors_md])
def test_untimed_cells_have_no_speed(rows: ReportRows, make: object) -> None:
    assert callable(make)
    text = make(rows)
    assert "×" not in text  # noqa: RUF001 - the typographic sign
    assert "p50" not in text
    if make is not errors_md:
        assert "No cell was timed: there is no latency, and nothing is said about speed." in text


def test_a_small_matrix_has_no_totals(tmp_path: Path) -> None:
    text = matrix_md(read(example(tmp_path / "m.duckdb")))
    assert "## Totals" not in text
    assert text.index("## What it ran on") < text.index("## The matrix")
    assert LARGE > 15


def test_errors_md_has_every_group(rows: ReportRows) -> None:
    text = errors_md(rows)
    for group in groups_of(rows):
        assert group.example.model in text
    assert text.index("## What blocks most") < text.index("## What could not be made") < text.index("What to do:")


def test_the_command_prints_the_groups(swept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["groups", "--database", str(swept), "--targets", "openvino", "--limit", "2"]) == 0
    told = capsys.readouterr().out
    assert "aten::_fft_r2c" in told
    assert "more: --limit, or --format json" in told
    assert "onnxruntime" not in told
    assert main(["groups", "--database", str(swept), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, groups_schema(), cls=jsonschema.Draft202012Validator)
    assert {group["scope"] for group in document["groups"]} == {"target", "factory"}


def test_the_command_suggests_the_closest_names(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", "--database", str(swept), "--targets", "openvno"]) == 2
    assert "openvino" in capsys.readouterr().err
