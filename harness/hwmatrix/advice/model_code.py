"""A model and its inputs as source code: what a script needs to make both anew without hwmatrix."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import CellFailure, ConfigError, Problem
from hwmatrix.models.build import RECIPE, recipe_config
from hwmatrix.models.checkpoint import inspect
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.models.inputs import make_inputs
from hwmatrix.models.outputs import call_options

if TYPE_CHECKING:
    import torch

    from hwmatrix.records import ModelPlan

_NEEDS: Final = ("torch", "transformers")
_SPECIAL: Final = ("_token_id", "_token_ids", "_token_index")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputCode:
    """An argument of ``forward``: the expression that makes it, with a torch.Generator called ``generator`` at hand.

    ``ids`` are the numbers of a tensor of token ids, which are written out; ``draw`` is what must be drawn from the generator in
    their place, so that random tensors after it come out as they were.
    """

    name: str
    code: str
    ids: list[Any] | None = None
    draw: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCode:
    """What a script must know besides the plan.

    ``call`` are the other arguments of a forward pass; ``vocabulary`` and ``special`` are the number of tokens and those that mean
    something to the model itself, as calibration knows them.
    """

    inputs: tuple[InputCode, ...]
    call: dict[str, Any]
    vocabulary: int
    special: list[int]

    @property
    def random(self) -> bool:
        """Whether anything is drawn from the generator."""
        return any("generator" in (made.draw or made.code) for made in self.inputs)


def model_code(plan: ModelPlan) -> ModelCode:
    """Work it out, with the model on the meta device: no memory is used for its parameters. The inputs are those of its bundle.

    Raises:
        ConfigError: torch or transformers is not installed here, or the checkpoint is not; the model is made from its type alone.
        FactoryError: the model or its inputs cannot be made at all.
    """
    if plan.weights == FACTORY:
        what = f"{plan.name} is made from its type alone by hwmatrix, so a script without hwmatrix cannot make it"
        hint = f"repeat the cell, which hwmatrix why {plan.name} TARGET has the command for; or give it an entry in matrix.yaml"
        raise ConfigError([Problem(where="--reproduce", what=what, hint=hint)])
    lacking = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if lacking:
        what = f"{' and '.join(lacking)} must be installed to work out the inputs of {plan.name}"
        hint = "install them (the script itself needs them too), with the versions of images/constraints.txt"
        raise ConfigError([Problem(where="--reproduce", what=what, hint=hint)])
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    config = _config(plan)
    with torch.device("meta"):
        model = getattr(transformers, plan.model_class)(config)
    made = make_inputs(model, plan)
    count, special = _tokens(config)
    return ModelCode(inputs=_inputs_code(made), call=call_options(model), vocabulary=count, special=special)


def _config(plan: ModelPlan) -> Any:
    if plan.weights == RECIPE:
        return recipe_config(plan)
    import transformers  # noqa: PLC0415

    folder = Path(plan.weights)
    try:
        inspect(folder)
    except CellFailure as failure:
        hint = "generate the script on the machine that has the checkpoint"
        raise ConfigError([Problem(where="--reproduce", what=str(failure), hint=hint)]) from failure
    return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _inputs_code(inputs: dict[str, torch.Tensor]) -> tuple[InputCode, ...]:
    """One after the other, as they are drawn from one generator: see ``models.inputs``."""
    names = list(inputs)
    last = max((names.index(name) for name in names if inputs[name].is_floating_point()), default=-1)
    return tuple(_input_code(name, inputs[name], followed=names.index(name) < last) for name in names)


def _input_code(name: str, tensor: torch.Tensor, *, followed: bool) -> InputCode:
    shape = tuple(tensor.shape)
    if tensor.is_floating_point():
        return InputCode(name=name, code=f"torch.randn({shape}, generator=generator)")
    if bool((tensor == 1).all()):
        return InputCode(name=name, code=f"torch.ones({shape}, dtype=torch.int64)")
    draw = f"torch.randint(2, {shape}, generator=generator)" if followed else None
    return InputCode(name=name, code="", ids=tensor.tolist(), draw=draw)


def _tokens(config: Any) -> tuple[int, list[int]]:
    """How many tokens the model's configuration names, as it is saved, and which of them are special: its parts included."""
    saved = json.loads(config.to_json_string(use_diff=True))
    parts = [saved, *(part for part in (saved.get("text_config"), saved.get("decoder")) if isinstance(part, dict))]
    counts = [part["vocab_size"] for part in parts if isinstance(part.get("vocab_size"), int)]
    named = [value for part in parts for key, value in part.items() if key.endswith(_SPECIAL)]
    special = {token for value in named for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)}
    return min(counts, default=0), sorted(special)
