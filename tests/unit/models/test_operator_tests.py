from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from hwmatrix.errors import BundleError
from hwmatrix.models import operator_tests
from hwmatrix.models.operator_tests import Tensor

if TYPE_CHECKING:
    from pathlib import Path

onnx = pytest.importorskip("onnx")


def case(name: str, operator: str, inputs: list[Any], outputs: list[Any], *, nodes: tuple[str, ...] = ()) -> Any:
    """A test in the format of onnx.backend.test, whose graph has one or several nodes."""
    helper = onnx.helper
    ports = [
        [helper.make_tensor_value_info(f"{kind}{n}", 1, None) for n in range(len(values))]
        for kind, values in (("x", inputs), ("y", outputs))
    ]
    made = [helper.make_node(kind, [port.name for port in ports[0]], [port.name for port in ports[1]]) for kind in nodes or (operator,)]
    model = helper.make_model(helper.make_graph(made, name, *ports), opset_imports=[helper.make_opsetid("", 20)])
    return SimpleNamespace(name=name, model=model, data_sets=[(inputs, outputs)], rtol=1e-3, atol=1e-7)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few tests in the standard's format, because computing all real ones takes several seconds."""
    from onnx.backend.test.case import node

    one, two = np.array([1.0, 2.0], dtype=np.float32), np.array([[3], [4]], dtype=np.int64)
    bfloat16 = onnx.helper.make_tensor("y", onnx.TensorProto.BFLOAT16, (3,), [1.0, 2.0, -10.0])
    small = onnx.helper.make_tensor("y", onnx.TensorProto.INT4, (3,), [1, -1, -8])
    cases = [
        case("test_add", "Add", [one, one], [one + one]),
        case("test_cast", "Cast", [one], [bfloat16, small]),
        case("test_string_concat", "StringConcat", [np.array(["abc"])], [np.array(["abc.com", "def.net"])]),
        case("test_sequence_insert", "SequenceInsert", [[two, two[:1]]], [[two]]),
        case("test_optional", "OptionalHasElement", [None], [np.zeros((), dtype=bool)]),
        case("test_gelu", "Gelu", [one], [one]),
        case("test_gelu_expanded", "", [one], [one], nodes=("Erf", "Mul")),
        case("test_bernoulli", "Bernoulli", [one], [one]),
        case("test_bernoulli_expanded_ver22", "", [one], [one], nodes=("RandomUniformLike", "Less")),
        case("test_training_dropout_default", "Dropout", [one], [one]),
        case("test_training_dropout_zero_ratio", "Dropout", [one], [one]),
    ]
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "collect_testcases", lambda: cases)
        place = operator_tests.make(folder)
        made = (place / "manifest.json").stat().st_mtime_ns
        assert operator_tests.make(folder) == place
    assert (place / "manifest.json").stat().st_mtime_ns == made  # found in the cache
    assert place.name == onnx.__version__
    return folder


def named(cache: Path, name: str) -> operator_tests.OperatorTest:
    return next(test for test in operator_tests.read(cache).tests if test.name == name)


def test_a_test_has_its_graph_inputs_outputs_and_tolerances(cache: Path) -> None:
    test = named(cache, "test_add")
    assert (test.operator, test.domain, test.expanded, test.random) == ("Add", "", False, False)
    assert (test.rtol, test.atol) == (1e-3, 1e-7)
    (x, a), (y, b) = test.inputs
    ((_, c),) = test.outputs
    assert isinstance(a, Tensor)
    assert isinstance(b, Tensor)
    assert isinstance(c, Tensor)
    np.testing.assert_array_equal(a.array + b.array, c.array)
    graph = onnx.ModelProto.FromString(test.model)
    assert [port.name for port in graph.graph.input] == [x, y]
    assert test.opset == next(opset.version for opset in graph.opset_import if opset.domain == "")


def test_types_that_numpy_lacks_are_stored_as_bytes(cache: Path) -> None:
    (_, wide), (_, packed) = named(cache, "test_cast").outputs
    assert isinstance(wide, Tensor)
    assert isinstance(packed, Tensor)
    assert [(value.element, value.shape, value.native) for value in (wide, packed)] == [("bfloat16", (3,), False), ("int4", (3,), False)]
    assert wide.array.tobytes() == np.array([1.0, 2.0, -10.0], dtype=ml_dtypes.bfloat16).tobytes()
    assert packed.array.tolist() == [0xF1, 0x08]  # 1 and -1, then -8: the first in the lowest bits


def test_strings_sequences_and_empty_optionals_are_stored(cache: Path) -> None:
    strings = named(cache, "test_string_concat").outputs[0][1]
    assert isinstance(strings, Tensor)
    assert strings.array.tolist() == ["abc.com", "def.net"]
    sequence = named(cache, "test_sequence_insert").inputs[0][1]
    assert isinstance(sequence, tuple)
    assert [(element.element, element.array.tolist()) for element in sequence] == [("int64", [[3], [4]]), ("int64", [[3]])]
    assert named(cache, "test_optional").inputs[0][1] is None


def test_expanded_and_random_tests_are_marked(cache: Path) -> None:
    tests = operator_tests.read(cache).tests
    assert {test.name: test.operator for test in tests if test.expanded} == {
        "test_gelu_expanded": "Gelu",
        "test_bernoulli_expanded_ver22": "Bernoulli",
    }
    assert {test.name for test in tests if test.random} == {
        "test_bernoulli",
        "test_bernoulli_expanded_ver22",
        "test_training_dropout_default",
    }


def test_a_changed_file_is_detected_and_rebuilt(cache: Path, tmp_path: Path) -> None:
    place = next((cache / operator_tests.TESTS_DIR).glob("[0-9]*"))
    copy = tmp_path / operator_tests.TESTS_DIR / place.name
    copy.mkdir(parents=True)
    for file in place.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert operator_tests.read(tmp_path).digest == operator_tests.read(cache).digest
    blob = bytearray((copy / "tests.bin").read_bytes())
    blob[100] ^= 1
    (copy / "tests.bin").write_bytes(blob)
    with pytest.raises(BundleError, match="differs in size or checksum"):
        operator_tests.read(tmp_path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    place = tmp_path / operator_tests.TESTS_DIR / "1.0.0"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(json.dumps({"schema": "hwmatrix/operator-tests/0", "files": {}}))
    with pytest.raises(BundleError, match="has version 'hwmatrix/operator-tests/0'"):
        operator_tests.read(tmp_path)


def test_without_tests_the_error_says_where_they_are_built(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="made in the reference image") as caught:
        operator_tests.read(tmp_path)
    assert caught.value.error_type == "onnx_missing"
