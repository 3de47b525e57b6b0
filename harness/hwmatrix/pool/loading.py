"""How the pool handles one request: find the model, wait for it, or construct it on the first device that accepts it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import math
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.clock import stamp
from hwmatrix.errors import FactoryError, OutOfMemoryError
from hwmatrix.faults.catalogue import advice_for, classify, severity_of
from hwmatrix.knowledge.fallback import AttemptPlan, Tried, next_attempt, report_of
from hwmatrix.pool.cache import Construction, Entry
from hwmatrix.pool.devices import HOST, device_of, has_several
from hwmatrix.pool.errors import Failure, ModelStartError, NotInPoolError
from hwmatrix.pool.placing import (
    Footprint,
    Measure,
    can_split,
    footprint,
    give_back,
    is_module,
    move,
    not_driven,
    plan_split,
    resident_mb,
    split,
    split_mb,
)
from hwmatrix.records import Backend, Dtype, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.knowledge.fallback import Attempt, FallbackReport
    from hwmatrix.pool.cache import ModelCache
    from hwmatrix.pool.devices import Device, Gpu
    from hwmatrix.pool.request import Key, Request

_NOT_THERE: Final = frozenset({"target_unavailable", "gpu_not_usable", "torch_build", "gpu_no_driver", "gpu_not_found"})
"""The catalogue's types for a device that cannot be used at all, even if it was detected."""
_NOT_STARTED: Final = "model_start_failed"
"""The catalogue's type for constructor errors that match no other entry."""
_REMEMBERED: Final = 1000
"""How many of the latest fallbacks and failures are remembered."""
_LOG: Final = logging.getLogger(__name__)


class History:
    """The outcomes of requests: fallbacks, failures, and the device (``placed``) of each request that had to fall back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.failures: collections.deque[Failure] = collections.deque(maxlen=_REMEMBERED)
        self.fallbacks: collections.OrderedDict[tuple[str, ...], FallbackReport] = collections.OrderedDict()
        self.placed: dict[tuple[Any, ...], Key] = {}

    def add_fallback(self, report: FallbackReport) -> bool:
        """Remember a fallback. False if it replaces an identical earlier one."""
        with self.lock:
            kind = (report.model, report.expected, str(report.actual))
            known = self.fallbacks.pop(kind, None)
            self.fallbacks[kind] = report
            while len(self.fallbacks) > _REMEMBERED:
                self.fallbacks.popitem(last=False)
            return known is None


class Loader:
    """One request. Used by one thread, once."""

    def __init__(self, cache: ModelCache, history: History, request: Request) -> None:
        self._cache = cache
        self._history = history
        self._request = request
        self._plan = AttemptPlan(order=request.order)
        self._tried: list[Tried] = []
        self._attempt: Attempt | None = None
        self._errors: list[Exception] = []
        self._constructing = False
        self._made: Any = None
        self._grown_mb: float | None = None

    def obtain(self) -> Entry:
        """The entry of the model, with a lease on it.

        Raises:
            ModelStartError: no device could hold it, or its constructor failed, in this thread or in the one that it waited for.
            NestedRequestError: its constructor waits for the model itself.
            NotInPoolError: the pool does not have it, and there is no constructor.
        """
        entry = self._existing_entry()
        if entry is not None:
            return entry
        mine: Construction | None = None
        try:
            with contextlib.ExitStack() as loading:
                while entry is None:
                    found = self._next_device(loading)
                    if found is None:
                        raise self._failure(remember=mine is not None)
                    if mine is not None:
                        self._cache.end(mine)  # only now, so that waiting threads find the next construction
                        mine = None
                    if isinstance(found, Entry):
                        entry = found
                    elif found.request is self._request:
                        mine = found
                        entry = self._construct(mine)
                    else:
                        entry = self._wait(found)
        finally:
            self._made = None
            if mine is not None:
                self._cache.end(mine)
        self._report(entry.key)
        for error in self._errors:
            error.__traceback__ = None  # its frames refer to the model: a handled error must not keep it alive
        return entry

    def _existing_entry(self) -> Entry | None:
        """The model that an identical request got as a fallback. Without a constructor, the model on any device of the request.

        Raises:
            NotInPoolError: there is neither a model nor a constructor.
        """
        request = self._request
        if request.constructor is not None:
            placed = self._history.placed.get(request.identity)
            entry = None if placed is None else self._cache.lease(placed)
            if entry is None:
                self._history.placed.pop(request.identity, None)
            return entry
        for word in request.order:
            entry = self._cache.lease(request.key(device_of(word)))
            if entry is not None:
                return entry
        where = ", ".join(request.order)
        raise NotInPoolError(f"{request.family}/{request.name} is not in the pool ({where}), and no constructor was given to make it")

    def _next_device(self, loading: contextlib.ExitStack) -> Entry | Construction | None:
        """On the next available device: the model, another thread's construction of it, or a new one. None if no device is left.

        Low-memory mode holds ``loading`` from here on: one model is loaded at a time.
        """
        while (attempt := next_attempt(self._plan, self._tried)) is not None:
            self._attempt = attempt
            device = device_of(attempt.hardware)
            key = self._request.key(device)
            found = self._cache.find(key)
            if found is not None:
                return found  # without calling a driver
            reason, gpus = self._absence(device)
            if reason is not None:
                self._tried.append(Tried(attempt=attempt, status=Status.UNAVAILABLE, reason=reason, error_type="target_unavailable"))
            elif not self._is_refused(attempt, key):
                if self._cache.settings.low_memory:
                    loading.enter_context(self._cache.loading)
                return self._cache.find_or_begin(key, gpus, self._request)
        return None

    def _absence(self, device: Device) -> tuple[str | None, tuple[Gpu, ...]]:
        """Why a device is not available, or None; and the GPUs of its kind."""
        machine = self._cache.machine
        reason = machine.absence(device.hardware)
        gpus = machine.gpus(device.hardware) if reason is None and has_several(device.hardware) else ()
        if gpus and device.index is not None and device.index not in {gpu.index for gpu in gpus}:
            reason = f"there is no {device}: {len(gpus)} found"
        return reason, gpus

    def _is_refused(self, attempt: Attempt, key: Key) -> bool:
        """Whether a copy in the pool already shows that a device cannot hold the model, so that constructing it is pointless.

        A constructor without a ``device`` argument returns the same kind of object for every device: if that is a PyTorch module,
        devices that PyTorch does not support are refused.
        """
        request = self._request
        if request.one_device or request.takes_device or key.device.torch_name is not None or self._cache.size_of_copies(key) is None:
            return False
        refusal = not_driven(key.device)
        reason = f"{key.device}: {refusal}"
        self._tried.append(Tried(attempt=attempt, status=Status.UNSUPPORTED, reason=reason, error_type=refusal.error_type))
        self._errors.append(refusal)
        return True

    def _wait(self, construction: Construction) -> Entry | None:
        """Wait for another thread's construction; None if it failed on that device."""
        entry = self._cache.wait(construction)
        if construction.tried is not None and construction.cause is not None and self._attempt is not None:
            self._tried.append(dataclasses.replace(construction.tried, attempt=self._attempt))
            self._errors.append(construction.cause)
        return entry

    def _construct(self, construction: Construction) -> Entry | None:
        """Construct the model and move it; None if the device cannot hold it."""
        began, device = time.perf_counter(), construction.key.device
        try:
            size, shares = self._start(device, construction)
        except Exception as error:  # noqa: BLE001 - a constructor or a driver may raise anything; the next device is tried, or the error is reported
            construction.tried, construction.cause = self._outcome_of(error, device, (time.perf_counter() - began) * 1000), error
            self._tried.append(construction.tried)
            self._errors.append(error)
            self._withdraw(device)
            return None
        entry = self._cache.finish(construction, self._made, size, shares)
        for memory in shares:
            if not self._cache.make_room(memory):
                _LOG.warning("models in use take more than the budget of %s allows", memory)
        return entry

    def _start(self, device: Device, construction: Construction) -> tuple[Footprint, dict[str, float]]:
        """Put the model on the device, after making room for it; return how much of each memory it takes.

        A model that was constructed for another device is moved, not constructed again.
        """
        cache, given = self._cache, self._request.memory_mb
        if self._made is None:
            cache.relieve()
            needed = cache.size_of_copies(construction.key) or given
            fits = needed is None or cache.make_room_for(construction, {device.memory: needed}) or device.memory == HOST
            if needed is not None and not fits and not self._gpus_for(needed, device):
                raise self._too_large(needed, device)
            self._made, self._grown_mb = self._call_constructor(device)
        size = footprint(self._made, given_mb=given, grown_mb=self._grown_mb)
        memory = device.memory if size.measure in {Measure.TENSORS, Measure.GIVEN} else HOST
        shares = {memory: size.mb or 0.0}
        if not cache.make_room_for(construction, shares) and memory != HOST:
            return size, self._split(construction, size.mb or 0.0)
        try:
            self._made = move(self._made, device)
        except Exception as error:
            if status_of(error, device.hardware) is not Status.OOM or not cache.empty(device.memory):
                raise
            self._made = move(self._made, device)  # once more, after evicting unused models
        return size, shares

    def _gpus_for(self, needed_mb: float, device: Device) -> tuple[Gpu, ...]:
        """The GPUs that a PyTorch module may be split over: all of the kind, if none was named and their budgets together suffice."""
        assert self._attempt is not None  # noqa: S101 - there is one as soon as a device is tried
        if self._attempt.hardware != device.hardware or not has_several(device.hardware):
            return ()
        gpus = self._cache.machine.gpus(device.hardware)
        together = sum(self._cache.budget(f"{device.hardware}:{gpu.index}") or 0.0 for gpu in gpus)
        return gpus if len(gpus) > 1 and together >= needed_mb else ()

    def _split(self, construction: Construction, needed_mb: float) -> dict[str, float]:
        """Split a module that fits no single GPU over all GPUs of the kind; return what it takes of each.

        Raises:
            OutOfMemoryError: it does not fit them together either, or accelerate is not installed.
        """
        device, cache = construction.key.device, self._cache
        gpus = self._gpus_for(needed_mb, device) if is_module(self._made) else ()
        if not gpus:
            raise self._too_large(needed_mb, device)
        if not can_split():
            raise self._too_large(needed_mb, device, f"; accelerate, which splits a model over {len(gpus)} GPUs, is not installed")
        left: dict[int, float] = {}
        for gpu in gpus:
            place = f"{device.hardware}:{gpu.index}"
            cache.empty(place)
            budget_left = (cache.budget(place) or 0.0) - cache.taken_mb(place)
            left[gpu.index] = min(budget_left, math.inf if gpu.free_mb is None else gpu.free_mb)
        planned = plan_split(self._made, left)
        shares = {f"{device.hardware}:{index}": mb for index, mb in split_mb(self._made, planned).items()} if planned else {}
        if planned is None or not cache.make_room_for(construction, shares):
            raise self._too_large(needed_mb, device, f", and {len(gpus)} GPUs together have no room for its parts")
        made, self._made = self._made, None  # after a failed split the module is constructed again
        self._made = split(made, planned)
        return shares

    def _call_constructor(self, device: Device) -> tuple[Any, float]:
        """The model, and the growth of the process in MiB. Retries once if the host ran out of memory and unused models were evicted.

        Raises:
            FactoryError: the constructor returned None.
        """
        call = self._request.constructor
        assert call is not None  # noqa: S101 - requests without a constructor were refused before
        arguments = {"device": device.torch_name or str(device)} if self._request.takes_device else {}
        self._constructing, before = True, resident_mb()
        try:
            made = call(**arguments)
        except Exception as error:
            if status_of(error, device.hardware) is not Status.OOM or not self._cache.empty(HOST):
                raise
            before = resident_mb()
            made = call(**arguments)
        if made is None:
            raise FactoryError("the constructor returned None instead of a model", error_type="factory_failed")
        self._constructing = False
        return made, resident_mb() - before

    def _too_large(self, needed_mb: float, device: Device, addition: str = "") -> OutOfMemoryError:
        budget, taken = self._cache.budget(device.memory), self._cache.taken_mb(device.memory)
        message = (
            f"it needs {needed_mb:.0f} MiB of {device.memory}, and {taken:.0f} MiB of the budget of {budget or 0.0:.0f} MiB are in use"
        )
        return OutOfMemoryError(message + addition, error_type="memory_pressure")

    def _outcome_of(self, error: Exception, device: Device, wall_ms: float) -> Tried:
        """What an error means for this device. A constructor without a ``device`` argument would raise it for every device."""
        assert self._attempt is not None  # noqa: S101 - there is one as soon as a device is tried
        on_any_device = self._constructing and not self._request.takes_device
        self._constructing = False
        status = Status.FACTORY_ERROR if on_any_device else status_of(error, device.hardware)
        return Tried(
            attempt=self._attempt,
            status=status,
            reason=f"{device}: {type(error).__name__}: {error}",
            error_type=classify(error, hardware=device.hardware).type,
            wall_ms=wall_ms,
            dtype=Dtype(self._request.dtype) if self._request.dtype in tuple(Dtype) else None,
        )

    def _withdraw(self, device: Device) -> None:
        """After a failed move, move the model back to the host: it must not take memory on the device."""
        if is_module(self._made) and device.hardware != Backend.CPU:
            try:
                self._made.to("cpu")
            except Exception as error:  # noqa: BLE001 - a broken device may raise anything
                _LOG.warning("%s cannot be moved back from %s and is constructed again: %s", self._request.name, device, error)
                self._made = None
        give_back(device)

    def _report(self, key: Key) -> None:
        """Remember and log a fallback, if the model is not on the expected hardware."""
        if not self._tried:
            return
        done = Tried(attempt=dataclasses.replace(self._tried[-1].attempt, hardware=str(key.device)), status=Status.PASS)
        report = self._report_of((*self._tried, done))
        if not self._request.asked and report.actual == report.expected:
            return  # the missing hardware was not requested
        if any(tried.status is not Status.UNAVAILABLE for tried in self._tried):
            self._history.placed[self._request.identity] = key
        if report.fell_back:
            new = self._history.add_fallback(report)
            _LOG.log(logging.WARNING if new else logging.DEBUG, "%s", report.sentence())

    def _report_of(self, tried: Sequence[Tried]) -> FallbackReport:
        """The report of a fallback. If no hardware was requested, the first available one was expected."""
        first = next((each.attempt.hardware for each in tried if each.status is not Status.UNAVAILABLE), None)
        return report_of(self._request.name, self._plan, tried, expected=None if self._request.asked else first)

    def _failure(self, *, remember: bool) -> ModelStartError:
        """The error with every failed attempt, and what to do."""
        request, report = self._request, self._report_of(self._tried)
        last = self._tried[-1]
        error_type = last.error_type or "unmatched"
        lines = [f"{request.family}/{request.name} could not be started", *(f"{each.status.value}: {each.reason}" for each in self._tried)]
        hardware = device_of(last.attempt.hardware).hardware
        advice = report.recommendations or advice_for(_NOT_STARTED, hardware)
        failure = ModelStartError("\n".join(lines), error_type=error_type, recommendations=advice, report=report)
        cause = failure.__cause__ = self._errors[-1] if self._errors else None
        if remember:
            remembered = Failure(
                family=request.family,
                name=request.name,
                hardware=hardware,
                error_type=error_type,
                severity=severity_of(error_type, hardware),
                message=failure.message,
                recommendations=advice,
                at=stamp(),
                traceback=None if cause is None else "".join(traceback.format_exception(cause)),
            )
            with self._history.lock:
                self._history.failures.append(remembered)
                self._cache.count["failed"] += 1
        return failure


def status_of(error: BaseException, hardware: str) -> Status:
    """The status for an error that occurred while a model was constructed or moved."""
    found = classify(error, hardware=hardware)
    return Status.UNAVAILABLE if found.status is Status.ERROR and found.type in _NOT_THERE else found.status
