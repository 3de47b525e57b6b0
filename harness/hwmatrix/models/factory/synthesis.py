"""Generates inputs for any architecture from its configuration and the arguments of its ``forward``.

The properties of an argument come from the configuration, from the model itself (how many tokens of the text stand for an image), or, if
neither has them, from the type's override.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import FactoryError
from hwmatrix.models.factory.arguments import MAKERS, Request, random_ids
from hwmatrix.models.factory.modalities import COUNTERS, method_of, places, token_id

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from hwmatrix.models.factory.rules import Override, Tensor
    from hwmatrix.records import ModelPlan

_TEXT_AFTER: Final = 4


def synthesise(model: torch.nn.Module, plan: ModelPlan, override: Override) -> dict[str, torch.Tensor]:
    """The inputs of one forward pass, on the CPU: integers int64, others float32.

    Raises:
        FactoryError: a required argument cannot be generated (``no_inputs``).
    """
    import torch

    parameters = {name: parameter for name, parameter in inspect.signature(model.forward).parameters.items() if name != "self"}
    needed = {name for name, parameter in parameters.items() if _is_required(parameter)}
    if override.sequence is not None:
        plan = dataclasses.replace(plan, sequence_length=override.sequence)
    request = Request(
        model=model,
        config=model.config,
        names=frozenset(parameters),
        required=frozenset(needed),
        plan=plan,
        generator=torch.Generator().manual_seed(plan.seed),
    )
    inputs: dict[str, torch.Tensor] = {}
    for name in parameters:
        if name in override.inputs:
            described = override.inputs[name]
            made = None if described is None else from_description(described, plan, request.generator)
        else:
            made = MAKERS[name](request) if name in MAKERS else None
        if made is not None:
            inputs[name] = made
    for name in override.inputs.keys() - parameters.keys():  # for a forward that takes **kwargs
        described = override.inputs[name]
        if described is not None:
            inputs[name] = from_description(described, plan, request.generator)
    missing = sorted(needed - inputs.keys())
    if missing:
        message = f"{plan.model_class} needs inputs that hwmatrix cannot generate: {', '.join(missing)}"
        raise FactoryError(message, error_type="no_inputs")
    _insert_tokens(request, inputs, override)
    _add_positions(request, inputs, override)
    if not inputs:
        raise FactoryError(f"{plan.model_class} takes no input that hwmatrix can generate", error_type="no_inputs")
    return inputs


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}


def from_description(described: Tensor, plan: ModelPlan, generator: Any) -> torch.Tensor:
    """The tensor that an override describes, random numbers from a torch.Generator."""
    import torch

    if described.values is not None:
        return torch.tensor(described.values)
    named = {"batch": plan.batch, "sequence": plan.sequence_length}
    shape = tuple(named[item] if isinstance(item, str) else item for item in described.shape or ())
    makers: dict[str, Callable[[], torch.Tensor]] = {
        "normal": lambda: torch.randn(shape, generator=generator),
        "uniform": lambda: torch.rand(shape, generator=generator),
        "ids": lambda: torch.randint(described.below or 1, shape, generator=generator),
        "ones": lambda: torch.ones(shape, dtype=torch.int64),
        "zeros": lambda: torch.zeros(shape, dtype=torch.int64),
        "mask": lambda: torch.ones(shape, dtype=torch.bool),
        "no_padding": lambda: torch.zeros(shape, dtype=torch.bool),
        "float_ones": lambda: torch.ones(shape),
        "grid": lambda: _square(*shape),
        "token_kinds": lambda: torch.zeros(shape, dtype=torch.int64),  # replaced once the tokens are inserted
    }
    return makers[described.kind]()


def _square(batch: int, places: int, _axes: int) -> torch.Tensor:
    """The x and y of each position of a square: (batch, positions, 2)."""
    import torch

    side = math.isqrt(places)
    return torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(1).expand(batch, -1, -1)


def _insert_tokens(request: Request, inputs: dict[str, torch.Tensor], override: Override) -> None:
    """Put the tokens for images, videos and audio at the beginning of the text, as many as the model needs of each."""
    import torch

    ids = inputs.get("input_ids")
    if ids is None or "input_ids" in override.inputs:
        return
    if override.tokens is not None:
        counts = {_token(request.config, name): count for name, count in override.tokens.items()}
    else:
        counts = dict(places(request.model, inputs))
    counts = {token: count for token, count in counts.items() if count}
    total = sum(counts.values())
    if not total:
        return
    if total + _TEXT_AFTER > ids.shape[1]:
        more = random_ids(request, ids.shape[0], total + _TEXT_AFTER - ids.shape[1])
        ids = torch.cat([ids, more], dim=1)
    start = 0
    for token, count in counts.items():
        ids[:, start : start + count] = token
        start += count
    inputs["input_ids"] = ids
    _match_text_length(request, inputs, override)


def _match_text_length(request: Request, inputs: dict[str, torch.Tensor], override: Override) -> None:
    """Give the masks the text's length, and set the kinds of its tokens."""
    import torch

    ids = inputs["input_ids"]
    if "attention_mask" in inputs:
        inputs["attention_mask"] = torch.ones_like(ids)
    if "token_type_ids" in inputs and inputs["token_type_ids"].shape[-1] != ids.shape[1]:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    if "mm_token_type_ids" in request.names and "mm_token_type_ids" not in override.inputs:
        inputs["mm_token_type_ids"] = _kinds_of_tokens(request.config, ids)
    for name, described in override.inputs.items():
        if described is not None and described.kind == "token_kinds":
            inputs[name] = _kinds_of_tokens(request.config, ids)


def _add_positions(request: Request, inputs: dict[str, torch.Tensor], override: Override) -> None:
    """Add position ids in time, height and width for models that use them, computed by the model's own method.

    Otherwise the forward pass computes them in Python, token by token, which no exporter can trace.
    """
    method = method_of(request.model, "get_rope_index")
    if method is None or "position_ids" not in request.names or "position_ids" in override.inputs:
        return
    accepted = inspect.signature(method).parameters
    known = dict(inputs)
    if "feature_attention_mask" in inputs:
        known["audio_seqlens"] = inputs["feature_attention_mask"].sum(-1)
    if all(name in known for name, parameter in accepted.items() if name == "input_ids" or _is_required(parameter)):
        inputs["position_ids"] = method(**{name: tensor for name, tensor in known.items() if name in accepted})[0]


def _kinds_of_tokens(config: Any, ids: torch.Tensor) -> torch.Tensor:
    """0 for text, 1 for an image, 2 for a video, 3 for audio, as in the processors of transformers."""
    import torch

    kinds = torch.zeros_like(ids)
    for kind, counter in enumerate(COUNTERS, start=1):
        token = token_id(config, counter)
        if token is not None:
            kinds[(ids == token) & (kinds == 0)] = kind
    return kinds


def _token(config: Any, name: str | int) -> int:
    """A token's id, given as itself or as the name of a field of the configuration.

    Raises:
        FactoryError: the configuration has no such field.
    """
    found = name if isinstance(name, int) else getattr(config, name, None)
    if not isinstance(found, int):
        raise FactoryError(f"the configuration has no token {name!r}", error_type="bad_override")
    return found
