"""How the pool handles one request: find the model, or construct it on the first device that accepts it."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.clock import stamp
from hwmatrix.errors import FactoryError, OutOfMemoryError
from hwmatrix.faults.catalogue import advice_for, classify
from hwmatrix.faults.error_records import of_type
from hwmatrix.knowledge.fallback import AttemptPlan, Tried, next_attempt, report_of
from hwmatrix.pool.devices import HOST, device_of, has_several
from hwmatrix.pool.errors import ModelStartError, NestedRequestError, NotInPoolError
from hwmatrix.pool.placing import is_module, is_spread, move, tensor_mb
from hwmatrix.records import Dtype, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.knowledge.fallback import Attempt, FallbackReport
    from hwmatrix.pool.cache import ModelCache
    from hwmatrix.pool.devices import Device, Gpu
    from hwmatrix.pool.request import Key, Request

COMPONENT: Final = "resource_pool"
_NOT_THERE: Final = frozenset({"target_unavailable", "gpu_not_usable", "torch_build", "gpu_no_driver", "gpu_not_found"})
"""The catalogue's types for a device that cannot be used at all, even if it was detected."""
_NOT_STARTED: Final = "model_start_failed"
"""The catalogue's type for constructor errors that match no other entry."""
_LOG: Final = logging.getLogger(__name__)


class Loader:
    """One request. Used by one thread, once."""

    def __init__(self, cache: ModelCache, request: Request) -> None:
        self._cache = cache
        self._request = request
        self._plan = AttemptPlan(order=request.order)
        self._tried: list[Tried] = []
        self._errors: list[Exception] = []
        self._made: Any = None
        """What the constructor returned, until it is on a device."""

    def obtain(self) -> Any:
        """The model.

        Raises:
            ModelStartError: no device could hold it, or its constructor failed.
            NestedRequestError: its constructor requests the model itself.
            NotInPoolError: the pool does not have it, and there is no constructor.
        """
        if self._request.constructor is None:
            return self._copy_on_any_device()
        model = self._on_first_device(construct=False)
        if model is None:
            with self._cache.loading:  # another thread may have constructed it meanwhile
                model = self._on_first_device(construct=True)
        if model is None:
            self._made = None  # the error refers to this request, and must not keep the model alive
            raise self._failure()
        for error in self._errors:
            error.__traceback__ = None  # its frames refer to the model: a handled error must not keep it alive
        return model

    def _copy_on_any_device(self) -> Any:
        """The model on the first device of the request on which the pool has it.

        Raises:
            NotInPoolError: there is none.
        """
        request = self._request
        for word in request.order:
            model = self._cache.find(request.key(device_of(word)))
            if model is not None:
                return model
        where = ", ".join(request.order)
        raise NotInPoolError(f"{request.family}/{request.name} is not in the pool ({where}), and no constructor was given to make it")

    def _on_first_device(self, *, construct: bool) -> Any:
        """The model on the first available device; None if it is not in the pool there, or, with ``construct``, if no device is left."""
        model, self._tried = None, []
        while model is None and (attempt := next_attempt(self._plan, self._tried)) is not None:
            device = device_of(attempt.hardware)
            key = self._request.key(device)
            model = self._cache.find(key)  # before a driver is called
            if model is not None:
                self._report(key)
                break
            reason, gpus = self._absence(device)
            if reason is not None:
                self._tried.append(Tried(attempt=attempt, status=Status.UNAVAILABLE, reason=reason, error_type="target_unavailable"))
            elif not construct:
                break
            else:
                if gpus and device.index is None:
                    device = dataclasses.replace(device, index=self._freest(device.hardware, gpus))
                model = self._start(attempt, device)
        return model

    def _absence(self, device: Device) -> tuple[str | None, tuple[Gpu, ...]]:
        """Why a device is not available, or None; and the GPUs of its kind."""
        machine = self._cache.machine
        reason = machine.absence(device.hardware)
        gpus = machine.gpus(device.hardware) if reason is None and has_several(device.hardware) else ()
        if gpus and device.index is not None and device.index not in {gpu.index for gpu in gpus}:
            reason = f"there is no {device}: {len(gpus)} found"
        return reason, gpus

    def _freest(self, hardware: str, gpus: Sequence[Gpu]) -> int:
        """The GPU with the most free memory; of several, or if that is not known, the one this pool uses least."""
        return max(gpus, key=lambda gpu: (gpu.free_mb or 0.0, -self._cache.taken_mb(f"{hardware}:{gpu.index}"), -gpu.index)).index

    def _start(self, attempt: Attempt, device: Device) -> Any:
        """The model on this device, constructed unless an earlier device refused it; None if the device cannot hold it.

        Raises:
            NestedRequestError: this thread is constructing it.
        """
        began, key = time.perf_counter(), self._request.key(device)
        if key in self._cache.under_construction:
            raise NestedRequestError(f"the constructor of {key} requests that model from the pool")
        self._cache.under_construction.add(key)
        try:
            self._place(device)
        except Exception as error:  # noqa: BLE001 - a constructor or a driver may raise anything; the next device is tried, or the error is reported
            self._tried.append(self._outcome_of(error, attempt, device, (time.perf_counter() - began) * 1000))
            self._errors.append(error)
            if self._tried[-1].status is Status.ERROR:
                self._made = None  # a broken device may have a part of it
            return None
        finally:
            self._cache.under_construction.discard(key)
        model, self._made = self._made, None
        self._add(key, model)
        self._report(key)
        return model

    def _place(self, device: Device) -> None:
        """Construct the model, make room for it, and move it.

        Raises:
            FactoryError: the constructor returned None.
            OutOfMemoryError: models in use leave no room on this GPU.
        """
        request = self._request
        if self._made is None:
            assert request.constructor is not None  # noqa: S101 - requests without a constructor were answered before
            self._make_room(device, request.memory_mb)
            arguments = {"device": device.torch_name or str(device)} if request.takes_device else {}
            construct = functools.partial(request.constructor, **arguments)
            self._made = self._with_retry(construct, device, device.memory if request.takes_device else HOST)
            if self._made is None:
                raise FactoryError("the constructor returned None instead of a model", error_type="factory_failed")
        if not is_spread(self._made):
            size = sum(tensor_mb(self._made, device.hardware).values()) if is_module(self._made) else request.memory_mb
            self._make_room(device, size)
        self._made = self._with_retry(lambda: move(self._made, device), device, device.memory)

    def _with_retry(self, action: Callable[[], Any], device: Device, memory: str) -> Any:
        """The result of ``action``, which is repeated if memory ran out and unused models could be evicted."""
        try:
            return action()
        except Exception as error:
            if status_of(error, device.hardware) is not Status.OOM or not self._cache.empty(memory):
                raise
        return action()

    def _make_room(self, device: Device, needed_mb: float | None) -> None:
        cache, memory = self._cache, device.memory
        if needed_mb and not cache.make_room(memory, needed_mb) and memory != HOST:
            used = f"{cache.taken_mb(memory):.0f} MiB of the budget of {cache.budget(memory) or 0.0:.0f} MiB are in use"
            raise OutOfMemoryError(f"it needs {needed_mb:.0f} MiB of {memory}, and {used}", error_type="memory_pressure")

    def _add(self, key: Key, model: Any) -> None:
        shares = tensor_mb(model, key.device.hardware) if is_module(model) else {}
        measured = bool(shares) or self._request.memory_mb is not None
        exceeded = self._cache.add(key, model, shares or {key.device.memory: self._request.memory_mb or 0.0}, measured=measured)
        for memory in exceeded:
            _LOG.warning("models in use take more than the budget of %s allows", memory)

    def _outcome_of(self, error: Exception, attempt: Attempt, device: Device, wall_ms: float) -> Tried:
        """What an error means for this device. A constructor without a ``device`` argument would raise it for every device."""
        on_any_device = self._made is None and not self._request.takes_device and not isinstance(error, OutOfMemoryError)
        return Tried(
            attempt=attempt,
            status=Status.FACTORY_ERROR if on_any_device else status_of(error, device.hardware),
            reason=f"{device}: {type(error).__name__}: {error}",
            error_type=classify(error, hardware=device.hardware).type,
            wall_ms=wall_ms,
            dtype=Dtype(self._request.dtype) if self._request.dtype in tuple(Dtype) else None,
        )

    def _report(self, key: Key) -> None:
        """Remember and log a fallback, if the model is not on the expected hardware."""
        if not self._tried:
            return
        failed = [tried.attempt.hardware for tried in self._tried if tried.status is not Status.UNAVAILABLE]
        self._cache.answer_also(key, [self._request.key(device_of(word)) for word in failed])
        done = Tried(attempt=dataclasses.replace(self._tried[-1].attempt, hardware=str(key.device)), status=Status.PASS)
        report = self._report_of((*self._tried, done))
        if report.fell_back:
            kind = (report.model, report.expected, str(report.actual))
            with self._cache.lock:
                level = logging.DEBUG if self._cache.fallbacks.pop(kind, None) else logging.WARNING
                self._cache.fallbacks[kind] = report
            _LOG.log(level, "%s", report.sentence())

    def _report_of(self, tried: Sequence[Tried]) -> FallbackReport:
        """The report of a fallback. If no hardware was requested, the first available one was expected."""
        first = next((each.attempt.hardware for each in tried if each.status is not Status.UNAVAILABLE), None)
        return report_of(self._request.name, self._plan, tried, expected=None if self._request.chosen else first)

    def _failure(self) -> ModelStartError:
        """The error with every failed attempt, and what to do; it is also remembered."""
        request, report, last = self._request, self._report_of(self._tried), self._tried[-1]
        error_type, hardware = last.error_type or "unmatched", device_of(last.attempt.hardware).hardware
        lines = [f"{request.family}/{request.name} could not be started", *(f"{each.status.value}: {each.reason}" for each in self._tried)]
        advice = report.recommendations or advice_for(_NOT_STARTED, hardware)
        failure = ModelStartError("\n".join(lines), error_type=error_type, recommendations=advice, report=report)
        failure.__cause__ = self._errors[-1]
        record = of_type(
            error_type,
            failure.message,
            component=COMPONENT,
            hardware=hardware,
            timestamp=stamp(),
            model_name=request.name,
            traceback="".join(traceback.format_exception(self._errors[-1])),
        )
        with self._cache.lock:
            self._cache.failures.append(dataclasses.replace(record, recommendations=advice))
            self._cache.count["failed"] += 1
        return failure


def status_of(error: BaseException, hardware: str) -> Status:
    """The status for an error that occurred while a model was constructed or moved."""
    found = classify(error, hardware=hardware)
    return Status.UNAVAILABLE if found.status is Status.ERROR and found.type in _NOT_THERE else found.status
