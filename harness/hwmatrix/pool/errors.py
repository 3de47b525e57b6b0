"""The errors of resource pool requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hwmatrix.knowledge.fallback import FallbackReport


class PoolError(Exception):
    """The pool cannot fulfill a request."""


class ModelStartError(PoolError):
    """A model could not be started: its constructor failed, or no device could hold the model.

    ``error_type`` is the catalogue's, ``recommendations`` say what to do, ``report`` lists every device that was tried. The
    constructor's own exception is the ``__cause__``.
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
    """A constructor requests from the pool the model that it constructs."""


class NotInPoolError(PoolError):
    """A model was requested without a constructor, and the pool does not have it."""
