"""Why a model fits or does not, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwmatrix.knowledge.fit_document import Verdict

if TYPE_CHECKING:
    from hwmatrix.knowledge.fit_document import Need
    from hwmatrix.knowledge.fit_memory import ModelMemory
    from hwmatrix.knowledge.profiles import Availability


def reason_of(verdict: Verdict, need: Need | None, memory: int | None, *, model: ModelMemory, there: Availability) -> str:
    """The sentence. ``need`` is what decides; ``there`` says why nothing is known of the memory, ``model`` why nothing is of its need."""
    if memory is None:
        missing = "it does not tell its memory" if there.available else f"it is not on this machine: {there.reason}"
        return f"{missing}. --memory says how much there is"
    if verdict is Verdict.DOES_NOT_FIT and model.weights_mb is not None and model.weights_mb > memory:
        return f"its weights alone take {model.weights_mb:,.0f} MiB, {model.weights_mb - memory:,.0f} more than there are"
    if need is None:
        return f"its size cannot be told: {model.unknown}"
    if verdict is Verdict.EXTRAPOLATED:
        return _beyond(need, memory)
    if need.low_mb is None or need.high_mb is None:
        short = f", {need.peak_mb - memory:,.0f} more than there are" if verdict is Verdict.DOES_NOT_FIT else ""
        return f"{_whose(need, model)} measured peak is {need.peak_mb:,.0f} MiB{short}"
    takes = "it takes" if need.batch == model.asked.plan.batch else f"a batch of {need.batch} takes"
    between = f"{takes} between {need.low_mb:,.0f} and {need.high_mb:,.0f} MiB in nine cases of ten"
    told = {
        Verdict.FITS: between,
        Verdict.DOES_NOT_FIT: f"{between}, at least {need.low_mb - memory:,.0f} more than there are",
        Verdict.UNKNOWN: f"too close to tell: {between}",
    }
    return told[verdict]


def _beyond(need: Need, memory: int) -> str:
    would = "would fit" if need.peak_mb <= memory else "would not fit"
    return f"neither yes nor no: by the formula it {would} with {need.peak_mb:,.0f} MiB, beyond everything that was measured"


def _whose(need: Need, model: ModelMemory) -> str:
    return "its" if need.batch == model.asked.plan.batch else f"with a batch of {need.batch}, its"
