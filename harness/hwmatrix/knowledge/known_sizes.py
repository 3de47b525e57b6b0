"""The size of a model: from the meta device, or, without torch, from the packaged table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwmatrix.errors import FactoryError
from hwmatrix.models.listed_sizes import listed_sizes
from hwmatrix.models.sizes import ModelSize, model_size
from hwmatrix.records import Dtype

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.models.listed_sizes import ListedSize, Pass
    from hwmatrix.records import ModelPlan

_WEIGHT_BYTES: Final = {Dtype.FLOAT32: 4, Dtype.FLOAT16: 2, Dtype.BFLOAT16: 2, Dtype.A16W8: 1, Dtype.A8W8: 1}
_ACTIVATION_BYTES: Final = {Dtype.FLOAT32: 4, Dtype.FLOAT16: 2, Dtype.BFLOAT16: 2, Dtype.A16W8: 2, Dtype.A8W8: 1}


def known_size(plan: ModelPlan, dtype: Dtype, *, cache: Path | None = None) -> tuple[ModelSize, str]:
    """A model's size with the plan's settings, and where it is from, in words (empty: from the model itself).

    Raises:
        FactoryError: as of ``model_size``; ``not_installed`` where torch or transformers is missing and the table has no such model.
    """
    try:
        return model_size(plan, dtype, cache=cache), ""
    except FactoryError as failure:
        if failure.error_type != "not_installed":
            raise
        listed = _listed(plan)
        if listed is None:
            raise
        return _scaled(listed, plan, dtype), "size from the table that comes with hwmatrix, since torch is not installed here"


def _listed(plan: ModelPlan) -> ListedSize | None:
    if plan.weights != "recipe":
        return None
    wanted = (plan.architecture, plan.model_class, plan.config)
    return next((size for size in listed_sizes() if (size.architecture, size.model_class, size.config) == wanted), None)


def _scaled(listed: ListedSize, plan: ModelPlan, dtype: Dtype) -> ModelSize:
    """The listed pass at another batch and sequence length: in proportion to the batch, and linear between the lengths listed."""
    weights, activations = _WEIGHT_BYTES[dtype], _ACTIVATION_BYTES[dtype]
    at = {name: _interpolated(name, listed.passes, plan.sequence_length) * plan.batch for name in _PASS_FIELDS}
    return ModelSize(
        parameters=listed.parameters,
        stored_bytes=listed.stored_bytes,
        stored_dtype=Dtype.FLOAT32.value,
        tied_bytes=listed.tied_bytes,
        weight_bytes=listed.stored_bytes * weights // 4,
        dtypes={dtype.value: listed.stored_bytes * weights // 4},
        input_bytes=round(at["input_bytes"]),
        activation_bytes=round(at["activation_bytes"] * activations / 4),
        output_bytes=round(at["output_bytes"]),
        largest_output_bytes=round(at["largest_output_bytes"]),
        method="table",
    )


_PASS_FIELDS: Final = ("input_bytes", "activation_bytes", "output_bytes", "largest_output_bytes")


def _interpolated(field: str, passes: tuple[Pass, ...], length: int) -> float:
    """Between the two listed lengths around it; beyond them on the line through the nearest two."""
    ordered = sorted(passes, key=lambda entry: entry.sequence_length)
    if len(ordered) == 1:
        return float(getattr(ordered[0], field))
    above = next((index for index, entry in enumerate(ordered) if entry.sequence_length >= length), len(ordered) - 1)
    low, high = ordered[max(above - 1, 0)], ordered[max(above, 1)]
    slope = (getattr(high, field) - getattr(low, field)) / (high.sequence_length - low.sequence_length)
    return float(max(0.0, getattr(low, field) + slope * (length - low.sequence_length)))
