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


def times(**targets: dict[str, float | None]) -> list[dict[str, Any]]:
    """Cells in full size: the milliseconds of each model on each target; None: it failed there."""
    return [
        {"model": model, "target": target} | ({"p50": p50} if p50 is not None else {"measured": unmeasured("error")})
        for target, models in targets.items()
        for model, p50 in models.items()
    ]


def test_the_fastest_hardware_that_runs_every_model_of_a_family_is_chosen(tmp_path: Path) -> None:
    cells = times(cpu={"bert": 10.0, "roberta": 10.0}, openvino={"bert": 5.0, "roberta": 1.25}, onnxruntime={"bert": 1.0, "roberta": None})
    text = told(choosing.families(analysis(tmp_path / "a.duckdb", *cells)))["embedding"]
    assert text.startswith(
        "choose openvino (container): it runs all 2 models, 2 of them at 4.0× the speed of cpu in float32 (geometric mean)"
    )
    assert text.endswith(
        "Next: cpu (container) (all 2 models); onnxruntime (container) (1 of 2 models, 1 of them at 10× the speed of cpu in float32)."
    )


def test_hardware_that_was_tried_with_fewer_models_is_not_ranked(tmp_path: Path) -> None:
    cells = times(cpu={"bert": 10.0, "roberta": 10.0}, openvino={"bert": 9.0, "roberta": 9.0}, onnxruntime={"bert": 1.0})
    text = told(choosing.families(analysis(tmp_path / "a.duckdb", *cells)))["embedding"]
    assert text.startswith("choose openvino (container)")
    assert text.endswith("Tried with other models, so not ranked: onnxruntime (container) 1 of 1.")


def test_a_speed_counts_only_if_it_is_real_and_undisturbed(tmp_path: Path) -> None:
    disturbed = {"measured": {"device_processes": 1}}
    found = analysis(
        tmp_path / "a.duckdb",
        *times(
            cpu={"bert": 10.0, "roberta": 10.0, "albert": 10.0, "electra": 10.0}, openvino={"bert": 5.0, "roberta": 10.01, "albert": 20.0}
        ),
        {"model": "electra", "target": "openvino", "p50": 0.1} | disturbed,
    )
    (row,) = [row for row in found.speeds if row["target"] == "openvino"]
    assert {name: row[name] for name in ("models", "faster", "slower", "alike", "disturbed")} == {
        "models": 4,
        "faster": 1,
        "slower": 1,
        "alike": 1,
        "disturbed": 1,
    }
    assert round(row["speed_up"], 2) == 1.0, "the mean of 2 and 0.5"


def test_hardware_slower_than_cpu_is_not_chosen(tmp_path: Path) -> None:
    found = analysis(tmp_path / "a.duckdb", *times(cpu={"bert": 5.0}, openvino={"bert": 10.0}))
    assert told(choosing.families(found))["embedding"].startswith("choose cpu (container): ")


def test_tiny_models_do_not_count_for_speed(tmp_path: Path) -> None:
    tiny = {"planned": {"size": "tiny"}}
    found = analysis(tmp_path / "a.duckdb", *(cell | tiny for cell in times(cpu={"bert": 10.0}, openvino={"bert": 1.0})))
    text = told(choosing.families(found))["embedding"]
    assert "×" not in text
    assert "say nothing about speed" in text
    assert "cpu (container) and openvino (container)" in text
    assert [row["speed_up"] for row in (*found.speeds, *found.optimal)] == [None, None, None]
    assert choosing.only_tiny(found)


def test_one_model_in_full_size_outweighs_tiny_ones(tmp_path: Path) -> None:
    tiny = {"planned": {"size": "tiny"}}
    found = analysis(
        tmp_path / "a.duckdb",
        *(cell | tiny for cell in times(cpu={"gpt2": 9.0}, openvino={"gpt2": 1.0})),
        *times(cpu={"gpt2": 200.0}, openvino={"gpt2": 100.0}),
    )
    assert "2.0× the speed of cpu" in told(choosing.families(found))["embedding"]
    assert {row["size"] for row in (*found.speeds, *found.speed_by_architecture, *found.memory_by_target)} == {"full"}
    assert not choosing.only_tiny(found)


def test_neither_emulation_nor_software_is_recommended(tmp_path: Path) -> None:
    emulated, software = ({"execution": kind} for kind in ("emulated", "software"))
    found = analysis(
        tmp_path / "a.duckdb",
        {"model": "bert", "target": "cpu", "p50": 10.0},
        {"model": "bert", "target": "qnn", "p50": 0.1, "planned": emulated, "measured": {"peak_mb": 1.0}},
        {"model": "bert", "target": "webgpu", "p50": 0.1, "planned": software, "measured": {"peak_mb": 1.0}},
    )
    assert told(choosing.families(found)) == {"embedding": "choose cpu (container): it runs the only model."}
    assert told(choosing.memory_limits(found)) == {"512 MiB": "bert on cpu (350)."}
    assert {row["target"]: row["speed_up"] for row in found.speeds} == {"cpu": None, "webgpu": None}


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


def test_a_peak_equal_to_a_limit_is_not_below_it(tmp_path: Path) -> None:
    found = analysis(tmp_path / "a.duckdb", {"model": "bert", "target": "cpu", "p50": 1.0, "measured": {"peak_mb": 512.0}})
    assert list(told(choosing.memory_limits(found))) == ["1,024 MiB"]


def test_a_family_that_runs_nowhere_is_reported(tmp_path: Path) -> None:
    found = analysis(tmp_path / "a.duckdb", {"model": "bert", "target": "cpu", "measured": unmeasured("error")})
    assert told(choosing.families(found)) == {"embedding": "no model passes on any hardware that was tried with the only model."}


def test_summary_md_has_the_advice_or_says_that_there_is_none(tmp_path: Path) -> None:
    analysis(tmp_path / "a.duckdb", {"model": "bert", "target": "cpu", "p50": 10.0})
    text = summary_md(read(tmp_path / "a.duckdb"))
    assert "- **embedding**: choose cpu (container)" in text
    with Database(tmp_path / "none.duckdb") as database:
        database.run()
        database.plan("bert", "cpu")
    assert "There are no verdicts on hardware." in summary_md(read(tmp_path / "none.duckdb"))
