"""One run at a time measures speed on a machine: a lock file that all runs on it share, also those of other users and checkouts.

Runs that only test compatibility do not take it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import StoreError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

_FILE: Final = "hwmatrix-timing.lock"
_LOOK_S: Final = 0.2


@contextlib.contextmanager
def timing_turn(say: Callable[[str], None], stopping: threading.Event | None = None, *, folder: Path | None = None) -> Iterator[None]:
    """Wait until no other run measures on this machine, and keep others waiting until the block ends.

    ``say`` is told once that there is something to wait for; ``stopping`` ends the wait, without the lock. The kernel releases the lock of
    a process that dies. ``folder`` is where the lock file is; None: the system's folder for temporary files.

    Raises:
        StoreError: the lock file cannot be opened.
    """
    path = (folder or Path(tempfile.gettempdir())) / _FILE
    try:
        lock = _opened(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened: {error}", advice="Delete it, or set another TMPDIR.") from error
    try:
        told = False
        while not _taken(lock):
            if stopping is not None and stopping.is_set():
                break
            if not told:
                say("waiting: another run measures speed on this machine")
                told = True
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(lock)


def _opened(path: Path) -> int:
    """Open the lock file, and create it if needed. Read-only, because it may belong to another user, and a lock needs no write access."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o644)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        raise
    return True
