"""The level of a logger for a while: libraries tell in their logs what becomes a row here, or is of no use."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def logged_from(level: int, name: str | None = None) -> Iterator[None]:
    """Only records from this level on pass a logger; without a name, the root logger. Its level before comes back at the end."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
