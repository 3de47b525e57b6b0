"""Inspects the files of a checkpoint folder: what it is, and whether its weights are safe to load.

Nothing here imports or runs anything from the folder. Checkpoints that need pickles or their own Python code are refused: both can run
arbitrary code when they are loaded.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any, Final

import safetensors

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import FactoryError, RefusedError
from hwmatrix.models.families import family_of
from hwmatrix.records import ModelPlan, Size

SAFE_WEIGHTS: Final = "model.safetensors"
SAFE_INDEX: Final = "model.safetensors.index.json"
POOLING: Final = "1_Pooling/config.json"
"""Where sentence-transformers writes how the vectors of tokens become one."""
_DIFFUSERS: Final = "hwmatrix builds those from a config instead: give it an entry of matrix.yaml with family: diffusion (docs/models.md)"
_PROCESSOR_FILES: Final = ("*.json", "*.txt", "*.model", "*.tiktoken", POOLING)
"""Tokenizers, image processors and feature extractors."""
_MODEL_TYPE: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_SHOWN: Final = 80
_REFUSED_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".pkl", ".pickle")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The content of a folder. ``architecture`` is the configuration's model_type, ``weights`` are the safetensors files to load."""

    folder: Path
    architecture: str
    model_class: str
    config: dict[str, Any]
    weights: tuple[Path, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that affects what is loaded: configuration, index, weights."""
        named = (self.folder / "config.json", self.folder / "generation_config.json", self.folder / SAFE_INDEX)
        return (*(path for path in named if path.is_file()), *self.weights)

    @property
    def identifying_files(self) -> tuple[Path, ...]:
        """The files that decide what is loaded and what the model is given: those of its processor too."""
        beside = (path for pattern in _PROCESSOR_FILES for path in sorted(self.folder.glob(pattern)) if path.is_file())
        return tuple(dict.fromkeys((*self.files, *beside)))


def inspect(folder: Path) -> Checkpoint:
    """Read a checkpoint's configuration and list its weights.

    Raises:
        RefusedError: it needs its own code (``remote_code_refused``), or has only pickled weights (``pickle_refused``).
        FactoryError: it is not a checkpoint of transformers: configuration or weights are missing or broken.
    """
    config = inspect_config(folder)
    architecture, model_class, weights = config["model_type"], config["architectures"][0], _weights(folder)
    for path in weights:
        try:
            with safetensors.safe_open(path, framework="numpy"):  # reads the header, and compares it with the size of the file
                pass
        except (OSError, safetensors.SafetensorError) as error:
            raise FactoryError(
                f"{path} is damaged, or only the pointer to a Git LFS file ({error}). Download it again", error_type="weights_broken"
            ) from error
    return Checkpoint(folder=folder, architecture=architecture, model_class=model_class, config=config, weights=weights)


def inspect_config(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's configuration alone, so that it can be refused before its weights are downloaded.

    Raises:
        RefusedError: it needs its own code (``remote_code_refused``).
        FactoryError: the configuration is missing or broken, or its architecture or class is missing or no valid name.
    """
    config = _config(folder)
    if isinstance(config.get("_diffusers_version"), str):
        message = f"{folder} is a {config.get('_class_name')} of diffusers, and {_DIFFUSERS}"
        raise FactoryError(message, error_type="no_checkpoint")
    architecture, classes = config.get("model_type"), config.get("architectures")
    model_class = classes[0] if isinstance(classes, list) and classes else None
    _refuse_remote_code(folder, config.get("auto_map"), architecture, model_class)
    if not isinstance(architecture, str) or not isinstance(model_class, str):
        message = f"{folder}/config.json names no model_type or no class under architectures: add them, or save it with save_pretrained"
        raise FactoryError(message, error_type="config_incomplete")
    if not _MODEL_TYPE.fullmatch(architecture) or not model_class.isidentifier():
        message = f"{folder}/config.json names no valid model type and class: {ascii(architecture)[:_SHOWN]}, {ascii(model_class)[:_SHOWN]}"
        raise FactoryError(message, error_type="config_broken")
    return config


def plan_for(
    name: str,
    folder: Path,
    size: Size,
    batch: int,
    sequence_length: int,
    *,
    hub_id: str | None = None,
    revision: str | None = None,
    weights: str | None = None,
) -> ModelPlan:
    """The plan of a checkpoint that matrix.yaml does not list. ``sequence_length`` is cut to the number of positions of the model.

    ``weights`` is where its weights will come from if not from the folder; then only the folder's configuration is read.

    Raises:
        RefusedError: as :func:`inspect`.
        FactoryError: as :func:`inspect`, or its family is not known.
    """
    config = inspect(folder).config if weights is None else inspect_config(folder)
    architecture, model_class = config["model_type"], config["architectures"][0]
    return ModelPlan(
        name=name,
        size=size,
        family=family_of(architecture, model_class).family,
        architecture=architecture,
        model_class=model_class,
        hub_id=hub_id,
        revision=revision,
        weights=str(folder.resolve()) if weights is None else weights,
        batch=batch,
        sequence_length=min([sequence_length, *_positions(config)]),
    )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.is_dir():
        raise FactoryError(f"{folder} is not a folder: name a checkpoint's folder", error_type="no_checkpoint")
    if not path.is_file():
        _refuse_openvino(folder)
        pipeline = (folder / "model_index.json").is_file()
        found = f"a diffusers pipeline (model_index.json), and {_DIFFUSERS}" if pipeline else "not a transformers checkpoint"
        raise FactoryError(f"{folder} has no config.json: it is {found}", error_type="no_checkpoint")
    try:
        config = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FactoryError(f"{path} cannot be read as JSON: {error}", error_type="config_broken") from error
    if not isinstance(config, dict):
        raise FactoryError(f"{path} is not a JSON object", error_type="config_broken")
    return config


def _refuse_openvino(folder: Path) -> None:
    """Refuse a folder with a graph in OpenVINO's format, which consists of two files."""
    graphs = sorted(path.name for path in folder.glob("*.xml") if path.with_suffix(".bin").is_file())
    if graphs:
        message = f"{folder} has a model in OpenVINO's format ({', '.join(graphs)}), and hwmatrix tests checkpoints of transformers: "
        message += "name the one that it was converted from; hwmatrix converts it itself for the target openvino"
        raise FactoryError(message, error_type="no_checkpoint")


def _refuse_remote_code(folder: Path, auto_map: object, architecture: object, model_class: object) -> None:
    """Refuse a checkpoint that needs its own code. If the installed transformers has the class itself, that code is not needed."""
    if not isinstance(auto_map, dict) or not auto_map:
        return
    native = _is_native(architecture, model_class)
    if native is None:
        native = "AutoConfig" not in auto_map
    if not native:
        message = (
            f"{folder} can be loaded only by running its own code ({', '.join(sorted(auto_map))} in auto_map), "
            "which hwmatrix never does: use a checkpoint whose architecture is part of transformers"
        )
        raise RefusedError(message, error_type="remote_code_refused")


def _is_native(architecture: object, model_class: object) -> bool | None:
    """Whether transformers itself has the architecture and the class; None if transformers is not installed."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        return None
    return architecture in transformers.CONFIG_MAPPING and isinstance(model_class, str) and hasattr(transformers, model_class)


def _weights(folder: Path) -> tuple[Path, ...]:
    """The safetensors files to load: one, or the shards of an index."""
    single, index = folder / SAFE_WEIGHTS, folder / SAFE_INDEX
    if single.is_file():
        return (single,)
    if index.is_file():
        return _shards(folder, index)
    _refuse_openvino(folder)
    refused = sorted(path.name for path in folder.iterdir() if path.name.endswith(_REFUSED_SUFFIXES))
    if refused:
        message = (
            f"{folder} has pickled weights only ({', '.join(refused)}), and reading a pickle can run any program: "
            "convert it once, where you trust it, with save_pretrained, which writes model.safetensors"
        )
        raise RefusedError(message, error_type="pickle_refused")
    raise FactoryError(f"{folder} has no {SAFE_WEIGHTS} and no {SAFE_INDEX}", error_type="no_weights")


def _shards(folder: Path, index: Path) -> tuple[Path, ...]:
    try:
        names = sorted(set(read_json(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise FactoryError(f"{index} is not an index of safetensors files: {error}", error_type="weights_broken") from error
    for name in names:
        # The index is untrusted: it may name only safetensors files in the same folder.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise RefusedError(f"{index} names {name!r}, which is not a safetensors file in the same folder", error_type="pickle_refused")
        if not (folder / name).is_file():
            raise FactoryError(f"{index} names {name}, which is missing: download the checkpoint again", error_type="weights_broken")
    return tuple(folder / name for name in names)


def _positions(config: dict[str, Any]) -> list[int]:
    """The numbers of positions that the configuration gives for text; empty if it has no limit."""
    text = config.get("text_config")
    sources = [config, text] if isinstance(text, dict) else [config]
    keys = ("max_position_embeddings", "n_positions", "max_target_positions")
    return [source[key] for source in sources for key in keys if isinstance(source.get(key), int) and source[key] > 0]
