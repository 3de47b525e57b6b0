"""The form of the manifests of bundles and exports. What wrote one ran the code of a model, so nothing in it is used before it is checked.

Only what is read is described; a manifest may have more.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path  # noqa: TC003 - pydantic resolves annotations
from typing import Annotated, Any, Final

import pydantic

from hwmatrix.errors import BundleError
from hwmatrix.records import Preparation

_Count = Annotated[int, pydantic.Field(ge=0, lt=2**63)]
_open: Final = pydantic.with_config(strict=True, extra="ignore")
_closed: Final = pydantic.with_config(strict=True, extra="forbid")
"""For what becomes the arguments of a class: another name would be an argument that it does not have."""
_adapter: Final[Any] = functools.cache(pydantic.TypeAdapter)


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Listed:
    """A file of the folder."""

    size: _Count
    sha256: str


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderManifest:
    """What every manifest has."""

    files: dict[str, _Listed]


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Named:
    """An input or an output of the model."""

    name: str


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Modalities:
    """The kinds of input."""

    given: list[str]
    text_path_only: bool


@_closed
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Answers:
    """As :class:`hwmatrix.models.learning.quality.Answers`."""

    kind: str
    outputs: list[str]
    blank: int | None = None
    own: bool = False


@_closed
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Floor:
    """As :class:`hwmatrix.records.NoiseFloor`."""

    outputs: dict[str, float] | None = None
    reason: str | None = None
    overflows: bool = False


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Task:
    """What a trained model or a checkpoint is asked; or the reason why nothing."""

    reason: str | None = None
    detail: str | None = None
    answers: _Answers | None = None

    def __post_init__(self) -> None:
        if not self.reason and self.detail is None:
            raise ValueError("a task needs a detail, or a reason why there is none")


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Generation:
    """What the model is asked to generate; or the reason why nothing."""

    reason: str | None = None
    prompts: list[str] | None = None
    free: list[str] | None = None
    irregular: list[str] | None = None
    floors: dict[str, _Floor] | None = None

    def __post_init__(self) -> None:
        if self.reason is None and None in (self.prompts, self.free, self.irregular, self.floors):
            raise ValueError("generation needs prompts, free, irregular and floors, or a reason why there are none")


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class BundleManifest(FolderManifest):
    """The manifest of a bundle."""

    key: str
    identity: dict[str, Any]
    model_class: str
    parameters: _Count
    inputs: list[_Named]
    expected: list[_Named]
    floors: dict[str, _Floor]
    modalities: _Modalities
    training: _Task | None = None
    samples: _Task | None = None
    generation: _Generation | None = None


@_closed
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Failure:
    """As :class:`hwmatrix.models.onnx_export.OnnxFailure`."""

    error_type: str
    message: str
    traceback: str | None


@_closed
@dataclasses.dataclass(frozen=True, kw_only=True)
class _GraphInput:
    """As :class:`hwmatrix.models.generation_export.GraphInput`."""

    name: str
    own: str
    shape: list[_Count | None]
    dtype: str
    state: bool


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Graph:
    """A graph of prefill or decode."""

    file: str
    inputs: list[_GraphInput]
    outputs: dict[str, str]


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Graphs:
    """The graphs that generate."""

    decode: _Graph
    prefill: _Graph | None = None


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportManifest(FolderManifest):
    """What the manifest of every export has; that of one that failed has no more."""

    key: str
    bundle: str
    failure: _Failure | None


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardManifest(ExportManifest):
    """The manifest of a graph of one forward pass."""

    inputs: list[str]
    outputs: list[str | None]
    opset: int
    seconds: float
    fixed: list[str]


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenVinoManifest(ExportManifest):
    """The manifest of a graph of one forward pass that OpenVINO converted."""

    outputs: list[str | None]
    method: str
    preparation: list[Preparation]
    seconds: float


@_open
@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationManifest(ExportManifest):
    """The manifest of graphs that generate."""

    graphs: _Graphs
    token: str
    method: str
    preparation: list[Preparation]
    seconds: float

    def __post_init__(self) -> None:
        for graph in (self.graphs.decode, self.graphs.prefill):
            if graph is not None and graph.file not in self.files:
                raise ValueError(f"the graph {graph.file} is no file of the folder")


def check(manifest: dict[str, Any], kind: type[FolderManifest], file: Path) -> None:
    """Check that a manifest has the form of its kind. ``file`` is where it was read, for the message.

    Raises:
        BundleError: what is wrong, and where in it (``bundle_broken``).
    """
    try:
        _adapter(kind).validate_json(json.dumps(manifest))
    except (pydantic.ValidationError, RecursionError) as error:
        told = str(error)
        if isinstance(error, pydantic.ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            told = f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'the top'}"
        raise BundleError(f"{file} is broken: {told}", error_type="bundle_broken") from error
