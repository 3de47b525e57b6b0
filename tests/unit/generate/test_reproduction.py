"""Scripts that reproduce a failing cell: the choice of the cell, the header, and the content for each runtime."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest
from factory_rows import FAILURES, RUN, Database, unmeasured

from hwmatrix.errors import ConfigError, NothingSelectedError, StoreError
from hwmatrix.generate import reproduction as module
from hwmatrix.generate.model_code import InputCode, ModelCode
from hwmatrix.generate.reproduction import MARK, reproduce
from hwmatrix.generate.type_code import Built
from hwmatrix.knowledge.measured_cell import find_cell
from hwmatrix.records import Backend, Dtype, Execution, Plan, Size, TargetPlan, Tolerance, to_json
from hwmatrix.records.backends import descriptor_of, descriptors

if TYPE_CHECKING:
    from hwmatrix.records import ModelPlan

RECORDED = Path(__file__).parents[2] / "recorded" / "default.duckdb"
EVIL = 'we"ird {{ 1234567*7 }}\n"""; import os\u2028# x'
CODE = ModelCode(
    inputs=(
        InputCode(name="input_ids", code="", ids=[[1, 2, 3]], draws=("torch.randint(2, (1, 3), generator=generator)",)),
        InputCode(name="pixel_values", code="torch.randn((1, 3, 8, 8), generator=generator)"),
    ),
    call={"return_dict": True},
    vocabulary=256,
    special=[0, 255],
)
BACKENDS = {
    "cpu": {},
    "cuda": {"device": 1, "compile": True},
    "rocm": {},
    "mps": {},
    "openvino": {"device": "CPU"},
    "onnxruntime": {},
    "qnn": {"soc_model": 57},
    "webgpu": {"adapter": "software"},
    "webnn": {"device": "cpu"},
    "inductor": {},
    "executorch": {},
}


@pytest.fixture(autouse=True)
def inputs_as_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the generation of inputs, which needs torch."""
    monkeypatch.setattr(module, "model_code", lambda _plan, _cache: CODE)


def plan_of(*models: ModelPlan, targets: dict[str, dict[str, Any]] = BACKENDS) -> Plan:
    made = [
        TargetPlan(name=name, backend=Backend(name), execution=Execution.HARDWARE, image=name, options=options)
        for name, options in targets.items()
    ]
    tolerances = {dtype: Tolerance(relative_error=1e-3, reason="a test") for dtype in Dtype}
    cells = tuple(make.cell_plan(model.name, target.name, size=model.size) for model in models for target in made)
    return dataclasses.replace(make.plan(models=(), targets=()), models=models, targets=tuple(made), cells=cells, tolerances=tolerances)


def database_of(
    path: Path, target: str, *, status: str = "mismatch", model: ModelPlan | None = None, dtype: str = "float32", **cell: Any
) -> Path:
    """A database with one failed cell."""
    made = model or make.model_plan("bert")
    with Database(path) as database:
        database.run(plan=to_json(plan_of(made)))
        database.shard(f"s-{target}", target, packages=json.dumps({"torch": "2.13.0+cpu", "transformers": "5.23.0"}))
        key = f"{made.name}/{made.size.value}/{target}"
        settings = {"size": made.size.value, "dtype": dtype, "threads": cell.get("threads", 1)}
        planned = database.plan(made.name, target, cell_key=key, hub_id=made.hub_id, **settings)
        database.cell(planned, f"s-{target}", **_ending(status) | cell)
    return path


def _ending(status: str) -> dict[str, Any]:
    return {} if status == "pass" else unmeasured(status)


@pytest.fixture(scope="module")
def every_end(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a model for each status, which it has on every target."""
    path = tmp_path_factory.mktemp("ends") / "m.duckdb"
    models = {status: make.model_plan(f"bert-{status.replace('_', '-')}", hub_id=None) for status in (*FAILURES, "pass")}
    with Database(path) as database:
        database.run(plan=to_json(plan_of(*models.values())))
        for target in BACKENDS:
            database.shard(f"s-{target}", target)
            for status, model in models.items():
                planned = database.plan(model.name, target, cell_key=f"{model.name}/tiny/{target}")
                database.cell(planned, f"s-{target}", **_ending(status))
    return path


def script_of(path: Path, target: str, *, model: str = "bert") -> str:
    made = reproduce(model, target, database=path, force=True)
    ast.parse(made.script)
    assert "hwmatrix import" not in made.script
    assert "import hwmatrix" not in made.script
    assert max(map(len, made.script.splitlines())) <= 140
    return made.script


def constant(script: str, name: str) -> Any:
    found = [node.value for node in ast.parse(script).body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
    return ast.literal_eval(found[0])


@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("status", ["mismatch", "error", "oom", "timeout", "crash", "fallback", "unsupported", "factory_error", "pass"])
def test_there_is_a_script_for_every_status_on_every_runtime(every_end: Path, target: str, status: str) -> None:
    model = f"bert-{status.replace('_', '-')}"
    script = script_of(every_end, target, model=model)
    assert script.splitlines()[0].startswith(f"# {model} (tiny) on {target}, float32: ")
    assert script.splitlines()[2].startswith(MARK)
    assert f"#   status: {status} at stage" in script
    assert constant(script, "CONFIG") == {"hidden_size": 32, "rope": {"theta": 1e4}}
    assert constant(script, "TOLERANCE") == 1e-3
    if status != "pass":
        assert FAILURES[status]["message"].split(":")[0] in script


@pytest.mark.parametrize(("bundle", "known"), [("cd" * 32, True), ("ef" * 32, False)], ids=["the same bundle", "another bundle"])
def test_what_built_the_bundle_may_be_on_record_in_another_run_only(tmp_path: Path, *, bundle: str, known: bool) -> None:
    """The run of a target without PyTorch knows the bundle alone, whose digest covers the packages that made it."""
    path, model = tmp_path / "m.duckdb", make.model_plan("bert")
    runs = {"later": ("qnn", {"onnxruntime-qnn": "2.7.0"}, "cd" * 32), "earlier": ("cpu", {"torch": "2.13.0+cpu"}, bundle)}
    with Database(path) as database:
        for run, (target, packages, made) in runs.items():
            database.run(run, plan=to_json(plan_of(model)))
            database.shard(f"s-{target}", target, run, packages=json.dumps(packages), versions="{}")
            planned = database.plan("bert", target, run, cell_key=f"bert/tiny/{target}")
            database.cell(planned, f"s-{target}", **unmeasured("mismatch"), bundle=made)
    head = script_of(path, "qnn").partition("from __future__")[0]
    assert ("pip install torch==2.13.0 " in head) is known, head


def test_the_measurements_are_in_the_header(tmp_path: Path) -> None:
    path = database_of(tmp_path / "m.duckdb", "cpu", relative_error=0.25, method="torch eager mode, sdpa attention", bundle="cd" * 32)
    head = script_of(path, "cpu").partition("from __future__")[0]
    assert f"# Measured by hwmatrix 0.1.0, run {RUN}, 2026-01-02 03:04:06 UTC:" in head
    assert "versions: torch 2.13.0, transformers 5.23.0" in head
    assert "to rerun with hwmatrix: hwmatrix matrix --models bert --targets cpu" in head
    assert "prepared by: torch eager mode, sdpa attention" in head
    assert f"bundle {'cd' * 32}" in head
    assert "pip install torch==2.13.0 transformers==5.23.0" in head
    assert "as measured 0.25" in script_of(path, "cpu")


def test_a_message_full_of_quotes_and_line_breaks_stays_a_comment(tmp_path: Path) -> None:
    model = make.model_plan("bert", config={EVIL: EVIL}, architecture=EVIL, hub_id=None)
    path = database_of(tmp_path / "m.duckdb", "cpu", model=model, message=EVIL, method=EVIL, placement_detail=EVIL, command=EVIL)
    script = script_of(path, "cpu")
    assert constant(script, "CONFIG") == {EVIL: EVIL}
    assert {type(node).__name__ for node in ast.parse(script).body} <= {"ImportFrom", "Import", "Assign", "FunctionDef", "If"}
    modules = {name.name for node in ast.parse(script).body if isinstance(node, ast.Import) for name in node.names}
    assert "os" not in modules
    assert "8641969" not in script


def test_limits_are_those_of_the_cell(tmp_path: Path) -> None:
    oom = script_of(database_of(tmp_path / "a.duckdb", "openvino", status="oom"), "openvino")
    assert "limit = 512 * 2**20" in oom
    assert "import resource" in oom
    hung = script_of(database_of(tmp_path / "b.duckdb", "cpu", status="timeout"), "cpu")
    assert "faulthandler.dump_traceback_later(30.0, exit=True)" in hung
    assert "RLIMIT_AS" not in script_of(database_of(tmp_path / "c.duckdb", "cuda", status="oom"), "cuda"), (
        "a GPU cell's memory is not the host's"
    )


@pytest.mark.parametrize(
    ("target", "cell", "present", "absent"),
    [
        ("cuda", {}, ['torch.device("cuda:1")', "torch.compile", 'fp32_precision = "ieee"'], ["set_num_threads"]),
        ("mps", {}, ['torch.device("mps")'], ["fp32_precision"]),
        ("inductor", {}, ['torch.device("cpu")', "torch.compile", "set_num_threads(1)"], []),
        ("openvino", {"preparation": ["transformers_export"]}, ["OpenVINOExporter()"], ["convert_model"]),
        ("openvino", {"preparation": ["trace", "fixed_shapes"]}, ["openvino.convert_model(Flat()"], ["OpenVINOExporter"]),
        ("onnxruntime", {"preparation": ["transformers_export"]}, ["OnnxExporter()"], ["torch.onnx.export("]),
        ("onnxruntime", {"preparation": ["torch_export"]}, ["torch.onnx.export("], ["OnnxExporter"]),
        ("onnxruntime", {"preparation": None, "error_type": "export_failed"}, ["torch.onnx.export("], ["OnnxExporter"]),
        ("qnn", {"preparation": ["transformers_export"]}, ['"soc_model": "57"'], ["def quantize", "option `rewrite`"]),
        ("qnn", {"preparation": ["torch_export", "replaced_operators"]}, ["torch.onnx.export(", "option `rewrite`"], []),
        ("webgpu", {"preparation": ["torch_export"]}, ['{"name": "webgpu"}', "torch.onnx.export("], []),
        ("executorch", {"preparation": ["transformers_export"]}, ["ExecutorchExporter()"], ["torch.export.export(", "apply_patches"]),
        ("executorch", {"preparation": ["torch_export"]}, ["torch.export.export("], ["ExecutorchExporter", "apply_patches"]),
        ("executorch", {"preparation": None, "error_type": "unsupported_operator"}, ["ExecutorchExporter()", "set_num_threads(1)"], []),
        ("webnn", {}, ['"deviceType": "cpu"', "--enable-features=WebMachineLearningNeuralNetwork"], []),
    ],
)
def test_the_script_takes_the_path_that_the_cell_took(
    tmp_path: Path, target: str, cell: dict[str, Any], present: list[str], absent: list[str]
) -> None:
    script = script_of(database_of(tmp_path / "m.duckdb", target, **cell), target)
    assert [each for each in present if each not in script] == []
    assert [each for each in absent if each in script] == []


@pytest.mark.parametrize(("dtype", "kind"), [("a16w8", "QUInt16"), ("a8w8", "QUInt8")])
def test_quantized_cells_are_quantized_in_the_script(tmp_path: Path, dtype: str, kind: str) -> None:
    script = script_of(database_of(tmp_path / "m.duckdb", "qnn", dtype=dtype), "qnn")
    assert f"activations = quantization.QuantType.{kind}" in script
    assert "special = [0, 255]" in script


@pytest.mark.parametrize(
    ("target", "dtype", "present"),
    [
        ("openvino", "float16", ["compress_to_fp16=True", '"INFERENCE_PRECISION_HINT": "f16"', "OPTIMIZATION_CAPABILITIES"]),
        ("openvino", "int8", ["mode=nncf.CompressWeightsMode.INT8_ASYM", '"INFERENCE_PRECISION_HINT": "f32"', "import nncf"]),
        ("openvino", "int4", ["for size in (128, 32, 16):", "group_size=size, all_layers=True", "DYNAMIC_QUANTIZATION_GROUP_SIZE"]),
        ("openvino", "a8w8", ["nncf.quantize(", "special = [0, 255]"]),
        ("onnxruntime", "float16", ["convert_float_to_float16(model, keep_io_types=True)", "reduce(path, inputs)"]),
        ("onnxruntime", "int4", ["for size in (128, 32, 16) if not any", "bits=4, block_size=size, is_symmetric=True, accuracy_level=1"]),
        ("onnxruntime", "int8_dynamic", ["quantization.quantize_dynamic("]),
        ("onnxruntime", "a8w8", ["quantization.quantize_static(", "range(7)"]),
        ("webnn", "a8w8", ["quantization.quantize_static(", "del tensor.dims[:]"]),
        ("cpu", "int8", ["quantize_(model, Int8WeightOnlyConfig())", "dtype = torch.float32"]),
        ("cpu", "int8_dynamic", ["quantize_(model, Int8DynamicActivationInt8WeightConfig())", "dtype = torch.float32"]),
        ("webgpu", "int4", ["MatMulNBitsQuantizer(", '"graph": path.name']),
        ("webnn", "float16", ["convert_float_to_float16("]),
        ("webgpu", "int4_float16", ["import matmul_nbits_quantizer", "import float16", "model = float16.convert_float_to_float16("]),
        ("executorch", "a8w8", ["convert_pt2e(observed)", "DynamoExporter()"]),
    ],
)
def test_weights_are_reduced_as_the_target_does(tmp_path: Path, target: str, dtype: str, present: list[str]) -> None:
    script = script_of(database_of(tmp_path / "m.duckdb", target, dtype=dtype), target)
    assert [each for each in present if each not in script] == []
    assert script.count("def calibration_samples(") == (dtype == "a8w8")


def test_without_hints_the_script_leaves_the_choice_to_the_plugin_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "openvino", {"device": "CPU", "precision_hints": False})
    script = script_of(database_of(tmp_path / "m.duckdb", "openvino", dtype="int8"), "openvino")
    assert "mode=nncf.CompressWeightsMode.INT8_ASYM" in script
    assert "INFERENCE_PRECISION_HINT" not in script
    assert "DYNAMIC_QUANTIZATION_GROUP_SIZE" not in script


@pytest.mark.parametrize(("option", "read"), [({}, True), ({"attention": "eager"}, False), ({"export": "trace"}, False)])
def test_openvino_s_graph_is_read_from_a_file_where_the_cell_reads_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: dict[str, str], read: object
) -> None:
    monkeypatch.setitem(BACKENDS, "openvino", {"device": "CPU", **option})
    script = script_of(database_of(tmp_path / "m.duckdb", "openvino"), "openvino")
    assert ('core.read_model(folder / "converted.xml")' in script) is read


@pytest.mark.parametrize(("error", "refused"), [(1e-5, True), (0.5, False)])
def test_a_kernel_that_differs_from_its_own_weights_alone_has_no_script(tmp_path: Path, error: float, refused: object) -> None:
    """The reference in float32 is the only one that a script has."""
    measured = {"relative_error": error, "kernel_error": 0.2, "allowed_error": 0.1, "error_type": "mismatch"}
    database = database_of(tmp_path / "m.duckdb", "onnxruntime", dtype="int8_dynamic", **measured)
    if refused:
        with pytest.raises(ConfigError, match=r"its kernels differ too much from the same rounded weights in float32.*rerun the cell"):
            reproduce("bert", "onnxruntime", database=database)
        script_of(database, "onnxruntime")  # with --force
    else:
        assert constant(script_of(database, "onnxruntime"), "TOLERANCE") == 1e-3, "what was allowed was not from the reference"


def test_a_precision_that_openvino_chose_is_left_to_it_again(tmp_path: Path) -> None:
    script = script_of(database_of(tmp_path / "m.duckdb", "openvino", dtype="default", precision="bfloat16"), "openvino")
    assert script.splitlines()[0].startswith("# bert (tiny) on openvino, default (bfloat16): mismatch")
    assert "INFERENCE_PRECISION_HINT" not in script


def test_where_nothing_was_set_nothing_is_set_again(tmp_path: Path) -> None:
    script = script_of(database_of(tmp_path / "m.duckdb", "openvino", dtype="default", precision="bfloat16", threads=0), "openvino")
    assert not {"PERFORMANCE_HINT", "INFERENCE_NUM_THREADS", "set_num_threads"} & {*re.findall(r"\w+", script)}


def test_random_values_are_drawn_in_the_same_order(tmp_path: Path) -> None:
    lines = script_of(database_of(tmp_path / "m.duckdb", "cpu"), "cpu").splitlines()
    drawn = next(index for index, line in enumerate(lines) if "torch.randint(2, (1, 3), generator=generator)" in line)
    assert drawn < next(index for index, line in enumerate(lines) if "torch.randn((1, 3, 8, 8), generator=generator)" in line)


def built(**changes: Any) -> Built:
    plain = Built(
        config_class="BertConfig",
        config={"hidden_size": 32, EVIL: EVIL},
        gain=None,
        tables=False,
        switches=False,
        attention="eager",
        extents=(),
        prepared=False,
    )
    return dataclasses.replace(plain, **changes)


ON_ONNX = ("onnxruntime", "qnn", "webgpu", "webnn")
OF_A_TYPE = make.model_plan("bert", weights="factory", hub_id=None, config={})


@pytest.mark.parametrize("target", BACKENDS)
def test_the_script_contains_a_model_made_from_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setattr(module, "model_code", lambda _plan, _cache: dataclasses.replace(CODE, built=built()))
    script = script_of(database_of(tmp_path / "m.duckdb", target, model=OF_A_TYPE), target)
    assert constant(script, "CONFIG") == {"hidden_size": 32, EVIL: EVIL}
    assert "config = transformers.BertConfig(**CONFIG)" in script
    assert "model = transformers.BertForMaskedLM(config)" in script
    assert "BertForMaskedLM.from_pretrained(folder, **options)" in script
    assert "save_model(folder)" in script
    assert "The smallest model of its type that hwmatrix could make" in script
    assert "attach it" not in script, "there is no checkpoint"
    assert [each for each in ("mul_(", "fill_(", "named_buffers", "get_leaf_tensors", "Computing") if each in script] == []


@pytest.mark.parametrize(
    ("target", "of", "present"),
    [
        ("cpu", {"gain": 0.7}, ["parameter.mul_(0.7 / (parameter.std() * summed**0.5))"]),
        ("cpu", {"tables": True}, ["for name, buffer in model.named_buffers():"]),
        ("cpu", {"switches": True}, ["parameter.fill_(0.5)", "elif parameter.numel() and bool("]),
        ("cpu", {"attention": "sdpa"}, ['def load_model(folder, dtype=torch.float32, attention="sdpa"):']),
        ("cpu", {"attention": {"": "sdpa"}}, ['attention={"": "sdpa"}):']),
        ("openvino", {"prepared": True}, ["port.replace(openvino.opset13.constant(value).output(0))"]),
        *((target, {"prepared": True}, ["get_leaf_tensors(sample)", "register_initializer"]) for target in ON_ONNX),
        *((target, {"extents": ("grid_thw",)}, ['for name in ["grid_thw"]})', "class Computing(", "import inspect"]) for target in ON_ONNX),
    ],
)
def test_extra_code_for_a_type_is_only_in_its_own_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, of: dict[str, Any], present: list[str]
) -> None:
    monkeypatch.setattr(module, "model_code", lambda _plan, _cache: dataclasses.replace(CODE, built=built(**of)))
    path = database_of(tmp_path / "m.duckdb", target, model=OF_A_TYPE, preparation=["transformers_export"])
    script = script_of(path, target)
    assert [each for each in present if each not in script] == []
    monkeypatch.setattr(module, "model_code", lambda _plan, _cache: dataclasses.replace(CODE, built=built()))
    assert [each for each in present if each in script_of(path, target)] == [], "a script must not contain code that its type does not need"


def test_eager_attention_is_requested_as_the_type_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "model_code", lambda _plan, _cache: dataclasses.replace(CODE, built=built(attention="sdpa")))
    targets = {"cpu": {"attention": "eager"}, "openvino": {"device": "CPU"}}
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run(plan=to_json(plan_of(OF_A_TYPE, targets=targets)))
        for target in targets:
            database.shard(f"s-{target}", target)
            planned = database.plan(OF_A_TYPE.name, target, cell_key=f"{OF_A_TYPE.name}/{OF_A_TYPE.size.value}/{target}")
            database.cell(planned, f"s-{target}", **_ending("mismatch"))
    assert 'load_model(folder, dtype, attention="sdpa")' in script_of(path, "cpu")
    assert "load_model(folder, attention=None)" in script_of(path, "openvino"), "loaded as by users"


def test_a_checkpoint_is_loaded_from_its_public_location(tmp_path: Path) -> None:
    hub = make.model_plan("bert", weights="/home/me/x", hub_id="acme/bert", revision="abc")
    script = script_of(database_of(tmp_path / "a.duckdb", "cpu", model=hub), "cpu")
    assert 'from_pretrained("acme/bert", revision="abc", **options)' in script
    assert "save_model" not in script
    local = dataclasses.replace(hub, hub_id=None, revision=None)
    script = script_of(database_of(tmp_path / "b.duckdb", "cpu", model=local), "cpu")
    assert 'from_pretrained("/home/me/x", **options)' in script
    assert "attach it" in script


def test_the_compared_output_is_one_with_wrong_numbers() -> None:
    """On OpenVINO diffusion_gemma also returns its cache, unlike the reference."""
    architectures = Path(__file__).parents[3] / "reports" / "published" / "matrix.duckdb"
    assert find_cell(architectures, "diffusion_gemma", "openvino").output == "logits"
    assert find_cell(architectures, "superglue", "openvino").output == "keypoints", "the first of four outputs with another shape"


def test_the_newest_failing_cell_is_chosen_and_the_others_are_listed() -> None:
    cell = find_cell(RECORDED, "mixtral", "qnn")
    assert (cell.settings.dtype, cell.output, cell.target.options) == (Dtype.FLOAT16, "logits", {"soc_model": 57})
    assert cell.also_failing == ("a16w8 in tiny: mismatch", "a8w8 in tiny: mismatch")
    assert cell.reference_versions == {"torch": "2.13.0+cpu", "transformers": "5.23.0"}, "the version in the image that built the model"
    assert find_cell(RECORDED, "mistralai/Mixtral-8x7B-v0.1", "qnn", dtype=Dtype.A8W8).settings.dtype is Dtype.A8W8
    assert find_cell(RECORDED, "BERT-base-uncased", "cpu", passing=True).failed is False


@pytest.mark.parametrize(
    ("model", "target", "options", "message"),
    [
        ("mixtrall", "qnn", {}, r"has no model 'mixtrall' \(did you mean 'mixtral'"),
        ("bert", "qn", {}, r"has no target 'qn' \(did you mean 'qnn'.*hwmatrix matrix --models bert --targets qn"),
        ("bert", "cuda", {}, r"was not executed \(unavailable\): no NVIDIA driver.*hwmatrix matrix"),
        ("stable-diffusion", "cpu", {}, r"was not executed \(factory_error\): a pipeline of the diffusers.*nothing to run"),
        ("bert", "qnn", {"dtype": Dtype.FLOAT32}, "in other settings only .*float16 in tiny"),
        ("bert", "cpu", {"size": Size.FULL}, "in other settings only .*float32 in tiny"),
    ],
)
def test_an_unrecorded_cell_is_refused_with_advice(model: str, target: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reproduce(model, target, database=RECORDED, **options)


def test_a_passing_cell_has_no_failure_to_reproduce() -> None:
    with pytest.raises(NothingSelectedError, match=r"bert on cpu \(float32, tiny\) passes in run .*\n.*--force"):
        reproduce("bert", "cpu", database=RECORDED)
    assert "# bert (tiny) on cpu, float32: passes" in reproduce("bert", "cpu", database=RECORDED, force=True).script


def test_a_cell_that_was_never_executed_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run(plan=to_json(plan_of(make.model_plan("bert"))))
        database.plan("bert", "cpu")
        database.plan("gpt2", "qnn")
    with pytest.raises(ConfigError, match="has no result for this combination"):
        reproduce("bert", "qnn", database=path)
    with pytest.raises(ConfigError, match="has no result for this combination"):
        reproduce("bert", "cpu", database=path)  # planned, but not run


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        reproduce("bert", "cpu", database=tmp_path / "nothing.duckdb")
    (tmp_path / "text").write_text("x", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be read"):
        reproduce("bert", "cpu", database=tmp_path / "text")


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    path = database_of(tmp_path / "m.duckdb", "cpu")
    with duckdb.connect(str(path)) as connection:
        connection.execute("""UPDATE runs SET plan = '{"schema": "hwmatrix/plan/0"}'""")
    with pytest.raises(StoreError, match="plan version 'hwmatrix/plan/0'"):
        reproduce("bert", "cpu", database=path)


def test_every_template_belongs_to_a_runtime() -> None:
    folder = Path(module.__file__).parent / "templates" / "reproduce"
    assert {path.name for path in folder.glob("[!_]*.j2")} == {f"{each.script}.py.j2" for each in descriptors()}


def test_a_backend_of_another_package_has_no_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = database_of(tmp_path / "m.duckdb", "cpu")
    without = dataclasses.replace(descriptor_of("cpu"), script=None)
    monkeypatch.setattr(module, "descriptor_of", lambda _name: without)
    with pytest.raises(ConfigError, match="no script can reproduce a cell of cpu"):
        reproduce("bert", "cpu", database=path)
