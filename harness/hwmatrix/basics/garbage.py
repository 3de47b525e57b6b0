"""Python's garbage collector, where it only costs time."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Do not look for cycles of objects inside the block.

    Looking for some while hundreds of thousands of records are made takes longer than making them, and records have none. It takes a fifth
    of the time in which PyTorch and transformers are imported, whose 300,000 objects all stay.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
