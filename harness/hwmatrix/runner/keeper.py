"""Manages the service that the cells of a shard share (a browser): started on demand, restarted if it dies, always stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

    from hwmatrix.targets.protocol import Service


class Keeper:
    """Owns a service, or none. Use as a context manager: leaving it ends the service."""

    def __init__(self, service: Service | None) -> None:
        self._service = service
        self._address: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        """Nothing is started yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the service."""
        self.stop()

    def stop(self) -> None:
        """End the service if it was started. The next call of ``address`` starts it again."""
        if self._service is not None and self._address is not None:
            self._service.stop()
            self._address = None

    def address(self) -> dict[str, Any] | None:
        """Where cells reach the service, which is started if necessary; None if the target needs none.

        Raises:
            UnavailableError: it cannot be started here.
        """
        if self._service is None:
            return None
        if self._address is not None and not self._service.alive():
            self.stop()
        if self._address is None:
            self._address = dict(self._service.start())
        return self._address
