"""The vocabulary: closed enums and the frozen records that travel between the parts.

The three wings (runner, host, report) never import each other. What they exchange are files, and the records here are
what those files hold. ``to_json`` and ``from_json`` are strict: an unknown key or another schema version is an error.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import shlex
from typing import Annotated, Any, Final, TypeVar

import pydantic

from hwmatrix.errors import StoreError

PLAN_SCHEMA: Final = "hwmatrix/plan/1"
BUNDLE_SCHEMA: Final = "hwmatrix/bundle/1"
_STRICT: Final = pydantic.with_config(extra="forbid")  # also holds for the records within
Record = TypeVar("Record")


class Backend(enum.StrEnum):
    """How a target executes a model: one module of ``targets`` each."""

    CPU = "cpu"
    OPENVINO = "openvino"


class Family(enum.StrEnum):
    """What a model is for."""

    EMBEDDING = "embedding"
    TEXT_GENERATION = "text_generation"
    VISION = "vision"
    AUDIO = "audio"
    MULTIMODAL = "multimodal"
    VIDEO = "video"


class Size(enum.StrEnum):
    """``tiny`` answers "does it work"; ``full`` has the architecture's canonical dimensions and answers "how fast"."""

    TINY = "tiny"
    FULL = "full"


class Dtype(enum.StrEnum):
    """The precision a cell computes in."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Stage(enum.StrEnum):
    """How far a cell got, in this order."""

    BUILD = "build"
    LOAD = "load"
    PREPARE = "prepare"
    RUN = "run"
    COMPARE = "compare"
    MEASURE = "measure"


class Status(enum.StrEnum):
    """What became of a cell. Closed: there is no other, and no two of them mean the same thing."""

    PASS = "pass"  # noqa: S105 - a status, not a password
    MISMATCH = "mismatch"
    FALLBACK = "fallback"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    OOM = "oom"
    TIMEOUT = "timeout"
    CRASH = "crash"
    UNAVAILABLE = "unavailable"
    NOT_RUN = "not_run"
    FACTORY_ERROR = "factory_error"
    INFRA_ERROR = "infra_error"


class Level(enum.StrEnum):
    """How well a model works on a target, from measurements alone. A cell that was not executed has no level."""

    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"
    NONE = "none"


class Execution(enum.StrEnum):
    """What did the computing: only ``hardware`` is ever ranked by speed."""

    HARDWARE = "hardware"
    SOFTWARE = "software"
    EMULATED = "emulated"


class Severity(enum.StrEnum):
    """How much an error matters."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Isolation(enum.StrEnum):
    """What separates a target from this machine. Rows of different isolation never share a column."""

    CONTAINER = "container"
    VENV = "venv"
    NONE = "none"


class Role(enum.StrEnum):
    """What a cell is there for. Canaries tell whether a shard can be believed and never appear in a matrix."""

    MODEL = "model"
    CANARY_GOOD = "canary_good"
    CANARY_WRONG = "canary_wrong"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What, besides model and target, makes two cells comparable.

    ``sequence_length`` counts tokens (text inputs only); ``threads`` are intra-op threads on the host.
    """

    dtype: Dtype
    batch: int
    sequence_length: int
    threads: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """When a cell is ended: wall-clock seconds, and MiB of address space above what the process had at its start."""

    timeout_s: float
    memory_mb: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureRule:
    """When warm-up and timing stop. The defaults come from the study in docs/measuring.md."""

    warmup_s: Annotated[float, pydantic.Field(ge=0)] = 0.15
    warmup_iterations: Annotated[int, pydantic.Field(ge=0)] = 10
    min_s: Annotated[float, pydantic.Field(ge=0)] = 0.3
    min_samples: Annotated[int, pydantic.Field(gt=0)] = 30
    max_s: Annotated[float, pydantic.Field(gt=0)] = 3.0
    half_width: Annotated[float, pydantic.Field(gt=0, lt=1)] = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The largest relative L2 error that still counts as the same result, and why this number."""

    relative_error: float
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """One model in one size, as a bundle can be built from it.

    ``weights`` is ``recipe`` (random weights from ``seed``), ``hub`` (``hub_id`` at ``revision``) or a local folder's
    path. ``selector`` is what ``--models`` must be given to select it again. ``unbuildable`` states why there is no such
    model, and then nothing is tried.
    """

    name: str
    selector: str = ""
    size: Size
    family: Family
    architecture: str
    model_class: str
    hub_id: str | None = None
    revision: str | None = None
    weights: str = "recipe"
    seed: int = 0
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch: int = 1
    sequence_length: int = 16
    role: Role = Role.MODEL
    unbuildable: str | None = None
    matrix_line: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """One target of a run. ``options`` go to its backend; ``unavailable`` states why it cannot run here."""

    name: str
    backend: Backend
    execution: Execution
    image: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    unavailable: str | None = None
    matrix_line: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellPlan:
    """One cell: ``model`` and ``target`` are names within the same plan. ``key`` is unique in it and says it all."""

    key: str
    model: str
    size: Size
    target: str
    settings: Settings
    limits: Limits


@_STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is to do, whole: the runner needs no other file of the project."""

    run_id: str
    created_at: str
    command: str
    hwmatrix_version: str
    matrix_sha256: str
    commit: str | None
    isolation: Isolation
    measure: MeasureRule
    tolerances: dict[Dtype, Tolerance]
    targets: tuple[TargetPlan, ...]
    models: tuple[ModelPlan, ...]
    cells: tuple[CellPlan, ...]
    schema: str = PLAN_SCHEMA

    def model(self, name: str, size: Size) -> ModelPlan:
        """The model of a cell."""
        return next(model for model in self.models if model.name == name and model.size == size)

    def target(self, name: str) -> TargetPlan:
        """The target of a cell."""
        return next(target for target in self.targets if target.name == name)


def cell_command(model: ModelPlan, cell: CellPlan, isolation: Isolation) -> str:
    """The command that repeats one cell alone."""
    selected = f"--models {shlex.quote(model.selector or model.name)} --size {cell.size.value} --targets {cell.target}"
    return f"nox -s matrix -- {selected} --isolation {isolation.value}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a model really ran: ``on_target`` is the share (0 to 1) on the device asked for; ``detail`` how we know."""

    on_target: float
    detail: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity:
    """How far outputs are from the reference: relative L2 error, largest absolute error, cosine; top-1 for logits."""

    relative_error: float
    max_error: float
    cosine: float
    top1: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputRecord:
    """One output tensor as the target gave it, and its distance from the reference (None where there is none)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    parity: Parity | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryRecord:
    """Memory in MiB. ``peak`` is the process's high-water mark, ``delta`` what the cell added to its starting size."""

    baseline_mb: float
    load_peak_mb: float
    peak_mb: float
    delta_mb: float
    uss_mb: float | None = None
    device_peak_mb: float | None = None
    device_reserved_mb: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorRecord:
    """Why a cell did not pass."""

    type: str
    severity: Severity
    message: str
    traceback: str | None = None
    needs: tuple[str, ...] = ()


@_STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """What one execution of a cell left behind. What was not measured is None, never 0.

    Times are milliseconds of wall clock, samples nanoseconds (wall, CPU of the whole process), in order.
    ``stage`` is the last stage that was entered; a cell that passed has reached ``measure``.
    """

    key: str
    role: Role
    model: str
    size: Size
    target: str
    settings: Settings
    family: Family
    architecture: str
    hub_id: str | None
    status: Status
    stage: Stage
    execution: Execution
    started_at: str
    wall_ms: float
    bundle: str | None = None
    method: str | None = None
    placement: Placement | None = None
    parity: Parity | None = None
    load_ms: float | None = None
    prepare_ms: float | None = None
    first_ms: float | None = None
    converged: bool | None = None
    memory: MemoryRecord | None = None
    outputs: tuple[OutputRecord, ...] = ()
    stages: dict[Stage, float] = dataclasses.field(default_factory=dict)
    samples_wall_ns: tuple[int, ...] = ()
    samples_cpu_ns: tuple[int, ...] = ()
    warmup_samples: int | None = None
    parameters: int | None = None
    error: ErrorRecord | None = None
    exit_code: int | None = None
    signal: int | None = None


@_STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Detection:
    """One kind of hardware on this machine: ``features`` are facts by name; ``reason`` says why it is absent."""

    hardware_type: str
    available: bool
    name: str | None
    features: dict[str, Any]
    reason: str | None
    detected_at: str


_adapter: Final[Any] = functools.cache(pydantic.TypeAdapter)


def to_json(record: object, *, indent: int | None = None) -> str:
    """Serialise a record of this module."""
    return _adapter(type(record)).dump_json(record, indent=indent).decode()  # type: ignore[no-any-return]


def from_json(kind: type[Record], text: str | bytes, *, where: str) -> Record:
    """Read a record that :func:`to_json` wrote.

    Raises:
        StoreError: the text is no such record; ``where`` names the file in the message.
    """
    try:
        return _adapter(kind).validate_json(text)  # type: ignore[no-any-return]
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        message = f"{where}: not a valid {kind.__name__}: {first['msg']} at {at or 'the top'} ({error.error_count()} in all)"
        raise StoreError(message, advice="The file was written by another version of hwmatrix, or damaged: make it anew.") from error


def plan_from_json(text: str | bytes, *, where: str) -> Plan:
    """Read a plan, and refuse another version's.

    Raises:
        StoreError: broken, or of another version.
    """
    advice = "Start a new run without --resume."
    try:
        schema = json.loads(text).get("schema")
    except (ValueError, AttributeError) as error:
        raise StoreError(f"{where}: not JSON: {error}", advice=advice) from error
    if schema != PLAN_SCHEMA:
        raise StoreError(f"{where}: plan version {schema!r}, this hwmatrix reads {PLAN_SCHEMA!r}", advice=advice)
    return from_json(Plan, text, where=where)
