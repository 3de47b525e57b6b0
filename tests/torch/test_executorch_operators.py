"""What ExecuTorch gets instead of operators that it cannot execute gives the same numbers."""

from __future__ import annotations

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
    plain = torch.nn.functional.conv3d
    expected = layer(volume)
    with operators.replaced():
        assert torch.nn.functional.conv3d is not plain
        actual = layer(volume)
    assert torch.nn.functional.conv3d is plain
    torch.testing.assert_close(actual, expected)
