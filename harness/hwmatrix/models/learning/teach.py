"""Trains the model of a recipe for a bundle, and draws the bundle's inputs and held-out examples."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.models.build import build_model
from hwmatrix.models.learning.choice import task_of
from hwmatrix.models.learning.quality import Answers
from hwmatrix.models.learning.tasks import CannotLearnError, Examples
from hwmatrix.models.learning.train import answers_of, train

if TYPE_CHECKING:
    import torch

    from hwmatrix.records import ModelPlan

_Tensors: TypeAlias = "dict[str, torch.Tensor]"
CALIBRATION: Final = 8
"""Inputs of training that a bundle has, for quantized targets to take value ranges from."""
EXAMPLES: Final = 64
"""Held-out examples of a bundle. If all of this many are correct, at least 94 % are, with 95 % confidence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taught:
    """The result of training. ``described`` is for the bundle's manifest.

    ``inputs`` are the arguments of one forward pass at the plan's batch, ``examples`` the held-out ones at that batch, ``calibration``
    inputs of training. Without ``answers`` nothing was learned, and the weights are the recipe's random ones.
    """

    described: dict[str, Any]
    inputs: _Tensors
    examples: tuple[Examples, ...]
    calibration: tuple[_Tensors, ...]
    answers: Answers | None


def taught_model(model: torch.nn.Module, plan: ModelPlan) -> Taught:
    """Train a model in place. If it cannot learn, it gets its random weights back, and ``described`` has the reason."""
    import torch

    described: dict[str, Any]
    try:
        task = task_of(model, plan)
        learned = train(model, task, plan.seed)
    except CannotLearnError as failure:
        model.load_state_dict(build_model(plan).state_dict())
        described = {"reason": f"{failure}; its weights are random"}
        return Taught(described=described, inputs={}, examples=(), calibration=(), answers=None)
    generator = torch.Generator().manual_seed(2 * plan.seed + 1)
    drawn = [task.draw(plan.batch, generator) for _ in range(math.ceil(EXAMPLES / plan.batch) + 1)]
    seen = torch.Generator().manual_seed(2 * plan.seed)
    answers = answers_of(task)
    described = {
        "task": task.name,
        "accuracy": learned.accuracy,
        "steps": learned.steps,
        "detail": f"task {task.name}, learned in {learned.steps:,} steps",
        "answers": dataclasses.asdict(answers),
    }
    return Taught(
        described=described,
        inputs=drawn[0].inputs,
        examples=tuple(drawn[1:]),
        calibration=tuple(task.draw(plan.batch, seen).inputs for _ in range(math.ceil(CALIBRATION / plan.batch))),
        answers=answers,
    )
