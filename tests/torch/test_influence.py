"""An input that changes nothing does not count as given."""

from __future__ import annotations

import pytest
import torch

from hwmatrix.errors import FactoryError
from hwmatrix.models.influence import without_influence

pytestmark = pytest.mark.torch
Tensors = dict[str, torch.Tensor]


def inputs() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.arange(4)[None],
        "pixel_values": torch.randn(1, 3, 4, 4, generator=generator),
        "input_features": torch.randn(1, 8, 4, generator=generator),
    }


def sees(given: Tensors) -> Tensors:
    return {"logits": given["input_ids"] + given["pixel_values"].mean()}


def test_what_is_not_looked_at_is_named() -> None:
    given = inputs()
    kept = {name: tensor.clone() for name, tensor in given.items()}
    assert without_influence(sees, given, sees(given)) == {"audio"}
    assert all(torch.equal(given[name], kept[name]) for name in kept)


def test_what_a_model_refuses_it_has_read() -> None:
    given = inputs()
    outputs = {"logits": torch.zeros(1)}

    def picky(others: Tensors) -> Tensors:
        if not torch.equal(others["input_features"], given["input_features"]):
            raise FactoryError("not these", error_type="reference_failed")
        return outputs

    assert without_influence(picky, given, outputs) == {"image"}


def test_codes_are_moved_and_stay_within_their_range() -> None:
    seen: list[torch.Tensor] = []

    def coded(others: Tensors) -> Tensors:
        seen.append(others["audio_codes"])
        return {"logits": others["audio_codes"] * 2}

    given = {"audio_codes": torch.tensor([[1, 5, 9]])}
    assert without_influence(coded, given, coded(given)) == frozenset()
    assert sorted(seen[-1].flatten().tolist()) == [1, 5, 9]


def test_models_of_text_alone_have_nothing_to_ignore() -> None:
    given = {"input_ids": torch.arange(4)[None]}
    assert without_influence(lambda _: {"logits": torch.zeros(1)}, given, {"logits": torch.zeros(1)}) == frozenset()
