"""Scripts of cells that generate text: which there are, what is in them, and what lies beside them."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import factory_plans as make
import pytest
from factory_rows import Database
from factory_rows import unmeasured as failed

from hwmatrix.errors import ConfigError
from hwmatrix.generate import generation_script
from hwmatrix.generate.reproduction import reproduce
from hwmatrix.knowledge.measured_cell import find_cell
from hwmatrix.models.bundle import Bundle
from hwmatrix.models.generation_export import GenerationExport, Graph, GraphInput
from hwmatrix.models.onnx_export import OnnxFailure
from hwmatrix.records import Dtype, Execution, Prepared, TargetPlan, Tolerance, to_json
from hwmatrix.records.backends import descriptor_of, descriptors

STATE = "past_key_values.layers.0.keys"


def taken(name: str, *, state: bool = False) -> GraphInput:
    shape = (1, 2, None, 8) if state else (1, None)
    return GraphInput(name=name, own=name.removeprefix("input."), shape=shape, dtype="float32" if state else "int64", state=state)


def graph(folder: Path, component: str, *, state: bool) -> Graph:
    for suffix in ("onnx", "xml", "bin"):
        (folder / f"{component}.{suffix}").write_bytes(b"graph")
    inputs = (taken("input_ids"), *([taken(f"input.{STATE}", state=True)] if state else []))
    outputs = {"logits": "logits", f"output.{STATE}": STATE, "hidden": "hidden"}
    return Graph(component=component, path=folder / f"{component}.onnx", inputs=inputs, outputs=outputs)


@pytest.fixture
def exported(tmp_path: Path) -> dict[str, Any]:
    """What the exports of the bundle are: tests may replace it."""
    folder = tmp_path / "export"
    folder.mkdir()
    prefill, decode = graph(folder, "prefill", state=False), graph(folder, "decode", state=True)
    how, argument = Prepared(method="an export"), "input_ids"
    return {"result": GenerationExport(prefill=prefill, decode=decode, token=argument, prepared=how, seconds=1.0)}


@pytest.fixture(autouse=True)
def bundle(tmp_path: Path, exported: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A bundle in place of one that would be built, which needs torch."""
    path = tmp_path / "bundle"
    (path / "model").mkdir(parents=True)
    (path / "model" / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
    (path / "model" / "model.safetensors").write_bytes(b"weights")
    (path / "generation.safetensors").write_bytes(b"prompts")
    made = Bundle(path=path, key="aa", digest="cd" * 32, manifest={"model_class": "BertForMaskedLM"})
    monkeypatch.setattr(generation_script, "find_or_build", lambda _plan, _cache: made)
    monkeypatch.setattr(Bundle, "generation", lambda _bundle: None)
    monkeypatch.setattr(generation_script, "_exported", lambda _bundle, _cache, _export: exported["result"])
    values = {
        "joint": False,
        "attention": None,
        "encoder_decoder": False,
        "exporter": "Onnx",
        "exporter_class": "OnnxExporter",
    }
    monkeypatch.setattr(generation_script, "_export_values", lambda _bundle, _export, **_: values)
    return made


def database_of(
    path: Path, target: str, *, dtype: str = "float32", options: dict[str, Any] | None = None, forward: str | None = None, **cell: Any
) -> Path:
    """A database with a cell that failed to generate; ``forward`` is the status of the model's forward pass there."""
    model = make.model_plan("llama", hub_id=None)
    plan = TargetPlan(name=target, backend=target, execution=Execution.HARDWARE, image=target, options=options or {})
    keys = {f"llama/tiny/{target}-n8": 8, f"llama/tiny/{target}": 0}
    cells = tuple(
        make.cell_plan("llama", target, key=key, settings=dataclasses.replace(make.SETTINGS, new_tokens=tokens))
        for key, tokens in keys.items()
    )
    tolerances = {each: Tolerance(relative_error=1e-3, reason="a test") for each in Dtype}
    whole = dataclasses.replace(make.plan(models=(), targets=()), models=(model,), targets=(plan,), cells=cells, tolerances=tolerances)
    with Database(path) as database:
        database.run(plan=to_json(whole))
        database.shard("s", target, packages=json.dumps({"torch": "2.13.0+cpu", "transformers": "5.23.0"}))
        for key, tokens in keys.items():
            if tokens or forward is not None:
                planned = database.plan("llama", target, cell_key=key, dtype=dtype, new_tokens=tokens)
                status = "mismatch" if tokens else str(forward)
                database.cell(planned, "s", **({} if status == "pass" else failed(status)) | (cell if tokens else {}))
    return path


def constant(script: str, name: str) -> Any:
    found = [node.value for node in ast.parse(script).body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
    return ast.literal_eval(found[0])


TARGETS = {
    "cpu": ("float32", "bfloat16", "int8", "int8_dynamic"),
    "cuda": ("float16",),
    "openvino": ("float32", "default", "float16", "int8", "int4"),
    "onnxruntime": ("float32", "float16", "int8_dynamic", "int4"),
}


@pytest.mark.parametrize(
    ("target", "dtype", "status"),
    [
        *((target, dtype, "mismatch") for target, dtypes in TARGETS.items() for dtype in dtypes),
        *((target, "float32", status) for target in ("cpu", "openvino") for status in ("error", "oom", "timeout", "crash", "pass")),
    ],
)
def test_a_script_is_python_and_needs_no_hwmatrix(tmp_path: Path, target: str, dtype: str, status: str) -> None:
    changes = {} if status == "pass" else failed(status)
    path = database_of(tmp_path / "m.duckdb", target, dtype=dtype, **{"status": status, **changes})
    made = reproduce("llama", target, database=path, force=True)
    assert max(map(len, made.script.splitlines())) <= 140
    imported = {node.names[0].name for node in ast.walk(ast.parse(made.script)) if isinstance(node, ast.Import)}
    assert "hwmatrix" not in imported | {node.module for node in ast.walk(ast.parse(made.script)) if isinstance(node, ast.ImportFrom)}
    assert ("torch" in imported) is (target in {"cpu", "cuda"})
    assert constant(made.script, "TOLERANCE") == 1e-3
    names = {"prefill", "decode"} if target not in {"cpu", "cuda"} else {"model/config", "model/model"}
    suffixes = {".onnx", ".xml", ".bin"} if target not in {"cpu", "cuda"} else {".json", ".safetensors"}
    assert "generation.safetensors" in made.data
    assert {str(Path(name).with_suffix("")) for name in made.data} == names | {"generation"}
    assert {Path(name).suffix for name in made.data} == suffixes | {".safetensors"}
    assert made.cell.settings.new_tokens == 8


@pytest.mark.parametrize(
    ("failing", "prompts"),
    [(None, ("traced",)), ("traced", ("traced",)), ("padded", ("traced", "padded")), ("repeated", ("traced", "shorter", "traced"))],
)
def test_the_failing_prompt_runs_after_the_one_that_exporters_see(tmp_path: Path, failing: str | None, prompts: tuple[str, ...]) -> None:
    path = database_of(tmp_path / "m.duckdb", "cpu", failing_prompt=failing)
    assert constant(reproduce("llama", "cpu", database=path).script, "PROMPTS") == prompts


def test_graphs_are_described_by_their_names_and_the_model_s(tmp_path: Path, exported: dict[str, Any]) -> None:
    path = database_of(tmp_path / "m.duckdb", "onnxruntime")
    two = reproduce("llama", "onnxruntime", database=path).script
    graphs = constant(two, "GRAPHS")
    assert graphs["decode"]["states"] == {f"input.{STATE}": STATE}
    assert graphs["prefill"]["states"] == {}
    assert graphs["prefill"]["outputs"] == {"logits": "logits", f"output.{STATE}": STATE}, "no output that nothing takes"
    assert constant(two, "EMPTY") == {}
    exported["result"] = dataclasses.replace(exported["result"], prefill=None)
    one = reproduce("llama", "onnxruntime", database=path).script
    assert constant(one, "GRAPHS").keys() == {"decode"}
    assert constant(one, "EMPTY") == {STATE: ((2, 0, 8), "float32")}


@pytest.mark.parametrize(("target", "error_type"), [("openvino", "torch.SomeError"), ("onnxruntime", "builtins.ValueError")])
def test_without_a_graph_the_script_exports(tmp_path: Path, target: str, error_type: str, exported: dict[str, Any]) -> None:
    exported["result"] = OnnxFailure(exporter="generation", error_type=error_type, message="data-dependent", traceback=None)
    made = reproduce("llama", target, database=database_of(tmp_path / "m.duckdb", target))
    ast.parse(made.script)
    assert "OnnxExporter().export(load(), sample, OnnxConfig(dynamic=True))" in made.script
    assert {"model/config.json", "model/model.safetensors", "generation.safetensors"} == made.data.keys()
    assert f"pip install torch==2.13.0 transformers==5.23.0 {'openvino' if target == 'openvino' else 'onnx'}" in made.script


@pytest.mark.parametrize(
    ("error_type", "message"),
    [
        ("hwmatrix.errors.FactoryError", "generate does not call it once for each token"),
        ("hwmatrix.errors.UnmakableError", "its reference cannot generate"),
    ],
)
def test_passes_that_are_no_steps_of_a_graph_have_no_script(
    tmp_path: Path, exported: dict[str, Any], error_type: str, message: str
) -> None:
    exported["result"] = OnnxFailure(exporter="generation", error_type=error_type, message=message, traceback=None)
    with pytest.raises(ConfigError, match=message):
        reproduce("llama", "onnxruntime", database=database_of(tmp_path / "m.duckdb", "onnxruntime"))


@pytest.mark.parametrize(
    ("target", "options", "cell", "message"),
    [
        ("webgpu", {}, {}, "its backend webgpu has no template for that"),
        ("inductor", {}, {}, "its backend inductor has no template for that"),
        ("cpu", {"compile": True}, {}, "its backend cpu has no template for that"),
        ("cpu", {}, {"status": "factory_error", "error_type": "no_generation"}, "the reference cannot generate with llama"),
    ],
)
def test_where_there_is_no_script_the_reason_is_told(
    tmp_path: Path, target: str, options: dict[str, Any], cell: dict[str, Any], message: str
) -> None:
    path = database_of(tmp_path / "m.duckdb", target, options=options, **cell)
    with pytest.raises(ConfigError, match=message):
        reproduce("llama", target, database=path)


@pytest.mark.parametrize(
    ("forward", "generation", "tokens"),
    [("pass", None, 8), ("mismatch", None, 0), ("mismatch", True, 8), ("mismatch", False, 0), (None, None, 8)],
)
def test_a_failing_forward_pass_comes_first(tmp_path: Path, forward: str | None, generation: bool | None, tokens: int) -> None:  # noqa: FBT001
    found = find_cell(database_of(tmp_path / "m.duckdb", "cpu", forward=forward), "llama", "cpu", generation=generation)
    assert found.settings.new_tokens == tokens
    if (forward, generation) == ("mismatch", None):
        assert found.also_failing == ("float32 in tiny, generation: mismatch",)


def test_every_template_belongs_to_a_runtime_that_generates() -> None:
    folder = Path(generation_script.__file__).parent / "templates" / "reproduce" / "generation"
    of_runtimes = {f"{each.script}.py.j2" for each in descriptors() if each.generation_script}
    assert {path.name for path in folder.glob("[!_]*.j2")} == of_runtimes | {f"{generation_script.EXPORT}.py.j2"}
    assert all(descriptor_of(each.name).generates for each in descriptors() if each.generation_script)
