"""Cells that generate, in every report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import Database, steady

from hwmatrix.cli.main import main
from hwmatrix.report import grid
from hwmatrix.report.json_report import matrix_json
from hwmatrix.report.markdown import errors_md, matrix_md
from hwmatrix.report.numbers import by_position
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.report.rows import ReportRows

MEASURED = {
    "prompt_tokens": 16,
    "ttft_ms": 4.0,
    "ttft_low_ms": 3.9,
    "ttft_high_ms": 4.1,
    "tpot_ms": 2.0,
    "tpot_low_ms": 1.9,
    "tpot_high_ms": 2.1,
    "itl_ms": [1.9, 2.0, 2.1],
    "itl_change_ms": 0.2,
    "lengths": [16, 128],
    "lengths_ttft_ms": [4.0, 30.0],
    "lengths_tpot_ms": [2.0, 2.5],
    "lengths_cache_mb": [0.5, 4.0],
    "cache_mb": 0.5,
    "cache_error": 3e-7,
}
FAILED = {"failing_component": "decode", "failing_step": 2, "failing_prompt": "padded"}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Gpt2: one forward pass and generation on cpu; on mps generation is wrong."""
    path = tmp_path / "matrix.duckdb"
    with Database(path) as filled:
        filled.run()
        for target in ("cpu", "mps"):
            filled.shard(f"s-{target}", target)
            once = filled.plan("gpt2", target, family="text_generation")
            filled.cell(once, f"s-{target}", wall=steady(2.0))
            generates = filled.plan("gpt2", target, family="text_generation", cell_key=f"gpt2/{target}-n4", new_tokens=4)
            if target == "cpu":
                filled.cell(generates, f"s-{target}", wall=steady(10.0), **MEASURED)
            else:
                wrong = {"status": "mismatch", "stage": "compare", "error_type": "mismatch", "severity": "error", "message": "far off"}
                filled.cell(generates, f"s-{target}", **wrong, **FAILED)
    return path


@pytest.fixture
def rows(database: Path) -> ReportRows:
    """The rows of that database."""
    return read(database)


def test_generation_is_a_row_of_its_own(rows: ReportRows) -> None:
    (section,) = grid.grid_of(rows).sections
    assert [(row.model, row.settings) for row in section.rows] == [("gpt2", ""), ("gpt2", "generates 4")]
    labels = [[grid.label(cell) for cell in row.cells if cell is not None] for row in section.rows]
    assert labels == [["✅ High", "✅ High"], ["✅ High", "❌ mismatch"]]


def test_the_json_has_every_value_and_where_it_fails(rows: ReportRows) -> None:
    cells: list[dict[str, Any]] = json.loads(matrix_json(rows))["cells"]
    found = {(cell["target"], cell["settings"]["new_tokens"]): cell["generation"] for cell in cells}
    assert found["cpu", 0] is None
    assert found["cpu", 4] == {
        "prompt_tokens": 16,
        "new_tokens": 4,
        "ttft_ms": 4.0,
        "ttft_ci95": [3.9, 4.1],
        "tpot_ms": 2.0,
        "tpot_ci95": [1.9, 2.1],
        "itl_ms": [1.9, 2.0, 2.1],
        "itl_change": {"kind": "drift", "ms": 0.2, "token": None},
        "prefill_tokens_s": 4000.0,
        "decode_tokens_s": 500.0,
        "by_prompt_length": [
            {"prompt_tokens": 16, "ttft_ms": 4.0, "tpot_ms": 2.0, "cache_mb": 0.5},
            {"prompt_tokens": 128, "ttft_ms": 30.0, "tpot_ms": 2.5, "cache_mb": 4.0},
        ],
        "cache_mb": 0.5,
        "cache_kb_per_token": 32.0,
        "growth_kb": None,
        "cache_error": 3e-7,
        "first_failing_step": None,
        "component": None,
        "prompt": None,
    }
    wrong = found["mps", 4]
    assert (wrong["component"], wrong["first_failing_step"], wrong["prompt"], wrong["ttft_ms"]) == ("decode", 2, "padded", None)


def test_the_markdown_has_a_table_of_generation(rows: ReportRows) -> None:
    text = matrix_md(rows)
    assert "| `gpt2` | tiny, float32, batch 1, 16 + 4 tokens | cpu (container) | 4.00 | 3.900 to 4.100 | 2.00 |" in text
    assert "| 0.500 | the time per token grows by 0.200 ms from token 2 to token 4 |" in text
    assert "decoding with the cache; the prefill is right" in errors_md(rows)


@pytest.mark.parametrize(
    ("ms", "token", "told"),
    [
        (None, None, None),
        (-0.5, 9, "from token 9 on, each takes 0.500 ms less"),
        (0.5, 9, "from token 9 on, each takes 0.500 ms longer"),
        (-0.5, None, "the time per token falls by 0.500 ms from token 2 to token 32"),
    ],
)
def test_a_change_by_position_is_told_in_words(ms: float | None, token: int | None, told: str | None) -> None:
    assert by_position(ms, token, 32) == told


def test_why_says_how_fast_it_generates_and_where_it_fails(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "gpt2", "cpu", "--database", str(database)]) == 0
    told = capsys.readouterr().out
    assert "16 + 4 tokens" in told
    assert (
        "generation: first token after 4.00 ms (3.900 to 4.100), then 2.00 ms per token (1.900 to 2.100; 500 tokens/s); cache 0.500 MiB"
        in told
    )
    assert "position:   the time per token grows by 0.200 ms" in told
    assert main(["why", "gpt2", "mps", "--database", str(database)]) == 0
    told = capsys.readouterr().out
    assert "fails first: in the decode at step 2, after the padded prompt" in told
    assert "as script:  hwmatrix generate --reproduce gpt2 mps --dtype float32 --size tiny --generation --database" in told


@pytest.mark.parametrize(
    ("target", "status", "tokens", "there_is_one"),
    [
        ("cpu", "pass", 4, False),
        ("cpu", "mismatch", 4, True),
        ("openvino", "error", 4, True),
        ("webgpu", "mismatch", 4, False),
        ("webgpu", "mismatch", 0, True),
        ("onnxruntime", "factory_error", 4, False),
        ("of-another-package", "mismatch", 4, False),
        ("of-another-package", "mismatch", 0, False),
    ],
)
def test_failed_cells_have_a_script_where_their_runtime_has_one(
    tmp_path: Path, target: str, status: str, tokens: int, *, there_is_one: bool
) -> None:
    path = tmp_path / "matrix.duckdb"
    with Database(path) as filled:
        filled.run()
        filled.shard("s", target)
        planned = filled.plan("gpt2", target, new_tokens=tokens)
        filled.cell(planned, "s", **({} if status == "pass" else {"status": status, "error_type": "a type", "message": "a message"}))
    (cell,) = read(path).cells
    assert cell.has_script is there_is_one


def test_a_precision_that_costs_too_much_has_no_script(tmp_path: Path) -> None:
    path = tmp_path / "matrix.duckdb"
    with Database(path) as filled:
        filled.run()
        filled.shard("s", "openvino")
        lost = {"status": "mismatch", "error_type": "precision_loss", "message": "a message"}
        filled.cell(filled.plan("gpt2", "openvino", dtype="int8"), "s", **lost)
    (cell,) = read(path).cells
    assert cell.has_script is False, "the command would refuse it"


def test_speed_is_compared_only_with_the_same_number_of_tokens(database: Path) -> None:
    by_tokens = {cell.new_tokens: cell for cell in read(database).cells if cell.target == "cpu"}
    assert {tokens: cell.speed_up for tokens, cell in by_tokens.items()} == {0: None, 4: None}
