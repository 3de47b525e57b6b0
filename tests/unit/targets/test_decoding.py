"""The loop of greedy decoding over a runtime's steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hwmatrix.measure import parity, verdict
from hwmatrix.models.bundle import GenerationPrompt
from hwmatrix.targets.decoding import run_steps

WEIGHTS = np.eye(5, dtype=np.float32)[None]


def prompt() -> GenerationPrompt:
    steps = tuple({"input_ids": np.full((1, 2), number)} for number in range(3))
    return GenerationPrompt(name="traced", inputs=steps[0], tokens=np.zeros((1, 3), np.int64), logits=np.ones((3, 1, 5)), steps=steps)


@pytest.mark.parametrize(("forced", "fed"), [(True, [0, 1, 2]), (False, [0, 1, 3])])
def test_own_tokens_replace_those_of_the_prompt_unless_they_are_forced(fed: list[int], *, forced: bool) -> None:
    given: list[int] = []

    def step(number: int, arguments: Any) -> Any:
        given.append(int(arguments["input_ids"][0, 0]))
        return WEIGHTS[:, [1, 3, 0][number], None]

    seen: list[Any] = []
    run_steps(prompt(), "input_ids", step, lambda _number, logits: seen.append(logits()), forced=forced)
    assert given == fed
    assert [logits.tolist() for logits in seen] == [WEIGHTS[:, token].tolist() for token in (1, 3, 0)]


def test_a_graph_that_returns_no_position_lacks_an_output() -> None:
    seen: dict[str, Any] = {}
    run_steps(
        prompt(),
        "input_ids",
        lambda _number, _given: np.zeros((1, 0, 5), np.float32),
        lambda number, logits: seen.update({str(number): logits()}),
        forced=True,
    )
    judged = verdict.incomparable(parity.compare(seen, {name: np.ones((1, 5), np.float32) for name in seen}))
    assert judged is not None
    assert judged[0] == "missing_output"
