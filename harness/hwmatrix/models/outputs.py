"""A model's outputs as named tensors, with the same names for the reference and every target."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

# Caches are internal state with a different layout on every runtime; losses are not needed.
_NOT_OUTPUTS: Final = ("past_key_values", "past_buckets_states", "cache_params", "mems", "loss")
# Attention weights (projection_attentions, cross_attentions): only eager attention returns them, in some models without being asked.
_EAGER_ONLY: Final = "attentions"


def call_options(model: torch.nn.Module) -> dict[str, Any]:
    """The arguments of a forward pass besides the inputs: named outputs, and no KV cache."""
    parameters = inspect.signature(model.forward).parameters
    passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    options: dict[str, Any] = {}
    if "return_dict" in parameters or passes_on:
        options["return_dict"] = True
    config = _text_config(model)
    streams = hasattr(config, "use_streaming")  # a streaming codec would pass use_cache on twice
    if "use_cache" in parameters or (passes_on and hasattr(config, "use_cache") and not streams):
        options["use_cache"] = False
    return options


def flatten_outputs(output: Any) -> dict[str, torch.Tensor]:
    """Every tensor of a model's output by its dotted name (``logits``, ``vision_model_output.pooler_output``).

    Members of sequences are numbered (``hidden_states.0``). A bare tensor is called ``output``. None, caches, attention weights and
    plain integers (layer numbers of features) are left out.

    Raises:
        TypeError: the output contains something that is neither a tensor nor a container of tensors; the message names it.
    """
    flat: dict[str, torch.Tensor] = {}
    _flatten(output, "", flat)
    return flat


def _flatten(value: Any, name: str, flat: dict[str, torch.Tensor]) -> None:
    if value is None or isinstance(value, int) or name in _NOT_OUTPUTS or name.endswith(_EAGER_ONLY):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(item, f"{name}.{key}" if name else str(key), flat)
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            _flatten(item, f"{name}.{index}" if name else str(index), flat)
    elif hasattr(value, "shape"):
        flat[name or "output"] = value
    else:
        raise TypeError(f"the model's output {name or 'itself'} is a {type(value).__name__}, not a tensor")


def _text_config(model: torch.nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    try:
        return config.get_text_config() if hasattr(config, "get_text_config") else config
    except ValueError:  # it has several
        return config
