"""The resource pool: models that several parts of a program share, each constructed once and kept as long as there is room."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.pool.cache import ModelCache
from hwmatrix.pool.devices import Device, Machine, device_of
from hwmatrix.pool.loading import History, Loader
from hwmatrix.pool.placing import Measure
from hwmatrix.pool.request import dtype_word, request_for
from hwmatrix.pool.settings import PoolSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hwmatrix.knowledge.fallback import FallbackReport
    from hwmatrix.pool.cache import Entry
    from hwmatrix.pool.devices import Detector
    from hwmatrix.pool.errors import Failure

COMPONENT: Final = "resource_pool"


class ResourcePool:
    """Models by family, name, device and precision. Safe for any number of threads.

    ``settings`` may be a function: it is called once, when the pool is first used. ``detector`` reports the available hardware
    (default: of this machine); ``machine`` also reports the free memory of GPUs. ``clock`` returns seconds.
    """

    def __init__(
        self,
        settings: PoolSettings | Callable[[], PoolSettings] | None = None,
        *,
        detector: Detector | None = None,
        machine: Machine | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._machine = machine or Machine(detector)
        self._clock = clock
        self._lock = threading.Lock()
        self._made_cache: ModelCache | None = None
        self._history = History()

    def get_model(
        self,
        family: str | None,
        name: str,
        constructor: Callable[..., Any] | None = None,
        hardware_preferences: Mapping[str, Any] | None = None,
        *,
        dtype: object = None,
        memory_mb: float | None = None,
    ) -> Any:
        """A model, from the pool or from its constructor.

        Args:
            family: what the model is for (``vision``). It is part of the key, and decides the hardware if there is no preference.
            name: the model's name.
            constructor: makes the model, without arguments or with its ``device`` (``"cuda:0"``). It is called if the pool does not
                have the model; threads that ask at the same time wait for one call. None: only look in the pool.
            hardware_preferences: ``{"device": "cuda"}``, also ``"cuda:1"`` or ``"auto"``; or ``{"priority_list": ["cuda", "cpu"]}``.
                ``preferred_index`` chooses among several GPUs; the default is the one with the most free memory.
            dtype: the precision that the constructor gives the model. The pool does not convert models; the precision is part of the key.
            memory_mb: the model's size in MiB. For a PyTorch module, its parameters and buffers are counted once it is constructed.

        A PyTorch module is moved to the device. One that is too large for a GPU is split over several, if a kind of GPU was requested
        and accelerate is installed. If hardware is missing or too small, the next in order is tried (see :attr:`fallbacks`), the CPU last.
        The model stays in the pool while it is used, and after that until its memory is needed or it is old.

        Raises:
            ConfigError: the arguments are invalid or contradict each other.
            ModelStartError: the constructor failed, or no device could hold the model. The next request tries again.
            NestedRequestError: the constructor requests from the pool the model that it constructs.
            NotInPoolError: there is no constructor and no such model.
        """
        entry = self._leased(family, name, constructor, hardware_preferences, dtype=dtype, memory_mb=memory_mb)
        model = entry.model
        self._cache.end_lease(entry, given_out=True)
        return model

    @contextlib.contextmanager
    def lease(
        self,
        family: str | None,
        name: str,
        constructor: Callable[..., Any] | None = None,
        hardware_preferences: Mapping[str, Any] | None = None,
        *,
        dtype: object = None,
        memory_mb: float | None = None,
    ) -> Iterator[Any]:
        """As :meth:`get_model`, for a ``with`` block: the model is not evicted before its end.

        Raises:
            ConfigError: as :meth:`get_model`.
            ModelStartError: as :meth:`get_model`.
        """
        entry = self._leased(family, name, constructor, hardware_preferences, dtype=dtype, memory_mb=memory_mb)
        try:
            yield entry.model
        finally:
            self._cache.end_lease(entry)

    def cleanup_unused_resources(self, max_age_minutes: float | None = None) -> int:
        """Evict models that were neither used nor requested for so many minutes (default: the pool's timeout).

        The pool's timer (unless the settings switch it off) and every request do the same with the pool's timeout.

        Returns:
            The number of evicted models.

        Raises:
            ConfigError: the age is negative.
        """
        age = self._cache.settings.timeout_minutes if max_age_minutes is None else max_age_minutes
        if not age >= 0:
            raise ConfigError([Problem(where="max_age_minutes", what=f"{age!r} is not a valid age", hint="0 releases all unused models")])
        return self._cache.evict_older(age * 60)

    def configure(self, **settings: Any) -> PoolSettings:
        """Change some settings; the others stay as they are.

        Args:
            settings: those of :class:`PoolSettings`, also under the names of ``get_optimal_resource_pool_config``:
                ``pool.configure(**config["resource_pool_config"])``.

        Returns:
            All settings now in effect.

        Raises:
            ConfigError: there is no such setting, or its value is invalid; then nothing is changed.
        """
        cache = self._cache
        with self._lock:
            changed = cache.settings.changed(**settings)
            cache.configure(changed)
        return changed

    def release(self, family: str | None, name: str, *, device: str | None = None, dtype: object = None) -> bool:
        """Remove a model from the pool, on every device and in every precision unless one is named. False if the pool does not have it.

        Its users keep it. Its memory counts as taken until they drop it.

        Raises:
            ConfigError: there is no such device.
        """
        where = None if device is None else device_of(device)
        precision = None if dtype is None else dtype_word(dtype)
        cache = self._cache
        with cache.lock:
            chosen = [
                entry
                for entry in cache.entries()
                if (entry.key.family, entry.key.name) == (str(family or ""), name)
                and (where is None or where in {entry.key.device, Device(hardware=entry.key.device.hardware)})
                and (precision is None or entry.key.dtype == precision)
            ]
            cache.release(chosen)
        return bool(chosen)

    def clear(self) -> None:
        """Remove all models, and forget fallbacks, so that they are retried. Users of a model keep it."""
        with self._cache.lock:
            self._history.placed.clear()
            self._cache.release(self._cache.entries())

    @property
    def fallbacks(self) -> tuple[FallbackReport, ...]:
        """Every request that got other hardware than it expected: the latest report of each kind."""
        with self._history.lock:
            return tuple(self._history.fallbacks.values())

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The models that could not be started, the latest last."""
        with self._history.lock:
            return tuple(self._history.failures)

    def errors(self) -> list[dict[str, Any]]:
        """The failures as records of the error reporter: severity, type, hardware, recommendations."""
        return [
            {
                "hardware_type": each.hardware,
                "error_type": each.error_type,
                "severity": each.severity.value,
                "message": each.message,
                "component": COMPONENT,
                "timestamp": each.at,
                "model_name": each.name,
                "recommendations": list(each.recommendations),
                "traceback": each.traceback,
            }
            for each in self.failures
        ]

    def get_stats(self) -> dict[str, Any]:
        """What is in the pool, and counts since it was created. Memory is in MiB; unknown values are None."""
        cache = self._cache
        for memory in cache.memories():
            cache.budget(memory)  # may ask a driver, so not under the lock
        with cache.lock:
            count, entries = cache.count, cache.entries()
            return {
                "models": len(entries),
                "constructed": count["constructed"],
                "hits": count["hits"],
                "waits": count["waits"],
                "failed": count["failed"],
                "evicted_for_memory": count["evicted_for_memory"],
                "evicted_for_age": count["evicted_for_age"],
                "fallbacks": len(self.fallbacks),
                "low_memory_mode": cache.settings.low_memory,
                "timeout_minutes": cache.settings.timeout_minutes,
                "memory": {
                    memory: _memory_facts(cache, memory, [entry for entry in entries if memory in entry.shares])
                    for memory in cache.memories()
                },
                "entries": [_entry_facts(entry, self._clock()) for entry in entries],
            }

    @property
    def _cache(self) -> ModelCache:
        """The cache, created on first use, so that settings may change after the pool was created."""
        with self._lock:
            if self._made_cache is None:
                settings = self._settings() if callable(self._settings) else self._settings
                self._made_cache = ModelCache(settings or PoolSettings(), self._machine, self._clock)
            return self._made_cache

    def _leased(self, *arguments: Any, **details: Any) -> Entry:
        request = request_for(*arguments, **details)
        self._cache.evict_older(self._cache.settings.timeout_minutes * 60)
        return Loader(self._cache, self._history, request).obtain()


_GLOBAL_LOCK: Final = threading.Lock()
_GLOBAL: Final[list[ResourcePool]] = []


def get_global_resource_pool() -> ResourcePool:
    """The one pool of this process.

    Its settings come from the environment (``RESOURCE_POOL_LOW_MEMORY=1``), which is read when the pool is first used.
    """
    with _GLOBAL_LOCK:
        if not _GLOBAL:
            _GLOBAL.append(ResourcePool(lambda: PoolSettings.from_environment(os.environ)))
        return _GLOBAL[0]


def _memory_facts(cache: ModelCache, memory: str, entries: list[Entry]) -> dict[str, Any]:
    return {
        "used_mb": sum(entry.shares[memory] for entry in entries),
        "reserved_mb": cache.under_way_mb(memory),
        "budget_mb": cache.budget(memory),
        "unmeasured_models": sum(entry.footprint.measure is Measure.UNKNOWN for entry in entries),
    }


def _entry_facts(entry: Entry, now: float) -> dict[str, Any]:
    return {
        "family": entry.key.family,
        "name": entry.key.name,
        "device": str(entry.key.device),
        "dtype": entry.key.dtype,
        "memory": ", ".join(entry.shares),
        "memory_mb": entry.footprint.mb,
        "memory_measure": entry.footprint.measure.value,
        "uses": entry.uses,
        "leases": entry.leases,
        "kept": entry.is_kept,
        "idle_s": now - entry.last_used,
    }
