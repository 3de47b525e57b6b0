"""The models that a pool has or constructs, within the memory they may take; what is old or in the way is evicted.

Whether somebody uses a model is known without being told: the pool drops its own reference, and where a weak one still finds the
model, somebody else has it. Nobody has to say that they are done with a model.
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
"""How long the timer waits at least and at most. Nobody tells when memory gets short, so it looks."""


class Entry:
    """One model. ``shares`` says how much of which memory it takes (MiB); what is not known is 0 there, and None in ``footprint``.

    ``leases`` counts those who will say when they are done with it. ``given_out`` says that somebody has it who will not: an object
    without weak references (a tuple, a number) counts as used from then on. A ``released`` one is kept by its users alone.
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
        """Whether the pool itself keeps it."""
        return self._model is not None

    def keep(self) -> None:
        """Keep it from now on, if it is still there."""
        self._model = self.model

    def let_go(self) -> None:
        """Drop the pool's own reference, unless the end of the model's use could not be seen then."""
        if not self.leases and not (self._weak is None and self.given_out):
            self._model = None


class Construction:
    """A model that one thread constructs for a request, while others may wait for it. What it will take (``shares``) is counted.

    At its end it has the ``entry`` and its ``model``, or what was ``tried`` in vain and its ``cause``; or neither, if it was interrupted.
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
    """What the threads that use a pool share. Nothing is constructed or moved under its ``lock``, and no driver asked for free memory.

    ``loading`` is held while a model is loaded in low-memory mode: one at a time, with what its constructor itself asks for.
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
        """The entries whose model is there, the least recently used first."""
        self._forget_the_gone()
        return list(self._entries.values())

    def lease(self, key: Key) -> Entry | None:
        """The model with a lease on it, if it is there; on any of several GPUs where the key names none."""
        with self.lock:
            there = self.entries()
            entry = self._entries.get(key) or next((each for each in reversed(there) if each.key.answers(key)), None)
            if entry is not None:
                self.count["hits"] += 1
                self._use(entry)
            return entry

    def find(self, key: Key) -> Entry | Construction | None:
        """The model with a lease on it, or a construction of it to wait for."""
        with self.lock:
            under_way = self._under_way.get(key) or next((each for each in self._under_way.values() if each.key.answers(key)), None)
            return self.lease(key) or under_way

    def find_or_begin(self, key: Key, gpus: Sequence[Gpu], request: Request) -> Entry | Construction:
        """As :meth:`find`; or a construction for this request, on the GPU with most room where the key names none."""
        with self.lock:
            found = self.find(key)
            if found is not None:
                return found
            if gpus and key.device.index is None:
                key = dataclasses.replace(key, device=dataclasses.replace(key.device, index=self._roomiest(key.device.hardware, gpus)))
            construction = self._under_way[key] = Construction(key, request)
            return construction

    def finish(self, construction: Construction, model: Any, footprint: Footprint, shares: Mapping[str, float]) -> Entry:
        """The model is there: its entry, with a lease on it. What is split over GPUs is on none of them alone."""
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
        """Nobody constructs it any longer; those who wait go on."""
        with self.lock:
            if self._under_way.get(construction.key) is construction:
                del self._under_way[construction.key]
            construction.shares = {}
            construction.over.set()

    def wait(self, construction: Construction) -> Entry | None:
        """Wait until another thread's construction is over; give its model with a lease on it, or None if there is none.

        Raises:
            NestedRequestError: that thread waits, itself or through others, for this one.
        """
        me = threading.get_ident()
        with self.lock:
            blocking: Construction | None = construction
            while blocking is not None and not blocking.over.is_set():
                if blocking.owner == me:
                    message = f"the constructor of {blocking.key} cannot end before {construction.key} is there, and vice versa"
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
        """Who had it is done with it; or has it from now on without saying for how long (``given_out``)."""
        with self.lock:
            entry.given_out |= given_out
            entry.leases -= 1
            self._keep_or_let_go(entry)

    def release(self, entries: Iterable[Entry]) -> None:
        """Keep these no longer: their users may, and until they let go the memory counts as taken."""
        with self.lock:
            for entry in entries:
                entry.released, entry.given_out = True, False
                entry.let_go()

    def size_of_copies(self, key: Key) -> float | None:
        """What a PyTorch module takes, if the pool has it on any device (MiB): on another one it takes as much. None if there is none."""
        with self.lock:
            copies = (entry for entry in self.entries() if dataclasses.replace(entry.key, device=key.device) == key)
            return next((entry.footprint.mb for entry in copies if entry.footprint.measure is Measure.TENSORS), None)

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def memories(self) -> list[str]:
        """The memories in which there are models."""
        with self.lock:
            return sorted({memory for entry in self.entries() for memory in entry.shares})

    def budget(self, memory: str) -> float | None:
        """What models may take of a memory (MiB), or None where its size is not known: then only the device itself can refuse."""
        if memory not in self._budgets:
            self._budgets[memory] = budget_mb(memory, self.settings, self.machine)
        return self._budgets[memory]

    def taken_mb(self, memory: str) -> float:
        """What models and those under way take of a memory."""
        with self.lock:
            return sum(entry.shares.get(memory, 0.0) for entry in self.entries()) + self.under_way_mb(memory)

    def under_way_mb(self, memory: str) -> float:
        """What models that are not there yet will take of a memory."""
        with self.lock:
            return sum(construction.shares.get(memory, 0.0) for construction in self._under_way.values())

    def make_room_for(self, construction: Construction, shares: Mapping[str, float]) -> bool:
        """Have room for a model under way, and count it from now on. False, and it is not counted, if there is none."""
        for memory in shares:
            self.budget(memory)  # may ask a driver, so not under the lock
        with self.lock:
            construction.shares = {}
            if any(mb and not self.make_room(memory, mb) for memory, mb in shares.items()):
                return False
            construction.shares = dict(shares)
            return True

    def make_room(self, memory: str, needed_mb: float = 0.0, *, limit_mb: float | None = None) -> bool:
        """Evict the least recently used until what is needed fits into the budget. False where what is used leaves no room.

        Where ``limit_mb`` says how much models may take now, they must fit into that, and what nobody knows the size of goes, too.
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
        """Evict everything in a memory that nobody uses; give the number of models that went."""
        with self.lock:
            return self._evict([entry for entry in self.entries() if memory in entry.shares], FOR_MEMORY)

    def relieve(self) -> None:
        """Evict what nobody uses in each memory of which more is in use, by whomever, than the settings allow."""
        for memory in self.memories():
            total, free = self.machine.total_mb(memory), self.machine.free_mb(memory)
            if total is None or free is None:
                continue
            excess = total - free - total * self.settings.memory_limit_percent / 100
            if excess > 0:
                self.make_room(memory, limit_mb=self.taken_mb(memory) - excess)

    def evict_older(self, seconds: float) -> int:
        """Evict what nobody uses and nobody asked for in so long; give how many went. What turns out to be in use counts as used now."""
        with self.lock:
            gone = self._forget_the_gone()
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
        """Go by other settings from now on."""
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
        """Evict what is too old, and what is in the way; give in how many seconds to look again, None where there are no models."""
        timeout_s = self.settings.timeout_minutes * 60
        self.evict_older(timeout_s)
        self.relieve()
        with self.lock:
            oldest = min((entry.last_used for entry in self.entries()), default=None)
            return None if oldest is None else min(max(oldest + timeout_s - self.clock(), SOONEST_S), LATEST_S)

    def _evict(self, entries: Iterable[Entry], reason: str, enough: Callable[[], bool] = lambda: False) -> int:
        """Let go of what nobody uses, in this order, until it is enough; give how many went. The caller holds the lock."""
        tried: list[Entry] = []
        for entry in entries:
            if enough():
                break
            if not entry.leases:
                entry.let_go()
                tried.append(entry)
        if any(entry.model is not None and not entry.is_kept for entry in tried) and not enough():
            gc.collect()  # a model in a cycle of references looks used, and is not
        gone = [entry for entry in tried if entry.model is None]
        for entry in tried:
            self._keep_or_let_go(entry)
        self.count[reason] += len(gone)
        self._forget_the_gone()
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
        """Keep it after its use; not in low-memory mode, nor while too much is in use: then it goes with its last user."""
        over_budget = any((self._budgets.get(memory) or float("inf")) < self.taken_mb(memory) for memory in entry.shares)
        if entry.released or self.settings.low_memory or over_budget:
            entry.let_go()
        else:
            entry.keep()

    def _forget_the_gone(self) -> list[Entry]:
        with self.lock:
            gone = [entry for entry in self._entries.values() if entry.model is None]
            for entry in gone:
                del self._entries[entry.key]
            return gone

    def _roomiest(self, hardware: str, gpus: Sequence[Gpu]) -> int:
        """The number of the GPU with most free memory, less what is on its way there; where no driver tells, the least used here."""
        all_tell = all(gpu.free_mb is not None for gpu in gpus)

        def room(gpu: Gpu) -> tuple[float, int]:
            memory = f"{hardware}:{gpu.index}"
            free = (gpu.free_mb or 0.0) - self.under_way_mb(memory) if all_tell else -self.taken_mb(memory)
            return free, -gpu.index

        return max(gpus, key=room).index


class Timer:
    """A thread that tends a cache without a request. It begins with the first model, and ends with the cache."""

    def __init__(self, cache: ModelCache) -> None:
        self._cache = weakref.ref(cache)
        self._bell = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        weakref.finalize(cache, self._bell.set).atexit = False

    def wake(self) -> None:
        """Something has changed: look now, if the settings want a timer."""
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
