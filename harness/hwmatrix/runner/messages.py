"""The messages of children, validated line by line: a child runs untrusted models, and may send anything.

Each kind of work has its own messages. A line is used only after all of it is validated: names, types, closed enums, numbers that
the database can hold, texts of limited length.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import pydantic

from hwmatrix.records import Detection, Divergence, Findings, Severity, Stage, Status
from hwmatrix.records.backends import names
from hwmatrix.records.measured import Milliseconds, Share

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.runner.forked import End

Kind = TypeVar("Kind")
_adapter: Final[Callable[[Any], pydantic.TypeAdapter[Any]]] = functools.cache(pydantic.TypeAdapter)
_LONGEST_TEXT: Final = 200_000
"""Characters of any text. The sender cuts all texts (``child``), tracebacks to 100,000, and says how much it left out."""
_LONGEST_MESSAGE: Final = 10_000
"""Characters of an error's message."""
_CHECKED: Final = pydantic.with_config(extra="forbid", strict=True, allow_inf_nan=False, str_max_length=_LONGEST_TEXT)
_Message = Annotated[str, pydantic.Field(max_length=_LONGEST_MESSAGE)]
_Digest = Annotated[str, pydantic.Field(pattern="^[0-9a-f]{64}$")]
_ErrorType = Annotated[str, pydantic.Field(pattern="^[a-z][a-z0-9_]{0,63}$")]
_SHOWN: Final = 200


class BadMessageError(Exception):
    """A child sent an invalid message. The text says which line is wrong and why."""


@_CHECKED
@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts(Findings):
    """What is known about a cell so far, validated."""

    def __post_init__(self) -> None:
        """Check what the types cannot express.

        Raises:
            ValueError: invalid sizes, or different numbers of values that belong together.
        """
        if any(not 0 <= size < 2**31 for output in self.outputs for size in output.shape):
            raise ValueError("a shape has an invalid size")
        if self.samples_cpu_ns and len(self.samples_cpu_ns) != len(self.samples_wall_ns):
            raise ValueError("the numbers of CPU times and wall times differ")
        by_length = (self.lengths_ttft_ms, self.lengths_tpot_ms, self.lengths_cache_mb)
        if (self.lengths is None) != (self.lengths_ttft_ms is None) or any(
            values is not None and len(values) != len(self.lengths or ()) for values in by_length
        ):
            raise ValueError("the numbers of prompt lengths and of their values differ")


@_CHECKED
@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a cell did not pass, as the child reported it. Without a ``severity``, the catalogue's for the ``type`` applies."""

    message: _Message
    type: _ErrorType
    severity: Severity | None = None
    traceback: str | None = None
    needs: tuple[_Message, ...] = ()


@_CHECKED
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entered:
    stage: Stage
    facts: Facts


@_CHECKED
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Verdict:
    """``final`` is False for a verdict that a comparison may still replace. If that ends the process, it stands."""

    verdict: Status
    facts: Facts
    error: Failure | None
    final: bool

    def __post_init__(self) -> None:
        if self.verdict is Status.NOT_RUN:
            raise ValueError("a cell that runs cannot report not_run")
        if (self.error is None) is not (self.verdict is Status.PASS):
            raise ValueError(f"{self.verdict.value} {'with' if self.error else 'without'} an error")


@_CHECKED
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Located:
    divergence: Divergence


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellTold:
    """What a cell's child reported, up to the first invalid message: ``problem`` says what is wrong with that one.

    ``stage`` is how far the cell got, ``entered`` the last stage that it entered: they differ if it went on after it had failed.
    """

    stage: Stage = Stage.LOAD
    entered: Stage = Stage.LOAD
    facts: Facts = dataclasses.field(default_factory=Facts)
    verdict: Status | None = None
    final: bool = False
    error: Failure | None = None
    divergence: Divergence | None = None
    problem: str | None = None


@_CHECKED
@dataclasses.dataclass(frozen=True, kw_only=True)
class BundleTold:
    """The bundle that was built or found, or why there is none."""

    key: _Digest | None = None
    digest: _Digest | None = None
    error_type: _ErrorType | None = None
    message: _Message | None = None

    def __post_init__(self) -> None:
        if (self.key is None) is not (self.digest is None) or (self.key is None) is (self.message is None):
            raise ValueError("it must name either a bundle or a reason")


@_CHECKED
@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportTold:
    """Whether an exporter made a graph, or why not; ``memory``: because memory ran out."""

    ok: bool
    message: str | None
    memory: bool = False


@_CHECKED
@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceTold:
    """The name of the hardware that the operator tests run on."""

    device: str | None


@_CHECKED
@dataclasses.dataclass(frozen=True, kw_only=True)
class TestTold:
    """The outcome of one operator test."""

    __test__ = False
    status: Status
    on_target: Share | None
    max_error: float | None
    error_type: _ErrorType | None
    message: _Message | None
    needs: tuple[_Message, ...]
    wall_ms: Milliseconds | None = None


def cell_told(end: End) -> CellTold:
    """Everything that a cell's child reported, up to the first invalid line."""
    told = CellTold()
    try:
        for number, message in enumerate(end.messages, 1):
            told = _with_message(told, message, number)
    except BadMessageError as error:
        return dataclasses.replace(told, problem=str(error))
    return dataclasses.replace(told, problem=end.refused)


def _with_message(told: CellTold, message: dict[str, Any], number: int) -> CellTold:
    """The report with one more message. After the final verdict, only measurements and the origin of a difference may follow."""
    if "divergence" in message and told.final and told.divergence is None:
        return dataclasses.replace(told, divergence=read(_Located, message, number).divergence)
    if "verdict" in message and not told.final:
        verdict = read(_Verdict, message, number)
        return dataclasses.replace(told, verdict=verdict.verdict, facts=verdict.facts, error=verdict.error, final=verdict.final)
    entered = read(_Entered, message, number)
    stage = entered.stage if told.verdict in {None, Status.PASS} else told.stage
    return dataclasses.replace(told, stage=stage, entered=entered.stage, facts=entered.facts)


def detections_told(end: End) -> list[Detection]:
    """The hardware that a child found, each kind once.

    Raises:
        BadMessageError: a line is not a valid detection.
    """
    found: dict[str, Detection] = {}
    for number, message in enumerate(end.messages, 1):
        detection = read(Detection, message, number)
        if detection.hardware_type not in names():
            raise BadMessageError(f"line {number}: {detection.hardware_type!r} is not a known kind of hardware")
        try:
            dt.datetime.fromisoformat(detection.detected_at)
        except ValueError as error:
            raise BadMessageError(f"line {number}: {error}") from error
        found[detection.hardware_type] = detection
    return list(found.values())


def read(kind: type[Kind], message: dict[str, Any], number: int) -> Kind:
    """One message, validated.

    Raises:
        BadMessageError: it is not a valid message of this kind.
    """
    try:
        checked: Kind = _adapter(kind).validate_json(json.dumps(message, allow_nan=False), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"]))
        raise BadMessageError(f"line {number}: {first['msg']} at {at[:_SHOWN] or 'the top'}: {_short(message)}") from error
    except (ValueError, RecursionError) as error:
        raise BadMessageError(f"line {number}: {error}: {_short(message)}") from error
    return checked


def _short(message: dict[str, Any]) -> str:
    text = ascii(message)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
