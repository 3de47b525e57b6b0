"""Memory budgets of the pool: what is used of each, and the eviction of unused models."""

from __future__ import annotations

import collections
import gc
import threading
from typing import TYPE_CHECKING, Final

from hwmatrix.pool.devices import Budgets, give_back
from hwmatrix.pool.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from hwmatrix.pool.devices import Device, Gpu, Machine
    from hwmatrix.pool.settings import PoolSettings
    from hwmatrix.pool.shelf import Entry

FOR_MEMORY: Final = "evicted_for_memory"
FOR_AGE: Final = "evicted_for_age"
SOONEST_S: Final = 0.05
LATEST_S: Final = 10.0
"""How long the timer waits at least and at most. Nobody tells when memory gets short, so it looks."""


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
        self.settings = settings
        self._machine = machine
        self._reserved: dict[Hashable, dict[str, float]] = {}

    def taken_mb(self, memory: str) -> float:
        """What models and those under way take of a memory."""
        with self.lock:
            return self.shelf.used_mb(memory) + self.reserved_mb(memory)

    def reserved_mb(self, memory: str) -> float:
        """What is kept free for models under way."""
        with self.lock:
            return sum(shares.get(memory, 0.0) for shares in self._reserved.values())

    def reserve(self, whom: Hashable, shares: Mapping[str, float]) -> bool:
        """Keep room for a model under way, instead of what was kept for it before. False, and nothing is kept, if there is none.

        Others are let go of, the least recently used first, as far as that is needed. A model of unknown size needs nothing.
        """
        self.unreserve(whom)
        if all(not needed_mb or self._make(memory, needed_mb, whom) for memory, needed_mb in shares.items()):
            return True
        self.unreserve(whom)
        return False

    def unreserve(self, whom: Hashable) -> None:
        """The model under way has arrived, or never will."""
        with self.lock:
            self._reserved.pop(whom, None)

    def shrink(self, memory: str) -> bool:
        """Let go of what nobody uses until a memory is within its budget; False where what is used exceeds it by itself."""
        return self._make(memory, 0.0, None)

    def relieve(self) -> None:
        """Let go of what nobody uses in each memory of which more is in use, by whomever, than the settings allow."""
        for memory in self._places():
            total, free = self._machine.total_mb(memory), self._machine.free_mb(memory)
            if total is None or free is None:
                continue
            excess = total - free - total * self.settings.memory_limit_percent / 100
            if excess > 0:
                self._make(memory, 0.0, None, most_mb=self.taken_mb(memory) - excess)

    def tend(self) -> float | None:
        """What needs no request: let go of what is too old, and of what is in the way.

        Returns:
            In how many seconds to do that again; None where there are no models.
        """
        timeout_s = self.settings.timeout_minutes * 60
        self.clean(timeout_s)
        self.relieve()
        with self.lock:
            oldest = min((entry.last_used for entry in self.shelf), default=None)
            return None if oldest is None else min(max(oldest + timeout_s - self.clock(), SOONEST_S), LATEST_S)

    def configure(self, settings: PoolSettings) -> None:
        """Go by other settings from now on."""
        with self.lock:
            self.settings = settings
            self.budgets = Budgets(settings, self._machine)
        for memory in self._places():
            self.budgets.of(memory)  # may ask a driver, so not under the lock
        with self.lock:
            for entry in self.shelf:
                if not entry.retired:
                    self.settle(entry)
        self._tidy()
        for memory in self._places():
            self.shrink(memory)

    def _places(self) -> list[str]:
        """The memories in which there are models."""
        with self.lock:
            return sorted({memory for entry in self.shelf for memory in entry.shares})

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
            there = [entry for entry in self.shelf if memory in entry.shares]
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
        if self.settings.low_memory or self._is_exceeded(entry):
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
        for device in devices if self.settings.low_memory else ():
            give_back(device)

    def _drop(self, entries: list[Entry], reason: str) -> int:
        with self.lock:
            kept = [entry for entry in entries if entry.leases or not entry.let_go()]
            gone = len(self.shelf.sweep())
        gone += self._collected(kept)
        return self._evicted(reason, gone, (entry.key.device for entry in entries))

    def _make(self, memory: str, needed_mb: float, whom: Hashable, *, most_mb: float | None = None) -> bool:
        """Let go of the least recently used until what is needed fits, and keep it for ``whom``, in one step.

        It fits into the budget; or, where ``most_mb`` says how much models may take now, into that, and what nobody knows the size of
        goes as well.
        """
        budget = self.budgets.of(memory) if most_mb is None else most_mb
        kept: list[Entry] = []
        gone: list[Entry] = []
        with self.lock:
            fits = self._fits(memory, needed_mb, budget, whom)
            for entry in () if fits else self.shelf:
                if memory in entry.shares and not entry.leases and (most_mb is not None or entry.footprint.mb is not None):
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
            self._reserved.setdefault(whom, {})[memory] = needed_mb
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
            if not (entry.retired or self.settings.low_memory or self._is_exceeded(entry)):
                entry.hold()

    def _is_exceeded(self, entry: Entry) -> bool:
        """Whether models take more than the budget of a memory that this one is in."""
        budgets = {memory: self.budgets.known(memory) for memory in entry.shares}
        return any(budget is not None and self.taken_mb(memory) > budget for memory, budget in budgets.items())

    def _evicted(self, reason: str, number: int, devices: Iterable[Device]) -> int:
        """Count them, and have their devices' memory given back."""
        if number:
            with self.lock:
                self.count[reason] += number
            for device in set(devices):
                give_back(device)
        return number
