"""The ground truth for classifications: the model types of the installed transformers, whose source is read as text.

Nothing here uses hwmatrix's table of architectures. A task has a family, and a type has the families of the tasks under whose mappings
transformers lists it. ``single`` returns the types with exactly one family.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from hwmatrix.models import mappings
from hwmatrix.records import Family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OLDER: Final = Path(__file__).with_name("transformers-4.46.3.yaml")

# The family of every mapping that implies one. The others are for heads on models of several families (text and token classification,
# question answering, multiple choice), for no task (MODEL, PRETRAINING), or for models of no family (time series, decisions).
TASKS: Final[dict[Family, str]] = {
    Family.EMBEDDING: "MASKED_LM TEXT_ENCODING NEXT_SENTENCE_PREDICTION",
    Family.TEXT_GENERATION: "CAUSAL_LM SEQ_TO_SEQ_CAUSAL_LM",
    Family.VISION: (
        "IMAGE IMAGE_CLASSIFICATION IMAGE_SEGMENTATION SEMANTIC_SEGMENTATION INSTANCE_SEGMENTATION UNIVERSAL_SEGMENTATION "
        "OBJECT_DETECTION DEPTH_ESTIMATION MASKED_IMAGE_MODELING CAUSAL_IMAGE_MODELING IMAGE_TO_IMAGE KEYPOINT_DETECTION "
        "KEYPOINT_MATCHING MASK_GENERATION IMAGE_MATTING NORMAL_ESTIMATION POINTMAP_ESTIMATION POSE_ESTIMATION BACKBONE "
        "TEXT_RECOGNITION TABLE_RECOGNITION"
    ),
    Family.AUDIO: (
        "AUDIO_CLASSIFICATION AUDIO_FRAME_CLASSIFICATION AUDIO_XVECTOR CTC RNNT TDT SPEECH_SEQ_2_SEQ TEXT_TO_SPECTROGRAM "
        "TEXT_TO_WAVEFORM AUDIO_TOKENIZATION"
    ),
    Family.MULTIMODAL: (
        "IMAGE_TEXT_TO_TEXT VISION_2_SEQ MULTIMODAL_LM VISUAL_QUESTION_ANSWERING DOCUMENT_QUESTION_ANSWERING "
        "ZERO_SHOT_IMAGE_CLASSIFICATION ZERO_SHOT_OBJECT_DETECTION RETRIEVAL"
    ),
    Family.VIDEO: "VIDEO_CLASSIFICATION",
}
OUTSIDE: Final = frozenset({"DECISION", "TIME_SERIES_CLASSIFICATION", "TIME_SERIES_REGRESSION", "TIME_SERIES_PREDICTION"})
"""Mappings of tasks that belong to no family."""
FAMILY: Final = {task: family for family, tasks in TASKS.items() for task in tasks.split()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A configuration class: its model_type, the checkpoint that its documentation names, and the classes of its parts."""

    model_type: str
    checkpoint: str | None
    parts: frozenset[str]


def package() -> Path:
    """Where transformers is installed. It is not imported."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None, "transformers is not installed"
    assert spec.origin is not None
    return Path(spec.origin).parent


def listed(folder: Path | None = None) -> mappings.Mappings:
    """transformers' task mappings."""
    return mappings.read((folder or package()) / "models/auto/modeling_auto.py")


@functools.cache
def families(folder: Path | None = None) -> dict[str, frozenset[Family]]:
    """Every model type of transformers' task mappings, and the families of its tasks: none, one or several."""
    found: dict[str, set[Family]] = collections.defaultdict(set)
    for task, types in listed(folder).items():
        for model_type in types:
            found[model_type] |= {FAMILY[task]} if task in FAMILY else set()
    return {model_type: frozenset(each) for model_type, each in found.items()}


def single(among: Mapping[str, frozenset[Family]]) -> dict[str, Family]:
    """The entries with exactly one family."""
    return {name: next(iter(each)) for name, each in among.items() if len(each) == 1}


def classes() -> Iterator[tuple[str, str]]:
    """Every pair of a model type and a class that transformers lists for it, once."""
    pairs = {(kind, name) for types in listed().values() for kind, names in types.items() for name in names}
    yield from sorted(pairs)


@functools.cache
def configs() -> dict[str, Config]:
    """Every configuration class with a model_type, by its name."""
    found: dict[str, Config] = {}
    for file in sorted(package().glob("models/*/configuration_*.py")):
        for node in ast.parse(file.read_bytes()).body:
            if isinstance(node, ast.ClassDef):
                model_type = _string(_assigned(node, "model_type"))
                if model_type:
                    parts = _assigned(node, "sub_configs")
                    named = {each.id for each in ast.walk(parts) if isinstance(each, ast.Name)} if parts else set()
                    found[node.name] = Config(model_type=model_type, checkpoint=_checkpoint(node), parts=frozenset(named))
    return found


@functools.cache
def names() -> dict[str, tuple[frozenset[str], frozenset[Family]]]:
    """The checkpoints named in transformers' documentation: the types that name each, and the families of those.

    A configuration that is a part of another one of the same checkpoint (the text model of CLIP) does not count for it.
    """
    claims: dict[str, set[str]] = collections.defaultdict(set)
    for name, config in configs().items():
        if config.checkpoint:
            claims[config.checkpoint].add(name)
    found = {}
    for checkpoint, claimants in claims.items():
        parts = {part for name in claimants for part in configs()[name].parts}
        types = frozenset(configs()[name].model_type for name in claimants - parts)
        found[checkpoint] = (types, frozenset(family for kind in types for family in families().get(kind, ())))
    return found


def tags() -> dict[str, list[str]]:
    """The hub tags of transformers' pipelines, each with the mappings of the classes that it loads.

    Tags that load a model of any kind, and those of tasks that belong to no family, are left out.
    """
    auto = (package() / "models/auto/modeling_auto.py").read_text(encoding="utf-8")
    of_class = {
        node.name: ast.unparse(value).removeprefix("MODEL_FOR_").removesuffix("_MAPPING")
        for node in ast.parse(auto).body
        if isinstance(node, ast.ClassDef) and (value := _assigned(node, "_model_mapping")) is not None
    }
    tree = ast.parse((package() / "pipelines/__init__.py").read_text(encoding="utf-8"))
    table = next(value for node in tree.body if (value := _value(node, "SUPPORTED_TASKS")) is not None)
    assert isinstance(table, ast.Dict)
    found = {}
    for key, entry in zip(table.keys, table.values, strict=True):
        loaded = [node.id for node in ast.walk(entry) if isinstance(node, ast.Name) and node.id in of_class]
        tasks = [of_class[name] for name in loaded]
        if tasks and "AutoModel" not in loaded and not OUTSIDE & set(tasks):
            found[str(_string(key))] = tasks
    return found


@functools.cache
def methods() -> dict[str, frozenset[str]]:
    """The methods that each model class defines itself; one that inherits from GenerationMixin has ``generate``."""
    found: dict[str, frozenset[str]] = {}
    for file in sorted(package().glob("models/*/modeling_*.py")):
        for node in ast.parse(file.read_bytes()).body:
            if isinstance(node, ast.ClassDef):
                defined = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                found[node.name] = frozenset(defined | ({"generate"} if "GenerationMixin" in bases else set()))
    return found


def older() -> dict[str, frozenset[Family]]:
    """As :func:`families`, for the release whose mappings are stored beside this file."""
    table = yaml.safe_load(OLDER.read_text(encoding="utf-8"))["types"]
    return {name: frozenset(Family(each) for each in key.split()) for key, types in table.items() for name in types.split()}


def _assigned(node: ast.ClassDef, name: str) -> ast.expr | None:
    return next((value for each in node.body if (value := _value(each, name)) is not None), None)


def _value(node: ast.stmt, name: str) -> ast.expr | None:
    """The value that a statement assigns to a name; None if it does not."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
    return node.value if named and isinstance(node, ast.Assign | ast.AnnAssign) else None


def _string(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _checkpoint(node: ast.ClassDef) -> str | None:
    """The argument of ``@auto_docstring(checkpoint=...)``."""
    keywords = [each for call in node.decorator_list if isinstance(call, ast.Call) for each in call.keywords]
    return next((_string(each.value) for each in keywords if each.arg == "checkpoint"), None)
