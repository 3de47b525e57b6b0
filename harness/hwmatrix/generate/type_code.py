"""A model built from its type alone, as source code: its configuration, how its weights are drawn, its inputs.

Applies the factory's rules: the generated script contains their results, not the rules.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, FactoryError, Problem
from hwmatrix.generate.literals import literal
from hwmatrix.models.build import build_from
from hwmatrix.models.factory.make import MOST_PARAMETERS, attempts
from hwmatrix.models.factory.rules import override
from hwmatrix.models.factory.synthesis import synthesise
from hwmatrix.models.onnx_extents import extents
from hwmatrix.models.reference import from_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from hwmatrix.records import ModelPlan

_NO_ARGUMENTS: Final = ("model_type", "transformers_version")
"""Fields of a saved configuration that are not arguments of its class."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """How a script builds a model of a type.

    ``config`` are the arguments of ``config_class``. ``gain`` rescales the weights (``factory.make.adjusted``); ``tables`` says whether
    the model has saved but untrained buffers, ``switches`` whether it has scalar parameters. ``attention`` is the
    implementation to request for eager. ``extents`` are the inputs that an export may have to keep fixed, and ``prepared`` says
    whether transformers' exporters compute further inputs from the given ones.
    """

    config_class: str
    config: dict[str, Any]
    gain: float | None
    tables: bool
    switches: bool
    attention: str | dict[str, str]
    extents: tuple[str, ...]
    prepared: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """A type's model (a ``torch.nn.Module``), its inputs (tensors), the random draws for them in order, and how a script builds it."""

    model: Any
    inputs: dict[str, Any]
    drawn: tuple[Draw, ...]
    built: Built


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draw:
    """Random numbers that were drawn from the generator of the inputs: the expression, and the resulting tensor."""

    code: str
    tensor: Any


def make_type(plan: ModelPlan) -> Made:
    """Build a type's model as in its bundle, and determine what a script needs to build it again.

    Raises:
        FactoryError: it cannot be built here.
        ConfigError: its configuration cannot be expressed as values.
    """
    with tempfile.TemporaryDirectory(prefix="hwmatrix-reproduce-") as name:
        model, inputs, _, made = from_factory(plan, Path(name))
    config = next(config for level, config in attempts(plan) if level == made["factory"]["level"])
    known = override(plan.architecture)
    built = Built(
        config_class=_class_of(config, plan),
        config=_arguments(config, plan),
        gain=known.gain,
        **drawn_apart(model),
        attention=dict(known.attention) if isinstance(known.attention, dict) else known.attention or "eager",
        extents=extents(inputs),
        prepared=_is_prepared(model, inputs),
    )
    return Made(model=model, inputs=inputs, drawn=_draws(model, plan, inputs), built=built)


def drawn_apart(model: torch.nn.Module) -> dict[str, bool]:
    """Whether a model has ``tables`` (saved but untrained buffers) and ``switches`` (scalar parameters), whose values are made apart."""
    saved = model.state_dict().keys()
    buffers = [buffer for name, buffer in model.named_buffers() if name in saved]
    return {
        "tables": any(buffer.is_floating_point() and buffer.dim() > 1 for buffer in buffers),
        "switches": any(parameter.numel() == 1 for parameter in model.parameters()),
    }


def _is_prepared(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> bool:
    import torch
    from transformers.exporters.utils import get_leaf_tensors, precompute_export_inputs

    sample: dict[str, Any] = dict(inputs)
    try:
        with torch.no_grad():
            precompute_export_inputs(model, sample)
    except Exception:  # noqa: BLE001 - the exporter then raises it, too
        return False
    return bool(get_leaf_tensors(sample).keys() - inputs.keys())


def _class_of(config: Any, plan: ModelPlan) -> str:
    """The name of a configuration's class in transformers."""
    import transformers

    name = type(config).__name__
    if getattr(transformers, name, None) is not type(config):
        raise _no_code_error(plan, f"transformers has no {name} at its top level")
    return name


def _arguments(config: Any, plan: ModelPlan) -> dict[str, Any]:
    """Arguments that recreate a configuration: if possible only those that differ from the class's defaults, else all.

    Raises:
        ConfigError: neither gives the same configuration and the same weights.
    """
    for candidate in (*_differences(config), config.to_dict()):
        values = {key: value for key, value in _without_version(candidate).items() if key not in _NO_ARGUMENTS}
        if _recreates(values, config, plan):
            return values
    raise _no_code_error(plan, "its configuration cannot be recreated from its values")


def _differences(config: Any) -> Iterator[dict[str, Any]]:
    differing = config.to_diff_dict()
    try:
        defaults = type(config)().to_dict()
    except Exception:  # noqa: BLE001 - some classes cannot be created without arguments
        defaults = {}
    yield _without_defaults(differing, defaults)
    yield differing


def _without_defaults(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Values without defaults. The ``model_type`` of a nested configuration stays."""
    nested = {key: (value, defaults.get(key)) for key, value in values.items() if isinstance(value, dict) and "model_type" in value}
    less = {key: _without_defaults(value, default) if isinstance(default, dict) else value for key, (value, default) in nested.items()}
    return {
        key: less.get(key, value) for key, value in values.items() if key == "model_type" or key not in defaults or defaults[key] != value
    }


def _config_data(config: Any) -> Any:
    return _without_version(config.to_dict())


def _without_version(value: Any) -> Any:
    """Values without the version of transformers that wrote them."""
    if isinstance(value, dict):
        return {key: _without_version(item) for key, item in value.items() if key != "transformers_version"}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_version(item) for item in value)
    return value


def _recreates(values: dict[str, Any], config: Any, plan: ModelPlan) -> bool:
    """Whether these arguments can be written as source and give the same configuration and the same weights."""
    try:
        literal(values)
        again = type(config)(**copy.deepcopy(values))
    except Exception:  # noqa: BLE001 - configurations validate themselves, each with its own errors
        return False
    return bool(_config_data(again) == _config_data(config)) and _same_weights(plan, config, again)


def _same_weights(plan: ModelPlan, config: Any, again: Any) -> bool:
    import torch

    try:
        one, other = (build_from(plan, copy.deepcopy(each), most=MOST_PARAMETERS).state_dict() for each in (config, again))
    except FactoryError:
        return False
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _no_code_error(plan: ModelPlan, what: str) -> ConfigError:
    hint = f"rerun the cell with the command from hwmatrix why {plan.name} TARGET, or add the model to matrix.yaml"
    return ConfigError([Problem(where="--reproduce", what=f"{plan.name} cannot be made without hwmatrix: {what}", hint=hint)])


def _draws(model: torch.nn.Module, plan: ModelPlan, inputs: Mapping[str, torch.Tensor]) -> tuple[Draw, ...]:
    """The random tensors drawn from the generator while the inputs are created, in order."""
    import torch

    again, drawn = recorded_draws(lambda: synthesise(model, plan, override(plan.architecture)))
    if not all(torch.equal(again[name], tensor) for name, tensor in inputs.items()):
        raise _no_code_error(plan, "its inputs differ each time")
    return drawn


def recorded_draws(create: Callable[[], dict[str, torch.Tensor]]) -> tuple[dict[str, torch.Tensor], tuple[Draw, ...]]:
    """Create inputs. Returns them, and the random tensors that were drawn from a generator for them, in order."""
    from torch.overrides import TorchFunctionMode

    drawn: list[Draw] = []

    class Recording(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if kwargs and kwargs.get("generator") is not None:
                code = f"torch.{func.__name__}({', '.join(map(_code, args))}, generator=generator)"
                drawn.append(Draw(code=code, tensor=result.clone()))
            return result

    with Recording():
        return create(), tuple(drawn)


def _code(argument: Any) -> str:
    return literal(tuple(argument) if isinstance(argument, (list, tuple)) else argument)
