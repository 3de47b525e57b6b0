"""The forward passes that ``generate`` of transformers makes: one for the prompt (prefill), then one for each token (decode).

An exported graph is called as the model is: with the same arguments, prepared by transformers. So the arguments of every step are recorded
with the reference, and the graphs of a runtime get them. Only what a step takes from the step before is the runtime's own: the cache, what
an encoder made of the prompt, and in free generation the token.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.errors import FactoryError
from hwmatrix.models.generation import Prompt, generate

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch

_Tensor: TypeAlias = "torch.Tensor"
_Tensors: TypeAlias = "dict[str, torch.Tensor]"

_MASK: Final = "attention_mask"
_TEXT: Final = "input_ids"
_TRACED_PASS: Final = 2
"""The pass that decoding is traced with: at the one before, a decoder with an encoder has one token in its cache, an axis of size 1."""
_PASSES: Final = _TRACED_PASS + 2
_WINDOW: Final = "._sliding_window_tensor"
"""What transformers' cache of a sliding window keeps beside its keys and values: the window's size, which never changes."""
_HIDDEN: Final = "last_hidden_state"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of one forward pass by name.

    ``given`` are tensors that ``generate`` prepared. ``state`` holds more than a tensor, and comes from the pass before: the cache, or the
    outputs of an encoder. ``options`` are constants.
    """

    given: _Tensors
    state: dict[str, Any]
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """The arguments that the graphs of a model are traced with.

    An axis of size 1 or 0 becomes a constant in a trace. The batch may, since a bundle has one; a length may not. ``prefill`` None: one
    graph, ``decode``, processes prompts too, with an empty cache.
    """

    prefill: dict[str, Any] | None
    decode: dict[str, Any]


def recorded(
    model: Any, prompt: Prompt, *, keep_state: Collection[int] = (), masked: tuple[bool, bool] = (False, False)
) -> tuple[_Tensor, tuple[Call, ...]]:
    """Force a prompt's continuation. Return the logits of every step (steps, rows, vocabulary; on the CPU), and every forward pass.

    What other parts of the model make of the prompt before the first pass (an encoder, a vision tower) is not among its arguments: it gets
    the prompt itself, so that these parts belong to it. ``keep_state`` are the numbers of the passes whose state is copied. ``masked``:
    whether the first pass and the others get an attention mask of ones where ``generate`` drops it. There are no passes if ``generate``
    makes more or fewer of them than tokens.
    """
    import torch

    logits: list[_Tensor] = []
    calls: list[Call] = []

    def before(_module: Any, _positional: Any, named: dict[str, Any]) -> None:
        number = len(calls)
        known = {name: value for name, value in named.items() if value is not None}
        given = {name: value.clone() for name, value in known.items() if isinstance(value, torch.Tensor)}
        options = {name: value for name, value in known.items() if isinstance(value, (bool, int, float, str))}
        held = known.keys() - given.keys() - options.keys() if number in keep_state else ()
        state = {name: copy.deepcopy(known[name]) for name in held}
        if masked[min(number, 1)] and _MASK not in given:
            given[_MASK] = _ones(prompt, number)
        calls.append(Call(given=given, state=state, options=options))

    hook = model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        generate(model, prompt.inputs, prompt.tokens, lambda _, step: logits.append(step.cpu().clone()))
    finally:
        hook.remove()
    if len(calls) != len(logits):
        return torch.stack(logits), ()
    calls[0] = _prefill(prompt, calls[0])
    return torch.stack(logits), tuple(calls)


def takes_mask(model: Any, prompt: Prompt) -> tuple[bool, bool]:
    """Whether the first pass and the later ones get an attention mask if something is padded.

    ``generate`` drops a mask of ones, but a graph that was traced with a mask has it as an input. State space models use it for the prompt
    alone.
    """
    if _MASK not in prompt.inputs or _TEXT not in prompt.inputs or model.config.is_encoder_decoder:
        return False, False
    _, calls = recorded(
        model, dataclasses.replace(prompt, inputs=_with_masked_end(model, prompt), tokens=prompt.tokens.repeat(1, 2)[:, :2])
    )
    return (_MASK in calls[0].given, _MASK in calls[1].given) if calls else (False, False)


def _with_masked_end(model: Any, prompt: Prompt) -> _Tensors:
    """The inputs of a prompt whose last position is masked, so that ``generate`` keeps the mask. The logits mean nothing then."""
    inputs = {name: tensor.clone() for name, tensor in prompt.inputs.items()}
    if _MASK in inputs and not model.config.is_encoder_decoder:
        inputs[_MASK][-1, -1] = 0
    return inputs


def samples(model: Any, prompt: Prompt, *, joint: bool = True) -> Samples:
    """What to trace a model with, made of a prompt. ``joint``: with one graph for the prompt and the tokens after it, if that is possible.

    Raises:
        FactoryError: ``generate`` does not call the model once for each token, or changes the state between two calls
            (``no_generation``).
    """
    tokens = prompt.tokens.repeat(1, _PASSES)[:, :_PASSES]
    traced = dataclasses.replace(prompt, inputs=_with_masked_end(model, prompt), tokens=tokens)
    returned: list[dict[str, tuple[int, ...]]] = []
    hook = model.register_forward_hook(lambda _module, _given, outputs: returned.append(_shapes(outputs)))
    try:
        _, calls = recorded(model, traced, keep_state={0, _TRACED_PASS})
    finally:
        hook.remove()
    if not calls:
        message = f"generate does not call {type(model).__name__} once for each token, so there is no graph of a step"
        raise FactoryError(message, error_type="no_generation")
    decode = calls[_TRACED_PASS]
    before = returned[_TRACED_PASS - 1]
    changed = sorted(name for name, shape in _shapes(decode.state).items() if before.get(name, shape) != shape)
    if changed:
        message = f"generate changes {changed[0]} between two steps: from the shape {list(before[changed[0]])}"
        raise FactoryError(f"{message} to {list(_shapes(decode.state)[changed[0]])}, which no graph does", error_type="no_generation")
    alike = joint and _is_text(prompt) and _only_attends(decode) and not model.config.is_encoder_decoder
    both = _two_tokens(decode, calls[_TRACED_PASS + 1]) if alike else None
    if both is not None:
        return Samples(prefill=None, decode=_arguments(both))
    return Samples(prefill=_arguments(calls[0]), decode=_arguments(decode))


def token_argument(model: Any) -> str:
    """The argument of a forward pass that holds the next token."""
    return "decoder_input_ids" if model.config.is_encoder_decoder else _TEXT


def states(sample: Mapping[str, Any]) -> tuple[_Tensors, _Tensors]:
    """The tensors in a sample that a step takes from the one before, by name, and those in its cache that never change."""
    import torch
    from transformers.exporters.utils import get_leaf_tensors

    leaves = get_leaf_tensors({name: value for name, value in sample.items() if not isinstance(value, torch.Tensor)})
    constant = {name: tensor for name, tensor in leaves.items() if name.endswith(_WINDOW)}
    return {name: tensor for name, tensor in leaves.items() if name not in constant}, constant


def _arguments(call: Call) -> dict[str, Any]:
    """All arguments of a pass. Of an encoder's outputs, decoders use the last hidden state."""
    state = dict(call.state)
    for name in [name for name in state if name.endswith("encoder_outputs") and _HIDDEN in state[name]]:
        state[name] = type(state[name])({_HIDDEN: state[name][_HIDDEN]})
    return {**call.given, **state, **call.options}


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    from transformers.exporters.utils import get_leaf_tensors

    return {name: tuple(tensor.shape) for name, tensor in get_leaf_tensors(dict(tree)).items()}


def _is_text(prompt: Prompt) -> bool:
    return prompt.inputs.keys() <= {_TEXT, _MASK}


def _only_attends(call: Call) -> bool:
    """Whether the cache holds keys and values alone. Other states (convolutions, recurrences) are not updated as they are first made."""
    from transformers.exporters.utils import get_leaf_tensors

    leaves = [name for name in get_leaf_tensors(call.state) if not name.endswith(_WINDOW)]
    return bool(leaves) and all(name.endswith((".keys", ".values")) for name in leaves)


def _two_tokens(one: Call, next_one: Call) -> Call | None:
    """Two passes of one token each as one pass of two; None if an argument is of neither known kind."""
    import torch

    given: _Tensors = {}
    for name, tensor in one.given.items():
        following = next_one.given.get(name)
        if following is None:
            return None
        if name == _MASK:
            given[name] = following
        elif tensor.shape == following.shape and tensor.shape[-1] == 1:
            given[name] = torch.cat([tensor, following], dim=-1)
        else:
            return None
    return dataclasses.replace(one, given=given)


def _prefill(prompt: Prompt, first: Call) -> Call:
    """The first pass with the prompt in place of what encoders made of it.

    A model that gets the text itself, and no mask of it, takes none: some models add tokens of their own to the text.
    """
    state = {name: value for name, value in first.state.items() if not name.endswith("encoder_outputs")}
    asked = {name: tensor for name, tensor in prompt.inputs.items() if name != _MASK or _TEXT not in first.given}
    return Call(given={**asked, **first.given}, state=state, options=first.options)


def _ones(prompt: Prompt, number: int) -> _Tensor:
    """The attention mask of a pass without padding."""
    import torch

    rows, length = prompt.inputs[_TEXT].shape
    return torch.ones(rows, length + number, dtype=torch.int64)
