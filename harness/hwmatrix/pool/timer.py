"""A thread that evicts old models, and unused ones when memory is short, without a request."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hwmatrix.pool.room import Room


class Timer:
    """Begins with the first model, and ends with the pool: it keeps neither the pool nor the process alive."""

    def __init__(self, room: Room) -> None:
        self._room = weakref.ref(room)
        self._bell = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        weakref.finalize(room, self._bell.set).atexit = False

    def wake(self) -> None:
        """Something has changed: the timer looks now, if the settings want one."""
        room = self._room()
        with self._lock:
            if room is not None and room.settings.timer and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=_tend, args=(self._room, self._bell), name="hwmatrix-pool-timer", daemon=True)
                self._thread.start()
        self._bell.set()


def _tend(room_of: weakref.ref[Room], bell: threading.Event) -> None:
    while (room := room_of()) is not None:
        wait_s = room.tend() if room.settings.timer else None
        del room
        bell.wait(wait_s)
        bell.clear()
