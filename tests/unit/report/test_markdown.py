# ruff: noqa: RUF001 - typographic signs are meant
from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from typing import TYPE_CHECKING

import pytest
from factory_rows import BEGIN, RUN, Database, example, steady, unmeasured
from markdown_it import MarkdownIt

from hwmatrix.basics.text import plural
from hwmatrix.report.expected import expected_md
from hwmatrix.report.json_report import matrix_json
from hwmatrix.report.markdown import errors_md, matrix_md, summary_md
from hwmatrix.report.numbers import interval, number, percent, scientific, times, whole
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "evil | `x` <script>alert(1)</script> [a](https://evil.example) ![i](https://evil.example/i.png) @octocat\n\n# big\n```\n~~~ \\"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    rows = read(example(tmp_path_factory.mktemp("markdown") / "matrix.duckdb"))
    return {"matrix": matrix_md(rows), "summary": summary_md(rows), "errors": errors_md(rows), "expected": expected_md(rows)}


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without the separator row."""
    section = text.split(f"# {heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert lines is not None
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[0].splitlines()]
    return [rows[0], *rows[2:]]


def render(text: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)


def test_the_matrix_has_symbols_and_words(texts: dict[str, str]) -> None:
    text = texts["matrix"]
    assert "**31 cells**: 16 pass, 1 mismatch" in text
    assert table(text, "Embedding") == [
        ["Model", "Settings", "cpu (container)", "openvino (container)", "gpu (container)"],
        ["`bert`", "tiny", "✅ High", "✅ High", "➖ unavailable"],
    ]
    assert table(text, "Text generation")[1:] == [
        ["`gpt2`", "tiny", "✅ High", "🟡 Medium · slower than cpu", "➖ unavailable"],
        ["`mixtral`", "full", "🔧 factory error", "", ""],
    ]
    assert table(text, "Vision")[1] == ["`vit`", "tiny", "✅ High", "✅ High", "➖ unavailable"]
    assert table(text, "Video")[1][2] == "⬜ not run"
    labels = {row[3] for row in table(text, "Audio")[1:]}
    assert labels == {
        "❌ mismatch",
        "🟠 Low · fallback",
        "❌ unsupported",
        "❌ error",
        "❌ out of memory",
        "❌ timeout",
        "❌ crash",
        "➖ unavailable",
        "🔧 factory error",
        "🛑 infra error",
    }


def test_the_legend_explains_exactly_the_used_symbols(texts: dict[str, str], tmp_path: Path) -> None:
    explained = {row[0] for row in table(texts["matrix"], "Legend")[1:]}
    assert {"✅ High", "🟡 Medium", "🟠 Low", "❌ crash", "⬜ not run"} <= explained
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(2.0))
    assert [row[0] for row in table(matrix_md(read(path)), "Legend")[1:]] == ["✅ High"]


def test_performance_optimal_hardware_and_memory(texts: dict[str, str]) -> None:
    text = texts["matrix"]
    performance = table(text, "Performance")
    assert performance[0][3:9] == ["p50 ms", "95 % interval", "p90 ms", "Inputs/s", "Samples", "Contended"]
    bert = next(row for row in performance if row[0] == "`bert`" and row[2] == "openvino (container)")
    assert bert[3:9] == ["1.70", "1.696 to 1.704", "1.71", "588", "101", "no"]
    assert "1 of 16 cells was contended" in text
    optimal = {row[0]: row[2:] for row in table(texts["summary"], "Optimal hardware")[1:]}
    assert optimal["`bert`"] == ["openvino (container)", "1.70", "–", "–"]
    assert optimal["`gpt2`"] == ["cpu (container)", "5.10", "–", "–"]
    assert optimal["`vit`"] == ["cpu (container)", "7.25", "–", "openvino"]
    memory = table(texts["summary"], "Most demanding")[1:]
    assert memory[0][:5] == ["`bert`", "tiny, float32, batch 1, 16 tokens, 1 thread", "openvino (container)", "270,000", "64.5"]


def test_errors_have_recommendations(texts: dict[str, str]) -> None:
    text = texts["matrix"]
    assert "### Critical: `segmentation_fault` (1)" in text
    assert "### Info: `target_unavailable` (4)" in text
    assert "| `bert`, `gpt2`, `vit`" in text  # three equal errors are one line
    assert text.index("### Critical") < text.index("### Error") < text.index("### Warning") < text.index("### Info")
    assert text.count("What to do:") == text.count("\n### Critical") + text.count("\n### Error") + text.count("\n### Warning") + text.count(
        "\n### Info"
    )
    assert "| `gpu.duckdb` | `its SHA-256 is not the one` |" in text
    assert "hwmatrix matrix --models bert --targets cpu" in text


def test_errors_md_is_complete(texts: dict[str, str]) -> None:
    text = texts["errors"]
    assert "Traceback:\n  boom" in text
    assert "`aten::special_bessel_j0`" in text
    assert (
        text.count("<details>") == text.count("</details>") == 14
    )  # three of 15 errors are equal; one block has the commands of the groups


def test_the_summary(texts: dict[str, str]) -> None:
    text = texts["summary"]
    by_target = table(text, "Cells by target")
    assert by_target[0][:3] == ["Target", "pass", "mismatch"]
    assert by_target[1][:3] == ["cpu (container)", "13", "0"]
    speed = table(text, "Performance analysis")
    assert [row[0] for row in speed[1:]] == ["cpu (container)", "openvino (container)"]
    assert speed[2][3:] == ["3", "1", "6.22", "1.70", "9.70", "–", "–", "500", "–"], "no speed of tiny models"
    assert len(table(text, "By architecture")) == 8
    assert table(text, "Slowest and fastest")[2][3:] == ["`gpt2` 9.70, `vit` 7.26, `bert` 1.70", "`bert` 1.70, `vit` 7.26, `gpt2` 9.70"]
    assert table(text, "Memory analysis")[2][2:6] == ["tiny", "3", "500", "500"]
    assert "(`avx2 yes`, `cores 2`" in text
    assert "- ➖ cuda: `no NVIDIA driver`" in text


def test_equal_shards_of_a_target_are_one_row(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        for number in range(3):
            database.shard(f"s{number}", "cpu", started_at=BEGIN + dt.timedelta(minutes=number))
            database.detection(f"s{number}", features=f'{{"memory_left_mb": {number}}}')
        database.shard("t-cut", "cpu", canary_ok=None, finished_at=None)
        database.cell(database.plan("bert", "cpu"), "s0", wall=steady(2.0))
    rows = read(path)
    ran_on = table(matrix_md(rows), "What it ran on")
    assert {(line[0], line[-1]) for line in ran_on[1:]} == {("`cpu`", "✅ passed in 3 shards"), ("`cpu`", "🛑 not reached")}
    assert matrix_md(rows).count("passed in 3 shards") == 2
    assert "memory_left_mb" not in summary_md(rows)
    assert summary_md(rows).count("✅ cpu") == 1


def test_shards_that_differ_in_nothing_that_is_shown_are_one_row(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        for number, finished in enumerate((BEGIN, None)):
            database.shard(f"s{number}", "cpu", finished_at=finished)
            database.detection(f"s{number}")
        database.cell(database.plan("bert", "cpu"), "s0", wall=steady(2.0))
    (row,) = table(summary_md(read(tmp_path / "m.duckdb")), "Hardware")[1:]
    assert row[-1] == "✅ passed in 2 shards"


def test_what_differs_between_machines_is_listed_once_with_its_targets(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        for number, (target, digest) in enumerate((("cpu", "a"), ("cpu", "b"), ("cuda", "c"))):
            gpus = f'{{"gpus": [{{"name": "NVIDIA H200", "memory_mb": 143771, "free_mb": {number}}}]}}'
            database.shard(f"s{number}", target, image_digest=f"sha256:{digest * 64}")
            database.detection(f"s{number}", "cuda", name="NVIDIA H200", features=gpus)
            database.detection(f"s{number}", "mps", available=False, name=None, features="{}", reason=f"no Mac {number // 2}")
            planned = database.plan("bert", target, cell_key=str(number), dtype=("float32", "float16", "float32")[number])
            database.cell(planned, f"s{number}", wall=steady(2.0))
    text = summary_md(read(path))
    found = text.partition("### What was found")[2].partition("##")[0].strip().splitlines()
    assert [line.rpartition(" – on ")[::2] for line in found] == [
        ('- ✅ cuda: `NVIDIA H200` (`gpus [{"name": "NVIDIA H200", "memory_mb": 143771}]`)', "cpu (container), cuda (container)"),
        ("- ➖ mps: `no Mac 0`", "cpu (container)"),
        ("- ➖ mps: `no Mac 1`", "cuda (container)"),
    ]
    assert [line[5] for line in table(text, "Hardware")[1:]] == ["2 images", "`cccccccccccc`"]


@pytest.mark.parametrize("name", ["matrix", "summary", "errors", "expected"])
def test_the_raw_text_is_well_formed(texts: dict[str, str], name: str) -> None:
    text = texts[name]
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\n\n\n" not in text
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)
    lines = text.splitlines()
    for before, line in itertools.pairwise(lines):
        if line.startswith("#"):
            assert not before
        if line.startswith("|") and not before.startswith("|"):
            assert not before
        if before.startswith("|") and not line.startswith("|"):
            assert not line
    html = render(text)
    assert html.count("<table>") == len(re.findall(r"(?<!\|\n)^\|(?=.*\n\| ?-)", text, re.MULTILINE))
    assert "| ---" not in html  # every table was parsed as one


def test_host_and_container_have_separate_columns(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s-mps", "mps", isolation="venv")
        database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(2.0))
        database.cell(database.plan("bert", "mps"), "s-mps", wall=steady(1.0))
        database.plan("late", "mps")
    text = matrix_md(read(path))
    assert table(text, "Embedding") == [
        ["Model", "cpu (container)", "mps (venv)"],
        ["`bert`", "✅ High", "✅ High"],
        ["`late`", "", "⬜ not run"],
    ]
    assert "All cells: tiny, float32, batch 1, 16 tokens, 1 thread." in text


def test_a_model_is_one_row_and_precisions_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s-gpu", "cuda")
        database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(2.0))
        for dtype in ("float32", "float16"):
            planned = database.plan("bert", "cuda", dtype=dtype, cell_key=f"bert/cuda/{dtype}")
            database.cell(planned, "s-gpu", wall=steady(1.0))
            database.plan("bert", "rocm", dtype=dtype, cell_key=f"bert/rocm/{dtype}", unavailable="no such driver")
            database.plan("unmade", "rocm", dtype=dtype, cell_key=f"unmade/rocm/{dtype}", unbuildable="a reason")
    text = matrix_md(read(path))
    assert table(text, "Embedding") == [
        ["Model", "cpu (container)", "cuda (container)", "cuda float16 (container)", "rocm (container)"],
        ["`bert`", "✅ High", "✅ High", "✅ High", "➖ unavailable"],
        ["`unmade`", "", "", "", "🔧 factory error"],
    ]
    assert "float32 unless the column names another precision" in text


def test_a_precision_that_the_runtime_chose_is_in_the_column_s_head(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-ov", "openvino")
        database.cell(database.plan("bert", "openvino"), "s-ov", wall=steady(2.0), precision="float32")
        planned = database.plan("bert", "openvino", dtype="default", cell_key="bert/openvino/default")
        database.cell(planned, "s-ov", wall=steady(1.0), precision="bfloat16")
    rows = read(path)
    (head, *_) = table(matrix_md(rows), "Embedding")
    assert head == ["Model", "openvino (container)", "openvino bfloat16 by default (container)"]
    entries = json.loads(matrix_json(rows))["cells"]
    assert [(each["settings"]["dtype"], each["precision"]) for each in entries] == [("float32", "float32"), ("default", "bfloat16")]


def test_a_ratio_from_a_contended_time_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s-ov", "openvino")
        known = {"hub_id": "example/bert", "size": "full"}
        database.cell(database.plan("bert", "cpu", **known), "s-cpu", wall=steady(4.0), busy=0.8, method="torch eager")
        method = "openvino.convert_model (exporter failed: Some | Error)"
        database.cell(database.plan("bert", "openvino", **known), "s-ov", wall=steady(2.0), method=method)
        int8 = database.plan("bert", "openvino", dtype="int8", cell_key="int8", **known)
        database.cell(int8, "s-ov", wall=steady(1.0))
    text = matrix_md(read(path))
    assert table(text, "Embedding") == [
        ["Model", "Stands for", "cpu (container)", "openvino (container)", "openvino int8 (container)"],
        ["`bert`", "`example/bert`", "✅ High", "✅ High · ≈2.0× cpu", "✅ High · ≈4.0× cpu, 2.0× own"],
    ]
    assert [row[0] for row in table(text, "Legend")[1:]] == ["✅ High", "1.9× cpu", "1.3× own", "≈1.9×"]
    assert table(summary_md(read(path)), "Optimal hardware")[1][2:] == ["openvino (container)", "2.00", "–", "–"]
    methods = table(text, "How models were prepared")
    assert methods[1] == ["cpu (container)", "`torch eager`", "1", "`bert`"]
    assert methods[2][0] == "openvino (container)"


def test_only_hardware_that_a_target_can_use_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.plan("bert", "cpu")
        database.detection("s-cpu", name="A processor")
        database.detection("s-cpu", "cuda", name="A graphics card")
    assert table(matrix_md(read(path)), "What it ran on")[1][3] == "`A processor`"


def test_software_and_emulation_are_labeled(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-qnn", "qnn")
        database.shard("s-web", "webgpu")
        database.cell(database.plan("bert", "qnn", execution="emulated"), "s-qnn", wall=steady(1.0))
        database.cell(database.plan("bert", "webgpu", execution="software"), "s-web", wall=steady(1.0))
    assert table(matrix_md(read(path)), "Embedding")[1] == ["`bert`", "🟡 Medium · emulated", "🟡 Medium · software"]


def test_reports_of_an_empty_run(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.plan("bert", "cpu")
    rows = read(path)
    text = matrix_md(rows)
    assert "**1 cell**: 1 not run" in text
    for sentence in ("No cell was timed", "No shard was merged.", "No cell was executed."):
        assert sentence in text
    assert "No cell was timed" in summary_md(rows)
    assert "No memory was measured." in summary_md(rows)
    assert errors_md(rows).endswith("None.\n")


@pytest.mark.parametrize("name", ["matrix", "summary", "errors", "expected"])
def test_hostile_text_breaks_nothing(tmp_path: Path, name: str) -> None:
    """The same run with and without hostile text in all external texts gives the same tables and elements."""
    renderings = []
    for text in ("plain", EVIL):
        path = tmp_path / f"{len(renderings)}.duckdb"
        with Database(path) as database:
            database.run(command=text, commit_id=text, hwmatrix_version=text)
            database.shard("s-cpu", "cpu", canary_detail=text, image_digest=text)
            database.shard("s-ov", "openvino", versions='{"torch": "2"}')
            database.detection("s-cpu", name=text)
            database.detection("s-cpu", "cuda", available=False, name=None, features="{}", reason=text)
            database.cell(database.plan(text, "cpu", architecture=text, hub_id=text), "s-cpu", wall=steady(2.0), command=text)
            database.cell(database.plan(text, "openvino", architecture=text), "s-ov", wall=steady(1.0), command=text, method=text)
            failed = unmeasured("unsupported") | {"message": text, "traceback": text, "needs": [text, text], "command": text}
            database.cell(database.plan(f"{text}2", "cpu"), "s-cpu", **failed)
            database.plan("late", "gpu", unavailable=text)
            database.insert("rejected", {"run_id": RUN, "file": text, "reason": text, "rejected_at": "2026-01-02"})
        rows = read(path)
        write = {"matrix": matrix_md, "summary": summary_md, "errors": errors_md, "expected": expected_md}[name]
        renderings.append(render(write(rows)))
    plain, evil = ([tag for tag in re.findall(r"<(/?[a-z0-9]+)", html) if tag.strip("/") != "code"] for html in renderings)
    assert plain == evil
    assert "<script" not in renderings[1]
    assert not re.search(r"<a (?!href=\"(errors|expected|summary)\.md(#confidence)?\")", renderings[1])


def test_numbers() -> None:
    assert [number(value) for value in (0.0312, 3.123, 31.25, 3120.4, 0.0, None)] == ["0.0312", "3.12", "31.2", "3,120", "0", "–"]
    assert interval(3.1934, 3.2071) == "3.193 to 3.207"
    assert interval(None, 1.0) == "–"
    assert [times(value) for value in (1.88, 0.526, 12.34, None)] == ["1.9×", "0.53×", "12×", "–"]
    assert [percent(value) for value in (0.999, 1.0, None)] == ["99 %", "100 %", "–"]
    assert [whole(value) for value in (270_000, None)] == ["270,000", "–"]
    assert [scientific(value) for value in (2.34e-7, 0.0, None)] == ["2.3e-07", "0", "–"]
    assert [plural(1, "cell"), plural(2, "cell"), plural(1200, "cell")] == ["1 cell", "2 cells", "1,200 cells"]


def test_tracebacks_that_are_too_long_together_are_cut_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        for number in range(40):
            text = f"first line {number}\n" + "middle\n" * 3000 + f"last line {number}"
            database.cell(database.plan(f"m{number}", "cpu"), "s-cpu", **unmeasured("error") | {"message": f"m{number}", "traceback": text})
    text = errors_md(read(path))
    assert len(text) < 400_000
    assert all(f"first line {number}\n" in text and f"last line {number}\n" in text for number in range(40))
    assert text.count("characters left out]") == 40
    assert "Long texts (40) are shortened in the middle; errors.json and the database have the full texts" in text


def test_a_traceback_of_ordinary_length_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    text = "\n".join(f"line {number}" for number in range(1000))
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.cell(database.plan("m", "cpu"), "s-cpu", **unmeasured("error") | {"message": "no", "traceback": text})
    assert text in errors_md(read(path))
    assert "shortened in the middle" not in errors_md(read(path))
