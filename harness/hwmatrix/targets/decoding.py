"""The loop of greedy decoding, for runtimes that compute one step after another on the host's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.models.bundle import GenerationPrompt
    from hwmatrix.targets.protocol import Arrays, OnStep


def run_steps(
    prompt: GenerationPrompt, token: str, step: Callable[[int, Arrays], np.ndarray[Any, Any]], on_step: OnStep, *, forced: bool
) -> None:
    """Run a prompt as :meth:`hwmatrix.targets.protocol.Generating.generate` does, with an empty cache at the beginning.

    ``step`` gets the number of a step and its arguments, keeps the cache, and returns the logits of each row's last position (rows, 1,
    vocabulary). A graph without any position (rows, 0, vocabulary) has the logits of no row. ``token`` names the argument that is replaced
    by the model's own tokens (rows, 1), unless ``forced``.
    """
    chosen: np.ndarray[Any, Any] | None = None
    for number, given in enumerate(prompt.steps):
        own = {} if forced or chosen is None else {token: chosen[:, None]}
        last = step(number, {**given, **own})
        logits = last.reshape(-1, last.shape[-1])
        chosen = logits.argmax(axis=-1)
        on_step(number, lambda logits=logits: logits.astype(np.float32))  # type: ignore[misc]
