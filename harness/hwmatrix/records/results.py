"""Results: a cell with all its measurements, and detected hardware."""

from __future__ import annotations

import dataclasses
from typing import Any

from hwmatrix.records.adaptations import Adaptation
from hwmatrix.records.plans import Settings
from hwmatrix.records.strict import STRICT
from hwmatrix.records.vocabulary import Execution, Family, Origin, Role, Severity, Size, Stage, Status


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
class Divergence:
    """Where a wrong result begins, of a cell whose outputs differ from the reference.

    ``at`` is the node of the graph or the layer of the model, ``operator`` its operator or class. ``relative_error`` is the largest
    relative L2 error of what it gave, ``inputs_error`` that of what it was given, beside the same values ``against`` (what computed them
    in words). For an ``origin`` other than a step, ``relative_error`` is that of the worst output, and ``detail`` says what was found.
    """

    origin: Origin
    at: str | None = None
    operator: str | None = None
    relative_error: float | None = None
    inputs_error: float | None = None
    against: str | None = None
    detail: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryRecord:
    """Memory in MiB. ``peak`` is the high-water mark until the first inference ended, ``delta`` what the cell added to its starting size.

    ``memory_detail`` says whose it is where it is not the resident set of the cell's own process, or why nothing is told of the host's.
    ``device_peak`` is what tensors took at most of a device with memory of its own, ``device_reserved`` what its allocator held.
    """

    baseline_mb: float | None = None
    load_peak_mb: float | None = None
    peak_mb: float | None = None
    delta_mb: float | None = None
    uss_mb: float | None = None
    memory_detail: str | None = None
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


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """What one execution of a cell left behind. What was not measured is None, never 0.

    Times are milliseconds of wall clock, samples nanoseconds (wall, CPU of the whole process), in order.
    ``stage`` is the last stage that was entered; a cell that passed has reached ``measure``, or ``compare`` if its run does not time.
    ``inputs`` are the kinds of input that the model was given (text, image, video, audio); ``text_path`` says that it takes more than
    text and was given text alone. ``yardstick_ms`` is what a fixed computation, ``yardstick``, took around the timing: the speed of the
    machine itself. ``divergence`` is looked for where outputs were compared and differ. ``adaptation`` says of which cell this is a changed
    one.
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
    device_processes: int | None = None
    outputs: tuple[OutputRecord, ...] = ()
    stages: dict[Stage, float] = dataclasses.field(default_factory=dict)
    samples_wall_ns: tuple[int, ...] = ()
    samples_cpu_ns: tuple[int, ...] = ()
    warmup_samples: int | None = None
    yardstick: str | None = None
    yardstick_ms: float | None = None
    parameters: int | None = None
    inputs: tuple[str, ...] | None = None
    text_path: bool | None = None
    divergence: Divergence | None = None
    error: ErrorRecord | None = None
    exit_code: int | None = None
    signal: int | None = None
    adaptation: Adaptation | None = None


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Detection:
    """One kind of hardware on this machine: ``features`` are facts by name; ``reason`` says why it is absent."""

    hardware_type: str
    available: bool
    name: str | None
    features: dict[str, Any]
    reason: str | None
    detected_at: str
