"""Room for models: what each memory's budget is, what is taken of it, and letting go of what nobody uses."""

from __future__ import annotations

import collections
import gc
import threading
from typing import TYPE_CHECKING, Final

from hwmatrix.advice.pool_devices import Budgets, give_back
from hwmatrix.advice.pool_shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from hwmatrix.advice.pool_devices import Device, Gpu, Machine
    from hwmatrix.advice.pool_settings import PoolSettings
    from hwmatrix.advice.pool_shelf import Entry

FOR_MEMORY: Final = "evicted_for_memory"
FOR_AGE: Final = "evicted_for_age"


class Room:
    """The shelf with its budgets. What is under way counts from when room was made for it.

    ``lock`` guards all of it, and no device's driver is asked while it is held.
    """

    def __init__(self, settings: PoolSettings, machine: Machine, clock: Callable[[], float]) -> None:
        self.lock = threading.RLock()
        self.shelf = Shelf()
        self.budgets = Budgets(settings, machine)
        self.count: collections.Counter[str] = collections.Counter()
        self.clock = clock
        self._settings = settings
        self._reserved: dict[Hashable, tuple[str, float]] = {}

    def taken_mb(self, memory: str) -> float:
        """What models and those under way take of a memory."""
        with self.lock:
            return self.shelf.used_mb(memory) + self.reserved_mb(memory)

    def reserved_mb(self, memory: str) -> float:
        """What is kept free for models under way."""
        with self.lock:
            return sum(mb for where, mb in self._reserved.values() if where == memory)

    def reserve(self, whom: Hashable, memory: str, needed_mb: float | None) -> bool:
        """Keep room for a model under way, instead of what was kept for it before. False, and nothing is kept, if there is none.

        Others are let go of, the least recently used first, as far as that is needed. A model of unknown size needs nothing.
        """
        with self.lock:
            self._reserved.pop(whom, None)
        return not needed_mb or self._make(memory, needed_mb, whom)

    def unreserve(self, whom: Hashable) -> None:
        """The model under way has arrived, or never will."""
        with self.lock:
            self._reserved.pop(whom, None)

    def shrink(self, memory: str) -> bool:
        """Let go of what nobody uses until a memory is within its budget; False where what is used exceeds it by itself."""
        return self._make(memory, 0.0, None)

    def clean(self, older_than_s: float) -> int:
        """Let go of what nobody uses and nobody asked for in so many seconds; give the number of models that went.

        What turns out to be in use counts as used now.
        """
        self._tidy()
        with self.lock:
            latest = self.clock() - older_than_s
            aged = [entry for entry in self.shelf if entry.last_used <= latest]
        number = self._drop(aged, FOR_AGE)
        with self.lock:
            for entry in aged:
                entry.last_used = self.clock()
        return number

    def empty(self, memory: str) -> int:
        """Let go of everything in a memory that nobody uses; give the number of models that went."""
        with self.lock:
            there = [entry for entry in self.shelf if entry.memory == memory]
        return self._drop(there, FOR_MEMORY)

    def forget(self, entries: Iterable[Entry]) -> None:
        """Keep these no longer: their users may, and until they let go the memory counts as taken."""
        with self.lock:
            for entry in entries:
                entry.retired = True
                entry.let_go()
                if not entry.can_be_watched and not entry.leases:
                    self.shelf.remove(entry)
            self.shelf.sweep()

    def settle(self, entry: Entry) -> None:
        """Keep what is in use also after that; or leave it to its users, in low-memory mode and while too much is in use."""
        entry.retired = False
        if self._settings.low_memory or self._is_exceeded(entry.memory):
            entry.let_go()
        else:
            entry.hold()

    def roomiest(self, device: Device, gpus: Iterable[Gpu]) -> int:
        """The number of the GPU with most free memory, less what is on its way there; where none tells, the least used by this pool."""
        known = list(gpus)
        told = all(gpu.free_mb is not None for gpu in known)

        def room(gpu: Gpu) -> tuple[float, int]:
            memory = f"{device.hardware}:{gpu.index}"
            free = (gpu.free_mb or 0.0) - self.reserved_mb(memory) if told else -self.taken_mb(memory)
            return free, -gpu.index

        with self.lock:
            return max(known, key=room).index

    def _tidy(self) -> None:
        """Forget what its users let go of. In low-memory mode its device's memory is given back."""
        with self.lock:
            devices = {entry.key.device for entry in self.shelf.sweep()}
        for device in devices if self._settings.low_memory else ():
            give_back(device)

    def _drop(self, entries: list[Entry], reason: str) -> int:
        with self.lock:
            kept = [entry for entry in entries if entry.leases or not entry.let_go()]
            gone = len(self.shelf.sweep())
        gone += self._collected(kept)
        return self._evicted(reason, gone, (entry.key.device for entry in entries))

    def _make(self, memory: str, needed_mb: float, whom: Hashable) -> bool:
        """Let go of the least recently used until what is needed fits, and keep it for ``whom``, in one step."""
        budget = self.budgets.of(memory)
        kept: list[Entry] = []
        gone: list[Entry] = []
        with self.lock:
            fits = self._fits(memory, needed_mb, budget, whom)
            for entry in () if fits else self.shelf:
                if entry.memory == memory and not entry.leases and entry.footprint.mb is not None:
                    (gone if entry.let_go() else kept).append(entry)
                    self.shelf.sweep()
                    fits = self._fits(memory, needed_mb, budget, whom)
                    if fits:
                        break
            if fits:
                self._keep(kept)
        collected = 0
        if not fits and kept:
            collected = self._collected(kept)
            with self.lock:
                fits = self._fits(memory, needed_mb, budget, whom)
        self._evicted(FOR_MEMORY, len(gone) + collected, (entry.key.device for entry in (*gone, *kept)))
        return fits

    def _fits(self, memory: str, needed_mb: float, budget: float | None, whom: Hashable) -> bool:
        if budget is not None and self.taken_mb(memory) + needed_mb > budget:
            return False
        if whom is not None and needed_mb:
            self._reserved[whom] = (memory, needed_mb)
        return True

    def _collected(self, kept: list[Entry]) -> int:
        """Of models that seemed to be in use, those were not that only hung together in a cycle: give their number, keep the rest."""
        if any(entry.can_be_watched and not entry.leases for entry in kept):
            gc.collect()  # not under the lock: it runs finalisers of others
        with self.lock:
            gone = len(self.shelf.sweep())
            self._keep(kept)
            return gone

    def _keep(self, entries: Iterable[Entry]) -> None:
        """What is in use is kept also after that, but not where it alone exceeds the budget: then it goes with its last user."""
        for entry in entries:
            if not (entry.retired or self._settings.low_memory or self._is_exceeded(entry.memory)):
                entry.hold()

    def _is_exceeded(self, memory: str) -> bool:
        budget = self.budgets.known(memory)
        return budget is not None and self.taken_mb(memory) > budget

    def _evicted(self, reason: str, number: int, devices: Iterable[Device]) -> int:
        """Count them, and have their devices' memory given back."""
        if number:
            with self.lock:
                self.count[reason] += number
            for device in set(devices):
                give_back(device)
        return number
