"""State shared by the threads that use a pool: which models exist, which are being constructed, and who waits for whom."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.pool.errors import NestedRequestError
from hwmatrix.pool.memory import Measure
from hwmatrix.pool.room import Room
from hwmatrix.pool.shelf import Entry, Key
from hwmatrix.pool.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hwmatrix.knowledge.fallback import FallbackReport, Tried
    from hwmatrix.pool.devices import Gpu, Machine
    from hwmatrix.pool.errors import Failure
    from hwmatrix.pool.memory import Footprint
    from hwmatrix.pool.settings import PoolSettings

_REMEMBERED: Final = 1000
"""How many fallbacks and failures are remembered: the latest."""


class Construction:
    """A model that one thread constructs for a device, and others may wait for.

    At its end it has a ``model``, or what was ``tried`` in vain with its ``cause``; or neither, when its thread was interrupted.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.owner = threading.get_ident()
        self.over = threading.Event()
        self.model: Any = None
        self.tried: Tried | None = None
        self.cause: Exception | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """What a request finds on a device: the ``entry`` with its ``model``; or a construction, its own (``mine``) or another thread's."""

    key: Key
    model: Any = None
    entry: Entry | None = None
    construction: Construction | None = None
    mine: bool = False


class PoolState:
    """Everything that threads share. Methods take the lock themselves; nothing is constructed or moved under it."""

    def __init__(self, settings: PoolSettings, machine: Machine, clock: Callable[[], float]) -> None:
        self.machine = machine
        self.room = Room(settings, machine, clock)
        self.timer = Timer(self.room)
        self.lock = self.room.lock
        self.loading = threading.RLock()
        """Held while a model is loaded in low-memory mode: one at a time, and what a constructor itself asks for within it."""
        self.settled: dict[tuple[Any, ...], Key] = {}
        """Requests that had to fall back, and what they were given: not tried again as long as that is there."""
        self.failures: collections.deque[Failure] = collections.deque(maxlen=_REMEMBERED)
        self._fallbacks: collections.OrderedDict[tuple[str, ...], FallbackReport] = collections.OrderedDict()
        self._under_way: dict[Key, Construction] = {}
        self._waiting: dict[int, Construction] = {}

    @property
    def settings(self) -> PoolSettings:
        """What the pool goes by at this moment."""
        return self.room.settings

    def configure(self, settings: PoolSettings) -> None:
        """Go by other settings from now on."""
        self.room.configure(settings)
        self.timer.wake()

    @property
    def fallbacks(self) -> tuple[FallbackReport, ...]:
        """The fallbacks that were reported, the latest last."""
        with self.lock:
            return tuple(self._fallbacks.values())

    def report(self, report: FallbackReport) -> bool:
        """Remember a fallback. The same one again replaces the former: False then."""
        with self.lock:
            kind = (report.model, report.expected, str(report.actual))
            known = self._fallbacks.pop(kind, None)
            self._fallbacks[kind] = report
            while len(self._fallbacks) > _REMEMBERED:
                self._fallbacks.popitem(last=False)
            return known is None

    def look(self, key: Key, *, lease: bool) -> Turn | None:
        """The model, if it is there; on any of several GPUs where the key names none."""
        with self.lock:
            entry = self.room.shelf.get(key) or self.room.shelf.like(key)
            model = None if entry is None else entry.find()
            if entry is None or model is None:
                return None
            self._use(entry, lease=lease)
            self.room.count["hits"] += 1
            return Turn(key=entry.key, model=model, entry=entry)

    def size_of_copies(self, key: Key) -> float | None:
        """What a PyTorch module takes, if the pool has it on any device (MiB): on another one it takes as much. None if there is none."""
        with self.lock:
            return next((entry.footprint.mb for entry in self.room.shelf.copies(key) if entry.footprint.measure is Measure.TENSORS), None)

    def knows(self, key: Key) -> bool:
        """Whether the model is there or under way, so that nothing need be found out to get it."""
        with self.lock:
            known = self.room.shelf.get(key) or self.room.shelf.like(key) or self._constructing(key)
            return known is not None

    def look_or_wait(self, key: Key, *, lease: bool) -> Turn | None:
        """The model, or a construction of it to wait for."""
        with self.lock:
            turn = self.look(key, lease=lease)
            if turn is not None:
                return turn
            other = self._constructing(key)
            return None if other is None else Turn(key=other.key, construction=other)

    def enter(self, key: Key, gpus: Sequence[Gpu], *, lease: bool) -> Turn:
        """Find the model, or a construction to wait for, or begin one: on the GPU with most room where the key names none."""
        with self.lock:
            turn = self.look_or_wait(key, lease=lease)
            if turn is not None:
                return turn
            if gpus and key.device.index is None:
                device = dataclasses.replace(key.device, index=self.room.roomiest(key.device, gpus))
                key = dataclasses.replace(key, device=device)
            construction = self._under_way[key] = Construction(key)
            return Turn(key=key, construction=construction, mine=True)

    def wait(self, construction: Construction) -> None:
        """Wait until another thread's construction is over.

        Raises:
            NestedRequestError: that thread waits, itself or through others, for this one.
        """
        me = threading.get_ident()
        with self.lock:
            blocking: Construction | None = construction
            while blocking is not None and not blocking.over.is_set():
                if blocking.owner == me:
                    raise NestedRequestError(
                        f"the constructor of {blocking.key} cannot end before {construction.key} is there, and vice versa"
                    )
                blocking = self._waiting.get(blocking.owner)
            self._waiting[me] = construction
            self.room.count["waits"] += 1
        try:
            construction.over.wait()
        finally:
            with self.lock:
                del self._waiting[me]

    def finish(self, construction: Construction, model: Any, size: Footprint, shares: Mapping[str, float], *, lease: bool) -> Entry:
        """The model is there: what was kept free for it becomes what it takes. What is split over GPUs is on none of them alone."""
        with self.lock:
            self._end(construction)
            if len(shares) > 1:
                device = dataclasses.replace(construction.key.device, index=None)
                construction.key = dataclasses.replace(construction.key, device=device)
            entry = self.room.shelf.add(construction.key, model, size, shares, self.room.clock())
            construction.model = model
            self.room.count["constructed"] += 1
            self._use(entry, lease=lease)
        self.timer.wake()
        return entry

    def take(self, construction: Construction, *, lease: bool) -> Turn | None:
        """What somebody who waited gets. None if the model is no longer the pool's."""
        with self.lock:
            entry = self.room.shelf.get(construction.key)
            if entry is None or entry.find() is not construction.model:
                return None
            self._use(entry, lease=lease)
            return Turn(key=entry.key, model=construction.model, entry=entry)

    def hand_over(
        self, construction: Construction, tried: Tried, cause: Exception, onward: tuple[Key, Sequence[Gpu]] | None, *, lease: bool
    ) -> Turn | None:
        """A device could not take the model: its owner comes to the next one before those who wait for it learn that.

        So they find one construction there, too. None where there is no next device.
        """
        with self.lock:
            construction.tried, construction.cause = tried, cause
            turn = None if onward is None else self.enter(*onward, lease=lease)
            self._end(construction)
            return turn

    def abandon(self, construction: Construction) -> None:
        """The constructing thread was interrupted: one of those who wait takes over."""
        with self.lock:
            if not construction.over.is_set():
                self._end(construction)

    def return_lease(self, entry: Entry) -> None:
        """One who said how long they need a model needs it no longer."""
        with self.lock:
            entry.leases -= 1
            if not entry.leases and entry.retired:
                self.room.forget([entry])
            elif not entry.leases:
                self.room.settle(entry)

    def _constructing(self, key: Key) -> Construction | None:
        return self._under_way.get(key) or next((each for each in self._under_way.values() if each.key.is_like(key)), None)

    def _use(self, entry: Entry, *, lease: bool) -> None:
        entry.uses += 1
        entry.leases += lease
        entry.given_out |= not lease
        self.room.shelf.touch(entry, self.room.clock())
        self.room.settle(entry)

    def _end(self, construction: Construction) -> None:
        self.room.unreserve(construction)
        del self._under_way[construction.key]
        construction.over.set()
