"""What ExecuTorch gets instead of operators that it cannot execute gives the same numbers."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")
operators = pytest.importorskip("hwmatrix.targets.executorch.operators")

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": (2, 4, 4)},
        {"stride": 2, "padding": 1},
        {"padding": (1, 0, 2), "dilation": (2, 1, 1)},
        {"groups": 2},
        {"padding": "valid"},
        {"padding": "same"},
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_of_volumes(options: dict[str, Any], *, bias: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Conv3d(4, 6, (3, 3, 3), bias=bias, **options).double()
    volume = torch.randn(2, 4, 7, 9, 8, dtype=torch.float64)
    expected = layer(volume)
    with operators.Replacing(set()):
        actual = layer(volume)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    values = torch.linspace(-6, 6, 101, dtype=torch.float64)
    function = functools.partial(torch.nn.functional.gelu, approximate=approximate)
    expected = function(values)
    with operators.Replacing(set()):
        actual = function(values)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("divisor", [5, -5, 2.5, torch.tensor([5, -5, 3, 1, 7])])
@pytest.mark.parametrize("function", [torch.remainder, torch.Tensor.remainder, lambda values, divisor: values % divisor])
def test_remainders_of_negative_numbers(function: Any, divisor: Any) -> None:
    values = torch.tensor([7, -7, 60, -1, 0])
    expected = function(values, divisor)
    with operators.Replacing(set()):
        actual = function(values, divisor)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("options", [{"dim": 1}, {"dim": -1}, {"dim": 1, "keepdim": True}, {}])
@pytest.mark.parametrize("function", [torch.max, torch.Tensor.max])
def test_the_largest_along_an_axis(function: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    values = torch.randn(2, 3, 4)
    expected = function(values, **options)
    with operators.Replacing(set()):
        actual = function(values, **options)
        assert torch.equal(torch.max(values, values.flip(1)), torch.maximum(values, values.flip(1)))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    if options:
        assert torch.equal(actual.indices, expected.indices)


@pytest.mark.parametrize("options", [{}, {"dim": 0}, {"descending": True}, {"dim": 1, "stable": True}])
@pytest.mark.parametrize("function", [torch.sort, torch.Tensor.sort, torch.argsort, torch.Tensor.argsort])
def test_an_order(function: Any, options: dict[str, Any]) -> None:
    values = torch.tensor([[3, 1, 2, 9], [7, 8, 0, 5], [6, 4, 11, 10]])
    expected = function(values, **options)
    with operators.Replacing(set()):
        actual = function(values, **options)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_arguments_that_a_replacement_does_not_know_go_to_pytorch() -> None:
    values, others = torch.tensor([7, -7, 3]), torch.tensor([5, 5, 5])
    with operators.Replacing(set()):
        assert torch.equal(torch.remainder(input=values, other=others), torch.tensor([2, 3, 3]))
        assert torch.equal(torch.max(values, other=others), torch.tensor([7, 5, 5]))
        assert torch.sort(input=values).values.tolist() == [-7, 3, 7]


def test_only_a_shift_by_the_own_maximum_is_dropped() -> None:
    class Model(torch.nn.Module):
        def forward(self, values: Any, others: Any) -> tuple[Any, ...]:
            same = torch.softmax(values - values.max(dim=-1, keepdim=True).values, 2)
            another_axis = torch.softmax(values - values.max(dim=1, keepdim=True).values, -1)
            of_others = torch.softmax(values - others.max(dim=-1, keepdim=True).values, -1)
            return same, another_axis, of_others

    given = (torch.randn(2, 3, 4), torch.randn(2, 3, 4))
    program = torch.export.export(Model(), given)
    operators.drop_shifts(program.graph_module, set())
    softmaxes = [node for node in program.graph.nodes if "softmax" in str(node.target)]
    assert [str(node.args[0].target) for node in softmaxes] == ["values", "aten.sub.Tensor", "aten.sub.Tensor"]
    for actual, expected in zip(program.module()(*given), Model()(*given), strict=True):
        torch.testing.assert_close(actual, expected)
