"""The rules of rules.yaml and the overrides of overrides/*.yaml: read, validated, and indexed by field."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
from typing import Annotated, Any, Final, Literal

import pydantic
import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass

from hwmatrix.records import Family

_STRICT: Final = pydantic.ConfigDict(extra="forbid")
_PACKAGE: Final = "hwmatrix.models.factory"


def _split(value: Any) -> Any:
    """Lists of words are written as one string."""
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], pydantic.BeforeValidator(_split)]
Fields = dict[Annotated[int, Field(gt=0)], Words]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Rules:
    """How a configuration of any architecture becomes a tiny one. rules.yaml explains each table."""

    version: Literal[1]
    small: Fields
    staged: Fields
    gentle: Fields
    layers: Words
    kinds: Words
    layer_numbers: Words
    widths: Words
    depths: Words
    stage_heads: Words
    shared_heads: Words
    heads_of: Words
    deviation: dict[str, float]
    derived: Words
    classes: dict[Family, Words]

    @functools.cached_property
    def limits(self) -> dict[str, dict[str, int]]:
        """For each level of rules, from a field to its highest value.

        Raises:
            ValueError: a field stands in two places of one table.
        """
        return {"small": _turned(self.small), "staged": _turned(self.staged), "gentle": _turned(self.gentle)}


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Tensor:
    """An input that an override describes.

    ``shape`` has whole numbers, and ``batch`` and ``sequence`` for those of the plan. ``values``, instead of a shape, are all the
    numbers themselves. ``kind`` is what they are: ``normal`` (float32, zero mean and unit variance), ``uniform`` (float32 in [0, 1)),
    ``ids`` (int64 below ``below``), ``ones``, ``zeros`` (int64), ``mask`` (booleans, all true), ``no_padding`` (all false),
    ``float_ones`` (float32), ``grid`` (int64, the x and y of each place of a square, row by row, of shape (batch, places, 2)) or
    ``token_kinds`` (int64 of the text's shape: 0 for text, 1 for an image, 2 for a film, 3 for sound).
    """

    shape: tuple[int | Literal["batch", "sequence"], ...] | None = None
    values: Any = None
    kind: Literal["normal", "uniform", "ids", "ones", "zeros", "mask", "no_padding", "float_ones", "grid", "token_kinds"] = "normal"
    below: Annotated[int, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        """Refuse what describes nothing, or two things."""
        if (self.shape is None) == (self.values is None):
            raise ValueError("an input needs either a shape or values")
        if (self.kind == "ids") != (self.below is not None) and self.values is None:
            raise ValueError("kind: ids needs below, and nothing else takes it")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Override:
    """What one type needs besides the rules.

    ``config`` is laid over the tiny configuration, nested ones within it. ``base`` are arguments without which the class cannot even
    make its default one. ``drop`` are fields to leave to the class. ``model_class`` is another class than the auto mappings name
    first. ``inputs`` are made as described, in place of the rules' own; None leaves one out. ``tokens`` says how often a token (a field
    of the configuration that holds its id, or the id) stands at the beginning of the text. ``sequence`` is another sequence length.
    ``part`` is the configuration within the main one that ``model_class`` is built from, where the whole has no forward pass of its own.
    ``gain`` rescales the weights so that what goes through a layer grows that many times: for classes that draw them at one deviation
    whatever their width, and whose signal fades out on its way through narrow layers. ``attention`` is the implementation of it to use
    where eager is asked for, but wrong: of the whole model, or of parts by the name of their configuration; other parts choose their own.
    ``text_path`` says why the type gets text alone although it could take more. ``impossible`` says why nothing can be built here.
    """

    reason: Annotated[str, Field(min_length=10)]
    config: dict[str, Any] = Field(default_factory=dict)
    base: dict[str, Any] = Field(default_factory=dict)
    drop: Words = ()
    model_class: str | None = None
    part: str | None = None
    gain: Annotated[float, Field(gt=0)] | None = None
    attention: Literal["sdpa"] | dict[str, Literal["eager", "sdpa"]] | None = None
    level: Literal["small", "gentle"] | None = None
    inputs: dict[str, Tensor | None] = Field(default_factory=dict)
    tokens: dict[str | int, Annotated[int, Field(ge=0)]] | None = None
    sequence: Annotated[int, Field(gt=0)] | None = None
    text_path: str | None = None
    impossible: str | None = None


_NOTHING: Final = Override(reason="the rules alone")


@functools.cache
def rules() -> Rules:
    """The rules that hwmatrix comes with."""
    return pydantic.TypeAdapter(Rules).validate_python(yaml.safe_load(_text("rules.yaml")))


@functools.cache
def overrides() -> dict[str, Override]:
    """What single types need besides, by type.

    Raises:
        ValueError: a type stands in two files, or an override is wrong.
    """
    found: dict[str, Override] = {}
    for file in _override_files():
        entries = pydantic.TypeAdapter(dict[str, Override]).validate_python(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
        twice = sorted(found.keys() & entries.keys())
        if twice:
            raise ValueError(f"{file.name}: {', '.join(twice)} stand in another file too")
        found |= entries
    return found


def override(model_type: str) -> Override:
    """What one type needs besides the rules: nothing, mostly."""
    return overrides().get(model_type, _NOTHING)


@functools.cache
def digest(model_type: str) -> str:
    """SHA-256 of all that decides how a type is built, apart from code: the rules and its own override."""
    entry = pydantic.TypeAdapter(Override).dump_json(override(model_type))
    return hashlib.sha256(_text("rules.yaml").encode() + entry).hexdigest()


def _override_files() -> list[Any]:
    folder = importlib.resources.files(_PACKAGE) / "overrides"
    return sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)


def _text(name: str) -> str:
    return (importlib.resources.files(_PACKAGE) / name).read_text(encoding="utf-8")


def _turned(table: Fields) -> dict[str, int]:
    """From value -> fields to field -> value."""
    found: dict[str, int] = {}
    for value, names in table.items():
        for name in names:
            if name in found:
                raise ValueError(f"rules.yaml: {name} stands under {found[name]} and under {value}")
            found[name] = value
    return found
