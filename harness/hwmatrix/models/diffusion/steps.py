"""What a scheduler of diffusers does in each step of denoising, as numbers: so that a pipeline is a graph without Python's state.

A step of DDIM or Euler is linear: ``next = keep * latents + add * prediction``, and the denoiser gets ``scale * latents``.
The numbers are not derived again but measured: the scheduler's own ``step`` is called with known values. A scheduler whose steps are
anything else (random noise, earlier predictions, clipping) is refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from typing import Any, Final

from hwmatrix.basics.near_miss import closest
from hwmatrix.errors import FactoryError
from hwmatrix.models.diffusion.build import check_keys, library, member, one_line

CLASS: Final = "class"
LINEAR: Final = ("DDIMScheduler", "EulerDiscreteScheduler")
"""Schedulers whose steps are linear, for advice."""
_CORRECTED: Final = {"steps_offset": 1, "clip_sample": False}
"""What StableDiffusionPipeline (diffusers 0.42) sets in the scheduler that it is given, since old checkpoints have it otherwise."""
_ROUNDING: Final = 1e-5
_LARGE: Final = 10.0
"""The size of the values that check that steps are linear: large enough to be clipped where a scheduler clips."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenoisingStep:
    """One step: the denoiser is asked for ``timestep`` with ``scale`` times the latents; then ``keep`` and ``add`` as above."""

    timestep: float
    scale: float
    keep: float
    add: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The steps of a scheduler. The noise at the beginning has ``start`` times unit variance."""

    start: float
    steps: tuple[DenoisingStep, ...]


def schedule(described: dict[str, Any], count: int) -> Schedule:
    """The schedule of a scheduler of diffusers for a number of steps. ``described`` has its ``class`` and arguments.

    Raises:
        FactoryError: there is no such scheduler (``unknown_class``), it does not know an argument (``unknown_config_key``), rejects one, or
            its steps are not linear (``bad_config``).
    """
    import torch

    kind = _scheduler_class(described)
    config = {name: value for name, value in described.items() if name != CLASS}
    check_keys(kind, config, "config.scheduler")
    config |= {name: value for name, value in _CORRECTED.items() if name in inspect.signature(kind.__init__).parameters}

    def run(samples: torch.Tensor, predictions: torch.Tensor) -> tuple[Any, list[torch.Tensor], list[torch.Tensor]]:
        """The scheduler after all steps, what the denoiser would get in each, and what each step returns."""
        made = kind(**config)
        made.set_timesteps(count)
        if len(made.timesteps) != count:
            raise _not_linear(kind)
        scaled, after = [], []
        for timestep, sample, prediction in zip(made.timesteps, samples, predictions, strict=True):
            scaled.append(made.scale_model_input(sample, timestep))
            after.append(made.step(prediction, timestep, sample).prev_sample)
        return made, scaled, after

    # A pipeline may be built on the meta device. The warnings are about the schedulers' own calls of numpy.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        shape = (count, 1, 1, 1, 1)
        one, none = torch.ones(shape), torch.zeros(shape)
        some, other = _LARGE * torch.randn(shape), _LARGE * torch.randn(shape)
        try:
            made, scales, keeps = run(one, none)
            _, _, adds = run(none, one)
            _, _, checks = run(some, other)
            start = float(made.init_noise_sigma)
        except FactoryError:
            raise
        except Exception as error:  # a scheduler's own code may raise anything; it becomes data
            message = f"{kind.__name__} cannot be used with this config: {one_line(error)}"
            raise FactoryError(message, error_type="bad_config") from error
        for keep, add, sample, prediction, check in zip(keeps, adds, some, other, checks, strict=True):
            if not torch.allclose(keep * sample + add * prediction, check, rtol=_ROUNDING, atol=_ROUNDING * _LARGE):
                raise _not_linear(kind)
    numbers = zip(made.timesteps.tolist(), scales, keeps, adds, strict=True)
    steps = tuple(DenoisingStep(timestep=when, scale=scale.item(), keep=keep.item(), add=add.item()) for when, scale, keep, add in numbers)
    return Schedule(start=start, steps=steps)


def _not_linear(kind: Any) -> FactoryError:
    message = (
        f"config.scheduler: a step of {kind.__name__} is not linear in the latents and the prediction (it adds noise, remembers earlier"
        f" steps or clips): use {' or '.join(LINEAR)}"
    )
    return FactoryError(message, error_type="bad_config")


def _scheduler_class(described: dict[str, Any]) -> Any:
    diffusers = library()
    name = described.get(CLASS)
    found = member(str(name))
    if not (isinstance(found, type) and issubclass(found, diffusers.SchedulerMixin)):
        near = closest(str(name), [each for each in dir(diffusers) if each.endswith("Scheduler")])
        hint = f"did you mean {near!r}?" if near else f"name one, such as class: {LINEAR[0]}"
        message = f"config.scheduler: diffusers {diffusers.__version__} has no scheduler {name!r}: {hint}"
        raise FactoryError(message, error_type="unknown_class")
    return found
