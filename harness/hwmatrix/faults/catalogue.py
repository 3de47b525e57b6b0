"""The catalogue of error types: data in catalogue.yaml, and the lookups over it.

Images use it to classify errors (:func:`classify`) and reports use it for advice, so it needs only PyYAML and pydantic.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from typing import Annotated, Any, Final, Literal

import pydantic
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.errors import CellFailure, FactoryError, UnmakableError, chain_of
from hwmatrix.records import Dtype, Severity, Stage, Status
from hwmatrix.records.backends import descriptor_of, names

UNMATCHED: Final = "unmatched"
MEMORY: Final = "memory_pressure"
"""The type of an allocation that failed."""
_NO_MEMORY: Final = frozenset({MEMORY, "oom_killed", "webgpu_out_of_memory"})
_BLAMING: Final = frozenset({Status.ERROR, Status.UNSUPPORTED, Status.FACTORY_ERROR})
"""The statuses of failures that blame a model or a target, which only the cause of a failure can do."""
_ANY: Final = "any"

_STRICT = pydantic.ConfigDict(extra="forbid")


def _as_mapping(written: Any) -> Any:
    """Convert a recommendation that is a plain string to a mapping: it applies to every cell."""
    return {"say": written} if isinstance(written, str) else written


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Rule:
    """Conditions on one error, all of which must hold. At least one is set.

    ``message`` is a regular expression to search in the message; ``exception`` is a class name, with or without its module.
    """

    message: re.Pattern[str] | None = None
    exception: str | None = None
    status: Status | None = None
    stage: Stage | None = None

    def __post_init__(self) -> None:
        """Refuse a rule without conditions: it would match everything."""
        if self.message is None and self.exception is None and self.status is None and self.stage is None:
            raise ValueError("a rule needs a message, an exception, a status or a stage")

    def holds(self, message: str, *, status: Status | None, stage: Stage | None, exceptions: frozenset[str]) -> bool:
        """Whether an error meets every condition."""
        return (
            (self.status is None or self.status == status)
            and (self.stage is None or self.stage == stage)
            and (self.exception is None or self.exception in exceptions)
            and (self.message is None or self.message.search(message) is not None)
        )


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Recommendation:
    """What to do, and for which cells.

    It applies to cells in one of ``dtypes`` (empty: any), and with a batch of several samples (``batched`` True) or a single one (False).
    """

    say: Annotated[str, Field(min_length=1)]
    dtypes: tuple[Dtype, ...] = ()
    batched: bool | None = None

    def is_for(self, dtype: Dtype | None, batch: int | None) -> bool:
        """Whether it applies to a cell with these settings. Unknown settings (None) match any condition except ``batched`` False."""
        if dtype is not None and self.dtypes and dtype not in self.dtypes:
            return False
        return self.batched is None or self.batched is (batch is None or batch > 1)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ErrorType:
    """One kind of error on some hardware: how to recognize it, how severe it is, what to do.

    ``hardware`` holds the names of backends or targets, or is ``any``. ``seen`` says where a real message was seen.
    """

    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    hardware: Literal["any"] | Annotated[tuple[str, ...], Field(min_length=1)]
    severity: Severity
    summary: Annotated[str, Field(min_length=1)]
    when: tuple[Rule, ...]
    advice: Annotated[tuple[Annotated[Recommendation, BeforeValidator(_as_mapping)], ...], Field(min_length=1, alias="recommendations")]
    seen: Annotated[str, Field(min_length=1)]

    @property
    def recommendations(self) -> tuple[str, ...]:
        """What to do if the cell's settings are not known."""
        return self.for_cell()

    def for_cell(self, *, dtype: Dtype | None = None, batch: int | None = None) -> tuple[str, ...]:
        """What to do about a cell with these settings: at least one recommendation, and none that the cell already follows."""
        return tuple(each.say for each in self.advice if each.is_for(dtype, batch))

    def covers(self, hardware: str) -> bool:
        """Whether this entry applies to that hardware."""
        return self.hardware == "any" or hardware in self.hardware


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Match:
    """The type and severity of a recognized error."""

    type: str
    severity: Severity

    @property
    def status(self) -> Status:
        """How a cell ends that raises this error: ``oom`` if memory was short, otherwise ``error``."""
        return Status.OOM if self.type in _NO_MEMORY else Status.ERROR


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Outcome:
    """How something ends that raises an exception: its status, and the type and severity of its error."""

    status: Status
    type: str
    severity: Severity


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class _Catalogue:
    version: Literal[1]
    errors: tuple[ErrorType, ...]


@functools.cache
def catalogue() -> tuple[ErrorType, ...]:
    """Every entry of catalogue.yaml, in the order in which they are tried."""
    text = (importlib.resources.files("hwmatrix.faults") / "catalogue.yaml").read_text(encoding="utf-8")
    return pydantic.TypeAdapter(_Catalogue).validate_python(parsed(text)).errors


def _entries(hardware: str) -> tuple[ErrorType, ...]:
    """The entries to try for this hardware: first those of its backend's own file, if its descriptor names one."""
    own = _own_entries(hardware) if hardware in names() else ()
    return tuple(entry for entry in (*own, *catalogue()) if entry.covers(hardware))


@functools.cache
def _own_entries(backend: str) -> tuple[ErrorType, ...]:
    place = descriptor_of(backend).errors
    if place is None:
        return ()
    package, _, file = place.partition(":")
    text = (importlib.resources.files(package) / file).read_text(encoding="utf-8")
    return pydantic.TypeAdapter(_Catalogue).validate_python(parsed(text)).errors


def match(
    message: str,
    *,
    hardware: str,
    status: Status | None = None,
    stage: Stage | None = None,
    exception: type[BaseException] | BaseException | str | None = None,
) -> Match:
    """Recognize an error: the first entry of the catalogue that applies to this hardware and has a matching rule.

    Args:
        message: the error's own text.
        hardware: the target or backend on which it happened.
        status: how the cell ended, if known.
        stage: the stage in which it happened, if known.
        exception: the exception, its class (base classes count as well), or the class's name.

    Returns:
        The type and its severity; ``unmatched`` (severity: error) if no rule matches. Nothing is guessed.
    """
    classes = _class_names(exception)
    for entry in _entries(hardware):
        if any(rule.holds(message, status=status, stage=stage, exceptions=classes) for rule in entry.when):
            return Match(type=entry.type, severity=entry.severity)
    return Match(type=UNMATCHED, severity=Severity.ERROR)


def classify(error: BaseException, *, hardware: str = _ANY, stage: Stage | None = None) -> Outcome:
    """How a cell, an export, a bundle or any other work ends that raises this exception. The only place that decides this.

    Memory that ran out is ``oom``, and a limit of hwmatrix is ``factory_error``, whatever wraps it: the causes of the exception are
    searched, too, since runtimes report a failed allocation as an error of their own, and our typed failures quote it. A failure that
    blames nobody (``unavailable``, ``crash``, ``timeout``, ``infra_error``) keeps its status.

    Args:
        error: the exception, with its causes.
        hardware: the target or backend on which it happened; ``any``: none, as for exports.
        stage: the stage of the cell, if there is one.
    """
    if isinstance(error, CellFailure) and error.status not in _BLAMING:
        return _outcome_of(error, hardware)
    chain = list(chain_of(error))
    for each in chain:
        if isinstance(each, CellFailure) and each.status == Status.OOM:
            return _outcome_of(each, hardware)
        found = match(text_of(each), hardware=hardware, stage=stage, exception=each)
        if found.status is Status.OOM:
            return Outcome(status=found.status, type=found.type, severity=found.severity)
    named = next((each for each in chain if isinstance(each, FactoryError | UnmakableError)), error)
    if isinstance(named, CellFailure):
        return _outcome_of(named, hardware)
    found = match(text_of(error), hardware=hardware, stage=stage, exception=error)
    return Outcome(status=found.status, type=found.type, severity=found.severity)


def _outcome_of(failure: CellFailure, hardware: str) -> Outcome:
    """The outcome that a typed failure itself names."""
    return Outcome(status=Status(failure.status), type=failure.error_type, severity=severity_of(failure.error_type, hardware))


def text_of(error: BaseException) -> str:
    """The text of an exception; the name of its class if it has none."""
    return str(error).strip() or type(error).__name__


def entry_for(error_type: str, hardware: str) -> ErrorType:
    """The catalogue's entry for a known type; an entry for this hardware takes precedence over one for any.

    If the catalogue does not have the type (for this hardware), it is the entry ``unmatched``.
    """
    found = [entry for entry in _entries(hardware) if entry.type == error_type]
    if not found:
        return next(entry for entry in catalogue() if entry.type == UNMATCHED)
    return next((entry for entry in found if entry.hardware != "any"), found[0])


def advice_for(error_type: str, hardware: str, *, dtype: Dtype | None = None, batch: int | None = None) -> tuple[str, ...]:
    """What to do about an error of this type on this hardware: at least one recommendation.

    If the cell's precision or batch is known, the advice leaves out what the cell already does.
    """
    return entry_for(error_type, hardware).for_cell(dtype=dtype, batch=batch)


def severity_of(error_type: str, hardware: str) -> Severity:
    """How severe an error of this type is on this hardware."""
    return entry_for(error_type, hardware).severity


def _class_names(exception: type[BaseException] | BaseException | str | None) -> frozenset[str]:
    """The names that a rule may use for an exception: each class's name with and without its module, bases included."""
    if exception is None:
        return frozenset()
    if isinstance(exception, str):
        return frozenset({exception, exception.rpartition(".")[2]})
    kind = exception if isinstance(exception, type) else type(exception)
    classes = [base for base in kind.__mro__ if base not in {object, BaseException, Exception}]
    return frozenset(name for base in classes for name in (base.__name__, f"{base.__module__}.{base.__qualname__}"))
