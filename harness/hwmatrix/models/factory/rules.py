"""Reads and validates the rules of rules.yaml and the overrides of overrides/*.yaml."""

from __future__ import annotations

import functools
import importlib.resources
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import Field
from pydantic.dataclasses import dataclass

from hwmatrix.basics.plain_yaml import parsed
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
        """For each level of rules, the limit of each field.

        Raises:
            ValueError: a field occurs twice in one table.
        """
        return {"small": _inverted(self.small), "staged": _inverted(self.staged), "gentle": _inverted(self.gentle)}


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Tensor:
    """An input that an override describes.

    ``shape`` has integers, and ``batch`` and ``sequence`` for those of the plan. ``values`` gives all numbers instead of a shape.
    ``kind`` is one of ``normal`` (float32, zero mean and unit variance), ``uniform`` (float32 in [0, 1)), ``ids`` (int64 less than
    ``below``), ``ones``, ``zeros`` (int64), ``mask`` (booleans, all true), ``no_padding`` (all false), ``float_ones`` (float32), ``grid``
    (int64, the x and y of each position of a square, row by row, of shape (batch, positions, 2)) or ``token_kinds`` (int64 of the text's
    shape: 0 for text, 1 for an image, 2 for a video, 3 for audio).
    """

    shape: tuple[int | Literal["batch", "sequence"], ...] | None = None
    values: Any = None
    kind: Literal["normal", "uniform", "ids", "ones", "zeros", "mask", "no_padding", "float_ones", "grid", "token_kinds"] = "normal"
    below: Annotated[int, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        """Refuse an ambiguous or incomplete description."""
        if (self.shape is None) == (self.values is None):
            raise ValueError("an input needs either a shape or values")
        if (self.kind == "ids") != (self.below is not None) and self.values is None:
            raise ValueError("kind: ids needs below, and no other kind accepts it")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Override:
    """What one type needs besides the rules.

    ``config`` is merged into the tiny configuration, including nested ones. ``base`` are arguments that the class needs even for its
    default configuration. ``drop`` are fields left to the class's defaults. ``model_class`` replaces the first class of the auto mappings.
    ``inputs`` replace those of the rules; None leaves one out. ``tokens`` says how often a token (its id, or the field of the configuration
    with its id) occurs at the beginning of the text. ``sequence`` is another sequence length. ``part`` is the nested configuration that
    ``model_class`` is built from if the whole model has no forward pass. ``gain`` rescales the weights so that each layer multiplies its
    signal by it: for classes whose initialization ignores the width, so that the signal fades out in narrow layers. ``attention`` is the
    implementation to use if eager attention is wrong: for the whole model, or for parts by the name of their configuration; other parts
    use their default. ``text_path`` says why the type gets text alone although it could take more. ``packages`` are those that it needs and
    that the images lack, by the names of their modules. ``impossible`` says why the type cannot be built at all.
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
    packages: tuple[str, ...] = ()
    impossible: str | None = None


_NOTHING: Final = Override(reason="the rules alone")


@functools.cache
def rules() -> Rules:
    """The packaged rules."""
    return pydantic.TypeAdapter(Rules).validate_python(parsed(_text("rules.yaml")))


@functools.cache
def overrides() -> dict[str, Override]:
    """The overrides by type.

    Raises:
        ValueError: a type is in two files, or an override is invalid.
    """
    found: dict[str, Override] = {}
    for file in _override_files():
        entries = pydantic.TypeAdapter(dict[str, Override]).validate_python(parsed(file.read_text(encoding="utf-8")) or {})
        twice = sorted(found.keys() & entries.keys())
        if twice:
            raise ValueError(f"{file.name}: another file has these types too: {', '.join(twice)}")
        found |= entries
    return found


def override(model_type: str) -> Override:
    """The override of one type. Most types need none."""
    return overrides().get(model_type, _NOTHING)


def _override_files() -> list[Any]:
    folder = importlib.resources.files(_PACKAGE) / "overrides"
    return sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)


def _text(name: str) -> str:
    return (importlib.resources.files(_PACKAGE) / name).read_text(encoding="utf-8")


def _inverted(table: Fields) -> dict[str, int]:
    """Map each field to its value."""
    found: dict[str, int] = {}
    for value, names in table.items():
        for name in names:
            if name in found:
                raise ValueError(f"rules.yaml: {name} is listed under {found[name]} and under {value}")
            found[name] = value
    return found
