"""Rounded weights: what the quantizers make, and that it is read back exactly."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwmatrix.errors import TwinError, UnsupportedError
from hwmatrix.models.calibration import require_ranges
from hwmatrix.models.onnx_export import OnnxExport
from hwmatrix.records import Dtype, Preparation, Settings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

MATRIX = Path(__file__).parents[2] / "matrix.yaml"
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4, 32)).astype(np.float32)
"""Four rows, as wide as the layers of tiny models."""


def apart(ours: Any, theirs: Any) -> float:
    """The relative L2 error."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def linear(width: int = 32, *, largest_first: bool = False) -> tuple[np.ndarray[Any, Any], Any]:
    """Weights, and an OpenVINO graph that multiplies by them. ``largest_first``: those of the first input are the largest by far."""
    import openvino
    from openvino import opset13

    weights = RANDOM.normal(size=(48, width)).astype(np.float32)
    if largest_first:
        weights[:, 0] = 4 * np.abs(weights).max()
    given = opset13.parameter([4, width], np.float32, name="x")
    given.output(0).get_tensor().set_names({"x"})
    product = opset13.matmul(given, opset13.constant(weights), transpose_a=False, transpose_b=True)
    return weights, openvino.Model([product], [given], "linear")


def outputs(program: Any, given: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Computed in float32: without the hint, a processor that has bfloat16 computes in that."""
    import openvino

    config = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    return openvino.compile_model(program, "CPU", config)(given)


def computed(program: Any, given: np.ndarray[Any, Any] = X) -> Any:
    return outputs(program, {"x": given})[0]


def by_groups(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The definition in docs/precision.md: 4 bits, symmetric, groups of 32, with the scale in float16 as NNCF keeps it."""
    grouped = weights.reshape(weights.shape[0], -1, 32)
    extreme = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=-1, keepdims=True), axis=-1)
    scale = extreme / -8
    rounded: np.ndarray[Any, Any] = (np.clip(np.round(grouped / scale), -8, 7) * scale.astype(np.float16)).reshape(weights.shape)
    return rounded


@pytest.mark.parametrize("dtype", [Dtype.INT8, Dtype.INT4])
def test_openvino_computes_with_the_weights_that_are_read_back(dtype: Dtype) -> None:
    from hwmatrix.targets.openvino.weights import in_float32, reduced

    weights, program = linear()
    made, how = reduced(program, dtype)
    assert "1 in" in how
    in_float = in_float32(made)
    constants = [each for each in in_float.get_ops() if each.get_type_name() == "Constant" and each.get_output_shape(0) == [48, 32]]
    read = next(np.asarray(each.data) for each in constants if each.get_element_type().get_type_name() == "f32")
    step = {Dtype.INT8: 1 / 255, Dtype.INT4: 1 / 15}[dtype] * (weights.max() - weights.min())
    assert np.abs(read - weights).max() <= step
    assert apart(computed(made), X @ read.T) < 1e-6
    assert apart(X @ read.T, X @ weights.T) > 1e-3


def test_openvino_multiplies_integers_as_the_calibrated_graph_says() -> None:
    """No two products are large together: without VNNI, a processor adds two of them in 16 bits, and cuts off what is larger."""
    from hwmatrix.targets.openvino.weights import in_float32, reduced

    weights, program = linear(largest_first=True)
    first = X * (np.arange(32) > 0)
    made, how = reduced(program, Dtype.A8W8, [{"x": first}])
    assert how.endswith("from 1 inputs: 1 FakeQuantize")
    in_float = in_float32(made)
    assert "FakeQuantize" not in {each.get_type_name() for each in in_float.get_ops()}
    for given in (first, 4 * first):
        assert apart(computed(made, given), computed(in_float, given)) < 1e-6
    assert 1e-3 < apart(computed(in_float, first), first @ weights.T) < 0.05
    assert apart(computed(in_float, 4 * first), 4 * first @ weights.T) > 0.1, "what the ranges do not hold is cut off"


@pytest.mark.parametrize(("width", "size"), [(256, 128), (384, 128), (64, 32), (16, 16), (48, 16)])
def test_groups_are_as_large_as_people_deploy_them_where_they_divide_the_width(tmp_path: Path, width: int, size: int) -> None:
    from hwmatrix.targets.onnx import weights as onnx_weights
    from hwmatrix.targets.openvino.weights import reduced

    assert f"in groups of {size}:" in reduced(linear(width)[1], Dtype.INT4)[1]
    assert f"in groups of {size}:" in onnx_weights.reduced(onnx_linear(tmp_path, width)[1], tmp_path, Dtype.INT4).how


def test_int4_on_openvino_rounds_as_documented() -> None:
    from hwmatrix.targets.openvino.weights import in_float32, reduced

    weights, program = linear()
    made, how = reduced(program, Dtype.INT4)
    assert "in groups of 32:" in how
    assert apart(computed(in_float32(made)), X @ by_groups(weights).T) < 1e-3


def test_a_width_that_16_does_not_divide_is_unsupported_in_int4_and_not_in_int8() -> None:
    from hwmatrix.targets.openvino.weights import reduced

    _, program = linear(24)
    with pytest.raises(UnsupportedError, match="16 does not divide the width of a layer; int8 takes any width") as caught:
        reduced(program.clone(), Dtype.INT4)
    assert caught.value.error_type == "group_size"
    reduced(program, Dtype.INT8)


@pytest.mark.parametrize(("width", "kinds", "left"), [(8, "1 in i4; embeddings 1 in float32", True), (32, "2 in i4", False)])
def test_an_embedding_whose_width_16_does_not_divide_stays_in_float32_in_int4(width: int, kinds: str, *, left: bool) -> None:
    import openvino
    from openvino import opset13

    from hwmatrix.targets.openvino.weights import in_float32, reduced

    weights, _ = linear()
    table = np.random.default_rng(1).standard_normal((64, width)).astype(np.float32)
    given = opset13.parameter([4, 32], np.float32, name="x")
    rows = opset13.parameter([5], np.int64, name="rows")
    product = opset13.matmul(given, opset13.constant(weights), transpose_a=False, transpose_b=True)
    found = opset13.gather(opset13.constant(table), rows, opset13.constant(np.int64(0)))
    made, told = reduced(openvino.Model([product, found], [given, rows], "two"), Dtype.INT4)
    assert told.endswith(f": weights {kinds}")
    asked = np.array([0, 7, 63, 7, 1])
    ran = outputs(in_float32(made), {"x": X, "rows": asked})
    assert (apart(ran[1], table[asked]) < 1e-6) is left
    assert apart(ran[0], X @ by_groups(weights).T) < 1e-3


@pytest.mark.parametrize("dtype", [Dtype.INT8, Dtype.INT4])
def test_a_graph_without_a_linear_layer_has_nothing_to_round(dtype: Dtype) -> None:
    import openvino
    from openvino import opset13

    from hwmatrix.targets.openvino.weights import reduced

    given = opset13.parameter([4, 32], np.float32, name="x")
    program = openvino.Model([opset13.relu(given)], [given], "no layer")
    with pytest.raises(UnsupportedError, match="float32 works") as caught:
        reduced(program, dtype)
    assert caught.value.error_type == "nothing_to_quantize"


def test_a_quantizer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from hwmatrix.targets.openvino.weights import reduced

    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(UnsupportedError, match="pip install nncf") as caught:
        reduced(linear()[1], Dtype.INT8)
    assert (caught.value.error_type, caught.value.needs) == ("missing_package", ("nncf",))


def test_inputs_of_a_single_number_show_no_ranges() -> None:
    constant = {"x": np.ones((2, 3), np.float32), "mask": np.ones((2, 3), np.int64)}
    with pytest.raises(UnsupportedError, match="use int8 or int8_dynamic") as caught:
        require_ranges([constant, constant])
    assert caught.value.error_type == "calibration_constant"
    require_ranges([constant, {"x": X, "mask": constant["mask"]}])


def onnx_linear(folder: Path, width: int = 32) -> tuple[np.ndarray[Any, Any], Path]:
    """Weights, and a file with an ONNX graph that multiplies by them."""
    from onnx import TensorProto, helper, numpy_helper, save

    weights = RANDOM.normal(size=(width, 48)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 48])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    save(model, folder / "model.onnx")
    return weights, folder / "model.onnx"


def ran(path: Path, given: np.ndarray[Any, Any] = X) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": given})[0]


@pytest.mark.parametrize(
    ("dtype", "kernels", "within"), [(Dtype.INT8_DYNAMIC, 1e-6, 0.02), (Dtype.INT4, 1e-6, 0.2), (Dtype.INT4_FLOAT16, 2**-10, 0.2)]
)
def test_onnx_runtime_computes_with_the_weights_that_are_read_back(tmp_path: Path, dtype: Dtype, kernels: float, within: float) -> None:
    from hwmatrix.targets.onnx.weights import in_float32, reduced

    weights, path = onnx_linear(tmp_path)
    made = reduced(path, tmp_path, dtype)
    quantized, in_float = ran(made.path), ran(in_float32(made.path, tmp_path))
    assert apart(quantized, in_float) < kernels
    assert 1e-3 < apart(in_float, X @ weights) < within


def test_a_graph_in_float16_has_its_numbers_in_float32(tmp_path: Path) -> None:
    """Also where operators hold them, and within the graphs of others."""
    from onnx import TensorProto, helper, load, numpy_helper, save

    from hwmatrix.targets.onnx.weights import in_float32

    half = numpy_helper.from_array(np.array([0.1], np.float16), "held")
    inner = [helper.make_node("Constant", [], ["inner"], value=half), helper.make_node("Mul", ["h", "inner"], ["product"])]
    outer = [helper.make_node("Identity", ["h"], ["same"])]
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.ones((), bool), "yes")),
        helper.make_node(
            "If",
            ["yes"],
            ["chosen"],
            then_branch=helper.make_graph(inner, "then", [], [helper.make_tensor_value_info("product", TensorProto.FLOAT16, [4, 32])]),
            else_branch=helper.make_graph(outer, "else", [], [helper.make_tensor_value_info("same", TensorProto.FLOAT16, [4, 32])]),
        ),
        helper.make_node("Add", ["chosen", "b"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "halves",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        [numpy_helper.from_array(np.full(32, 0.3, np.float16), "b")],
    )
    path = tmp_path / "halves.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    made = in_float32(path, tmp_path)
    assert made is not None
    assert TensorProto.FLOAT16 not in {tensor.data_type for tensor in load(made).graph.initializer}
    exact = X * np.float32(np.float16(0.1)) + np.float32(np.float16(0.3))
    assert apart(ran(made), exact) < 1e-7
    assert apart(ran(path), exact) < 2**-10


@pytest.mark.parametrize(("dtype", "within"), [(Dtype.INT8_DYNAMIC, 0.03), (Dtype.INT4, 0.3)])
def test_a_weight_of_two_gemm_is_transposed_once(tmp_path: Path, dtype: Dtype, within: float) -> None:
    """As that of a vision tower, which sees images and videos; the square one has a right shape after two transpositions, too."""
    from onnx import TensorProto, helper, numpy_helper, save

    from hwmatrix.targets.onnx.weights import reduced

    weights, more, square = (RANDOM.normal(size=size).astype(np.float32) for size in ((48, 32), (32, 48), (48, 48)))
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["one"], name="first", transB=1),
        helper.make_node("Gemm", ["one", "more"], ["back"], name="between", transB=1),
        helper.make_node("Gemm", ["back", "w"], ["two"], name="second", transB=1),
        helper.make_node("Gemm", ["two", "square"], ["three"], name="third", transB=1),
        helper.make_node("Gemm", ["three", "square"], ["y"], name="fourth", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "shared",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(each, name) for each, name in ((weights, "w"), (more, "more"), (square, "square"))],
    )
    path = tmp_path / "shared.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    made = reduced(path, tmp_path, dtype)
    assert " 5 " in made.how
    assert 1e-3 < apart(ran(made.path), X @ weights.T @ more.T @ weights.T @ square.T @ square.T) < within


@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "Conv"])
def test_onnx_runtime_multiplies_integers_as_the_calibrated_graph_says(tmp_path: Path, kind: str) -> None:
    """Two products, the second of which rounds what the first one gave."""
    from onnx import TensorProto, helper, load, numpy_helper, save

    from hwmatrix.targets.onnx.weights import in_float32, reduced

    two = {"MatMul": (32, 32), "Gemm": (32, 32), "Conv": (32, 4, 1)}[kind]
    form = {"MatMul": [4, 32], "Gemm": [4, 32], "Conv": [1, 4, 32]}[kind]
    tensors = {"w": RANDOM.normal(size=two), "v": RANDOM.normal(size=(4, 32, 1) if kind == "Conv" else two)}
    tensors |= {"b": RANDOM.normal(size=32)} if kind != "MatMul" else {}
    graph = helper.make_graph(
        [
            helper.make_node(kind, ["x", "w", *(["b"] if "b" in tensors else [])], ["h"], name="first"),
            helper.make_node("Tanh", ["h"], ["t"]),
            helper.make_node(kind, ["t", "v"], ["y"], name="second"),
        ],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, form)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in tensors.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "model.onnx")
    given = X.reshape(form) if kind != "Conv" else np.ascontiguousarray(X[:, :32].reshape(form))
    made = reduced(tmp_path / "model.onnx", tmp_path, Dtype.A8W8, [{"x": given}]).path
    in_float = in_float32(made, tmp_path)
    assert not [node.op_type for node in load(in_float).graph.node if "Quantize" in node.op_type]
    assert apart(ran(made, given), ran(in_float, given)) < 2**-9, "at most half a step"
    assert apart(ran(in_float, given), ran(tmp_path / "model.onnx", given)) > 1e-3
    beyond = 4 * given
    assert apart(ran(made, beyond), ran(in_float, beyond)) < 2**-9, "what the ranges do not hold is cut off in both"


def test_conversions_in_another_form_are_not_read_back(tmp_path: Path) -> None:
    from onnx import load, numpy_helper, save

    from hwmatrix.targets.onnx.weights import in_float32, reduced

    _, path = onnx_linear(tmp_path)
    made = reduced(path, tmp_path, Dtype.A8W8, [{"x": X}]).path
    model = load(made)
    rounding = next(node for node in model.graph.node if node.op_type == "QuantizeLinear")
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == rounding.input[1])
    scale.CopyFrom(numpy_helper.from_array(np.ones(32, np.float32), scale.name))
    save(model, made)
    with pytest.raises(TwinError, match="a scale or a zero point that is no constant"):
        in_float32(made, tmp_path)


def test_an_output_that_onnx_runtime_rounds_besides_is_rounded_in_float32_too(tmp_path: Path) -> None:
    """Its optimizer moves the conversion of a product's input before the transposition, and the output is what that gives."""
    from onnx import TensorProto, helper, numpy_helper, save

    from hwmatrix.targets.onnx.weights import in_float32, reduced

    graph = helper.make_graph(
        [
            helper.make_node("Tanh", ["x"], ["early"]),
            helper.make_node("Transpose", ["early"], ["turned"]),
            helper.make_node("MatMul", ["w", "turned"], ["late"], name="product"),
        ],
        "moved",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("early", "late")],
        [numpy_helper.from_array(RANDOM.normal(size=(16, 32)).astype(np.float32), "w")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "model.onnx")
    made = reduced(tmp_path / "model.onnx", tmp_path, Dtype.A8W8, [{"x": X}]).path
    given = RANDOM.normal(size=(4, 32)).astype(np.float32)
    assert apart(ran(made, given), np.tanh(given)) > 1e-3
    assert apart(ran(made, given), ran(in_float32(made, tmp_path), given)) < 1e-6


def test_onnx_runtime_has_float16_and_calibrated_graphs(tmp_path: Path) -> None:
    from hwmatrix.targets.onnx.weights import reduced

    weights, path = onnx_linear(tmp_path)
    assert 1e-6 < apart(ran(reduced(path, tmp_path, Dtype.FLOAT16).path), X @ weights) < 1e-3
    calibrated = reduced(path, tmp_path, Dtype.A8W8, [{"x": X}])
    assert 1e-3 < apart(ran(calibrated.path), X @ weights) < 0.03
    assert "from 1 inputs" in calibrated.how


def test_scales_have_the_shape_of_their_zero_points(tmp_path: Path) -> None:
    """WebNN refuses others. ONNX Runtime's tool writes them for a bias."""
    from onnx import TensorProto, helper, load, numpy_helper, save

    from hwmatrix.targets.onnx.weights import reduced

    _, path = onnx_linear(tmp_path)
    model = load(path)
    bias = RANDOM.normal(size=48).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(bias, "bias"))
    model.graph.node[0].CopyFrom(helper.make_node("Gemm", ["x", "w", "bias"], ["y"], name="product"))
    save(model, path)
    before = ran(path)
    made = reduced(path, tmp_path, Dtype.A8W8, [{"x": X}])
    quantized = load(made.path)
    shapes = {tensor.name: [*tensor.dims] for tensor in quantized.graph.initializer}
    pairs = [node.input[1:] for node in quantized.graph.node if node.op_type in {"QuantizeLinear", "DequantizeLinear"}]
    assert any(tensor.data_type == TensorProto.INT32 and [*tensor.dims] == [48] for tensor in quantized.graph.initializer), "a bias"
    assert [(scale, point) for scale, point in pairs if shapes[scale] != shapes[point]] == []
    assert 1e-3 < apart(ran(made.path), before) < 0.03


@pytest.mark.parametrize(("between", "renamed"), [("val_10", True), ("val_20", False)])
def test_a_bias_whose_copy_takes_another_name_is_renamed_on_request(tmp_path: Path, between: str, *, renamed: bool) -> None:
    """ONNX Runtime's tool calls the copy of ``val_1`` ``val_10``, which may be the value between the products."""
    from onnx import TensorProto, helper, numpy_helper, save

    from hwmatrix.targets.onnx.rewriting import CONSTANTS, rewritten
    from hwmatrix.targets.onnx.weights import reduced

    tensors = {"w": RANDOM.normal(size=(32, 32)), "v": RANDOM.normal(size=(32, 32)), "val_1": RANDOM.normal(size=32)}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "val_1"], [between], name="first"),
            helper.make_node("Tanh", [between], ["t"]),
            helper.make_node("Gemm", ["t", "v", "val_1"], ["y"], name="second"),
        ],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in tensors.items()],
    )
    path = tmp_path / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    export = OnnxExport(exporter="torch", path=path, inputs=("x",), outputs=("y",), opset=20, seconds=1.0)
    if renamed:
        (export,) = rewritten([export], tmp_path, constants=CONSTANTS)
        assert Preparation.RENAMED_CONSTANTS in export.prepared.preparation
    else:
        with pytest.raises(UnsupportedError) as caught:
            rewritten([export], tmp_path, constants=CONSTANTS)
        assert caught.value.error_type == "nothing_to_rewrite"
    made = reduced(export.path, tmp_path, Dtype.A8W8, [{"x": X}])
    assert 1e-3 < apart(ran(made.path), ran(path)) < 0.05


def test_onnx_runtime_names_a_width_that_16_does_not_divide(tmp_path: Path) -> None:
    from hwmatrix.targets.onnx.weights import reduced

    _, path = onnx_linear(tmp_path, 24)
    with pytest.raises(UnsupportedError, match="product is 24 wide; int8_dynamic takes any width") as caught:
        reduced(path, tmp_path, Dtype.INT4)
    assert caught.value.error_type == "group_size"


@pytest.mark.parametrize("dtype", [Dtype.INT8, Dtype.INT8_DYNAMIC])
def test_torchao_multiplies_by_the_weights_that_are_read_back(dtype: Dtype) -> None:
    pytest.importorskip("torchao")
    from hwmatrix.targets.torch import integers

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 48)).eval()
    given = torch.from_numpy(X)
    with torch.inference_mode():
        plain = model(given)
        assert integers.round_weights(model, dtype) == 1
        assert integers.told(model) == "1 linear layers of int8 weights, 0 of float32 weights"
        quantized = model(given)
        with integers.InFloat32(model).swapped():
            in_float = model(given)
    assert apart(quantized.numpy(), in_float.numpy()) < 1e-6
    assert 1e-3 < apart(in_float.numpy(), plain.numpy()) < 0.02


class OneLayer(torch.nn.Module):
    """A model like those of transformers."""

    config = types.SimpleNamespace(_attn_implementation="eager")

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 48)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.linear(x)}


@pytest.mark.parametrize("dtype", [Dtype.INT8, Dtype.INT8_DYNAMIC])
def test_a_device_of_pytorch_gets_the_rounded_weights_only(dtype: Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchao")
    from hwmatrix.targets.torch import integers
    from hwmatrix.targets.torch.cpu import TorchCpu

    torch.manual_seed(0)
    model, moved = OneLayer().eval(), []
    target = TorchCpu(settings=Settings(dtype=dtype, batch=1, sequence_length=1, threads=1), options={})
    target._model = model
    monkeypatch.setattr(model, "to", lambda _device: moved.append(integers.told(model)) or model)
    plain = model(torch.from_numpy(X))["y"].detach().numpy()
    assert target.prepare({"x": X}).method.endswith(f"torchao {integers.CONFIGURATIONS[dtype]}: 1 linear layers")
    assert moved == ["1 linear layers of int8 weights, 0 of float32 weights"]
    rounded = target.outputs(target.run())["y"]
    assert target.placement().detail.endswith(moved[0])
    in_float = target.in_float()
    assert apart(rounded, in_float.outputs({"x": X})["y"]) < 1e-6
    assert 1e-3 < apart(rounded, plain) < 0.02
    with pytest.raises(TypeError, match="z"):
        in_float.outputs({"z": X})
    assert integers.told(model) == moved[0], "what is timed later are the rounded weights"


def test_torchao_has_nothing_to_round_without_a_linear_layer() -> None:
    pytest.importorskip("torchao")
    from hwmatrix.targets.torch import integers

    with pytest.raises(UnsupportedError, match="bfloat16 works"):
        integers.round_weights(torch.nn.Sequential(torch.nn.ReLU()), Dtype.INT8)


def test_an_operator_that_torchao_lacks_for_rounded_weights_is_named() -> None:
    pytest.importorskip("torchao")
    from hwmatrix.targets.torch import integers

    layer = torch.nn.Sequential(torch.nn.Linear(32, 48))
    integers.round_weights(layer, Dtype.INT8_DYNAMIC)
    with torch.inference_mode(), pytest.raises(UnsupportedError, match="bfloat16 works") as caught, integers.naming_what_is_missing():
        layer[0].weight @ torch.from_numpy(X).T
    assert caught.value.needs == ("aten.matmul",)
