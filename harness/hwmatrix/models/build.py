"""Models from plans: a recipe (configuration and seed) or a checkpoint folder, always on the CPU, eager, in float32."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from hwmatrix.basics.json_text import read_json
from hwmatrix.basics.near_miss import closest
from hwmatrix.errors import FactoryError
from hwmatrix.models.checkpoint import inspect as inspect_checkpoint
from hwmatrix.models.diffusion import build as diffusion
from hwmatrix.models.diffusion.build import PIPELINE
from hwmatrix.models.diffusion.pipeline import load_pipeline, pipeline_from
from hwmatrix.models.factory.rules import override
from hwmatrix.records import Dtype, Family

if TYPE_CHECKING:
    import torch

    from hwmatrix.records import ModelPlan

RECIPE: Final = "recipe"
TRAINED: Final = "trained"
"""The ``weights`` in matrix.yaml of a recipe whose tiny model learns a task. Its plan has ``weights: recipe``, and ``trained``."""
HUB: Final = "hub"
_EAGER: Final = "eager"
# Noise for parameters whose elements are all equal (biases at 0, norms at 1): without it, a backend that drops one would go unnoticed.
# 0.02 is the default initializer_range of most configurations of transformers.
_NOISE: Final = 0.02
# Value of scalar parameters that start at 0. Most are closed gates, which would block everything behind them: the image of a
# vision-language model, for example.
_OPEN_GATE: Final = 0.5
# Keys that every configuration accepts although its class has no such field.
_COMMON_KEYS: Final = frozenset({"num_labels", "model_type"})


def build_model(plan: ModelPlan) -> torch.nn.Module:
    """The model of a plan: in evaluation mode, float32, eager attention, on the CPU.

    Raises:
        FactoryError: it cannot be built; the message says why (``unbuildable``, ``unknown_class``, ``unknown_config_key``,
            ``bad_config``, ``too_large``, ``weights_not_fetched``, ``build_failed``, or an error of :func:`checkpoint.inspect`).
        RefusedError: loading its weights would run untrusted code.
    """
    if plan.unbuildable:
        raise FactoryError(plan.unbuildable, error_type="unbuildable")
    if plan.weights == HUB:
        raise FactoryError(f"the weights of {plan.hub_id} have not been fetched from the hub yet", error_type="weights_not_fetched")
    if plan.weights == RECIPE:
        return _from_recipe(plan)
    folder = Path(plan.weights)
    inspect_checkpoint(folder)
    return _load(folder, plan.model_class, Dtype.FLOAT32, "eager")


def load_model(model_dir: Path, model_class: str, dtype: Dtype, *, attention: str | None = "eager", cache: bool = False) -> torch.nn.Module:
    """Load a checkpoint folder of transformers or diffusers, from safetensors only. Every target loads bundles with it.

    The model is in evaluation mode, on the CPU. ``attention`` is the attention implementation: ``eager`` as in the reference, ``sdpa``, or
    None for the default of transformers. Without ``cache``, ``use_cache`` is off by default: a single forward pass needs no cache, and
    exporters, which do not pass ``use_cache`` on to inner models, would make it an output.

    Raises:
        FactoryError: it cannot be loaded (``load_failed``), lacks weights (``weights_incomplete``), or transformers has no such
            class (``unknown_class``).
    """
    if diffusion.is_diffusion(model_dir):
        return (load_pipeline if model_class == PIPELINE else diffusion.load_denoiser)(model_dir, model_class, dtype)
    model = _load(model_dir, model_class, dtype, eager_attention(model_dir) if attention == _EAGER else attention)
    for module in () if cache else model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False
    return model


def build_diffusion(plan: ModelPlan, config: dict[str, Any] | None = None, *, perturb: bool = True) -> torch.nn.Module:
    """A model of diffusers with random weights from a plan's seed. ``config`` replaces that of the plan.

    Without ``perturb``, constants stay what the class sets: on the meta device, where weights have no values.

    Raises:
        FactoryError: as :func:`build_model`.
    """
    config = plan.config if config is None else config
    model = pipeline_from(plan, config) if plan.model_class == PIPELINE else diffusion.denoiser_from(plan, config)
    if perturb:
        _perturb_constants(model, plan.seed)
    return model


def eager_attention(model_dir: Path) -> str | dict[str, str]:
    """Eager attention, or the override for an architecture whose eager attention is wrong (one for the whole model, or one per part)."""
    config = model_dir / "config.json"
    model_type = read_json(config.read_bytes()).get("model_type", "") if config.is_file() else ""
    found = override(model_type).attention
    return {**found} if isinstance(found, dict) else found or _EAGER


def _load(model_dir: Path, model_class: str, dtype: Dtype, attention: str | dict[str, str] | None) -> torch.nn.Module:
    import torch

    loader = _class(model_class)
    try:
        model, info = loader.from_pretrained(
            model_dir,
            dtype=getattr(torch, dtype.value),
            attn_implementation=attention,
            experts_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # a model's own code may raise anything; it becomes data
        raise FactoryError(f"{model_class} cannot be loaded: {_one_line(error)}", error_type="load_failed") from error
    # transformers fills missing weights with random numbers, different ones each time.
    lacking = sorted({*info["missing_keys"], *(str(key[0]) for key in info["mismatched_keys"])})
    if lacking:
        some = ", ".join(lacking[:3]) + (", ..." if len(lacking) > 3 else "")  # noqa: PLR2004 - enough to recognize them
        message = f"the checkpoint lacks {len(lacking)} weights of {model_class} ({some}): name the class that it was saved from"
        raise FactoryError(message, error_type="weights_incomplete")
    return model.eval()  # type: ignore[no-any-return]


def recipe_config(plan: ModelPlan) -> Any:
    """The configuration of a recipe: the defaults of the architecture's class with the plan's overrides.

    Raises:
        FactoryError: unknown architecture, unknown key (with a suggestion), or values that the class rejects.
    """
    architectures = _transformers().CONFIG_MAPPING
    if plan.architecture not in architectures:
        message = f"transformers has no architecture {plan.architecture!r}{_did_you_mean(plan.architecture, architectures.keys())}"
        raise FactoryError(message, error_type="unknown_architecture")
    config_class = architectures[plan.architecture]
    _check_keys(config_class, plan.config, "config")
    try:
        return config_class(**plan.config, attn_implementation="eager", experts_implementation="eager")
    except Exception as error:  # configurations validate themselves, each with its own errors
        raise FactoryError(f"{config_class.__name__} refuses the config: {_one_line(error)}", error_type="bad_config") from error


def parameter_count(plan: ModelPlan) -> int:
    """The number of parameters of a recipe, without allocating them.

    Raises:
        FactoryError: as :func:`build_model`, except ``unbuildable``, which is not checked.
    """
    if plan.family is Family.DIFFUSION:
        import torch

        with torch.device("meta"):
            return sum(parameter.numel() for parameter in build_diffusion(plan, perturb=False).parameters())
    return _parameters_of(plan, recipe_config(plan))


def build_from(plan: ModelPlan, config: Any, *, most: int) -> torch.nn.Module:
    """A model of a plan's class with random weights from its seed: in evaluation mode, float32, eager attention, on the CPU.

    Raises:
        FactoryError: its class cannot be built from the configuration (``unknown_class``, ``build_failed``), or has more than
            ``most`` parameters (``too_large``).
    """
    parameters = _parameters_of(plan, config)
    if parameters > most:
        message = f"{plan.model_class} has {parameters:,} parameters; a tiny model may have at most {most:,}"
        raise FactoryError(message, error_type="too_large")
    return _from_seed(plan, config)


def _parameters_of(plan: ModelPlan, config: Any) -> int:
    import torch

    model_class = _class(plan.model_class)
    try:
        with torch.device("meta"):
            model = model_class(copy.deepcopy(config))  # some classes write into their configuration
    except Exception as error:  # a model's own code may raise anything; it becomes data
        raise FactoryError(f"{plan.model_class} cannot be built: {_one_line(error)}", error_type="build_failed") from error
    return sum(parameter.numel() for parameter in model.parameters())


def _from_recipe(plan: ModelPlan) -> torch.nn.Module:
    needed, free = 4 * parameter_count(plan), psutil.virtual_memory().available
    if needed > free:
        message = f"{plan.name} needs {needed / 1e9:.1f} GB for its parameters in float32, and {free / 1e9:.1f} GB are free"
        raise FactoryError(message, error_type="too_large")
    return build_diffusion(plan) if plan.family is Family.DIFFUSION else _from_seed(plan, recipe_config(plan))


def _from_seed(plan: ModelPlan, config: Any) -> torch.nn.Module:
    import torch

    model_class = _class(plan.model_class)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            model = model_class(config).to(torch.float32).eval()
    except Exception as error:  # a model's own code may raise anything; it becomes data
        raise FactoryError(f"{plan.model_class} cannot be built: {_one_line(error)}", error_type="build_failed") from error
    _perturb_constants(model, plan.seed)
    return model  # type: ignore[no-any-return]


def _perturb_constants(model: torch.nn.Module, seed: int) -> None:
    """Add noise to every parameter whose elements are all equal, open scalar gates, and fill saved buffers that are all zero.

    An untrained audio codec has such a buffer, its codebook. If all entries were zero, the codes would not depend on the audio.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    saved = model.state_dict().keys()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in saved and buffer.is_floating_point() and buffer.dim() > 1 and not bool(buffer.any()):
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
        for parameter in model.parameters():
            if parameter.numel() == 1 and not bool(parameter.any()):
                parameter.fill_(_OPEN_GATE)
            elif parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=_NOISE)


def _transformers() -> Any:
    """transformers, without progress bars. Imported late: it takes a second, and is not installed where runs are planned."""
    import transformers

    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    return transformers


def _class(name: str) -> Any:
    """A model class of transformers by its name.

    Raises:
        FactoryError: there is none, or it needs a package that is not installed.
    """
    transformers = _transformers()
    found = getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        missing = [package for package in getattr(found, "_backends", ()) if importlib.util.find_spec(package) is None]
        if missing:  # transformers has a class without contents in its place
            raise FactoryError(f"{name} needs packages that are not installed: {', '.join(missing)}", error_type="missing_package")
        models = [other for other in dir(transformers) if other[:1].isupper() and not other.endswith(("Config", "Processor", "Tokenizer"))]
        message = f"transformers {transformers.__version__} has no model class {name!r}{_did_you_mean(name, models)}"
        raise FactoryError(message, error_type="unknown_class")
    return found


def _check_keys(config_class: Any, overrides: dict[str, Any], where: str) -> None:
    """Raise for the first key that neither the configuration class nor its models know: transformers would accept it and ignore it."""
    known = _known_keys(config_class)
    for key, value in overrides.items():
        if key not in known and not _is_read(config_class, key):
            message = f"{where}: {config_class.__name__} has no {key!r}{_did_you_mean(key, known)}"
            raise FactoryError(message, error_type="unknown_config_key")
        if key in config_class.sub_configs and isinstance(value, dict):
            _check_keys(_nested_class(config_class, key, value), value, f"{where}.{key}")


def _is_read(config_class: Any, key: str) -> bool:
    """Whether the models of a configuration read a key that it does not declare, as DeBERTa reads ``position_buckets``."""
    reads = re.compile(rf"""\bconfig(?:\.{re.escape(key)}\b|, ["']{re.escape(key)}["'])""")
    models = Path(inspect.getfile(config_class)).parent.glob("modeling_*.py")
    return any(reads.search(file.read_text(encoding="utf-8")) for file in models)


def _known_keys(config_class: Any) -> set[str]:
    fields = {field.name for field in dataclasses.fields(config_class)} if dataclasses.is_dataclass(config_class) else set()
    arguments = inspect.signature(config_class).parameters.values()
    named = {argument.name for argument in arguments if argument.kind is not argument.VAR_KEYWORD}
    return fields | named | set(config_class.attribute_map) | _COMMON_KEYS


def _nested_class(config_class: Any, key: str, value: dict[str, Any]) -> Any:
    """The class of a nested configuration: the one that its model_type names, else the outer class's default."""
    architectures, named = _transformers().CONFIG_MAPPING, value.get("model_type")
    return architectures[named] if named in architectures else type(getattr(config_class(), key))


def _did_you_mean(word: str, allowed: Any) -> str:
    near = closest(word, allowed)
    return f": did you mean {near!r}?" if near is not None else ""


def _one_line(error: Exception) -> str:
    """An error's class and message in one line. Many messages mean nothing without the class."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
