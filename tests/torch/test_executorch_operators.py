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
    with operators.Replacing():
        actual = layer(volume)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    values = torch.linspace(-6, 6, 101, dtype=torch.float64)
    function = functools.partial(torch.nn.functional.gelu, approximate=approximate)
    expected = function(values)
    with operators.Replacing():
        actual = function(values)
    torch.testing.assert_close(actual, expected)
