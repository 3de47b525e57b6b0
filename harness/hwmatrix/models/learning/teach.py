"""Trains the model of a recipe for a bundle, and draws the bundle's inputs and held-out examples."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.models.build import build_model
from hwmatrix.models.learning.choice import task_of
from hwmatrix.models.learning.tasks import CannotLearnError, Examples
from hwmatrix.models.learning.train import answers_of, train

if TYPE_CHECKING:
    import torch

    from hwmatrix.records import ModelPlan

_Tensors: TypeAlias = "dict[str, torch.Tensor]"
EXAMPLES: Final = 64
"""Held-out examples of a bundle. If all of this many are correct, at least 94 % are, with 95 % confidence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taught:
    """The result of training. ``described`` is for the bundle's manifest.

    ``inputs`` are the arguments of one forward pass at the plan's batch, ``examples`` the held-out examples at that batch, ``outputs`` the
    names of the outputs with answers. If there are no examples, training failed and the weights are the recipe's random ones.
    """

    described: dict[str, Any]
    inputs: _Tensors
    examples: tuple[Examples, ...]
    outputs: tuple[str, ...]


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
        return Taught(described=described, inputs={}, examples=(), outputs=())
    generator = torch.Generator().manual_seed(2 * plan.seed + 1)
    drawn = [task.draw(plan.batch, generator) for _ in range(EXAMPLES + 1)]
    answers = dataclasses.asdict(answers_of(task))
    described = {"task": task.name, "accuracy": learned.accuracy, "steps": learned.steps, "answers": answers}
    return Taught(described=described, inputs=drawn[0].inputs, examples=tuple(drawn[1:]), outputs=task.outputs)
