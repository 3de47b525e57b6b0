"""How the pool handles one request: find the model, wait for it, or construct it on the first device that accepts it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import logging
import math
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import CellFailure, FactoryError, OutOfMemoryError
from hwmatrix.faults.catalogue import advice_for, match, severity_of
from hwmatrix.knowledge.fallback import AttemptPlan, Tried, next_attempt, report_of
from hwmatrix.pool.devices import device_of, give_back, has_several, move, not_driven
from hwmatrix.pool.errors import Failure, ModelStartError, NotInPoolError
from hwmatrix.pool.memory import HOST, Footprint, Measure, footprint, grown, is_module, resident_mb
from hwmatrix.pool.split import can_split, plan_split, split, split_mb
from hwmatrix.pool.state import Turn
from hwmatrix.records import Backend, Dtype, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.knowledge.fallback import Attempt, FallbackReport
    from hwmatrix.pool.devices import Device, Gpu
    from hwmatrix.pool.request import Request
    from hwmatrix.pool.shelf import Key
    from hwmatrix.pool.state import Construction, PoolState

    Onward = tuple[Key, Sequence[Gpu]]

_NO_MEMORY: Final = frozenset({"memory_pressure", "oom_killed", "webgpu_out_of_memory"})
_NOT_THERE: Final = frozenset({"target_unavailable", "gpu_not_usable", "torch_build", "gpu_no_driver", "gpu_not_found"})
"""The catalogue's types for a device that cannot be used at all, whatever the detector said."""
_NOT_STARTED: Final = "model_start_failed"
"""The catalogue's type that has advice for an error which nothing in it recognizes."""
_LOG: Final = logging.getLogger(__name__)


class Loader:
    """One request. Used by one thread, once."""

    def __init__(self, state: PoolState, request: Request, *, resident: Callable[[], float] = resident_mb) -> None:
        self._state = state
        self._request = request
        self._resident = resident
        self._plan = AttemptPlan(order=request.order)
        self._tried: list[Tried] = []
        self._attempt: Attempt | None = None
        self._cause: Exception | None = None
        self._made: Any = None
        self._grown_mb: float | None = None
        self._constructing = False
        self._overcome: list[Exception] = []

    def obtain(self) -> Turn:
        """The model, and its entry.

        Raises:
            ModelStartError: no device could take it, or its constructor failed, here or in the thread that was waited for.
            NestedRequestError: its constructor waits for it.
            NotInPoolError: it is not there, and there is no constructor.
        """
        if self._request.constructor is None:
            return self._found()
        turn = self._settled()
        try:
            with contextlib.ExitStack() as stack:
                while turn is None or turn.construction is not None:
                    turn = self._step(turn, stack)
        except BaseException:
            if turn is not None and turn.construction is not None and turn.mine:
                self._state.abandon(turn.construction)
            raise
        finally:
            self._made = None
        self._report(turn.key)
        for error in self._overcome:
            error.__traceback__ = None  # its frames saw the model: an error that is over must not keep it alive
        return turn

    def _step(self, turn: Turn | None, stack: contextlib.ExitStack) -> Turn | None:
        """One step on the way: come to the next device, construct there, or wait for somebody who does."""
        if turn is None or turn.construction is None:
            return self._come(stack)
        return self._load(turn.construction) if turn.mine else self._learn(turn.construction)

    def _found(self) -> Turn:
        state, request = self._state, self._request
        for word in request.order:
            turn = state.look(request.key(device_of(word)), lease=request.lease)
            if turn is not None:
                return turn
        where = ", ".join(request.order)
        raise NotInPoolError(f"{request.family}/{request.name} is not in the pool ({where}), and no constructor was given to make it")

    def _settled(self) -> Turn | None:
        """What this same request was given when it had to fall back, if that is still there."""
        with self._state.lock:
            key = self._state.settled.get(self._request.identity)
            turn = None if key is None else self._state.look(key, lease=self._request.lease)
            if turn is None:
                self._state.settled.pop(self._request.identity, None)
            return turn

    def _come(self, stack: contextlib.ExitStack) -> Turn:
        """To the next device. In low-memory mode whoever constructs does it alone."""
        state, lease = self._state, self._request.lease
        known = self._known()
        turn = None if known is None else state.look_or_wait(known, lease=lease)
        if turn is not None:
            return turn
        onward = self._onward()
        if onward is None:
            raise self._failure()
        turn = state.look_or_wait(onward[0], lease=lease)
        if turn is None and state.settings.low_memory:
            stack.enter_context(state.loading)
        return turn or state.enter(*onward, lease=lease)

    def _known(self) -> Key | None:
        """The next device, if the model is there or under way: then no driver need be asked."""
        attempt = next_attempt(self._plan, self._tried)
        key = None if attempt is None else self._request.key(device_of(attempt.hardware))
        if key is None or not self._state.knows(key):
            return None
        self._attempt = attempt
        return key

    def _onward(self) -> Onward | None:
        """The next device that is here, with the GPUs to choose from where none was named; None where nothing is left to try."""
        machine = self._state.machine
        while (attempt := next_attempt(self._plan, self._tried)) is not None:
            self._attempt = attempt
            device = device_of(attempt.hardware)
            key = self._request.key(device)
            reason = machine.absence(device.hardware)
            gpus = machine.gpus(device.hardware) if reason is None and has_several(device.hardware) else ()
            if reason is None and gpus and device.index is not None and device.index not in {gpu.index for gpu in gpus}:
                reason = f"there is no {device}: {len(gpus)} found"
            if reason is None and not self._is_refused(attempt, key):
                return key, gpus if device.index is None else ()
            if reason is not None:
                self._tried.append(Tried(attempt=attempt, status=Status.UNAVAILABLE, reason=reason, error_type="target_unavailable"))
        return None

    def _is_refused(self, attempt: Attempt, key: Key) -> bool:
        """Whether a copy in the pool tells that a device cannot take the model, so that it need not be constructed to find that out.

        One constructor for a list of devices, which is not told which it is for, gives for each what it has given before: a PyTorch
        module, and not every device of the list is PyTorch's.
        """
        request = self._request
        if request.one_device or request.takes_device or key.device.torch_name is not None or self._state.size_of_copies(key) is None:
            return False
        refusal = not_driven(key.device)
        reason = f"{key.device}: {refusal}"
        self._tried.append(Tried(attempt=attempt, status=Status.UNSUPPORTED, reason=reason, error_type=refusal.error_type))
        self._cause = refusal
        return True

    def _learn(self, construction: Construction) -> Turn | None:
        """Wait for another thread's construction; None where it came to nothing on that device."""
        self._state.wait(construction)
        if construction.tried is not None and self._attempt is not None:
            self._tried.append(dataclasses.replace(construction.tried, attempt=self._attempt))
            self._cause = construction.cause
        return None if construction.model is None else self._state.take(construction, lease=self._request.lease)

    def _load(self, construction: Construction) -> Turn | None:
        """Construct the model and move it; or go on to the next device, before anybody who waits.

        Raises:
            ModelStartError: there is no next device.
        """
        state, lease, began = self._state, self._request.lease, time.perf_counter()
        try:
            size, shares = self._start(construction.key.device, construction)
        except Exception as error:
            tried = self._told(error, construction.key.device, (time.perf_counter() - began) * 1000)
            self._tried.append(tried)
            self._cause = error
            self._withdraw(construction.key.device)
            onward = self._onward()
            turn = state.hand_over(construction, tried, error, onward, lease=lease)
            if onward is None:
                raise self._failure(remember=True) from error
            self._overcome.append(error)
            return turn
        entry = state.finish(construction, self._made, size, shares, lease=lease)
        for memory in shares:
            if not state.room.shrink(memory):
                _LOG.warning("models in use take more than the budget of %s allows", memory)
        return Turn(key=entry.key, model=self._made, entry=entry)

    def _start(self, device: Device, construction: Construction) -> tuple[Footprint, dict[str, float]]:
        """Have the model on the device, with room made for it; give what it takes of which memory.

        What was constructed for another device is moved, not made again.
        """
        room, given = self._state.room, self._request.memory_mb
        if self._made is None:
            room.relieve()
            needed = self._state.size_of_copies(construction.key) or given
            reserved = needed is None or room.reserve(construction, {device.memory: needed}) or device.memory == HOST
            if needed is not None and not reserved and not self._gpus_for(needed, device):
                raise self._too_large(needed, device)
            self._constructing = True
            self._made, self._grown_mb = self._constructed(device)
            self._constructing = False
        size = footprint(self._made, given_mb=given, grown_mb=self._grown_mb)
        memory = device.memory if size.measure in {Measure.TENSORS, Measure.GIVEN} else HOST
        shares = {memory: size.mb or 0.0}
        if not room.reserve(construction, shares) and memory != HOST:
            return size, self._split(construction, size.mb or 0.0)
        try:
            self._made = move(self._made, device)
        except Exception as error:
            if status_of(error, device.hardware) is not Status.OOM or not room.empty(device.memory):
                raise
            self._made = move(self._made, device)  # once more, with the room that unused models took
        return size, shares

    def _gpus_for(self, needed_mb: float, device: Device) -> tuple[Gpu, ...]:
        """The GPUs that a PyTorch module may be split over: all of a kind of which none was named, if their budgets are enough."""
        assert self._attempt is not None  # noqa: S101 - there is one as soon as a device is tried
        if self._attempt.hardware != device.hardware or not has_several(device.hardware):
            return ()
        gpus, budgets = self._state.machine.gpus(device.hardware), self._state.room.budgets
        together = sum(budgets.of(f"{device.hardware}:{gpu.index}") or 0.0 for gpu in gpus)
        return gpus if len(gpus) > 1 and together >= needed_mb else ()

    def _split(self, construction: Construction, needed_mb: float) -> dict[str, float]:
        """Spread a module that fits no GPU alone over those of its kind; give what it takes of each.

        Raises:
            OutOfMemoryError: it fits them together neither, or accelerate is not installed.
        """
        device, room = construction.key.device, self._state.room
        gpus = self._gpus_for(needed_mb, device) if is_module(self._made) else ()
        if not gpus:
            raise self._too_large(needed_mb, device)
        if not can_split():
            raise self._too_large(needed_mb, device, f"; accelerate, which splits a model over {len(gpus)} GPUs, is not installed")
        left: dict[int, float] = {}
        for gpu in gpus:
            place = f"{device.hardware}:{gpu.index}"
            room.empty(place)
            left[gpu.index] = min((room.budgets.of(place) or 0.0) - room.taken_mb(place), math.inf if gpu.free_mb is None else gpu.free_mb)
        planned = plan_split(self._made, left)
        shares = {f"{device.hardware}:{index}": mb for index, mb in split_mb(self._made, planned).items()} if planned else {}
        if planned is None or not room.reserve(construction, shares):
            raise self._too_large(needed_mb, device, f", and {len(gpus)} GPUs together have no room for its parts")
        made, self._made = self._made, None  # what a split has left half done is constructed again
        self._made = split(made, planned)
        return shares

    def _constructed(self, device: Device) -> tuple[Any, float]:
        """Call the constructor; once more if the host's memory was short and unused models could be let go of.

        Raises:
            FactoryError: it gave nothing.
        """
        call = self._request.constructor
        assert call is not None  # noqa: S101 - a request without one never comes here
        arguments = {"device": device.torch_name or str(device)} if self._request.takes_device else {}

        def construct() -> Any:
            return call(**arguments)

        try:
            made = grown(construct, self._resident)
        except Exception as error:
            if status_of(error, device.hardware) is not Status.OOM or not self._state.room.empty(HOST):
                raise
            made = grown(construct, self._resident)
        if made[0] is None:
            raise FactoryError("the constructor gave None instead of a model", error_type="factory_failed")
        return made

    def _too_large(self, needed_mb: float, device: Device, besides: str = "") -> OutOfMemoryError:
        room = self._state.room
        budget, taken = room.budgets.of(device.memory), room.taken_mb(device.memory)
        message = (
            f"it needs {needed_mb:.0f} MiB of {device.memory}, and {taken:.0f} MiB of the budget of {budget or 0.0:.0f} MiB are in use"
        )
        return OutOfMemoryError(message + besides, error_type="memory_pressure")

    def _told(self, error: Exception, device: Device, wall_ms: float) -> Tried:
        """What an error means for this device. What a constructor that knows no device raises, it raises for every device."""
        assert self._attempt is not None  # noqa: S101 - there is one as soon as a device is tried
        constructing, self._constructing = self._constructing, False
        whatever_device = constructing and not self._request.takes_device
        status = Status.FACTORY_ERROR if whatever_device else status_of(error, device.hardware)
        return Tried(
            attempt=self._attempt,
            status=status,
            reason=f"{device}: {type(error).__name__}: {error}",
            error_type=_type_of(error, device.hardware),
            wall_ms=wall_ms,
            dtype=Dtype(self._request.dtype) if self._request.dtype in tuple(Dtype) else None,
        )

    def _withdraw(self, device: Device) -> None:
        """Bring back what a failed move left half on the device, so that it takes nothing there and can go elsewhere."""
        if is_module(self._made) and device.hardware != Backend.CPU:
            try:
                self._made.to("cpu")
            except Exception as error:  # noqa: BLE001 - a broken device may raise anything
                _LOG.warning("%s cannot be brought back from %s, and is constructed again: %s", self._request.name, device, error)
                self._made = None
        give_back(device)

    def _report(self, key: Key) -> None:
        """Remember and log it, if this is not what was expected."""
        if not self._tried:
            return
        done = Tried(attempt=dataclasses.replace(self._tried[-1].attempt, hardware=str(key.device)), status=Status.PASS)
        report = self._report_of((*self._tried, done))
        if not self._request.asked and report.actual == report.expected:
            return  # nobody asked for the hardware that is not here
        if any(tried.status is not Status.UNAVAILABLE for tried in self._tried):
            with self._state.lock:
                self._state.settled[self._request.identity] = key
        if report.fell_back:
            new = self._state.report(report)
            _LOG.log(logging.WARNING if new else logging.DEBUG, "%s", report.sentence())

    def _report_of(self, tried: Sequence[Tried]) -> FallbackReport:
        """Where nobody asked for hardware, the first that is here was expected."""
        first = next((each.attempt.hardware for each in tried if each.status is not Status.UNAVAILABLE), None)
        return report_of(self._request.name, self._plan, tried, expected=None if self._request.asked else first)

    def _failure(self, *, remember: bool = False) -> ModelStartError:
        """Everything that was tried in vain, and what to do."""
        request, report = self._request, self._report_of(self._tried)
        last = self._tried[-1]
        error_type = last.error_type or "unmatched"
        lines = [f"{request.family}/{request.name} could not be started", *(f"{each.status.value}: {each.reason}" for each in self._tried)]
        hardware = device_of(last.attempt.hardware).hardware
        advice = report.recommendations or advice_for(_NOT_STARTED, hardware)
        failure = ModelStartError("\n".join(lines), error_type=error_type, recommendations=advice, report=report)
        failure.__cause__ = self._cause
        if remember:
            self._remember(failure, last)
        return failure

    def _remember(self, failure: ModelStartError, last: Tried) -> None:
        cause = failure.__cause__
        remembered = Failure(
            family=self._request.family,
            name=self._request.name,
            hardware=device_of(last.attempt.hardware).hardware,
            error_type=failure.error_type,
            severity=severity_of(failure.error_type, device_of(last.attempt.hardware).hardware),
            message=failure.message,
            recommendations=failure.recommendations,
            at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            traceback=None if cause is None else "".join(traceback.format_exception(cause)),
        )
        with self._state.lock:
            self._state.failures.append(remembered)
            self._state.room.count["failed"] += 1


def status_of(error: BaseException, hardware: str) -> Status:
    """What an error while a model is made or moved means for the device."""
    if isinstance(error, CellFailure):
        return Status(error.status)
    kind = _type_of(error, hardware)
    if kind in _NO_MEMORY:
        return Status.OOM
    return Status.UNAVAILABLE if kind in _NOT_THERE else Status.ERROR


def _type_of(error: BaseException, hardware: str) -> str:
    """The catalogue's type of an error; our own failures bring theirs along."""
    return error.error_type if isinstance(error, CellFailure) else match(str(error), hardware=hardware, exception=error).type
