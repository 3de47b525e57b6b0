"""Results: a cell with all its measurements, and detected hardware."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import UnsupportedError
from hwmatrix.records.adaptations import Adaptation
from hwmatrix.records.measured import LargeCount, Measured, Milliseconds
from hwmatrix.records.plans import Settings
from hwmatrix.records.strict import STRICT
from hwmatrix.records.vocabulary import Execution, Family, Origin, Preparation, Role, Severity, Size, Stage, Status

if TYPE_CHECKING:
    from collections.abc import Collection

NOTHING_TO_REWRITE: Final = "nothing_to_rewrite"
"""The error type of a model whose operators are to be replaced, and which has none of these."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a model really ran: ``on_target`` is the share (0 to 1) on the requested device; ``detail`` says how that is known."""

    on_target: float
    detail: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """How a target prepared a model, as fields of :class:`Measured`: in words for readers, and as data.

    ``replaced`` are the operators that were replaced to make the model run, by name.
    """

    method: str
    preparation: tuple[Preparation, ...] = ()
    replaced: tuple[str, ...] | None = None

    def then(self, how: str, *steps: Preparation) -> Prepared:
        """Return it with what was done next, in words and as data. No words: nothing was done."""
        method = f"{self.method}, {how}" if how else self.method
        return dataclasses.replace(self, method=method, preparation=(*self.preparation, *steps))

    def rewritten(self, operators: Collection[str], *steps: Preparation) -> Prepared:
        """Return it with operators that were replaced, and other steps that change the model.

        Raises:
            UnsupportedError: there are none (``nothing_to_rewrite``), so that the model runs as it does without.
        """
        if not operators and not steps:
            message = "no operator of the model has a replacement"
            raise UnsupportedError(message, needs=("an operator that is replaced",), error_type=NOTHING_TO_REWRITE)
        names = tuple(sorted(operators))
        replaced = self.then(f"replaced {', '.join(names)}", Preparation.REPLACED_OPERATORS) if names else self
        changed = replaced.then(", ".join(step.value.replace("_", " ") for step in steps), *steps)
        return dataclasses.replace(changed, replaced=names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity:
    """How far outputs are from the reference: relative L2 error, largest absolute error, cosine; top-1 for logits."""

    relative_error: float
    max_error: float
    cosine: float
    top1: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """The relative L2 error by output that a precision alone causes in a model (:mod:`hwmatrix.models.floors`), or why it is not known.

    ``overflows``: the simulated precision gives NaN or infinity, as a correct target does.
    """

    outputs: dict[str, float] | None
    reason: str | None = None
    overflows: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputRecord:
    """One output tensor of the target, and its distance from the reference (None if it was not compared)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    parity: Parity | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where the error begins in a cell whose outputs differ from the reference.

    ``at`` is the node of the graph or the layer of the model, ``operator`` its operator or class. ``relative_error`` is the largest
    relative L2 error of its outputs, ``inputs_error`` that of its inputs; ``against`` describes what computed the reference values. For an
    ``origin`` other than a step, ``relative_error`` is that of the worst output, and ``detail`` says what was found.
    """

    origin: Origin
    at: str | None = None
    operator: str | None = None
    relative_error: float | None = None
    inputs_error: float | None = None
    against: str | None = None
    detail: str | None = None

    def columns(self) -> dict[str, Any]:
        """Return the same values as fields of :class:`Measured`, by name."""
        return {
            "origin": self.origin,
            "diverges_at": self.at,
            "diverges_operator": self.operator,
            "diverges_error": self.relative_error,
            "diverges_given": self.inputs_error,
            "diverges_against": self.against,
            "diverges_detail": self.detail,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorRecord:
    """Why a cell did not pass."""

    type: str
    severity: Severity
    message: str
    traceback: str | None = None
    needs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings(Measured):
    """Everything that a cell's process measured: the single values, and the lists.

    ``stages`` are milliseconds in each stage; samples are nanoseconds (wall clock, CPU time of the whole process), in order.
    """

    outputs: tuple[OutputRecord, ...] = ()
    stages: dict[Stage, Milliseconds] = dataclasses.field(default_factory=dict)
    samples_wall_ns: tuple[LargeCount, ...] = ()
    samples_cpu_ns: tuple[LargeCount, ...] = ()


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult(Findings):
    """The result of one execution of a cell.

    ``stage`` is the last stage that was entered; a cell that passed has reached ``measure``, or ``compare`` if its run does not time.
    ``wall_ms`` is the whole cell, from fork to end. ``adaptation`` says which failed cell this one retried, and with which change.
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
