"""The errors of resource pool requests."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hwmatrix.records import Severity

if TYPE_CHECKING:
    from hwmatrix.knowledge.fallback import FallbackReport


class PoolError(Exception):
    """The pool cannot fulfill a request."""


class ModelStartError(PoolError):
    """A model could not be started: its constructor failed, or no device could hold the model.

    ``error_type`` is the catalogue's, ``recommendations`` say what to do, ``report`` lists every device that was tried. The
    constructor's own exception is the ``__cause__``. Every thread that waited for the same model gets its own error with that cause.
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
    """A constructor waits, directly or through other constructors, for the model that it constructs itself: a deadlock."""


class NotInPoolError(PoolError):
    """A model was requested without a constructor, and the pool does not have it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """The pool's record of a model that could not be started. ``at`` is a time in UTC; ``traceback`` is that of the constructor."""

    family: str
    name: str
    hardware: str
    error_type: str
    severity: Severity
    message: str
    recommendations: tuple[str, ...]
    at: str
    traceback: str | None
