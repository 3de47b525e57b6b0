"""Trains a tiny model until it has learned its task, as held-out examples show. Deterministic for a seed."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.models.learning.quality import Answers, correct
from hwmatrix.models.learning.tasks import CannotLearnError
from hwmatrix.models.outputs import call_options, flatten_outputs

if TYPE_CHECKING:
    import torch

    from hwmatrix.models.learning.tasks import Examples, Task

LEARNED: Final = 0.99
"""The share of held-out examples that a model must get right. An example counts only if all of its answers are correct."""
_SETTLED: Final = 0.1
"""Training stops below this loss on held-out examples: answers are then clear enough that rounding does not change them."""
_NEARLY_LEARNED: Final = 0.8
_RATE_FACTOR: Final = 0.7
"""The learning rate is lowered by this factor at each evaluation above _NEARLY_LEARNED: large steps would overshoot."""
_MOST_STEPS: Final = 1500
_EVERY: Final = 50
_BATCH: Final = 64
_BATCH_OF_SOUNDS: Final = 32  # a second of audio has 16,000 samples
_HELD_OUT: Final = 256
_STOPPING_SEEDS: Final = 2**32
"""Added to a model's seed for the examples that decide when training stops: other ones than those that its quality is measured on."""
_RATE: Final = 3e-3
_RATE_OF_STATE_SPACES: Final = 1e-2  # their recurrences start almost closed; at 3e-3 they learn to copy three times as slowly
_WARM_UP: Final = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """The result of training: the share of held-out examples that are correct (0 to 1), their mean loss, and the number of steps."""

    accuracy: float
    loss: float
    steps: int


def train(model: torch.nn.Module, task: Task, seed: int) -> Learned:
    """Train in place with AdamW, without dropout, on one thread. The same seed gives the same weights on the same machine.

    Raises:
        CannotLearnError: it did not learn the task within its budget, or its loss is not finite. The weights stay as training left them.
    """
    import torch

    held_out = task.draw(_HELD_OUT, torch.Generator().manual_seed(_STOPPING_SEEDS + seed))
    generator = torch.Generator().manual_seed(2 * seed)
    options = call_options(model)
    batch = _BATCH_OF_SOUNDS if "input_values" in held_out.inputs else _BATCH
    rate = _RATE_OF_STATE_SPACES if hasattr(model.config, "state_size") else _RATE
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    learned = Learned(accuracy=0.0, loss=math.inf, steps=0)
    for step in range(1, _MOST_STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / _WARM_UP)
        examples = task.draw(batch, generator)
        optimizer.zero_grad()
        loss = task.loss(flatten_outputs(model(**examples.inputs, **options)), examples.labels)
        now = loss.item()
        if not math.isfinite(now):
            raise CannotLearnError(f"training on {task.name} diverged: its loss is {now} after {step} steps")
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % _EVERY == 0:
            learned = _evaluated(model, task, held_out, options, step)
            if learned.accuracy >= LEARNED and learned.loss <= _SETTLED:
                break
            if learned.accuracy >= _NEARLY_LEARNED:
                rate *= _RATE_FACTOR
    optimizer.zero_grad()
    if learned.accuracy < LEARNED:
        reached = f"{learned.accuracy:.1%} of held-out examples of {task.name} are correct after {learned.steps} steps"
        raise CannotLearnError(f"{reached}, and {LEARNED:.0%} are needed")
    return learned


def _evaluated(model: torch.nn.Module, task: Task, examples: Examples, options: dict[str, Any], steps: int) -> Learned:
    import torch

    with torch.inference_mode():
        outputs = flatten_outputs(model(**examples.inputs, **options))
        loss = float(task.loss(outputs, examples.labels))
    answers = answers_of(task)
    arrays = {name: outputs[name].numpy() for name in task.outputs}
    return Learned(accuracy=float(correct(answers, arrays, examples.labels.numpy()).mean()), loss=loss, steps=steps)


def answers_of(task: Task) -> Answers:
    """How to read the answers of a task."""
    return Answers(kind=task.answer, outputs=task.outputs, blank=getattr(task, "blank", None))
