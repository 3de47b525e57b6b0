"""A model and its inputs as source code, so that a script can rebuild both without hwmatrix."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import CellFailure, ConfigError, Problem
from hwmatrix.generate.type_code import Built, Draw, drawn_apart, make_type, recorded_draws
from hwmatrix.models.build import RECIPE, build_diffusion, recipe_config
from hwmatrix.models.bundle import Bundle, find_or_build
from hwmatrix.models.checkpoint import inspect
from hwmatrix.models.diffusion.build import PIPELINE
from hwmatrix.models.diffusion.inputs import diffusion_inputs
from hwmatrix.models.diffusion.recipes import recipe_of
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.models.folder import CALIBRATION, INPUTS
from hwmatrix.models.inputs import make_inputs
from hwmatrix.models.outputs import call_options
from hwmatrix.models.samples.evaluation import CheckpointSamples
from hwmatrix.models.samples.processing import NoSamplesError
from hwmatrix.records import Family

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hwmatrix.records import ModelPlan

_SPECIAL: Final = ("_token_id", "_token_ids", "_token_index")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputCode:
    """An argument of ``forward``: the expression that creates it, given a torch.Generator called ``generator``.

    ``ids`` are the values of a tensor that is written out, mostly token ids; ``draws`` are expressions to evaluate before it and discard,
    so that later random tensors are the same as in the original run.
    """

    name: str
    code: str
    ids: list[Any] | None = None
    draws: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diffuser:
    """How a script builds a model of diffusers: ``config`` are the arguments of its class, the others as in :class:`Built`."""

    config: dict[str, Any]
    tables: bool
    switches: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCode:
    """What a script needs besides the plan.

    ``call`` are the other arguments of a forward pass; ``vocabulary`` is the number of tokens and ``special`` the special ones, as
    calibration uses them. ``built`` says how to build a model that is made from its type, ``diffuser`` one of diffusers. ``data`` are the
    files that the script reads from a folder beside it, by their names there, since no code can repeat a training; ``digest`` is that of
    their bundle.
    """

    inputs: tuple[InputCode, ...]
    call: dict[str, Any]
    vocabulary: int
    special: list[int]
    built: Built | None = None
    diffuser: Diffuser | None = None
    data: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    digest: str | None = None

    @property
    def random(self) -> bool:
        """Whether anything is drawn from the generator."""
        return any("generator" in made.code or made.draws for made in self.inputs)


def model_code(plan: ModelPlan, cache: Path) -> ModelCode:
    """Determine this for a model and its bundle's inputs. A recipe's model is built on the meta device, where it takes no memory.

    A model that hwmatrix trains is taken from its bundle in ``cache``, a folder of bundles, and trained here if the cache lacks it.

    Raises:
        ConfigError: the checkpoint is missing, or the model is a pipeline, or made from its
            type and not expressible as code.
        FactoryError: the model or its inputs cannot be built at all.
        BundleError: the cache cannot be written.
    """
    if plan.family is Family.DIFFUSION:
        return _code_of_diffuser(plan)
    if plan.trained:
        return _code_of_trained(find_or_build(plan, cache))
    return _code_of_type(plan) if plan.weights == FACTORY else _code_of_weights(plan)


def _code_of_diffuser(plan: ModelPlan) -> ModelCode:
    import torch

    if plan.model_class == PIPELINE:
        what = f"{plan.name} is a pipeline, and hwmatrix turns all its steps into one module, which a script without hwmatrix does not have"
        hint = f"run it again (hwmatrix test --model {plan.selector or plan.name}), or write scripts of its parts, such as its denoiser"
        raise ConfigError([Problem(where="--reproduce", what=what, hint=hint)])
    recipe = recipe_of(plan.model_class)
    config = recipe.config if plan.weights == FACTORY else plan.config
    with torch.device("meta"):
        model = build_diffusion(plan, config, perturb=False)
    inputs, drawn = recorded_draws(lambda: diffusion_inputs(model, plan))
    diffuser = Diffuser(config=config, **drawn_apart(model))
    return ModelCode(inputs=drawn_inputs(inputs, drawn), call=dict(recipe.call), vocabulary=0, special=[], diffuser=diffuser)


def _code_of_type(plan: ModelPlan) -> ModelCode:
    made = make_type(plan)
    count, special = _tokens(made.model.config)
    inputs = drawn_inputs(made.inputs, made.drawn)
    return ModelCode(inputs=inputs, call=call_options(made.model), vocabulary=count, special=special, built=made.built)


def drawn_inputs(inputs: dict[str, torch.Tensor], drawn: Sequence[Draw]) -> tuple[InputCode, ...]:
    """Code for inputs in their original order: random tensors are drawn again, computed ones are written out as values."""
    import torch

    begin, made = 0, list[InputCode]()
    for name, tensor in inputs.items():
        found = next((at for at in range(begin, len(drawn)) if torch.equal(drawn[at].tensor, tensor)), None)
        if found is not None and tensor.is_floating_point():
            made.append(InputCode(name=name, code=drawn[found].code, draws=tuple(draw.code for draw in drawn[begin:found])))
            begin = found + 1
        else:
            made.append(_written_out(name, tensor))
    return tuple(made)


def _written_out(name: str, tensor: torch.Tensor) -> InputCode:
    for value, function in ((1, "ones"), (0, "zeros")):
        if tensor.numel() and bool((tensor == value).all()):
            return InputCode(name=name, code=f"torch.{function}({tuple(tensor.shape)}, dtype={tensor.dtype})")
    return InputCode(name=name, code="", ids=tensor.tolist())


def _code_of_trained(bundle: Bundle) -> ModelCode:
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(bundle.model_dir, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = getattr(transformers, bundle.model_class)(config)
    count, special = _tokens(config)
    files = [*sorted(bundle.model_dir.iterdir()), bundle.path / INPUTS, bundle.path / CALIBRATION]
    data = {str(file.relative_to(bundle.path)): file for file in files if file.is_file()}
    return ModelCode(inputs=(), call=call_options(model), vocabulary=count, special=special, data=data, digest=bundle.digest)


def _code_of_weights(plan: ModelPlan) -> ModelCode:
    import torch
    import transformers

    config = _config(plan)
    with torch.device("meta"):
        model = getattr(transformers, plan.model_class)(config)
    count, special = _tokens(config)
    try:
        code = _processed_code(CheckpointSamples.read(model, plan)) if plan.weights != RECIPE else _inputs_code(make_inputs(model, plan))
    except NoSamplesError:  # the bundle has random inputs then, too
        code = _inputs_code(make_inputs(model, plan))
    return ModelCode(inputs=code, call=call_options(model), vocabulary=count, special=special)


def _processed_code(samples: CheckpointSamples) -> tuple[InputCode, ...]:
    """Code for inputs prepared by the checkpoint's own processor: tokens are written out, pictures and sounds become random numbers."""
    instead = f"random, where the run has a sample prepared by {samples.processor}"
    return tuple(
        InputCode(name=name, code=f"torch.randn({tuple(tensor.shape)}, generator=generator)  # {instead}")
        if tensor.is_floating_point()
        else _written_out(name, tensor)
        for name, tensor in samples.inputs.items()
    )


def _config(plan: ModelPlan) -> Any:
    if plan.weights == RECIPE:
        return recipe_config(plan)
    import transformers

    folder = Path(plan.weights)
    try:
        inspect(folder)
    except CellFailure as failure:
        hint = "generate the script on the machine that has the checkpoint"
        raise ConfigError([Problem(where="--reproduce", what=str(failure), hint=hint)]) from failure
    return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _inputs_code(inputs: dict[str, torch.Tensor]) -> tuple[InputCode, ...]:
    """Code for inputs in the order in which they are drawn from one generator: see ``models.inputs``."""
    names = list(inputs)
    last = max((names.index(name) for name in names if inputs[name].is_floating_point()), default=-1)
    return tuple(_input_code(name, inputs[name], followed=names.index(name) < last) for name in names)


def _input_code(name: str, tensor: torch.Tensor, *, followed: bool) -> InputCode:
    shape = tuple(tensor.shape)
    if tensor.is_floating_point():
        return InputCode(name=name, code=f"torch.randn({shape}, generator=generator)")
    if bool((tensor == 1).all()):
        return InputCode(name=name, code=f"torch.ones({shape}, dtype=torch.int64)")
    draws = (f"torch.randint(2, {shape}, generator=generator)",) if followed else ()
    return InputCode(name=name, code="", ids=tensor.tolist(), draws=draws)


def _tokens(config: Any) -> tuple[int, list[int]]:
    """The number of tokens in the model's saved configuration and its sub-configurations, and the special ones."""
    saved = json.loads(config.to_json_string(use_diff=True))
    parts = [saved, *(part for part in (saved.get("text_config"), saved.get("decoder")) if isinstance(part, dict))]
    counts = [part["vocab_size"] for part in parts if isinstance(part.get("vocab_size"), int)]
    named = [value for part in parts for key, value in part.items() if key.endswith(_SPECIAL)]
    special = {token for value in named for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)}
    return min(counts, default=0), sorted(special)
