"""What qnn does to a graph, on real ONNX, and how it chooses among exports, on sessions that only say where nodes went."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwmatrix.errors import CellFailure, UnavailableError, UnsupportedError
from hwmatrix.models.onnx_export import OnnxExport, OnnxFailure
from hwmatrix.records import Dtype, Preparation, Settings
from hwmatrix.records.vocabulary import exported_by

pytestmark = pytest.mark.torch
QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"
FLOAT_MIN = float(np.finfo(np.float32).min)


def norm_graph(folder: Path, *, scale_first: bool, shape: tuple[int, ...] = (3, 4)) -> Path:
    """A root-mean-square norm as exporters write it, and a mask that is added to it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    arrays = {
        "two": np.array(2.0, np.float32),
        "axes": np.array([-1], np.int64),
        "epsilon": np.array(1e-6, np.float32),
        "scale": np.array([1.0, 2.0, 0.5, -1.0], np.float32),
        "mask": np.array([[0.0, FLOAT_MIN, 0.0, 0.0]], np.float32),
    }
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "axes"], ["mean"], keepdims=1),
        helper.make_node("Add", ["mean", "epsilon"], ["sum"]),
        helper.make_node("Sqrt", ["sum"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["inverse"]),
        helper.make_node("Mul", ["x", "inverse"], ["normed"]),
        helper.make_node("Mul", ["scale", "normed"] if scale_first else ["normed", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "norm", values[:1], values[1:], tensors)
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.mark.parametrize("scale_first", [True, False])
def test_a_root_mean_square_norm_becomes_one_operator_with_the_same_result(tmp_path: Path, *, scale_first: bool) -> None:
    import onnx
    import onnx_ir
    from onnx.reference import ReferenceEvaluator

    from hwmatrix.targets.qnn.graph import fuse_rms_norms

    path = norm_graph(tmp_path, scale_first=scale_first)
    model = onnx_ir.load(path)
    assert fuse_rms_norms(model) == 1
    assert [node.op_type for node in model.graph] == ["Constant", "Reshape", "RMSNormalization", "Shape", "Reshape", "Add"]
    assert model.opset_imports[""] == 23
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    before = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]
    after = ReferenceEvaluator(onnx_ir.to_proto(model)).run(None, {"x": x})[0]
    np.testing.assert_allclose(after, before, rtol=1e-6)


def gathers_graph(folder: Path) -> Path:
    """Slices of a weight taken by number twice, as exporters take experts; a GatherND by two numbers; and one with a batch."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(1)
    tensors = [
        numpy_helper.from_array(random.normal(size=(4, 8, 8)).astype(np.float32), "experts"),
        numpy_helper.from_array(np.array([-1], np.int64), "last"),
        numpy_helper.from_array(np.array([[1, 2], [3, 0]], np.int64), "pairs"),
    ]
    nodes = [
        helper.make_node("Unsqueeze", ["chosen", "last"], ["places"]),
        helper.make_node("GatherND", ["experts", "places"], ["up"]),
        helper.make_node("GatherND", ["experts", "places"], ["down"]),
        helper.make_node("GatherND", ["experts", "pairs"], ["rows"]),
        helper.make_node("GatherND", ["experts", "places"], ["inner"], batch_dims=1),
        helper.make_node("MatMul", ["up", "down"], ["y"]),
    ]
    chosen = helper.make_tensor_value_info("chosen", TensorProto.INT64, (4,))
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("y", (4, 8, 8)), ("up", (4, 8, 8)), ("rows", (2, 8)), ("inner", (4, 8)))
    ]
    graph = helper.make_graph(nodes, "gathers", [chosen], outputs, tensors)
    path = folder / "gathers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def relative_error(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def test_norms_over_several_matrices_are_right_on_the_htp(tmp_path: Path) -> None:
    """As one operator over several matrices they are not: test_onnx_trace.py has that."""
    pytest.importorskip("onnxruntime_qnn")
    import onnx
    from onnx.reference import ReferenceEvaluator

    from hwmatrix.targets.qnn import values as qnn_values

    path = norm_graph(tmp_path, scale_first=True, shape=(8, 16, 4))
    made = rewritten_graph(path, tmp_path / "made", Dtype.FLOAT16, ())
    x = np.random.default_rng(0).normal(size=(8, 16, 4)).astype(np.float32)
    expected = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]
    found = qnn_values.read_apart(made.path, {"x": x}, ["y"], soc_model=57, threads=1)["y"]
    seen = np.arange(4) != 1  # the mask takes the second column
    assert relative_error(found[..., seen], expected[..., seen]) < 2e-3


def rewritten_graph(path: Path, folder: Path, dtype: Dtype, samples: Any = ()) -> Any:
    """The graph of a cell whose operators are replaced."""
    from hwmatrix.targets.onnx.rewriting import rewritten
    from hwmatrix.targets.qnn.graph import CONSTANTS, OPERATORS, make_graph

    folder.mkdir()
    constants = {} if dtype is Dtype.FLOAT16 else CONSTANTS
    (changed,) = rewritten([export("torch", path)], folder, operators=OPERATORS, constants=constants)
    return make_graph(changed, folder, dtype=dtype, samples=samples)


def plain_norm(folder: Path, *, size: float, shape: tuple[int, ...]) -> Path:
    """A norm of a projection as exporters write it, without a scale: x / sqrt(mean(x ** 2)). Its root is of this size."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    arrays = {
        "weight": np.random.default_rng(4).normal(0.0, size / shape[-1] ** 0.5, (shape[-1], shape[-1])).astype(np.float32),
        "two": np.array(2.0, np.float32),
        "axes": np.array([-1], np.int64),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["projected"]),
        helper.make_node("Pow", ["projected", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "axes"], ["mean"], keepdims=1),
        helper.make_node("Sqrt", ["mean"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["inverse"]),
        helper.make_node("Mul", ["projected", "inverse"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (*shape[:-1], 1)) for name in ("mean", "root", "inverse")]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "norm", values[:1], values[1:], tensors, value_info=types)
    path = folder / "plain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_reciprocals_become_divisions_with_the_same_result(tmp_path: Path) -> None:
    import onnx
    import onnx_ir
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    from hwmatrix.targets.qnn.graph import divide_for_reciprocals

    path = plain_norm(tmp_path, size=0.03, shape=(2, 16, 32))
    proto = onnx.load(path)
    proto.graph.node.append(helper.make_node("Reciprocal", ["root"], ["again"]))
    proto.graph.output.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, (2, 16, 1)))
    model = onnx_ir.from_proto(proto)
    assert divide_for_reciprocals(model) == 2
    assert [node.op_type for node in model.graph] == ["MatMul", "Pow", "ReduceMean", "Sqrt", "Div", "Mul", "Div"]
    assert divide_for_reciprocals(model) == 0
    changed = onnx_ir.to_proto(model)
    onnx.checker.check_model(changed, full_check=True)
    x = np.random.default_rng(5).normal(size=(2, 16, 32)).astype(np.float32)
    before, after = (ReferenceEvaluator(each).run(None, {"x": x}) for each in (proto, changed))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("dtype", "tolerance"), [(Dtype.FLOAT16, 2e-3), (Dtype.A16W8, 2e-2), (Dtype.A8W8, 1e-1)])
def test_norms_without_a_scale_are_right_on_the_htp(tmp_path: Path, dtype: Dtype, tolerance: float) -> None:
    """With Reciprocal, half of the rows are not written in float16, and all are too small in the others: errors of 0.7 to 0.9."""
    pytest.importorskip("onnxruntime_qnn")
    import onnx
    from onnx.reference import ReferenceEvaluator

    from hwmatrix.targets.qnn import values as qnn_values

    path, random = plain_norm(tmp_path, size=0.03, shape=(1, 16, 4, 16)), np.random.default_rng(6)
    samples = [{"x": random.normal(size=(1, 16, 4, 16)).astype(np.float32)} for _ in range(8)]
    made = rewritten_graph(path, tmp_path / "made", dtype, samples)
    expected = ReferenceEvaluator(onnx.load(path)).run(None, samples[0])[0]
    found = qnn_values.read_apart(made.path, samples[0], ["y"], soc_model=57, threads=1)["y"]
    assert relative_error(found, expected) < tolerance


def graph_of(path: Path, operator: str, *, given: tuple[int, ...], made: tuple[int, ...], **attributes: Any) -> Path:
    """A graph of one operator."""
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", given), ("y", made))]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], **attributes)], "one", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_exponents_are_raised_without_another_result(tmp_path: Path) -> None:
    import onnx
    import onnx_ir
    from onnx.reference import ReferenceEvaluator

    from hwmatrix.targets.qnn.graph import floor_exponents

    path = graph_of(tmp_path / "exp.onnx", "Exp", given=(4, 64), made=(4, 64))
    model = onnx_ir.load(path)
    assert floor_exponents(model) == 1
    assert [node.op_type for node in model.graph] == ["Max", "Exp"]
    changed = onnx_ir.to_proto(model)
    onnx.checker.check_model(changed, full_check=True)
    x = np.concatenate([np.linspace(-400.0, 80.0, 255), [-np.inf]]).astype(np.float32).reshape(4, 64)
    before, after = (ReferenceEvaluator(each).run(None, {"x": x})[0] for each in (onnx.load(path), changed))
    np.testing.assert_allclose(after, before, rtol=0.0, atol=2e-38)


def test_large_negative_exponents_are_right_on_the_htp_only_if_raised(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    from hwmatrix.targets.qnn import values as qnn_values

    path = graph_of(tmp_path / "exp.onnx", "Exp", given=(4, 64), made=(4, 64))
    made = rewritten_graph(path, tmp_path / "made", Dtype.FLOAT16, ())
    x = np.linspace(-400.0, 4.0, 256).astype(np.float32).reshape(4, 64)
    found = {graph: qnn_values.read_apart(graph, {"x": x}, ["y"], soc_model=57, threads=1)["y"] for graph in (path, made.path)}
    assert np.abs(found[path] - np.exp(x)).max() > 1e4
    assert relative_error(found[made.path], np.exp(x)) < 2e-3


@pytest.mark.parametrize(
    ("pool", "made", "globally"),
    [
        ({"kernel_shape": [64, 64], "strides": [64, 64], "ceil_mode": 1, "count_include_pad": 1}, (1, 3, 1, 1), True),
        ({"kernel_shape": [4, 6]}, (1, 3, 1, 1), True),
        ({"kernel_shape": [4, 4], "strides": [4, 4]}, (1, 3, 1, 1), False),
        ({"kernel_shape": [2, 2], "strides": [2, 2]}, (1, 3, 2, 3), False),
        ({"kernel_shape": [6, 8], "strides": [6, 8], "pads": [1, 1, 1, 1], "count_include_pad": 1}, (1, 3, 1, 1), False),
    ],
)
def test_a_pool_of_everything_becomes_a_global_one_with_the_same_result(
    tmp_path: Path, pool: dict[str, Any], made: tuple[int, ...], *, globally: bool
) -> None:
    import onnx_ir
    import onnxruntime

    from hwmatrix.targets.qnn.graph import pool_globally

    path = graph_of(tmp_path / "pool.onnx", "AveragePool", given=(1, 3, 4, 6), made=made, **pool)
    model = onnx_ir.load(path)
    assert pool_globally(model) == int(globally)
    assert [node.op_type for node in model.graph] == ["GlobalAveragePool" if globally else "AveragePool"]
    onnx_ir.save(model, tmp_path / "changed.onnx")
    x = np.random.default_rng(7).normal(size=(1, 3, 4, 6)).astype(np.float32)
    before, after = (onnxruntime.InferenceSession(each).run(None, {"x": x})[0] for each in (path, tmp_path / "changed.onnx"))
    assert before.shape == made
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-7)


def test_many_slices_are_right_on_the_htp_as_a_gather_and_not_as_they_were(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    import onnx
    import onnx_ir
    from onnx import TensorProto, helper, numpy_helper

    from hwmatrix.targets.qnn import values as qnn_values
    from hwmatrix.targets.qnn.graph import take_rows_by_gather

    random = np.random.default_rng(2)
    experts, chosen = random.normal(size=(4, 128, 32)).astype(np.float32), random.integers(0, 4, 32)
    nodes = [helper.make_node("Unsqueeze", ["chosen", "last"], ["places"]), helper.make_node("GatherND", ["experts", "places"], ["y"])]
    tensors = [numpy_helper.from_array(np.array([-1]), "last")]
    values = [
        helper.make_tensor_value_info("chosen", TensorProto.INT64, (32,)),
        helper.make_tensor_value_info("experts", TensorProto.FLOAT, (4, 128, 32)),
    ]
    graph = helper.make_graph(nodes, "slices", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, (32, 128, 32))], tensors)
    path = tmp_path / "slices.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    feed = {"chosen": chosen, "experts": experts}

    def error() -> float:
        return relative_error(qnn_values.read_apart(path, feed, ["y"], soc_model=57, threads=1)["y"], experts[chosen])

    assert error() > 0.1
    model = onnx_ir.load(path)
    assert take_rows_by_gather(model) == 1
    onnx_ir.save(model, path)
    assert error() < 2e-3


def test_slices_taken_by_one_number_are_gathered_and_others_are_left_alone(tmp_path: Path) -> None:
    import onnx
    import onnx_ir
    from onnx.reference import ReferenceEvaluator

    from hwmatrix.targets.qnn.graph import take_rows_by_gather

    path = gathers_graph(tmp_path)
    model = onnx_ir.load(path)
    assert take_rows_by_gather(model) == 2
    assert [output.name for output in model.graph.outputs] == ["y", "up", "rows", "inner"]
    assert [node.op_type for node in model.graph] == ["Unsqueeze", "Gather", "Gather", "GatherND", "GatherND", "MatMul"]
    feed = {"chosen": np.array([3, 0, 3, 1])}
    before, after = (ReferenceEvaluator(each).run(None, feed) for each in (onnx.load(path), onnx_ir.to_proto(model)))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert take_rows_by_gather(model) == 0


def test_masks_are_raised_and_other_constants_are_not(tmp_path: Path) -> None:
    import onnx_ir

    from hwmatrix.targets.qnn.graph import raise_masks

    model = onnx_ir.load(norm_graph(tmp_path, scale_first=True))
    assert raise_masks(model) == 1
    values = {name: value.const_value.numpy() for name, value in model.graph.initializers.items() if value.const_value is not None}
    assert values["mask"].tolist() == [[0.0, -100.0, 0.0, 0.0]]
    assert values["scale"].tolist() == [1.0, 2.0, 0.5, -1.0]
    assert raise_masks(model) == 0


@pytest.mark.parametrize("dtype", [Dtype.FLOAT16, Dtype.A16W8])
def test_by_default_the_htp_gets_the_operators_of_the_export(tmp_path: Path, dtype: Dtype) -> None:
    import onnx_ir

    from hwmatrix.targets.qnn.graph import make_graph

    path = norm_graph(tmp_path, scale_first=True, shape=(8, 16, 4))
    samples = [{"x": np.random.default_rng(0).normal(size=(8, 16, 4)).astype(np.float32)}]
    given = export("torch", path)
    made = make_graph(given, tmp_path, dtype=dtype, samples=samples)
    quantization = {"QuantizeLinear", "DequantizeLinear"}
    kinds = [{node.op_type for node in onnx_ir.load(each).graph} - quantization for each in (path, made.path)]
    assert kinds[1] <= kinds[0]
    assert made.prepared.preparation == given.prepared.preparation == (Preparation.TORCH_EXPORT, Preparation.FIXED_SHAPES)


def test_quantizing_writes_nothing_into_the_folder_of_the_export(tmp_path: Path) -> None:
    """In a container it is read-only. The tool prepares a norm in a copy, and reads a product from where it is."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from hwmatrix.targets.qnn.graph import make_graph

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 4)) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"], name="first")], "product", values[:1], values[1:], [weight]
    )
    path, own = tmp_path / "model.onnx", tmp_path / "own"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    own.mkdir()
    changed_at = tmp_path.stat().st_mtime_ns
    made = make_graph(export("torch", path), own, dtype=Dtype.A8W8, samples=[{"x": np.ones((2, 4), np.float32)}])
    assert made.path.parent == own
    assert tmp_path.stat().st_mtime_ns == changed_at


def test_the_float16_graph_keeps_masks_and_the_export_is_left_alone(tmp_path: Path) -> None:
    import onnx_ir

    path = norm_graph(tmp_path, scale_first=True)
    before = path.read_bytes()
    made = rewritten_graph(path, tmp_path / "made", Dtype.FLOAT16, ())
    assert path.read_bytes() == before
    assert made.prepared.replaced == ("RMS norm",)
    mask = onnx_ir.load(made.path).graph.initializers["mask"].const_value
    assert mask is not None
    assert mask.numpy().min() == FLOAT_MIN


def test_random_samples_are_of_the_same_kind() -> None:
    from hwmatrix.models.calibration import TokenIds, random_samples

    inputs = {
        "input_ids": np.array([[9, 1, 2, 3, 8]]),
        "attention_mask": np.ones((1, 5), np.int64),
        "pixel_values": np.full((1, 3, 4, 4), 2.0, np.float32) + np.arange(4, dtype=np.float32),
    }
    ids = TokenIds(count=10, special=frozenset({8, 9}))
    first, *others = itertools.islice(random_samples(inputs, ids), 50)
    assert all(first[name] is inputs[name] for name in inputs)
    tokens = np.concatenate([other["input_ids"] for other in others])
    assert (tokens[:, 0] == 9).all()
    assert (tokens[:, 4] == 8).all()
    assert set(tokens[:, 1:4].ravel()) == set(range(8))
    assert all((other["attention_mask"] == 1).all() for other in others)
    pixels = np.stack([other["pixel_values"] for other in others])
    assert pixels.dtype == np.float32
    assert pixels.mean() == pytest.approx(3.5, abs=0.1)
    assert pixels.std() == pytest.approx(inputs["pixel_values"].std(), rel=0.1)
    again = list(itertools.islice(random_samples(inputs, ids), 50))[1:]
    assert all((a[name] == b[name]).all() for a, b in zip(others, again, strict=True) for name in inputs)


@dataclasses.dataclass
class Node:
    op_type: str


@dataclasses.dataclass
class Part:
    """A part of an assignment, as onnxruntime gives it."""

    ep_name: str
    operators: tuple[str, ...]

    def get_nodes(self) -> list[Node]:
        return [Node(operator) for operator in self.operators]


@dataclasses.dataclass
class Output:
    name: str


class Session:
    """What stands in for a session: an assignment, and outputs."""

    def __init__(self, *parts: Part) -> None:
        self._parts = parts

    def get_provider_graph_assignment_info(self) -> tuple[Part, ...]:
        return self._parts

    def get_outputs(self) -> list[Output]:
        return [Output("l"), Output("internal"), Output("ids")]

    def run(self, names: list[str], feed: dict[str, Any]) -> list[Any]:
        assert feed.keys() == {"x"}
        given = {"l": np.ones(2, np.float16), "ids": np.ones(2, np.int64)}
        return [given[name] for name in names]


WHOLE = Session(Part(QNN, ("Add", "Mul")))
HALF = Session(Part(QNN, ("Add",)), Part(CPU, ("Einsum",)))
THIRD = Session(Part(QNN, ("Add",)), Part(CPU, ("Einsum", "Einsum")))
NOTHING = Session(Part(CPU, ("Add",)))


def export(exporter: str, path: Path = Path("model.onnx")) -> OnnxExport:
    return OnnxExport(exporter=exporter, path=path, inputs=("x",), outputs=("logits", None, "ids"), opset=20, seconds=1.0)


def target(monkeypatch: pytest.MonkeyPatch, **sessions: Session | Exception) -> Any:
    """A target whose exports lead to these sessions, or fail."""
    from hwmatrix.targets.qnn import target as qnn
    from hwmatrix.targets.qnn.graph import QnnGraph

    made = qnn.Qnn(settings=Settings(dtype=Dtype.FLOAT16, batch=1, sequence_length=1, threads=1), options={"soc_model": 57})
    made._exports = tuple(export(exporter) for exporter in sessions)

    def session(model: str) -> Session:
        found = sessions[Path(model).name]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(made, "session", session)
    monkeypatch.setattr(qnn, "make_graph", lambda given, *_, **__: QnnGraph(path=Path(given.exporter), prepared=given.prepared))
    return made


X = {"x": np.ones(2, np.float32), "unused": np.ones(1)}


@pytest.mark.parametrize(
    ("sessions", "kept", "share"),
    [
        ({"transformers": HALF, "torch": WHOLE}, "torch", 1.0),
        ({"transformers": HALF, "torch": THIRD}, "transformers", 0.5),
        ({"transformers": HALF, "torch": HALF}, "transformers", 0.5),
        ({"transformers": WHOLE, "torch": RuntimeError("never tried")}, "transformers", 1.0),
        ({"transformers": RuntimeError("Failed to finalize"), "torch": THIRD}, "torch", 1 / 3),
        ({"transformers": NOTHING}, "transformers", 0.0),
    ],
)
def test_the_better_placed_export_is_kept(monkeypatch: pytest.MonkeyPatch, sessions: dict[str, Any], kept: str, share: float) -> None:
    made = target(monkeypatch, **sessions)
    assert made.prepare(X).preparation[0] == exported_by(kept)
    assert made.placement().on_target == pytest.approx(share)


def test_placement_names_what_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    made = target(monkeypatch, torch=THIRD)
    made.prepare(X)
    assert made.placement().detail == f"1 of 3 nodes assigned to {QNN} (soc_model 57); {CPU}: Einsum 2"


def test_outputs_have_the_names_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    made = target(monkeypatch, torch=WHOLE)
    made.prepare(X)
    outputs = made.outputs(made.run())
    assert {name: array.dtype for name, array in outputs.items()} == {"logits": np.float32, "ids": np.int64}


def test_when_no_export_can_be_prepared_both_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = target(monkeypatch, transformers=RuntimeError("Failed to finalize QNN graph"), torch=ValueError("another reason"))
    with pytest.raises(CellFailure, match=r"RuntimeError: Failed to finalize QNN graph; ValueError: another reason") as caught:
        made.prepare(X)
    assert caught.value.error_type == "qnn_graph_failed"


def test_memory_that_ran_out_is_not_taken_for_a_bad_export(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemoryError):
        target(monkeypatch, transformers=MemoryError(), torch=WHOLE).prepare(X)


def test_without_an_export_the_exporters_have_the_word(monkeypatch: pytest.MonkeyPatch) -> None:
    made = target(monkeypatch)
    message = "No ONNX function found for <OpOverload(op='aten.lgamma', overload='default')>."
    made._failures = tuple(
        OnnxFailure(exporter=name, error_type="E", message=message, traceback=None) for name in ("transformers", "torch")
    )
    with pytest.raises(UnsupportedError) as caught:
        made.prepare(X)
    assert caught.value.needs == ("aten.lgamma",)


def test_a_precision_that_the_htp_has_not_is_unsupported() -> None:
    from hwmatrix.targets.qnn.target import Qnn

    made = Qnn(settings=Settings(dtype=Dtype.FLOAT32, batch=1, sequence_length=1, threads=1), options={})
    with pytest.raises(UnsupportedError, match="not in float32") as caught:
        made.check()
    assert (caught.value.needs, caught.value.error_type) == (("float32",), "unsupported_dtype")


@pytest.mark.parametrize("soc_model", [57, 9999])
def test_the_chip_is_asked_for_in_the_check(soc_model: int) -> None:
    """With the real emulation: onnxruntime by itself would go on on the CPU, in silence."""
    pytest.importorskip("onnxruntime_qnn")
    from hwmatrix.targets.qnn.target import Qnn

    made = Qnn(settings=Settings(dtype=Dtype.FLOAT16, batch=1, sequence_length=1, threads=1), options={"soc_model": soc_model})
    if soc_model == 57:
        assert made.check().endswith("soc_model 57")
    else:
        with pytest.raises(UnavailableError, match="9999") as caught:
            made.check()
        assert caught.value.error_type == "qnn_soc_model"
