"""Models in a real headless Chromium, run by the main command. tests/conformance/test_onnx_target.py tests how cells end there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fault_runs import PROJECT, briefly_timed, rows, untrained
from matrix_command import document, matrix

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.host.engine import Engine

pytestmark = pytest.mark.containers

TARGETS = """
  webnn-debian: {backend: webnn, image: webgpu, base: python, execution: software, options: {browser: debian}}
"""
MODELS = ("vit", "gpt2", "roberta")


@pytest.fixture(scope="module")
def project(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001 - no engine, no project
    """This project, with additional targets in its matrix.yaml, and short cells."""
    root = tmp_path_factory.mktemp("project")
    for name in ("harness", "images", "pyproject.toml", "README.md", "LICENSE"):
        (root / name).symlink_to(PROJECT / name)
    text = briefly_timed(untrained("gpt2"), seconds=0.2)
    (root / "matrix.yaml").write_text(text.replace("\ntargets:\n", f"\ntargets:{TARGETS}", 1), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def environment(shared_cache: Path) -> dict[str, str]:
    return {"HWMATRIX_CACHE": str(shared_cache)}


def flags(project: Path, output: Path, targets: tuple[str, ...], models: tuple[str, ...]) -> list[str]:
    chosen = [*(part for name in targets for part in ("--targets", name)), *(part for name in models for part in ("--models", name))]
    return ["--matrix", str(project / "matrix.yaml"), "--isolation", "container", "--output-dir", str(output), *chosen]


@pytest.fixture(scope="module")
def output(project: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reports of one run over all browser targets."""
    folder = tmp_path_factory.mktemp("reports")
    targets = ("webgpu", "webnn", "webnn-debian")
    matrix(*flags(project, folder, targets, MODELS), environment=environment, expect=0, timeout_s=580)
    return folder


@pytest.fixture(scope="module")
def reduced(project: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The cells of gpt2 in the precisions of both targets."""
    folder = tmp_path_factory.mktemp("precisions")
    chosen = flags(project, folder, ("webgpu", "webnn"), ("gpt2",))
    matrix(*chosen, "--suite", "precisions", "--no-adapt", environment=environment, expect=0, timeout_s=580)
    return {f"{found['target']} {found['settings']['dtype']}": found for found in document(folder)["cells"]}


def cell(output: Path, model: str, target: str, *, generates: bool = False) -> dict[str, Any]:
    found = (cell for cell in document(output)["cells"] if bool(cell["settings"]["new_tokens"]) == generates)
    (one,) = [cell for cell in found if (cell["model"], cell["target"]) == (model, target)]
    return dict(one)


@pytest.mark.parametrize("target", ["webgpu", "webnn"])
def test_a_model_passes_with_parity_and_placement(output: Path, target: str) -> None:
    found = cell(output, "vit", target)
    assert (found["status"], found["execution"], found["level"]) == ("pass", "software", "Medium"), found["error"]
    assert found["placement"]["on_target"] > 0.95
    assert found["parity"]["relative_error"] < 1e-5
    assert found["latency"]["samples"] >= 3
    assert "processes of the browser" in found["memory"]["detail"]
    assert 0 < found["memory"]["delta_mb"] < found["memory"]["peak_mb"]


@pytest.mark.parametrize(("target", "place"), [("webgpu", "gpu-buffer"), ("webnn", "cpu")])
def test_a_trained_model_continues_text_with_its_cache(output: Path, target: str, place: str) -> None:
    found = cell(output, "gpt2", target, generates=True)
    assert found["status"] == "pass", found["error"]
    assert found["parity"]["relative_error"] < 1e-5
    assert (found["quality"]["metric"], found["quality"]["value"], found["quality"]["agreement"]) == ("exact_match", 1.0, 1.0)
    assert f"tensors of the cache: 4 of 4 in {place}" in found["placement"]["detail"]
    generation = found["generation"]
    assert generation["cache_error"] < 1e-5
    assert len(generation["itl_ms"]) == generation["new_tokens"] - 1
    assert min(generation["ttft_ms"], generation["tpot_ms"], generation["cache_mb"]) > 0


def test_the_placement_names_the_adapter_or_the_graphs_devices(output: Path) -> None:
    assert "swiftshader" in cell(output, "vit", "webgpu")["placement"]["detail"]
    assert "devices of 1 graphs: cpu" in cell(output, "vit", "webnn")["placement"]["detail"]


def test_without_webnn_cells_are_unavailable_with_the_browser_s_message(output: Path) -> None:
    found = cell(output, "vit", "webnn-debian")
    assert (found["status"], found["error"]["type"]) == ("unavailable", "webnn_unavailable")
    assert "WebNN is not supported on this platform" in found["error"]["message"]


def test_a_graph_that_the_browser_refuses_is_unsupported_and_the_operator_named(output: Path) -> None:
    """ONNX Runtime Web does not notice the refusal, and would wait until the cell's time is over."""
    found = cell(output, "roberta", "webnn")
    assert (found["status"], found["stage"], found["error"]["type"]) == ("unsupported", "prepare", "unsupported_operator")
    assert "gatherElements only supports constant indices" in found["error"]["message"]
    needs = rows(output / "matrix.duckdb", "SELECT needs FROM cells WHERE model = 'roberta' AND target = 'webnn' AND role = 'model'")
    assert [row["needs"] for row in needs] == [["GatherElements"]]


@pytest.mark.long
@pytest.mark.parametrize("column", ["webgpu int4", "webnn float16", "webnn int8_dynamic", "webnn a8w8", "webnn int4", "webnn int4_float16"])
def test_a_model_passes_in_a_reduced_precision_and_loses_what_it_costs(reduced: dict[str, dict[str, Any]], column: str) -> None:
    found = reduced[column]
    assert found["status"] == "pass", found["error"]
    assert found["parity"]["loss"] > 1e-4
    parity = found["parity"]
    assert parity["kernel_error"] is None or parity["kernel_error"] <= parity["allowed_error"]
    ratio = found["parity"]["relative_error"] / found["parity"]["loss"]
    # The loss of float16 is simulated on this processor, whose arithmetic is not the browser's; that of the others is of the same weights.
    assert (1 / 4 < ratio < 4) if column.endswith("float16") else ratio == pytest.approx(1, rel=0.5)
    assert found["quality"]["agreement"] == 1.0


@pytest.mark.long
def test_where_there_is_no_kernel_for_rounded_weights_the_placement_says_so(reduced: dict[str, dict[str, Any]]) -> None:
    assert "MatMulNBits" not in reduced["webgpu int4"]["placement"]["detail"]
    assert "(MatMulNBitsx9)" in reduced["webnn int4"]["placement"]["detail"]


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float16", "int4_float16"])
def test_an_adapter_without_float16_is_named_and_stops_no_other_precision(reduced: dict[str, dict[str, Any]], dtype: str) -> None:
    found = reduced[f"webgpu {dtype}"]
    assert (found["status"], found["error"]["type"]) == ("unsupported", "webgpu_unsupported_feature")
    assert "shader-f16" in found["error"]["message"]
    assert reduced["webgpu float32"]["status"] == "pass"
