"""What a generative model is asked for, step by step: prompts, the tokens that are forced, and the reference's logits of each step.

The largest logits of a random model nearly tie, so its own tokens would soon differ between machines for no reason. Each step therefore
gets the next token of a fixed continuation, whatever the logits say (teacher forcing), and all logits are compared. ``generate`` of
transformers prepares each step, as for its users: the cache, positions and masks are its own. A trained model also runs free, and must
give the right answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hwmatrix.errors import FactoryError
from hwmatrix.models.floors import noise_floors
from hwmatrix.models.inputs import plain_ids
from hwmatrix.models.learning.quality import IGNORED
from hwmatrix.records import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from hwmatrix.models.learning.tasks import Examples

_Tensor: TypeAlias = "torch.Tensor"
_Tensors: TypeAlias = "dict[str, torch.Tensor]"

TRACED: Final = "traced"
"""The prompt whose length an exporter sees. No exporter sees those of the others."""
PADDED: Final = "padded"
"""The shorter prompt, with padding."""
LENGTH: Final = "length-"
"""The beginning of the names of prompts of a given length, which are also timed."""
UNCACHED: Final = "uncached"
"""The traced prompt with all but the last token of its continuation, of which one step is asked: the same logits, without a cache."""
_LONGER: Final = 5
"""Tokens that the longer prompt has more than the traced one: no multiple of it, and no power of two."""
_PADDING: Final = 3
_TOKENS: Final = ("_token_id", "_token_index")
_OF_TEXT: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
_DROP_PROCESSOR: Final = frozenset({"JanusForConditionalGeneration"})
"""Classes whose own ``generate`` leaves a text to that of all models, but does not pass on the processor (transformers 5.23)."""
_BOXES: Final = "bbox"
"""The argument that has four numbers for each token: where it is on the page."""
_OF_IMAGES: Final = "pixel_"
"""How the names of arguments begin that have something for each part of an image, of which there may be as many as tokens."""
_CAST: Final = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)
"""The precisions that generation has noise floors for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt and its continuation.

    ``inputs`` are arguments of ``generate``. ``tokens`` (rows, steps; int64) are forced one after the other, or are the right answers if
    the model runs free.
    """

    name: str
    inputs: _Tensors
    tokens: _Tensor


def generates(model: torch.nn.Module) -> bool:
    """Whether transformers can generate with this model."""
    return bool(getattr(model, "can_generate", lambda: False)())


def generate(model: Any, inputs: _Tensors, tokens: _Tensor, on_step: Callable[[int, _Tensor], None], *, forced: bool = True) -> Any:
    """Generate greedily, as many tokens as ``tokens`` (rows, steps) has, and return the cache.

    ``on_step`` gets the number of each step, from 0, and its logits (rows, vocabulary), after the preferred token has reached the CPU.
    ``forced``: each next step gets the token of ``tokens`` instead of the preferred one. No token ends the text.

    Raises:
        FactoryError: the model generates another number of tokens (``no_generation``).
    """
    import torch
    import transformers

    done = 0

    class Continue(transformers.LogitsProcessor):
        def __call__(self, input_ids: _Tensor, scores: _Tensor) -> _Tensor:  # noqa: ARG002 - the interface's
            nonlocal done
            number, done = done, done + 1
            scores.argmax(dim=-1).cpu()
            on_step(number, scores)
            if not forced:
                return scores
            token = tokens[:, number, None].to(scores.device)
            return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)

    own = type(model).__name__ not in _DROP_PROCESSOR
    method: Any = model.generate if own else functools.partial(transformers.GenerationMixin.generate, model)
    with _set_to_generate(model, tokens.shape[1]), torch.inference_mode():
        made = method(**inputs, logits_processor=transformers.LogitsProcessorList([Continue()]))
    if done != tokens.shape[1]:
        message = f"{type(model).__name__} generated {done} tokens instead of {tokens.shape[1]}"
        raise FactoryError(message, error_type="no_generation")
    return getattr(made, "past_key_values", None)


def cache_bytes(cache: Any) -> int:
    """The size of all tensors in a cache of transformers, whatever its class."""
    import torch

    if isinstance(cache, torch.Tensor):
        return cache.nbytes
    if isinstance(cache, (list, tuple)):
        return sum(map(cache_bytes, cache))
    if isinstance(cache, dict):
        return sum(map(cache_bytes, cache.values()))
    return cache_bytes(vars(cache)) if type(cache).__module__.startswith("transformers.") and not isinstance(cache, torch.nn.Module) else 0


def logits_of(model: Any, prompt: Prompt) -> _Tensor:
    """The logits of every step (steps, rows, vocabulary; on the CPU) with the prompt's continuation forced."""
    import torch

    steps: list[_Tensor] = []
    generate(model, prompt.inputs, prompt.tokens, lambda _, logits: steps.append(logits.cpu().clone()))
    return torch.stack(steps)


def floors(model: torch.nn.Module, prompt: Prompt) -> dict[str, dict[str, Any]]:
    """The noise floor of each step's logits by precision, as :func:`noise_floors` gives them; their names are the steps' numbers."""

    def run(simulated: torch.nn.Module, inputs: _Tensors) -> _Tensors:
        logits = logits_of(simulated, dataclasses.replace(prompt, inputs=inputs))
        return {str(number): step for number, step in enumerate(logits)}

    return noise_floors(model, [prompt.inputs], outputs=run, dtypes=_CAST)


@contextlib.contextmanager
def _set_to_generate(model: Any, steps: int) -> Iterator[None]:
    """Set a model to greedy search, and the models in it that ``generate`` may leave the text to, such as a decoder beside a vision tower.

    An argument would take what it lacks from the model's own settings.
    """
    own = {module: module.generation_config for module in model.modules() if getattr(module, "generation_config", None) is not None}
    for module, settings in own.items():
        module.generation_config = _settings(settings, steps)
    try:
        yield
    finally:
        for module, settings in own.items():
            module.generation_config = settings


def _settings(own: Any, steps: int) -> Any:
    """Greedy search for exactly this many tokens. Only the start token and the padding are the model's own."""
    import transformers

    start = own.decoder_start_token_id if own.decoder_start_token_id is not None else own.bos_token_id
    padding = own.pad_token_id if isinstance(own.pad_token_id, int) else 0
    return transformers.GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=steps,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        eos_token_id=None,
        return_dict_in_generate=True,
        pad_token_id=padding,
        bos_token_id=own.bos_token_id,
        decoder_start_token_id=start if start is not None else padding,
    )


def prompts(model: Any, inputs: Mapping[str, _Tensor], *, steps: int, seed: int, lengths: Sequence[int] = ()) -> tuple[Prompt, ...]:
    """Prompts made of the arguments of a forward pass: one that exporters see, a shorter and a longer one, and one with padding.

    For a decoder without an encoder, :data:`UNCACHED` follows. Then come prompts of ``lengths`` tokens, as far as the model has positions
    for them and their continuation. A prompt without text, such as speech, has one length.

    Raises:
        FactoryError: the model has fewer positions than a prompt and its continuation need, or takes no text (``no_generation``).
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    given = _for_generate(inputs)
    if "input_ids" in given and given["input_ids"].dim() != 2:  # noqa: PLR2004 - rows and tokens
        message = f"{type(model).__name__} takes several codes for each position, of shape {list(given['input_ids'].shape)}, not a text"
        raise FactoryError(message, error_type="no_generation")
    made = [(TRACED, given)] if "input_ids" not in given else _texts(model, given, steps, generator)
    found = [Prompt(name=name, inputs=text, tokens=_plain(model, (_rows(text), steps), generator)) for name, text in made]
    if "input_ids" not in given:
        return tuple(found)
    others = [
        Prompt(name=f"{LENGTH}{length}", inputs=text, tokens=_plain(model, (_rows(text), steps), generator))
        for length, text in _of_lengths(model, given, lengths, steps, generator)
    ]
    return (*found, *others) if model.config.is_encoder_decoder else (*found, _uncached(found[0]), *others)


def answered(model: Any, example: Examples, steps: int, number: int) -> Prompt:
    """An example of a task that a trained model has learned: what comes before the first answer, and at most ``steps`` answers.

    Answers end before the first position that has none in some row, since a model that runs free gets its own tokens.
    """
    asked = example.labels != IGNORED
    first = int(asked.all(dim=0).long().argmax())
    answers = example.labels[:, first : first + steps]
    counted = int(asked.all(dim=0)[first : first + steps].long().cumprod(0).sum())
    given = _for_generate(example.inputs)
    text = given if model.config.is_encoder_decoder else _cut(given, first + 1)
    return Prompt(name=f"example{number}", inputs=text, tokens=answers[:, :counted])


def _for_generate(inputs: Mapping[str, _Tensor]) -> _Tensors:
    """Without what ``generate`` prepares for each step: positions, and what a decoder with an encoder gets."""
    return {name: tensor for name, tensor in inputs.items() if name != "position_ids" and not name.startswith("decoder_")}


def _texts(model: Any, given: _Tensors, steps: int, generator: torch.Generator) -> list[tuple[str, _Tensors]]:
    ids = given["input_ids"]
    length = ids.shape[1]
    least = _least(model, ids)
    most = _most(model, steps)
    traced = min(length, most - _LONGER)
    if traced <= least:
        needed = least + 1 + _LONGER + steps
        message = f"{type(model).__name__} has too few positions: the longest prompt and its continuation take {needed}"
        raise FactoryError(message, error_type="no_generation")
    whole = _resized(model, given, max(length, traced + _LONGER), generator)
    shorter = max(least + 1, traced // 2)
    found = [(name, _cut(whole, size)) for name, size in ((TRACED, traced), ("shorter", shorter), ("longer", traced + _LONGER))]
    padding = min(_PADDING, most - shorter)
    return [*found, (PADDED, _padded(found[1][1], padding, model))] if padding > 0 else found


def _of_lengths(model: Any, given: _Tensors, lengths: Sequence[int], steps: int, generator: torch.Generator) -> list[tuple[int, _Tensors]]:
    """The text, cut or continued to each length that holds what stands for an image, and for which the model has positions."""
    least, most = _least(model, given["input_ids"]), _most(model, steps)
    return [(length, _resized(model, given, length, generator)) for length in lengths if least < length <= most]


def _resized(model: Any, given: _Tensors, length: int, generator: torch.Generator) -> _Tensors:
    import torch

    ids = given["input_ids"]
    rows, present = ids.shape
    more = _plain(model, (rows, max(0, length - present)), generator)
    whole = {"input_ids": torch.cat([ids, more], dim=1), "attention_mask": torch.ones(rows, present + more.shape[1]).long()}
    return _cut({**_extended(given, more.shape[1]), **whole}, length)


def _uncached(prompt: Prompt) -> Prompt:
    import torch

    before, last = prompt.tokens[:, :-1], prompt.tokens[:, -1:]
    ids, mask = prompt.inputs["input_ids"], prompt.inputs["attention_mask"]
    longer = {"input_ids": torch.cat([ids, before], dim=1), "attention_mask": torch.cat([mask, torch.ones_like(before)], dim=1)}
    return Prompt(name=UNCACHED, inputs={**_extended(prompt.inputs, before.shape[1]), **longer}, tokens=last)


def _extended(inputs: _Tensors, more: int) -> _Tensors:
    """The inputs with what there is for each token, such as its type, as for the last token for ``more`` tokens."""
    import torch

    ids = inputs["input_ids"]

    def longer(tensor: _Tensor) -> _Tensor:
        return torch.cat([tensor, tensor[:, -1:].expand(-1, more, *tensor.shape[2:])], dim=1)

    return {name: longer(tensor) if _is_of_tokens(name, tensor, ids) else tensor for name, tensor in inputs.items()}


def _cut(whole: _Tensors, length: int) -> _Tensors:
    """The first tokens of a text, and what else there is for each of them."""
    ids = whole["input_ids"]
    return {name: tensor[:, :length] if _is_of_tokens(name, tensor, ids) else tensor for name, tensor in whole.items()}


def _is_of_tokens(name: str, tensor: _Tensor, ids: _Tensor) -> bool:
    """Whether an argument has something for each token of the text, such as its type or its place."""
    return tensor.shape[:2] == ids.shape and (tensor.dim() == ids.dim() or name == _BOXES) and not name.startswith(_OF_IMAGES)


def _padded(text: _Tensors, count: int, model: Any) -> _Tensors:
    """A text with padding before it, as decoders need it, or behind it, as encoders do."""
    import torch

    ids = text["input_ids"]
    token = model.generation_config.pad_token_id
    padding = torch.full((ids.shape[0], count), token if isinstance(token, int) else 0)
    behind = bool(model.config.is_encoder_decoder)

    def beside(tensor: _Tensor, added: _Tensor) -> _Tensor:
        return torch.cat([tensor, added] if behind else [added, tensor], dim=1)

    def nothing(tensor: _Tensor) -> _Tensor:
        return tensor.new_zeros((*padding.shape, *tensor.shape[2:]))

    return {
        **{name: beside(tensor, nothing(tensor)) if _is_of_tokens(name, tensor, ids) else tensor for name, tensor in text.items()},
        "input_ids": beside(ids, padding),
    }


def _least(model: Any, ids: _Tensor) -> int:
    """How many tokens at the start stand for an image, a sound or a video; every prompt is longer."""
    tokens = list(_named_tokens(model.config.to_dict()))
    standing_for = {token for _, token in tokens} - {token for name, token in tokens if name in _OF_TEXT}
    standing = [at for at, token in enumerate(ids[0].tolist()) if token in standing_for]
    return standing[-1] + 1 if standing else 1


def _named_tokens(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The tokens that a configuration and those of its parts name."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _named_tokens(value)
        elif isinstance(value, int) and str(name).endswith(_TOKENS):  # id2label has numbers as names
            yield name, value


def _most(model: Any, steps: int) -> int:
    """How many tokens a prompt may have, so that there are positions for its continuation too."""
    return _positions(model) - (0 if model.config.is_encoder_decoder else steps)


def _positions(model: Any) -> int:
    """How many positions its text model has; a large number if there is no limit."""
    text = model.config.get_text_config(decoder=not model.config.is_encoder_decoder)
    limits = [getattr(text, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")]
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=1 << 30)


def _plain(model: Any, shape: tuple[int, int], generator: torch.Generator) -> _Tensor:
    text = model.config.get_text_config(decoder=True)
    return plain_ids((model.config, text), text.vocab_size, shape, generator)


def _rows(inputs: _Tensors) -> int:
    return next(iter(inputs.values())).shape[0]
