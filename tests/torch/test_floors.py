"""Noise floors: what a precision alone does to a model's outputs, simulated on the CPU."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.models import floors
from hwmatrix.models.floors import noise_floors
from hwmatrix.records import Dtype

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch

SIMULATED = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.A16W8, Dtype.A8W8)
"""The precisions that have a floor. Weights that a target rounds alone are compared with its own graph instead."""


def model_of(forward: Any, *, width: int = 64) -> torch.nn.Module:
    """A model with a random matrix, in evaluation mode: ``forward(self, x)`` gives the tensor ``logits``."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": forward(self, x)}

    torch.manual_seed(0)
    return Model().eval()


def inputs(width: int = 64) -> list[dict[str, torch.Tensor]]:
    import torch

    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(4, width, generator=generator)} for _ in range(2)]


def floor_of(model: torch.nn.Module, dtype: Dtype) -> float:
    error: float = noise_floors(model, inputs())[dtype.value]["outputs"]["logits"]
    return error


def test_each_precision_costs_what_it_rounds_away() -> None:
    """A matrix product: the error is about that of one rounding of weights and values."""
    found = {dtype: floor_of(model_of(lambda model, x: model.linear(x)), dtype) for dtype in SIMULATED}
    assert 1e-9 < found[Dtype.FLOAT32] < 1e-6
    assert 2**-13 < found[Dtype.FLOAT16] < 2**-9
    assert 2**-10 < found[Dtype.BFLOAT16] < 2**-6
    assert 2**-11 < found[Dtype.A16W8] < 2**-5
    assert found[Dtype.A16W8] < found[Dtype.A8W8] < 2**-4


def test_more_operators_cost_more() -> None:
    def deep(model: Any, x: torch.Tensor) -> Any:
        for _ in range(6):
            x = model.linear(x).tanh()
        return x

    for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.A8W8):
        assert floor_of(model_of(deep), dtype) > floor_of(model_of(lambda model, x: model.linear(x)), dtype)


def test_what_becomes_infinite_when_rounded_saturates() -> None:
    """The variance of a small token is rounded to zero beside that of a large one: its inverse is infinite, and integers have none."""
    import torch

    def norm(model: Any, x: torch.Tensor) -> Any:
        x = x * torch.tensor([[100.0], [1.0], [1.0], [1e-3]])
        return model.linear(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    found = noise_floors(model_of(norm), inputs())
    assert found["float32"]["outputs"]["logits"] < 1e-6
    for dtype in ("a16w8", "a8w8"):
        assert 2**-8 < found[dtype]["outputs"]["logits"] < 1.0, found[dtype]


def test_views_and_operators_in_place_are_rounded_once() -> None:
    """An operator that only looks at a tensor in another way adds nothing; one that changes it in place is not left out."""

    def seen(model: Any, x: torch.Tensor) -> Any:
        return model.linear(x).t().t().view(64, 4).view(4, 64)

    plain = floor_of(model_of(lambda model, x: model.linear(x)), Dtype.A8W8)
    assert floor_of(model_of(seen), Dtype.A8W8) == pytest.approx(plain, rel=1e-6)
    squared = floor_of(model_of(lambda model, x: model.linear(x).mul(model.linear(x))), Dtype.A8W8)
    assert floor_of(model_of(lambda model, x: model.linear(x).mul_(model.linear(x))), Dtype.A8W8) == pytest.approx(squared, rel=1e-6)


def test_a_mask_takes_no_part_in_the_range() -> None:
    import torch

    def masked(model: Any, x: torch.Tensor) -> Any:
        mask = torch.zeros(4, 64).masked_fill(torch.arange(64) > 31, torch.finfo(torch.float32).min)
        return (model.linear(x) + mask).softmax(dim=-1)

    assert floor_of(model_of(masked), Dtype.A8W8) < 0.1


def test_what_overflows_is_told() -> None:
    found = noise_floors(model_of(lambda model, x: model.linear(x) * 1e6), inputs())
    assert found["float16"] == {"reason": "logits has NaN or infinity in this precision", "overflows": True}
    assert "outputs" in found["bfloat16"]


def test_a_precision_that_the_model_cannot_compute_in_has_a_reason() -> None:
    import torch

    def strict(model: Any, x: torch.Tensor) -> Any:
        if x.dtype is torch.float64:
            raise TypeError("no double")
        return model.linear(x)

    found = noise_floors(model_of(strict), inputs())
    assert found["float32"] == {"reason": "TypeError: no double"}
    assert "outputs" in found["float16"]


def test_nothing_is_left_behind() -> None:
    import torch

    model = model_of(lambda model, x: model.linear(x) + torch.ones(64))
    before = copy.deepcopy(model.state_dict())
    noise_floors(model, inputs())
    assert torch.get_default_dtype() is torch.float32
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_large_model_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "MOST_PARAMETERS", 100)
    found = noise_floors(model_of(lambda model, x: model.linear(x)), inputs())
    assert found.keys() == {dtype.value for dtype in SIMULATED}
    assert all("4,160 parameters" in entry["reason"] for entry in found.values())


def test_a_model_without_an_error_has_a_floor_of_zero() -> None:
    found = noise_floors(model_of(lambda _, x: x * 0 + 1), inputs())
    assert math.isclose(found["float32"]["outputs"]["logits"], 0.0, abs_tol=1e-12)
