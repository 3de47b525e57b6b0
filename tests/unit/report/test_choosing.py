"""The advice in summary.md from measurements: by family, under a memory limit, and for each target."""

# ruff: noqa: RUF001 - the sign of a ratio is meant
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from factory_rows import Database, steady, unmeasured

from hwmatrix.report import choosing
from hwmatrix.report.markdown import summary_md
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.report.rows import Analysis


def analysis(path: Path, *cells: dict[str, Any]) -> Analysis:
    """The analysis of a run with these cells: ``model``, ``target``, ``p50`` in milliseconds, ``planned`` and measured facts."""
    with Database(path) as database:
        database.run()
        for target in dict.fromkeys(cell["target"] for cell in cells):
            database.shard(f"s-{target}", target)
        for cell in cells:
            planned = database.plan(
                f"{cell['model']}", cell["target"], **{"size": "full", "cell_key": repr(cell)} | cell.get("planned", {})
            )
            wall = steady(cell["p50"]) if "p50" in cell else ()
            database.cell(planned, f"s-{cell['target']}", wall=wall, **cell.get("measured", {}))
    return read(path).analysis


def told(advices: list[choosing.Advice]) -> dict[str, str]:
    return {advice.subject: advice.text for advice in advices}


def test_the_fastest_hardware_that_runs_every_model_of_a_family_is_chosen(tmp_path: Path) -> None:
    found = analysis(
        tmp_path / "a.duckdb",
        {"model": "bert", "target": "cpu", "p50": 10.0},
        {"model": "roberta", "target": "cpu", "p50": 10.0},
        {"model": "bert", "target": "openvino", "p50": 5.0},
        {"model": "roberta", "target": "openvino", "p50": 1.25},
        {"model": "bert", "target": "onnxruntime", "p50": 1.0},
        {"model": "roberta", "target": "onnxruntime", "measured": unmeasured("error")},
    )
    text = told(choosing.families(found))["embedding"]
    assert text.startswith("choose openvino (container): it runs all 2 models at 4.0× the speed of cpu")  # the geometric mean of 2 and 8
    assert text.endswith("Next: cpu (container); onnxruntime (container) (10×, 1 of 2 models).")


def test_hardware_slower_than_cpu_is_not_chosen(tmp_path: Path) -> None:
    found = analysis(
        tmp_path / "a.duckdb", {"model": "bert", "target": "cpu", "p50": 5.0}, {"model": "bert", "target": "openvino", "p50": 10.0}
    )
    assert told(choosing.families(found))["embedding"].startswith("choose cpu (container): ")


def test_tiny_models_do_not_count_for_speed(tmp_path: Path) -> None:
    tiny = {"size": "tiny"}
    found = analysis(
        tmp_path / "a.duckdb",
        {"model": "bert", "target": "cpu", "p50": 10.0, "planned": tiny},
        {"model": "bert", "target": "openvino", "p50": 1.0, "planned": tiny},
    )
    text = told(choosing.families(found))["embedding"]
    assert "×" not in text
    assert "say nothing about speed" in text
    assert "cpu (container) and openvino (container)" in text
    assert "was not compared" in told(choosing.strengths(found))["openvino (container)"]
    assert choosing.only_tiny(found)


def test_one_model_in_full_size_outweighs_tiny_ones(tmp_path: Path) -> None:
    tiny = {"size": "tiny"}
    found = analysis(
        tmp_path / "a.duckdb",
        {"model": "gpt2", "target": "cpu", "p50": 9.0, "planned": tiny},
        {"model": "gpt2", "target": "openvino", "p50": 1.0, "planned": tiny},
        {"model": "gpt2", "target": "cpu", "p50": 200.0},
        {"model": "gpt2", "target": "openvino", "p50": 100.0},
    )
    assert "2.0× the speed of cpu" in told(choosing.families(found))["embedding"]
    assert not choosing.only_tiny(found)


def test_neither_emulation_nor_software_is_recommended(tmp_path: Path) -> None:
    emulated, software = ({"execution": kind} for kind in ("emulated", "software"))
    found = analysis(
        tmp_path / "a.duckdb",
        {"model": "bert", "target": "cpu", "p50": 10.0},
        {"model": "bert", "target": "qnn", "p50": 0.1, "planned": emulated, "measured": {"peak_mb": 1.0}},
        {"model": "bert", "target": "webgpu", "p50": 0.1, "planned": software, "measured": {"peak_mb": 1.0}},
    )
    assert told(choosing.families(found)) == {
        "embedding": "choose cpu (container): it runs the only model, and no other hardware that runs as many was faster."
    }
    assert told(choosing.memory_limits(found)) == {"512 MiB": "bert on cpu (350)."}
    strengths = told(choosing.strengths(found))
    assert "emulated" in strengths["qnn (container)"]
    assert "software" in strengths["webgpu (container)"]
    assert choosing.reduced_precisions(found) == []


def test_memory_limits_name_the_target_and_precision_with_the_lowest_peak(tmp_path: Path) -> None:
    found = analysis(
        tmp_path / "a.duckdb",
        {"model": "small", "target": "cpu", "p50": 1.0, "measured": {"peak_mb": 100.0}},
        {"model": "large", "target": "cpu", "p50": 1.0, "measured": {"peak_mb": 900.0}},
        {"model": "large", "target": "onnxruntime", "p50": 1.0, "measured": {"peak_mb": 512.0}},
        {"model": "large", "target": "cpu", "p50": 1.0, "planned": {"dtype": "bfloat16"}, "measured": {"peak_mb": 500.0}},
        {"model": "large", "target": "cuda", "p50": 1.0, "measured": {"peak_mb": 4000.0, "device_peak_mb": 700.0}},
        {"model": "broken", "target": "cpu", "measured": unmeasured("oom") | {"peak_mb": 1.0}},
    )
    assert told(choosing.memory_limits(found)) == {
        "128 MiB": "small on cpu (100).",
        "512 MiB": "large on cpu in bfloat16 (500; 900 on cpu).",
        "1,024 MiB of device memory": "large on cuda (700).",
    }
    assert choosing.reduced_precisions(found) == ["bfloat16"]


def test_a_peak_equal_to_a_limit_is_not_below_it(tmp_path: Path) -> None:
    found = analysis(tmp_path / "a.duckdb", {"model": "bert", "target": "cpu", "p50": 1.0, "measured": {"peak_mb": 512.0}})
    assert list(told(choosing.memory_limits(found))) == ["1,024 MiB"]


def test_each_target_lists_the_families_that_it_does_not_run(tmp_path: Path) -> None:
    found = analysis(
        tmp_path / "a.duckdb",
        {"model": "bert", "target": "cpu", "p50": 10.0, "measured": {"peak_mb": 300.0}},
        {"model": "gpt2", "target": "cpu", "p50": 10.0, "measured": {"peak_mb": 300.0}},
        {"model": "bert", "target": "openvino", "p50": 5.0, "measured": {"peak_mb": 400.0}},
        {"model": "gpt2", "target": "openvino", "planned": {"family": "text_generation"}, "measured": unmeasured("crash")},
    )
    assert told(choosing.strengths(found))["openvino (container)"] == (
        "1 of 2 models pass. Every model of embedding passes, but not of text generation (0 of 1). "
        "In full size it was faster than cpu for 1 of 1 model (2.0× the speed), and took more memory for 1 of 1."
    )


def test_a_precision_that_cpu_lacks_is_compared_with_float32_in_memory_too(tmp_path: Path) -> None:
    """Memory is that of inference where both cells have it: making the graph takes more."""
    found = analysis(
        tmp_path / "a.duckdb",
        {"model": "bert", "target": "cpu", "p50": 10.0, "measured": {"peak_mb": 500.0, "run_peak_mb": 400.0}},
        {
            "model": "bert",
            "target": "openvino",
            "p50": 5.0,
            "planned": {"dtype": "int4"},
            "measured": {"peak_mb": 900.0, "run_peak_mb": 200.0},
        },
        {"model": "gpt2", "target": "cpu", "p50": 10.0, "measured": {"peak_mb": 500.0}},
        {
            "model": "gpt2",
            "target": "openvino",
            "p50": 5.0,
            "planned": {"dtype": "int4"},
            "measured": {"peak_mb": 450.0, "run_peak_mb": 440.0},
        },
    )
    assert told(choosing.strengths(found))["openvino (container)"].endswith(
        "(2.0× the speed), and took less memory for 2 of 2 (1 of the 2 compared while running, the others including loading)."
    )


def test_memory_that_is_compared_while_running_is_told_as_such(tmp_path: Path) -> None:
    """The peak includes loading: it may be lower where more is needed while running."""
    found = analysis(
        tmp_path / "a.duckdb",
        {"model": "bert", "target": "cpu", "p50": 10.0, "measured": {"peak_mb": 800.0, "run_peak_mb": 500.0}},
        {"model": "bert", "target": "onnxruntime", "p50": 5.0, "measured": {"peak_mb": 600.0, "run_peak_mb": 600.0}},
        {"model": "gpt2", "target": "onnxruntime", "p50": 5.0, "measured": {"peak_mb": 700.0}},
    )
    assert told(choosing.strengths(found))["onnxruntime (container)"].endswith("and took more memory while running for 1 of 1.")
    assert {row["target"]: row["mean_run_mb"] for row in found.memory_by_target} == {"cpu": 500.0, "onnxruntime": None}


def test_a_family_that_runs_nowhere_is_reported(tmp_path: Path) -> None:
    found = analysis(tmp_path / "a.duckdb", {"model": "bert", "target": "cpu", "measured": unmeasured("error")})
    assert told(choosing.families(found)) == {"embedding": "no model passes on any hardware that was tried."}


def test_summary_md_has_the_advice_or_says_that_there_is_none(tmp_path: Path) -> None:
    analysis(tmp_path / "a.duckdb", {"model": "bert", "target": "cpu", "p50": 10.0})
    text = summary_md(read(tmp_path / "a.duckdb"))
    assert "- **embedding**: choose cpu (container)" in text
    assert "no smaller precision can be recommended yet" in text
    with Database(tmp_path / "none.duckdb") as database:
        database.run()
        database.plan("bert", "cpu")
    assert "Nothing was executed, so nothing can be recommended." in summary_md(read(tmp_path / "none.duckdb"))
