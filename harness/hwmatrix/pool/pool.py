"""The resource pool: models that several parts of a program share, each constructed once and kept as long as there is room."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.pool.cache import FOR_AGE, FOR_MEMORY, ModelCache
from hwmatrix.pool.devices import Machine
from hwmatrix.pool.loading import Loader
from hwmatrix.pool.request import request_for
from hwmatrix.pool.settings import PoolSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hwmatrix.faults.error_records import ErrorDict
    from hwmatrix.knowledge.fallback import FallbackReport
    from hwmatrix.pool.devices import Detector


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
                have the model; models are constructed one after another. None: only look in the pool.
            hardware_preferences: ``{"device": "cuda"}``, also ``"cuda:1"`` or ``"auto"``; or ``{"priority_list": ["cuda", "cpu"]}``.
                ``preferred_index`` chooses among several GPUs; the default is the one with the most free memory.
            dtype: the precision that the constructor gives the model. The pool does not convert models; the precision is part of the key.
            memory_mb: the model's size in MiB. For a PyTorch module, its parameters and buffers are counted once it is constructed.

        A PyTorch module is moved to the device, unless its constructor spread it with ``device_map``. If hardware is missing or too small,
        the next in order is tried (see :attr:`fallbacks`), the CPU last.
        The model stays in the pool while it is used, and after that until its memory is needed or it is old.

        Raises:
            ConfigError: the arguments are invalid or contradict each other.
            ModelStartError: the constructor failed, or no device could hold the model. The next request tries again.
            NestedRequestError: the constructor requests from the pool the model that it constructs.
            NotInPoolError: there is no constructor and no such model.
        """
        request = request_for(family, name, constructor, hardware_preferences, dtype=dtype, memory_mb=memory_mb)
        self._cache.evict_older(self._cache.settings.timeout_minutes * 60)
        return Loader(self._cache, request).obtain()

    def cleanup_unused_resources(self, max_age_minutes: float | None = None) -> int:
        """Evict models that were neither used nor requested for so many minutes (default: the pool's timeout).

        Every request does the same with the pool's timeout.

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
        """Change some settings at once; the others stay as they are.

        Args:
            settings: those of :class:`PoolSettings`, also under the names of ``get_optimal_resource_pool_config``:
                ``pool.configure(**config["resource_pool_config"])``.

        Returns:
            All settings now in effect.

        Raises:
            ConfigError: there is no such setting, or its value is invalid; then nothing is changed.
        """
        cache = self._cache
        with cache.lock:
            changed = cache.settings.changed(**settings)
            cache.configure(changed)
        return changed

    def release(self, family: str | None, name: str) -> bool:
        """Remove a model from the pool, on every device and in every precision. False if the pool does not have it.

        Its users keep it. Its memory counts as taken until they drop it.
        """
        cache = self._cache
        with cache.lock:
            chosen = [entry for entry in cache.entries() if (entry.key.family, entry.key.name) == (str(family or ""), name)]
            cache.release(chosen)
        return bool(chosen)

    def clear(self) -> None:
        """Remove all models, and forget fallbacks, so that they are retried. Users of a model keep it."""
        cache = self._cache
        with cache.lock:
            for entry in cache.entries():
                entry.fallback_of.clear()
            cache.release(cache.entries())

    @property
    def fallbacks(self) -> tuple[FallbackReport, ...]:
        """Every request that got other hardware than it expected: the latest report of each kind."""
        with self._cache.lock:
            return tuple(self._cache.fallbacks.values())

    def errors(self) -> list[ErrorDict]:
        """The models that could not be started, the latest last, as records of the error reporter."""
        with self._cache.lock:
            return [record.to_dict() for record in self._cache.failures]

    def get_stats(self) -> dict[str, Any]:
        """What is in the pool, and counts since it was created. Memory is in MiB; unknown values are None."""
        cache = self._cache
        with cache.lock:
            entries = cache.entries()
            return {
                "models": len(entries),
                "constructed": cache.count["constructed"],
                "hits": cache.count["hits"],
                "failed": cache.count["failed"],
                "evicted_for_memory": cache.count[FOR_MEMORY],
                "evicted_for_age": cache.count[FOR_AGE],
                "fallbacks": len(cache.fallbacks),
                "low_memory_mode": cache.settings.low_memory,
                "timeout_minutes": cache.settings.timeout_minutes,
                "memory": {
                    memory: {
                        "used_mb": cache.taken_mb(memory),
                        "budget_mb": cache.budget(memory),
                        "unmeasured_models": sum(memory in entry.shares and not entry.measured for entry in entries),
                    }
                    for memory in cache.memories()
                },
                "entries": [
                    {
                        "family": entry.key.family,
                        "name": entry.key.name,
                        "device": str(entry.key.device),
                        "dtype": entry.key.dtype,
                        "memory": ", ".join(entry.shares),
                        "memory_mb": sum(entry.shares.values()) if entry.measured else None,
                        "idle_s": self._clock() - entry.last_used,
                    }
                    for entry in entries
                ],
            }

    @property
    def _cache(self) -> ModelCache:
        """The cache, created on first use, so that settings may change after the pool was created."""
        with self._lock:
            if self._made_cache is None:
                settings = self._settings() if callable(self._settings) else self._settings
                self._made_cache = ModelCache(settings or PoolSettings(), self._machine, self._clock)
            return self._made_cache


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
