"""The models that a pool has: the least recently used ones are evicted when they are old, or when their memory is needed.

Callers need not release a model: to evict one, the pool drops its own reference. If a weak reference still finds the model, it is in use.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.pool.placing import give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hwmatrix.faults.error_records import ReportedError
    from hwmatrix.knowledge.fallback import FallbackReport
    from hwmatrix.pool.devices import Machine
    from hwmatrix.pool.request import Key
    from hwmatrix.pool.settings import PoolSettings

FOR_MEMORY: Final = "evicted_for_memory"
FOR_AGE: Final = "evicted_for_age"
_MOST_FAILURES: Final = 1000
"""How many of the latest failures are remembered."""


class Entry:
    """One model in the pool. ``shares`` maps each memory to the MiB that the model takes there; 0 if its size is not known (``measured``).

    ``fallback_of`` has the keys on devices that could not hold the model: requests with these get this copy.
    """

    def __init__(self, key: Key, model: Any, shares: Mapping[str, float], *, measured: bool) -> None:
        self.key = key
        self.shares = dict(shares)
        self.measured = measured
        self.last_used = 0.0
        self.fallback_of: set[Key] = set()
        self._kept: Any = model
        self._weak: weakref.ref[Any] | None = None
        with contextlib.suppress(TypeError):  # a tuple or a number: it counts as used until it is released
            self._weak = weakref.ref(model)

    @property
    def model(self) -> Any:
        """The model, or None if it is gone."""
        return self._kept if self._weak is None else self._weak()

    def answers(self, key: Key) -> bool:
        """Whether requests with that key get this model. A key without a GPU index matches any GPU of its kind."""
        return key in {self.key, self.key.any_index, *self.fallback_of}

    @property
    def is_kept(self) -> bool:
        """Whether the pool itself holds a reference."""
        return self._kept is not None

    def keep(self) -> None:
        """Hold a reference, if the model still exists."""
        self._kept = self.model

    def drop(self, *, released: bool = False) -> None:
        """Drop the pool's own reference. Only a release drops a model that cannot be weakly referenced."""
        if self._weak is not None or released:
            self._kept = None


class ModelCache:
    """The state that the threads of a pool share. ``lock`` guards it, and is never held while a model is constructed or moved.

    A thread holds ``loading`` while it constructs a model, and the models that its constructor requests. ``fallbacks`` has the latest
    report of each kind.
    """

    def __init__(self, settings: PoolSettings, machine: Machine, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.machine = machine
        self.clock = clock
        self.lock = threading.RLock()
        self.loading = threading.RLock()
        self.under_construction: set[Key] = set()
        self.count: collections.Counter[str] = collections.Counter()
        self.failures: collections.deque[ReportedError] = collections.deque(maxlen=_MOST_FAILURES)
        self.fallbacks: dict[tuple[str, ...], FallbackReport] = {}
        self._entries: collections.OrderedDict[Key, Entry] = collections.OrderedDict()
        self._budgets: dict[str, float | None] = {}

    def entries(self) -> list[Entry]:
        """The entries whose models still exist, the least recently used first."""
        with self.lock:
            dead = [entry for entry in self._entries.values() if entry.model is None]
            for entry in dead:
                del self._entries[entry.key]
            for device in {entry.key.device for entry in dead}:
                give_back(device)
            return list(self._entries.values())

    def find(self, key: Key) -> Any:
        """The model, from now on the most recently used one, or None if the pool does not have it."""
        with self.lock:
            for entry in reversed(self.entries()):
                model = entry.model
                if model is not None and entry.answers(key):
                    self.count["hits"] += 1
                    entry.last_used = self.clock()
                    self._entries.move_to_end(entry.key)
                    self._keep(entry)
                    return model
            return None

    def add(self, key: Key, model: Any, shares: Mapping[str, float], *, measured: bool) -> list[str]:
        """Add a constructed model, and evict others where it exceeds a budget; return the memories where models in use still do."""
        with self.lock:
            entry = self._entries[key] = Entry(key, model, shares, measured=measured)
            entry.last_used = self.clock()
            self.count["constructed"] += 1
            exceeded = [memory for memory in shares if not self.make_room(memory)]
            self._keep(entry)
            return exceeded

    def answer_also(self, key: Key, others: Iterable[Key]) -> None:
        """Answer requests with these other keys with the model of this key from now on: their devices could not hold it."""
        with self.lock:
            for entry in self.entries():
                if entry.answers(key):
                    entry.fallback_of.update(others)

    def release(self, entries: Iterable[Entry]) -> None:
        """Drop the pool's references to these models. Their memory counts as taken until their users drop them too."""
        with self.lock:
            for entry in entries:
                entry.drop(released=True)

    def configure(self, settings: PoolSettings) -> None:
        """Apply new settings."""
        with self.lock:
            self.settings, self._budgets = settings, {}
            if settings.low_memory:
                self._evict(self.entries(), FOR_MEMORY)
            for memory in self.memories():
                self.make_room(memory)

    # ── memory and age ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def memories(self) -> list[str]:
        """The memories in which there are models."""
        return sorted({memory for entry in self.entries() for memory in entry.shares})

    def budget(self, memory: str) -> float | None:
        """How much of a memory models may take (MiB). None if its size is not known: then only failed allocations limit it."""
        with self.lock:
            if memory not in self._budgets:
                total = self.machine.total_mb(memory)
                share = None if total is None else total * self.settings.share
                self._budgets[memory] = self.settings.budget_mb.get(memory, share)
            return self._budgets[memory]

    def taken_mb(self, memory: str) -> float:
        """How much of a memory models take (MiB)."""
        return sum(entry.shares.get(memory, 0.0) for entry in self.entries())

    def make_room(self, memory: str, needed_mb: float = 0.0) -> bool:
        """Evict the least recently used models until ``needed_mb`` fits into the budget. False if models in use leave no room."""
        allowed = self.budget(memory)
        if allowed is None:
            return True

        def fits() -> bool:
            return self.taken_mb(memory) + needed_mb <= allowed

        with self.lock:
            self._evict([entry for entry in self.entries() if entry.shares.get(memory)], FOR_MEMORY, fits)
            return fits()

    def empty(self, memory: str) -> int:
        """Evict all unused models in a memory; return how many."""
        with self.lock:
            return self._evict([entry for entry in self.entries() if memory in entry.shares], FOR_MEMORY)

    def evict_older(self, seconds: float) -> int:
        """Evict models that were neither used nor requested for so long; return how many. Models found to be in use count as used now."""
        with self.lock:
            now = self.clock()
            aged = [entry for entry in self.entries() if entry.last_used <= now - seconds]
            number = self._evict(aged, FOR_AGE)
            for entry in aged:
                entry.last_used = now
            return number

    def _keep(self, entry: Entry) -> None:
        """Keep a model for later requests, unless memory is short: then its last user frees it."""
        over_budget = any((self.budget(memory) or float("inf")) < self.taken_mb(memory) for memory in entry.shares)
        if self.settings.low_memory or over_budget:
            entry.drop()
        else:
            entry.keep()

    def _evict(self, entries: Iterable[Entry], reason: str, enough: Callable[[], bool] = lambda: False) -> int:
        """Drop unused models, in the given order, until ``enough()``; return how many. The caller holds the lock."""
        dropped: list[Entry] = []
        owned: list[Entry] = []
        in_cycles = True
        for entry in entries:
            if enough():
                break
            dropped.append(entry)
            if entry.is_kept:
                owned.append(entry)
            entry.drop()
            if in_cycles and entry.model is not None and not enough():
                gc.collect()  # frees unused models in reference cycles; if it frees none, the others are in use as well
                in_cycles = entry.model is None
        for entry in owned:
            self._keep(entry)
        gone = sum(entry.model is None for entry in dropped)
        self.count[reason] += gone
        self.entries()  # forgets them, and gives their memory back
        return gone
