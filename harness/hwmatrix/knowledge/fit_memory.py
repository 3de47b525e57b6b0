"""How much memory one model needs on one backend in one precision, at any batch: measured, else from the calibrated formula."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import FactoryError
from hwmatrix.knowledge.fit_document import Need
from hwmatrix.knowledge.known_sizes import known_size
from hwmatrix.knowledge.measured_memory import same_model
from hwmatrix.knowledge.requirements import Question, at_batch, estimate_for, peaks_on_record
from hwmatrix.records import Basis, Dtype

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hwmatrix.knowledge.measured_memory import MemoryOnRecord
    from hwmatrix.models.sizes import ModelSize

_LARGEST_BATCH: Final = 4096
_MIB: Final = 2**20


class ModelMemory:
    """One model on one backend in one precision: its peaks on record, and its size, found out when it is first needed."""

    def __init__(self, asked: Question, found: tuple[MemoryOnRecord, ...], cache: Path | None) -> None:
        self.asked = asked
        self.peaks = peaks_on_record(asked, found)
        self._found = found
        self._cache = cache

    def in_precision(self, dtype: Dtype) -> ModelMemory:
        """The same model, computed in another precision."""
        return ModelMemory(dataclasses.replace(self.asked, dtype=dtype), self._found, self._cache)

    @functools.cached_property
    def size(self) -> tuple[ModelSize, str] | FactoryError:
        """The size with the asked batch and where it is from, or why it cannot be told."""
        try:
            return known_size(self.asked.plan, self.asked.dtype, cache=self._cache)
        except FactoryError as failure:
            return failure

    @property
    def unknown(self) -> str | None:
        """Why the size cannot be told; None where it can."""
        return str(self.size) if isinstance(self.size, FactoryError) else None

    @property
    def weights_mb(self) -> float | None:
        """The weights alone, in the precision that is computed in."""
        return None if isinstance(self.size, FactoryError) else self.size[0].weight_bytes / _MIB

    @property
    def parameters(self) -> int | None:
        """Counted on the model, or as they are on record."""
        if not isinstance(self.size, FactoryError):
            return self.size[0].parameters
        own = (cell.parameters for cell in self._found if same_model(self.asked.plan, cell.plan))
        return next((number for number in own if number is not None), None)

    def need(self, batch: int) -> Need | None:
        """What a batch takes: as measured, else by the formula, else nobody knows."""
        if batch in self.peaks:
            peak, cell = self.peaks[batch]
            return Need(
                batch=batch,
                dtype=self.asked.dtype,
                peak_mb=peak,
                low_mb=None,
                high_mb=None,
                basis=Basis.MEASURED,
                stands_on=f"measured on {cell.target} in run {cell.run_id}, cell {cell.cell_key}",
                run_id=cell.run_id,
                cell_key=cell.cell_key,
                measured_at=cell.started_at,
            )
        return None if isinstance(self.size, FactoryError) else self._estimated(batch, *self.size)

    def _estimated(self, batch: int, size: ModelSize, source: str) -> Need:
        asked = self.asked
        estimate = estimate_for(at_batch(size, batch / asked.plan.batch), asked.backend, asked.dtype, source=source)
        nearest = min(self.peaks, key=lambda known: abs(math.log(known / batch)), default=None)
        share, told = 1.0, ""
        if nearest is not None:  # what was measured corrects the formula
            formula = estimate_for(at_batch(size, nearest / asked.plan.batch), asked.backend, asked.dtype).peak_mb
            share = self.peaks[nearest][0] / formula
            told = f"; corrected by the peak that was measured at batch {nearest} in run {self.peaks[nearest][1].run_id}"
        peak, sure = estimate.peak_mb * share, estimate.basis is Basis.ESTIMATED
        return Need(
            batch=batch,
            dtype=asked.dtype,
            peak_mb=peak,
            low_mb=peak * (1 - estimate.margin) if sure else None,
            high_mb=peak * (1 + estimate.margin) if sure else None,
            basis=estimate.basis,
            stands_on=f"{estimate.note}{told}",
        )

    def batches(self) -> Iterator[int]:
        """The batches to try, the smallest first: those on record, and, where the size is known, powers of two and the one asked for."""
        formula = set() if self.unknown else {self.asked.plan.batch, *(2**power for power in range(_LARGEST_BATCH.bit_length()))}
        yield from sorted(formula | self.peaks.keys())
