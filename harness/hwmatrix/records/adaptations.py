"""Which changes to a failed cell may be tried, and which change a retried cell has."""

from __future__ import annotations

import dataclasses
import types
from typing import TYPE_CHECKING, Annotated, Any, Final

import pydantic

from hwmatrix.records.vocabulary import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PRECISIONS: Final[Mapping[Dtype, tuple[Dtype, ...]]] = types.MappingProxyType(
    {
        Dtype.FLOAT32: (Dtype.BFLOAT16, Dtype.FLOAT16),
        Dtype.FLOAT16: (Dtype.BFLOAT16, Dtype.FLOAT32),
        Dtype.BFLOAT16: (Dtype.FLOAT32,),
        Dtype.A8W8: (Dtype.A16W8, Dtype.INT8_DYNAMIC, Dtype.INT8, Dtype.FLOAT16),
        Dtype.A16W8: (Dtype.FLOAT16,),
        Dtype.INT8_DYNAMIC: (Dtype.INT8, Dtype.FLOAT16, Dtype.FLOAT32),
        Dtype.INT8: (Dtype.FLOAT16, Dtype.FLOAT32),
        Dtype.INT4: (Dtype.INT8, Dtype.INT8_DYNAMIC, Dtype.FLOAT16, Dtype.FLOAT32),
        Dtype.INT4_FLOAT16: (Dtype.INT4, Dtype.FLOAT16, Dtype.FLOAT32),
        Dtype.DEFAULT: (Dtype.FLOAT32,),
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptRule:
    """What a run tries where a cell fails, one change at a time: smaller batches, other precisions, other exports, replaced operators.

    ``halvings`` is how often the batch is halved at most. ``precision`` lists, for each precision that failed, the ones to try instead, in
    order; precisions that the target does not support are skipped.
    """

    halvings: Annotated[int, pydantic.Field(ge=0)] = 3
    precision: dict[Dtype, tuple[Dtype, ...]] = dataclasses.field(default_factory=lambda: dict(_PRECISIONS))
    export: bool = True
    rewrite: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a cell. Exactly one is set: a smaller batch, another precision, another way of exporting, or replaced operators."""

    batch: int | None = None
    dtype: Dtype | None = None
    export: str | None = None
    rewrite: bool | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The changed setting by name, such as ``{"batch": 4}``."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adaptation:
    """Marks a cell as a changed retry of a failed one: ``of`` is that cell's key, ``model`` the model's name in the run's plan."""

    of: str
    model: str
    change: Change


def in_words(change: Mapping[str, Any], *, batch: int, dtype: str) -> str:
    """Describe a change, given the batch and the precision that failed: ``batch 4 instead of 8``."""
    phrases: dict[str, Callable[[Any], str]] = {
        "batch": lambda value: f"batch {value} instead of {batch}",
        "dtype": lambda value: f"{value} instead of {dtype}",
        "export": lambda value: "a trace instead of an export" if value == "trace" else f"the {value} export",
        "rewrite": lambda _: "operators replaced",
    }
    return ", ".join(phrases[name](value) for name, value in change.items())
