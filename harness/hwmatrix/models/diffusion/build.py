"""Models of diffusers from plans and folders: float32 on the CPU, in evaluation mode, without network."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.json_text import read_json
from hwmatrix.basics.near_miss import closest
from hwmatrix.errors import FactoryError
from hwmatrix.models.diffusion.recipes import recipe_of, recipes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch

    from hwmatrix.records import Dtype, ModelPlan

CONFIG: Final = "config.json"
PIPELINE: Final = "StableDiffusionPipeline"
PARTS: Final = {"unet": "UNet2DConditionModel", "vae": "AutoencoderKL"}
"""The parts of a pipeline that are models of diffusers, with their classes."""
_MARK: Final = "_diffusers_version"
"""The field of a config.json that diffusers' ``save_pretrained`` writes, and transformers' does not."""


def is_diffusion(model_dir: Path) -> bool:
    """Whether a folder is a model that diffusers saved."""
    file = model_dir / CONFIG
    return file.is_file() and _MARK in read_json(file.read_bytes())


def denoiser_from(plan: ModelPlan, config: dict[str, Any]) -> torch.nn.Module:
    """A model of a plan's class with these arguments, and random weights from the plan's seed.

    Raises:
        FactoryError: diffusers is not installed (``not_installed``), has no such class (``unknown_class``), the class does not know an
            argument (``unknown_config_key``), or it cannot be built (``build_failed``).
    """
    import torch

    kind = model_class(plan.model_class)
    check_keys(kind, config, "config")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            return kind(**config).to(torch.float32).eval()  # type: ignore[no-any-return]
    except Exception as error:  # a model's own code may raise anything; it becomes data
        raise FactoryError(f"{plan.model_class} cannot be built: {one_line(error)}", error_type="build_failed") from error


def load_denoiser(model_dir: Path, name: str, dtype: Dtype) -> torch.nn.Module:
    """Load a model that diffusers saved, from safetensors only. Arguments that are plain numbers are bound to its ``forward``.

    Raises:
        FactoryError: it cannot be loaded (``load_failed``), lacks weights (``weights_incomplete``), or there is no such class.
    """
    import torch
    from safetensors.torch import load_file

    kind = model_class(name)
    try:
        model = kind.from_config(kind.load_config(model_dir, local_files_only=True))
        # Not from_pretrained: for some classes it needs the package accelerate.
        saved = {key: tensor for file in sorted(model_dir.glob("*.safetensors")) for key, tensor in load_file(file).items()}
        lacking = sorted(model.load_state_dict(saved, strict=False).missing_keys)
    except Exception as error:  # a model's own code may raise anything; it becomes data
        raise FactoryError(f"{name} cannot be loaded: {one_line(error)}", error_type="load_failed") from error
    if lacking:
        message = f"the checkpoint lacks {len(lacking)} weights of {name} ({', '.join(lacking[:3])}): name the class that it was saved from"
        raise FactoryError(message, error_type="weights_incomplete")
    call = recipe_of(name).call
    if call:
        model.forward = functools.partial(model.forward, **call)
    return model.to(getattr(torch, dtype.value)).eval()  # type: ignore[no-any-return]


def library() -> Any:
    """The package diffusers. Imported late: it takes a second, and only its models need it.

    Raises:
        FactoryError: it is not installed here.
    """
    try:
        import diffusers
    except ImportError as error:
        message = f"diffusers cannot be imported here ({error}): pip install diffusers, or add it to images/base/torch-cpu.txt"
        raise FactoryError(message, error_type="not_installed") from error
    diffusers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.set_verbosity_error()
    return diffusers


def member(name: str) -> Any:
    """What diffusers has under a name, or None.

    Its modules are imported as they are asked for, and some make tensors then: they go to the CPU, even where the caller builds a model
    on the meta device.

    Raises:
        FactoryError: diffusers is not installed here.
    """
    import torch

    with torch.device("cpu"):
        return getattr(library(), name, None)


def preload_diffusion(classes: Iterable[str]) -> None:
    """Import the modules of those classes that are not transformers' own, if any, and what a pipeline of them needs."""
    import transformers

    for name in sorted(set(classes)):
        if hasattr(transformers, name):
            continue
        for part in PARTS.values() if name == PIPELINE else (name,):
            with contextlib.suppress(FactoryError):  # the cell meets the same error and records it
                model_class(part)


def model_class(name: str) -> Any:
    """A model class of diffusers by its name.

    Raises:
        FactoryError: diffusers is not installed, or this version has no such class.
    """
    diffusers = library()
    found = member(name)
    if not (isinstance(found, type) and issubclass(found, diffusers.ModelMixin)):
        near = closest(name, [recipe.model_class for recipe in recipes().values()])
        message = f"diffusers {diffusers.__version__} has no model class {name!r}{f': did you mean {near!r}?' if near else ''}"
        raise FactoryError(message, error_type="unknown_class")
    return found


def check_keys(kind: Any, config: dict[str, Any], where: str) -> None:
    """Raise for the first argument that a class does not have.

    Raises:
        FactoryError: the class has no such argument (``unknown_config_key``).
    """
    known = list(inspect.signature(kind.__init__).parameters)[1:]
    for key in config:
        if key not in known:
            near = closest(key, known)
            message = f"{where}: {kind.__name__} has no {key!r}{f': did you mean {near!r}?' if near else ''}"
            raise FactoryError(message, error_type="unknown_config_key")


def one_line(error: Exception) -> str:
    """An error's class and message in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
