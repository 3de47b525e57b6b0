"""The errors of resource pool requests."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hwmatrix.records import Severity

if TYPE_CHECKING:
    from hwmatrix.knowledge.fallback import FallbackReport


class PoolError(Exception):
    """The pool cannot give what was asked for."""


class ModelStartError(PoolError):
    """A model could not be started: its constructor failed, or no device could take what it gave.

    ``error_type`` is the catalogue's, ``recommendations`` say what to do, ``report`` tells every device that was tried. The
    constructor's own exception is the ``__cause__``. Everybody who waited for the same model gets an error of their own with that cause.
    """

    def __init__(self, message: str, *, error_type: str, recommendations: tuple[str, ...], report: FallbackReport | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.error_type = error_type
        self.recommendations = recommendations
        self.report = report

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"- {line}" for line in self.recommendations)])


class NestedRequestError(PoolError):
    """A constructor waits, directly or through other constructors, for the model that it constructs itself: it would wait for ever."""


class NotInPoolError(PoolError):
    """A model was asked for without a constructor, and the pool does not have it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A model that could not be started, as the pool remembers it. ``at`` is a time in UTC; ``traceback`` is that of the constructor."""

    family: str
    name: str
    hardware: str
    error_type: str
    severity: Severity
    message: str
    recommendations: tuple[str, ...]
    at: str
    traceback: str | None
