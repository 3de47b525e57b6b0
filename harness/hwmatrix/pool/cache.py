"""The models that a pool holds or is constructing. Models are evicted when they are old, or when their memory is needed.

Callers need not release a model: to evict one, the pool drops its own reference. If a weak reference still finds the model, it is in use.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.pool.devices import budget_mb
from hwmatrix.pool.errors import NestedRequestError
from hwmatrix.pool.placing import Measure, give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hwmatrix.knowledge.fallback import Tried
    from hwmatrix.pool.devices import Gpu, Machine
    from hwmatrix.pool.placing import Footprint
    from hwmatrix.pool.request import Key, Request
    from hwmatrix.pool.settings import PoolSettings

FOR_MEMORY: Final = "evicted_for_memory"
FOR_AGE: Final = "evicted_for_age"
SOONEST_S: Final = 0.05
LATEST_S: Final = 10.0
"""The shortest and the longest wait of the timer. There is no event for low memory, so it polls."""


class Entry:
    """One model in the pool. ``shares`` maps each memory to the MiB that the model takes there; 0 if unknown (None in ``footprint``).

    ``leases`` counts its open leases. ``given_out``: it was also returned without a lease; from then on an object that cannot be weakly
    referenced (a tuple, a number) counts as used. ``released``: only its users keep it alive.
    """

    def __init__(self, key: Key, model: Any, footprint: Footprint, shares: Mapping[str, float]) -> None:
        self.key = key
        self.footprint = footprint
        self.shares = dict(shares)
        self.last_used = 0.0
        self.uses = 0
        self.leases = 0
        self.given_out = False
        self.released = False
        self._model: Any = model
        self._weak: weakref.ref[Any] | None = None
        with contextlib.suppress(TypeError):
            self._weak = weakref.ref(model)

    @property
    def model(self) -> Any:
        """The model, or None if it is gone."""
        return self._model if self._model is not None or self._weak is None else self._weak()

    @property
    def is_kept(self) -> bool:
        """Whether the pool itself holds a reference."""
        return self._model is not None

    def keep(self) -> None:
        """Hold a reference from now on, if the model still exists."""
        self._model = self.model

    def let_go(self) -> None:
        """Drop the pool's own reference, unless the model cannot be weakly referenced."""
        if not self.leases and not (self._weak is None and self.given_out):
            self._model = None


class Construction:
    """A model that one thread constructs, while others may wait for it. ``shares`` is the memory that is reserved for it.

    After success, ``entry`` and ``model`` are set; after a failure, ``tried`` and ``cause``; after an interruption, none of them.
    """

    def __init__(self, key: Key, request: Request) -> None:
        self.key = key
        self.request = request
        self.owner = threading.get_ident()
        self.over = threading.Event()
        self.shares: dict[str, float] = {}
        self.entry: Entry | None = None
        self.model: Any = None
        self.tried: Tried | None = None
        self.cause: Exception | None = None


class ModelCache:
    """The state that the threads of a pool share. No model is constructed or moved, and no driver is called, while ``lock`` is held.

    In low-memory mode, a thread holds ``loading`` while it loads a model and the models that its constructor requests.
    """

    def __init__(self, settings: PoolSettings, machine: Machine, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.machine = machine
        self.clock = clock
        self.lock = threading.RLock()
        self.loading = threading.RLock()
        self.count: collections.Counter[str] = collections.Counter()
        self._entries: collections.OrderedDict[Key, Entry] = collections.OrderedDict()
        self._under_way: dict[Key, Construction] = {}
        self._waiting: dict[int, Construction] = {}
        self._budgets: dict[str, float | None] = {}
        self._timer = Timer(self)

    # ── finding, waiting, constructing ──────────────────────────────────────────────────────────────────────────────────────────

    def entries(self) -> list[Entry]:
        """The entries whose models still exist, the least recently used first."""
        self._drop_dead_entries()
        return list(self._entries.values())

    def lease(self, key: Key) -> Entry | None:
        """Lease the model, if the pool has it. A key without a GPU index matches any GPU of its kind."""
        with self.lock:
            there = self.entries()
            entry = self._entries.get(key) or next((each for each in reversed(there) if each.key.answers(key)), None)
            if entry is not None:
                self.count["hits"] += 1
                self._use(entry)
            return entry

    def find(self, key: Key) -> Entry | Construction | None:
        """Lease the model, or return a construction of it to wait for. None if there is neither."""
        with self.lock:
            under_way = self._under_way.get(key) or next((each for each in self._under_way.values() if each.key.answers(key)), None)
            return self.lease(key) or under_way

    def find_or_begin(self, key: Key, gpus: Sequence[Gpu], request: Request) -> Entry | Construction:
        """As :meth:`find`. If nothing is found, begin a construction; if the key names no GPU, on the one with the most free memory."""
        with self.lock:
            found = self.find(key)
            if found is not None:
                return found
            if gpus and key.device.index is None:
                key = dataclasses.replace(key, device=dataclasses.replace(key.device, index=self._freest_gpu(key.device.hardware, gpus)))
            construction = self._under_way[key] = Construction(key, request)
            return construction

    def finish(self, construction: Construction, model: Any, footprint: Footprint, shares: Mapping[str, float]) -> Entry:
        """Add a constructed model, and return its leased entry. The key of a model that is split over GPUs names no index."""
        with self.lock:
            self.end(construction)
            key = construction.key
            if len(shares) > 1:
                key = dataclasses.replace(key, device=dataclasses.replace(key.device, index=None))
            entry = self._entries[key] = Entry(key, model, footprint, shares)
            construction.entry, construction.model = entry, model
            self.count["constructed"] += 1
            self._use(entry)
        self._timer.wake()
        return entry

    def end(self, construction: Construction) -> None:
        """End a construction, and wake the threads that wait for it."""
        with self.lock:
            if self._under_way.get(construction.key) is construction:
                del self._under_way[construction.key]
            construction.shares = {}
            construction.over.set()

    def wait(self, construction: Construction) -> Entry | None:
        """Wait until another thread's construction is over; return its leased entry, or None if it failed.

        Raises:
            NestedRequestError: that thread waits, directly or through others, for this one.
        """
        me = threading.get_ident()
        with self.lock:
            blocking: Construction | None = construction
            while blocking is not None and not blocking.over.is_set():
                if blocking.owner == me:
                    message = f"deadlock: the constructor of {blocking.key} waits for {construction.key}, and vice versa"
                    raise NestedRequestError(message)
                blocking = self._waiting.get(blocking.owner)
            self._waiting[me] = construction
            self.count["waits"] += 1
        try:
            construction.over.wait()
        finally:
            with self.lock:
                del self._waiting[me]
        with self.lock:
            entry = construction.entry
            if entry is None or self._entries.get(entry.key) is not entry:
                return None
            self._use(entry)
            return entry

    def end_lease(self, entry: Entry, *, given_out: bool = False) -> None:
        """End a lease. ``given_out``: the user keeps the model for an unknown time."""
        with self.lock:
            entry.given_out |= given_out
            entry.leases -= 1
            self._keep_or_let_go(entry)

    def release(self, entries: Iterable[Entry]) -> None:
        """Drop the pool's references to these models. Their memory counts as taken until their users drop them too."""
        with self.lock:
            for entry in entries:
                entry.released, entry.given_out = True, False
                entry.let_go()

    def size_of_copies(self, key: Key) -> float | None:
        """The size in MiB of a PyTorch module that the pool has on any device (it is the same on all). None if unknown."""
        with self.lock:
            copies = (entry for entry in self.entries() if dataclasses.replace(entry.key, device=key.device) == key)
            return next((entry.footprint.mb for entry in copies if entry.footprint.measure is Measure.TENSORS), None)

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def memories(self) -> list[str]:
        """The memories in which there are models."""
        with self.lock:
            return sorted({memory for entry in self.entries() for memory in entry.shares})

    def budget(self, memory: str) -> float | None:
        """How much of a memory models may take (MiB). None if its size is not known: then only failed allocations limit it."""
        if memory not in self._budgets:
            self._budgets[memory] = budget_mb(memory, self.settings, self.machine)
        return self._budgets[memory]

    def taken_mb(self, memory: str) -> float:
        """How much of a memory models take (MiB), including those under construction."""
        with self.lock:
            return sum(entry.shares.get(memory, 0.0) for entry in self.entries()) + self.under_way_mb(memory)

    def under_way_mb(self, memory: str) -> float:
        """How much of a memory models under construction will take (MiB)."""
        with self.lock:
            return sum(construction.shares.get(memory, 0.0) for construction in self._under_way.values())

    def make_room_for(self, construction: Construction, shares: Mapping[str, float]) -> bool:
        """Make room for a model under construction, and reserve it. If there is not enough, reserve nothing and return False."""
        for memory in shares:
            self.budget(memory)  # may ask a driver, so not under the lock
        with self.lock:
            construction.shares = {}
            if any(mb and not self.make_room(memory, mb) for memory, mb in shares.items()):
                return False
            construction.shares = dict(shares)
            return True

    def make_room(self, memory: str, needed_mb: float = 0.0, *, limit_mb: float | None = None) -> bool:
        """Evict the least recently used models until ``needed_mb`` fits into the budget. False if models in use leave no room.

        If ``limit_mb`` is given, models must fit into that instead, and models of unknown size are evicted too.
        """
        allowed = self.budget(memory) if limit_mb is None else limit_mb
        if allowed is None:
            return True

        def fits() -> bool:
            return self.taken_mb(memory) + needed_mb <= allowed

        with self.lock:
            if not fits():
                there = [entry for entry in self.entries() if memory in entry.shares]
                self._evict([entry for entry in there if limit_mb is not None or entry.footprint.mb is not None], FOR_MEMORY, fits)
            return fits()

    def empty(self, memory: str) -> int:
        """Evict all unused models in a memory; return how many."""
        with self.lock:
            return self._evict([entry for entry in self.entries() if memory in entry.shares], FOR_MEMORY)

    def relieve(self) -> None:
        """Evict unused models in each memory whose total use, by any process, exceeds the limit of the settings."""
        for memory in self.memories():
            total, free = self.machine.total_mb(memory), self.machine.free_mb(memory)
            if total is None or free is None:
                continue
            excess = total - free - total * self.settings.memory_limit_percent / 100
            if excess > 0:
                self.make_room(memory, limit_mb=self.taken_mb(memory) - excess)

    def evict_older(self, seconds: float) -> int:
        """Evict models that were neither used nor requested for so long; return how many. Models found to be in use count as used now."""
        with self.lock:
            gone = self._drop_dead_entries()
            latest = self.clock() - seconds
            aged = [entry for entry in self._entries.values() if entry.last_used <= latest]
            number = self._evict(aged, FOR_AGE)
            for entry in aged:
                entry.last_used = self.clock()
        for device in {entry.key.device for entry in gone} if self.settings.low_memory else ():
            give_back(device)
        return number

    # ── settings and age ──────────────────────────────────────────────────────────────────────────────────────────────────

    def configure(self, settings: PoolSettings) -> None:
        """Apply new settings."""
        with self.lock:
            self.settings = settings
            self._budgets = {}
        memories = self.memories()
        for memory in memories:
            self.budget(memory)  # may ask a driver, so not under the lock
        with self.lock:
            for entry in self.entries():
                self._keep_or_let_go(entry)
        for memory in memories:
            self.make_room(memory)
        self._timer.wake()

    def tend(self) -> float | None:
        """Evict old models, and others if memory is short; return the seconds until the next check, None if there are no models."""
        timeout_s = self.settings.timeout_minutes * 60
        self.evict_older(timeout_s)
        self.relieve()
        with self.lock:
            oldest = min((entry.last_used for entry in self.entries()), default=None)
            return None if oldest is None else min(max(oldest + timeout_s - self.clock(), SOONEST_S), LATEST_S)

    def _evict(self, entries: Iterable[Entry], reason: str, enough: Callable[[], bool] = lambda: False) -> int:
        """Drop unused models, in the given order, until ``enough()``; return how many. The caller holds the lock."""
        tried: list[Entry] = []
        for entry in entries:
            if enough():
                break
            if not entry.leases:
                entry.let_go()
                tried.append(entry)
        if any(entry.model is not None and not entry.is_kept for entry in tried) and not enough():
            gc.collect()  # frees unused models in reference cycles
        gone = [entry for entry in tried if entry.model is None]
        for entry in tried:
            self._keep_or_let_go(entry)
        self.count[reason] += len(gone)
        self._drop_dead_entries()
        for device in {entry.key.device for entry in gone}:
            give_back(device)
        return len(gone)

    def _use(self, entry: Entry) -> None:
        entry.keep()
        entry.released = False
        entry.uses += 1
        entry.leases += 1
        entry.last_used = self.clock()
        self._entries.move_to_end(entry.key)

    def _keep_or_let_go(self, entry: Entry) -> None:
        """Keep a model after its use. If it was released, memory is short, or low-memory mode is on, its last user frees it."""
        over_budget = any((self._budgets.get(memory) or float("inf")) < self.taken_mb(memory) for memory in entry.shares)
        if entry.released or self.settings.low_memory or over_budget:
            entry.let_go()
        else:
            entry.keep()

    def _drop_dead_entries(self) -> list[Entry]:
        with self.lock:
            gone = [entry for entry in self._entries.values() if entry.model is None]
            for entry in gone:
                del self._entries[entry.key]
            return gone

    def _freest_gpu(self, hardware: str, gpus: Sequence[Gpu]) -> int:
        """The GPU with the most free memory, not counting memory reserved for constructions. If unknown, the one this pool uses least."""
        all_known = all(gpu.free_mb is not None for gpu in gpus)

        def room(gpu: Gpu) -> tuple[float, int]:
            memory = f"{hardware}:{gpu.index}"
            free = (gpu.free_mb or 0.0) - self.under_way_mb(memory) if all_known else -self.taken_mb(memory)
            return free, -gpu.index

        return max(gpus, key=room).index


class Timer:
    """A thread that evicts models between requests. It starts with the first model, and ends with the cache."""

    def __init__(self, cache: ModelCache) -> None:
        self._cache = weakref.ref(cache)
        self._bell = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        weakref.finalize(cache, self._bell.set).atexit = False

    def wake(self) -> None:
        """Check now, because something has changed; does nothing if the settings have no timer."""
        cache = self._cache()
        with self._lock:
            if cache is not None and cache.settings.timer and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=_tend, args=(self._cache, self._bell), name="hwmatrix-pool-timer", daemon=True)
                self._thread.start()
        self._bell.set()


def _tend(cache_of: weakref.ref[ModelCache], bell: threading.Event) -> None:
    while (cache := cache_of()) is not None:
        wait_s = cache.tend() if cache.settings.timer else None
        del cache
        bell.wait(wait_s)
        bell.clear()
