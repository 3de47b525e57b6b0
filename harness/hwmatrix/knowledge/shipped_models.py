"""The models in the package: known by name in every folder, without a matrix.yaml or a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwmatrix.knowledge.stand_ins import classify
from hwmatrix.models.listed_sizes import listed_size, listed_sizes
from hwmatrix.records import Family, ModelPlan, Size

if TYPE_CHECKING:
    from hwmatrix.models.listed_sizes import ListedSize

SOURCE: Final = "the table of sizes that comes with hwmatrix"
_LENGTH: Final = 128
"""Tokens: what the matrix.yaml that comes with hwmatrix says of full size. A model that takes fewer, or needs more, gets those."""


def shipped_model(name: str) -> ModelPlan | None:
    """The model of sizes.yaml that a name stands for, in full size; None when it is none of them."""
    listed = listed_size(name)
    if listed is None:
        return None
    known = classify(listed.model, model_class=listed.model_class, architecture=listed.architecture)
    return ModelPlan(
        name=listed.model,
        size=Size.FULL,
        family=known.family or Family.EMBEDDING,
        architecture=listed.architecture,
        model_class=listed.model_class,
        hub_id=listed.hub_id,
        config=listed.config,
        sequence_length=_length_of(listed),
    )


def _length_of(listed: ListedSize) -> int:
    """The length nearest to the usual one that the model takes. Where one pass is listed, its size does not depend on the length."""
    lengths = sorted(each.sequence_length for each in listed.passes)
    return _LENGTH if len(lengths) == 1 else min(max(_LENGTH, lengths[0]), lengths[-1])


def shipped_names() -> list[str]:
    """The models of sizes.yaml, in its order: by hub id, which means something everywhere."""
    return [size.hub_id or size.model for size in listed_sizes()]
