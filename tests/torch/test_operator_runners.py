"""Operator tests on the runtimes that are installed here: what passes, what is lacking, types that numpy has no name for."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from factory_operators import operator_test, packed, tensor

from hwmatrix.errors import UnsupportedError
from hwmatrix.records import Backend
from hwmatrix.records.backends import descriptor_of
from hwmatrix.runner.operator_verdict import judge
from hwmatrix.targets.protocol import operators_class

if TYPE_CHECKING:
    from hwmatrix.models.operator_tests import OperatorTest
    from hwmatrix.targets.protocol import OperatorRunner

onnx = pytest.importorskip("onnx")
RUNTIMES = {Backend.OPENVINO: "openvino", Backend.ONNXRUNTIME: "onnxruntime"}


@pytest.fixture(params=RUNTIMES, ids=lambda backend: backend.value)
def runner(request: pytest.FixtureRequest) -> OperatorRunner:
    if importlib.util.find_spec(RUNTIMES[request.param]) is None:
        pytest.skip(f"{RUNTIMES[request.param]} is not installed here")
    made = operators_class(request.param)(options={})
    assert made.check()
    return made


def graph(operator: str, inputs: list[Any], outputs: list[Any], *, domain: str = "", opset: int = 20, **attributes: Any) -> OperatorTest:
    """A test of one node; element types are ONNX's numbers of numpy's types, or 16 for bfloat16."""
    helper = onnx.helper

    def ports(kind: str, values: list[Any]) -> list[Any]:
        types = [16 if value.element == "bfloat16" else helper.np_dtype_to_tensor_dtype(value.array.dtype) for value in values]
        return [
            helper.make_tensor_value_info(f"{kind}{n}", type_, value.shape)
            for n, (type_, value) in enumerate(zip(types, values, strict=True))
        ]

    into, out = ports("x", inputs), ports("y", outputs)
    node = helper.make_node(operator, [port.name for port in into], [port.name for port in out], domain=domain, **attributes)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(helper.make_graph([node], "test", into, out), opset_imports=opsets, ir_version=10)
    return operator_test(
        "test",
        *outputs,
        operator=operator,
        model=model.SerializeToString(),
        inputs=tuple((port.name, value) for port, value in zip(into, inputs, strict=True)),
    )


def test_every_runner_has_its_module() -> None:
    assert all(descriptor_of(name).operators for name in RUNTIMES)


def test_a_test_passes_wholly_on_the_target(runner: OperatorRunner) -> None:
    one, two = tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), tensor(np.ones((2, 3), dtype=np.float32))
    test = graph("Add", [one, two], [tensor(one.array + 1)])
    executed = runner.execute(test)
    assert executed.on_target == 1.0
    assert judge(test, executed.outputs, relative_error=None).problem is None


def test_wrong_numbers_are_found_out(runner: OperatorRunner) -> None:
    one = tensor([1.0, 2.0])
    test = graph("Neg", [one], [one])
    assert judge(test, runner.execute(test).outputs, relative_error=None).problem == "output y0: 2 of 2 values differ, by 4 at most"


def test_whole_numbers_and_truth_values_keep_their_types(runner: OperatorRunner) -> None:
    test = graph("Less", [tensor([1, 5], "int64"), tensor([2, 2], "int64")], [tensor([True, False], "bool")])
    assert judge(test, runner.execute(test).outputs, relative_error=None).problem is None


def test_bfloat16_goes_in_and_comes_out(runner: OperatorRunner) -> None:
    raw = packed("bfloat16", (2,), 0x80, 0x3F, 0x20, 0xC1)  # 1 and -10
    wider = graph("Cast", [raw], [tensor([1.0, -10.0])], to=1)
    assert judge(wider, runner.execute(wider).outputs, relative_error=None).problem is None
    narrower = graph("Cast", [tensor([1.0, -10.0])], [raw], to=16)
    assert judge(narrower, runner.execute(narrower).outputs, relative_error=None).problem is None


def test_an_operator_that_is_lacking_is_named(runner: OperatorRunner) -> None:
    value = tensor([1.0, 2.0])
    with pytest.raises(UnsupportedError) as caught:
        runner.execute(graph("Momentum", [value], [value], domain="ai.onnx.preview.training"))
    assert caught.value.needs == ("ai.onnx.preview.training.Momentum",)
    assert caught.value.error_type == "unsupported_operator"
