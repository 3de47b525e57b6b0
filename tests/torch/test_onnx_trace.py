"""Where a wrong result begins in ONNX graphs: real graphs, in the real ONNX Runtime and QNN's real emulation."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hwmatrix.errors import TraceError
from hwmatrix.measure.divergence import locate
from hwmatrix.models.onnx_export import OnnxExport
from hwmatrix.records import Dtype, Origin, Settings
from hwmatrix.targets.onnx import trace as onnx_trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

pytestmark = pytest.mark.torch
Arrays = dict[str, np.ndarray[Any, Any]]
RANDOM = np.random.default_rng(0)


def write(
    path: Path,
    nodes: Sequence[Any],
    *,
    shapes: Mapping[str, tuple[int, ...]],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray[Any, Any]],
    beside: bool = False,
) -> Path:
    """A graph of these nodes; ``shapes`` are those of its inputs, which are float32."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        list(nodes),
        "made",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.save(model, path, save_as_external_data=beside, location=f"{path.name}.data", size_threshold=0)
    return path


def node(kind: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(kind, inputs.split(), outputs.split(), name=name, **attributes)


def folder(parent: Path) -> Path:
    made = parent / "copy"
    made.mkdir()
    return made


def test_constants_are_no_values_and_nodes_without_names_can_be_found(tmp_path: Path) -> None:
    constants: Arrays = {"w": np.ones((4, 4), np.float32), "shape": np.array([4, 2], np.int64)}
    nodes = [
        node("Constant", "", "two", value_float=2.0),
        node("Mul", "w two", "w2"),
        node("MatMul", "x w2", "a"),
        node("Reshape", "a shape", "b", name="fold"),
        node("TopK", "b k", "y i", name="pick"),
    ]
    path = write(tmp_path / "m.onnx", nodes, shapes={"x": (2, 4)}, outputs=["y"], constants=constants | {"k": np.array([1], np.int64)})
    before = path.read_bytes()
    kept = onnx_trace.all_values(path, folder(tmp_path))
    assert [(step.name, step.operator, step.inputs, step.outputs) for step in kept.steps] == [
        ("MatMul_2", "MatMul", ("x",), ("a",)),
        ("fold", "Reshape", ("a",), ("b",)),
        ("pick", "TopK", ("b",), ("y", "i")),
    ]
    assert (kept.names, kept.results) == (("y", "a", "b", "i"), ("y",))
    assert path.read_bytes() == before
    only = onnx_trace.all_values(path, folder(tmp_path / "copy"), only=frozenset({"b"}))
    assert (only.names, only.steps) == (("y", "b"), kept.steps)


def refused(*_: Any) -> None:
    raise OSError("another file system")


@pytest.mark.parametrize("links", [True, False])
def test_data_that_lies_beside_a_graph_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool) -> None:
    pytest.importorskip("onnxruntime")
    weights = RANDOM.normal(size=(4, 4)).astype(np.float32)
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "y")]
    path = write(tmp_path / "m.onnx", nodes, shapes={"x": (2, 4)}, outputs=["y"], constants={"w": weights}, beside=True)
    if not links:
        monkeypatch.setattr("os.link", refused)
    kept = onnx_trace.all_values(path, folder(tmp_path))
    x = RANDOM.normal(size=(2, 4)).astype(np.float32)
    values = onnx_trace.reference_values(kept.path, {"x": x}, kept.names)
    np.testing.assert_allclose(values["a"], x @ weights, rtol=1e-5)
    np.testing.assert_allclose(values["y"], np.maximum(x @ weights, 0), rtol=1e-5)


def test_sequences_are_no_values_and_graphs_in_a_node_are_read_from_outside(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    def branch(kind: str) -> Any:
        return helper.make_graph(
            [node(kind, "a", f"{kind}.y")], kind, [], [helper.make_tensor_value_info(f"{kind}.y", TensorProto.FLOAT, None)]
        )

    nodes = [
        node("Exp", "x", "a"),
        node("SplitToSequence", "a", "parts", axis=0),
        node("SequenceAt", "parts first", "part"),
        node("ReduceSum", "part", "sum", keepdims=0),
        node("Greater", "sum zero", "positive"),
        node("If", "positive", "y", name="choose", then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    constants = {"first": np.array(0), "zero": np.array(0.0, np.float32)}
    path = write(tmp_path / "m.onnx", nodes, shapes={"x": (2, 4)}, outputs=["y"], constants=constants)
    kept = onnx_trace.all_values(path, folder(tmp_path))
    assert kept.names == ("y", "a", "part", "sum", "positive")
    assert kept.steps[-1].inputs == ("positive", "a")
    x = np.zeros((2, 4), np.float32)
    values = onnx_trace.reference_values(kept.path, {"x": x}, kept.names)
    assert {name: array.dtype for name, array in values.items()} == {
        name: np.dtype(bool if name == "positive" else np.float32) for name in kept.names
    }
    assert (values["y"] == -1).all()


def test_of_a_quantized_graph_the_values_are_those_that_come_back(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    nodes = [
        node("QuantizeLinear", "x s z", "x.q"),
        node("DequantizeLinear", "x.q s z", "x.d"),
        node("DequantizeLinear", "w.q s z", "w"),
        node("MatMul", "x.d w", "a", name="mix"),
        node("QuantizeLinear", "a s z", "a.q"),
        node("DequantizeLinear", "a.q s z", "a.d"),
        node("Relu", "a.d", "b", name="cut"),
        node("QuantizeLinear", "b s z", "b.q"),
        node("DequantizeLinear", "b.q s z", "y"),
    ]
    constants: Arrays = {"s": np.array(0.1, np.float32), "z": np.array(128, np.uint8), "w.q": np.full((4, 4), 130, np.uint8)}
    path = write(tmp_path / "m.onnx", nodes, shapes={"x": (2, 4)}, outputs=["y"], constants=constants)
    kept = onnx_trace.all_values(path, folder(tmp_path))
    assert kept.names == ("y", "x.d", "a.d")
    values = onnx_trace.reference_values(kept.path, {"x": np.ones((2, 4), np.float32)}, kept.names)
    trace = onnx_trace.traced(kept, values=values, expected=values, outputs=("logits",))
    assert [(step.name, step.operator, step.inputs) for step in trace.steps[1:]] == [("mix", "MatMul", ("x.d",)), ("cut", "Relu", ("a.d",))]


def test_values_that_take_too_much_are_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    path = write(tmp_path / "m.onnx", [node("Exp", "x", "y")], shapes={"x": (1024, 1024)}, outputs=["y"], constants={})
    monkeypatch.setattr(onnx_trace, "LIMIT_MB", 3)
    with pytest.raises(TraceError, match="the 1 values of the graph take 4 MiB, more than the limit of 3"):
        onnx_trace.reference_values(path, {"x": np.zeros((1024, 1024), np.float32)}, ["y"])


@dataclasses.dataclass
class Bundle:
    """As much of a bundle as a target asks for once it is prepared."""

    arrays: Arrays

    def input_arrays(self) -> Arrays:
        return self.arrays


def export(path: Path) -> OnnxExport:
    return OnnxExport(exporter="torch", path=path, inputs=("x",), outputs=("logits",), opset=23, seconds=1.0)


def ready(target: Any, path: Path, inputs: Arrays) -> Arrays:
    """Check, prepare and run a target with one graph; its outputs."""
    target.check()
    target._exports = (export(path),)
    target.prepare(inputs)
    outputs: Arrays = target.outputs(target.run())
    return outputs


def test_what_onnx_runtime_fuses_wrongly_is_told_from_a_wrong_graph(tmp_path: Path) -> None:
    """Zeros around a picture of negative numbers are lost where ``Pad`` is taken into ``MaxPool`` (ONNX Runtime 1.31)."""
    pytest.importorskip("onnxruntime")
    from hwmatrix.targets.onnx.onnxruntime import OnnxRuntime

    nodes = [
        node("Neg", "x", "a"),
        node("Pad", "a around", "b", name="frame"),
        node("MaxPool", "b", "y", name="pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    constants = {"around": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    path = write(tmp_path / "m.onnx", nodes, shapes={"x": (1, 1, 4, 4)}, outputs=["y"], constants=constants)
    inputs = {"x": np.ones((1, 1, 4, 4), np.float32)}
    right = np.array([[[[0, 0, 0], [0, -1, 0], [0, 0, 0]]]], np.float32)
    target = OnnxRuntime(settings=Settings(dtype=Dtype.FLOAT32, batch=1, sequence_length=1, threads=1), options={})
    outputs = ready(target, path, inputs)
    assert not np.array_equal(outputs["logits"], right)
    trace = target.trace(Bundle(inputs))  # type: ignore[arg-type]
    assert trace.values.keys() == trace.expected.keys() == {"a", "b", "y"}
    assert locate(trace, {"logits": right}, 1e-4).origin is Origin.FUSED
    found = locate(trace, {"logits": right - 1}, 1e-4)
    assert (found.origin, found.against) == (Origin.GRAPH, onnx_trace.AGAINST)


def test_an_operator_that_the_htp_gets_wrong_is_named(tmp_path: Path) -> None:
    """It writes a part of the rows of a norm over several matrices (QAIRT 2.51)."""
    pytest.importorskip("onnxruntime_qnn")
    from hwmatrix.targets.qnn.target import Qnn

    nodes = [
        node("MatMul", "x w", "a", name="mix"),
        node("RMSNormalization", "a s", "b", name="norm", axis=-1, epsilon=1e-5),
        node("MatMul", "b w", "y", name="last"),
    ]
    constants = {"w": RANDOM.normal(size=(32, 32)).astype(np.float32), "s": np.ones(32, np.float32)}
    path = write(tmp_path / "m.onnx", nodes, shapes={"x": (2, 16, 32)}, outputs=["y"], constants=constants)
    inputs = {"x": RANDOM.normal(size=(2, 16, 32)).astype(np.float32)}
    expected = onnx_trace.reference_values(path, inputs, ["y"])
    target = Qnn(settings=Settings(dtype=Dtype.FLOAT16, batch=1, sequence_length=1, threads=1), options={})
    ready(target, path, inputs)
    found = locate(target.trace(Bundle(inputs)), {"logits": expected["y"]}, 2e-2)  # type: ignore[arg-type]
    assert (found.origin, found.at, found.operator) == (Origin.STEP, "norm", "RMSNormalization")
    assert found.inputs_error is not None
    assert found.inputs_error < 2e-3


def test_a_process_that_fails_tells_why(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    from hwmatrix.targets.qnn import values as qnn_values

    path = tmp_path / "m.onnx"
    path.write_bytes(b"no graph")
    with pytest.raises(TraceError, match=r"QNN returned no values for this graph \(exit code 1\): [\s\S]*Protobuf parsing failed"):
        qnn_values.read_apart(path, {"x": np.ones(2, np.float32)}, ["y"], soc_model=57, threads=1)
