"""The ONNX standard's operator tests on one target, in its image: many per forked child, each with its own verdict.

A child sends a result after each test, so that the test that kills it is known. That test is retried alone, in case an earlier test
broke something; the rest continues in a new child. A kernel alarm ends a test that takes too long.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import CellFailure, UnavailableError
from hwmatrix.faults.catalogue import classify, match
from hwmatrix.models import operator_tests
from hwmatrix.models.operator_tests import OperatorTest, Tensor
from hwmatrix.records import Dtype, Limits, OperatorResult, Plan, Status, TargetPlan
from hwmatrix.runner.endings import describe
from hwmatrix.runner.events import emit
from hwmatrix.runner.forked import End, run_forked
from hwmatrix.runner.identity import shard_identity
from hwmatrix.runner.keeper import Keeper
from hwmatrix.runner.messages import BadMessageError, DeviceTold, TestTold, read
from hwmatrix.runner.operator_verdict import judge
from hwmatrix.store.shard import ShardWriter
from hwmatrix.targets.protocol import operators_class

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.targets.protocol import OperatorRunner

    Send = Callable[[dict[str, Any]], None]

BATCH: Final = 50
"""Tests per child: restarting a runtime takes as long as several tests."""
TEST_S: Final = 20.0
"""A test that takes longer hangs: the tests' tensors are tiny."""
_START_S: Final = 60.0
_MEMORY_MB: Final = 4096
_CANARY: Final = "test_add"
_MESSAGE_LIMIT: Final = 2000
_SIGNALS: Final = {number.value for number in signal.Signals}
"""Signals with names; real-time signals have none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorOrder:
    """What one run of the operator tests must do, and what the host knows about where it runs.

    ``pattern`` is a regular expression searched in the tests' names; ``finished`` are tests to skip.
    """

    plan: Plan
    target: TargetPlan
    pattern: str
    cache: Path
    out: Path
    host: str
    image: str | None
    image_digest: str | None
    finished: frozenset[str] = frozenset()


def run_operators(order: OperatorOrder) -> Path:
    """Run the selected tests that are not finished; return the sealed shard. It is empty if the target is unavailable.

    Raises:
        StoreError: the shard cannot be written.
        BundleError: the tests are missing or damaged.
    """
    tests = operator_tests.read(order.cache)
    chosen = [test for test in tests.tests if re.search(order.pattern, test.name) and test.name not in order.finished]
    runner = operators_class(order.target.backend)
    begin = time.perf_counter()
    runner.preload()
    warm_up_ms = (time.perf_counter() - begin) * 1000
    versions = {"operator tests": f"onnx {tests.version}"}
    identity = shard_identity(order, runner.packages, warm_up_ms=warm_up_ms, versions=versions)
    with ShardWriter(order.out, order.plan, identity) as shard, Keeper(runner.service(order.target.options)) as keeper:
        batches = _Batches(order, keeper)
        ok, detail = batches.canaries(next(test for test in tests.tests if test.name == _CANARY))
        shard.set_canaries(ok=ok, detail=detail)
        if ok:
            counts: Counter[str] = Counter()
            for start in range(0, len(chosen), BATCH):
                results = batches.run(chosen[start : start + BATCH])
                shard.add_operators(results)
                counts.update(result.status.value for result in results)
                emit("operators", done=counts.total(), total=len(chosen), counts=dict(counts))
        else:
            emit("operators_refused", unavailable=ok is None, message=detail)
        path = shard.seal()
    emit("sealed", shard=path.name)
    return path


class _Batches:
    """Runs tests in children, and returns a result for each test."""

    def __init__(self, order: OperatorOrder, keeper: Keeper) -> None:
        self._order = order
        self._keeper = keeper
        runner = operators_class(order.target.backend)
        self._reserves = runner.reserves_address_space
        self._keeps_state = runner.keeps_state
        self._device: str | None = None
        exact = runner.precision is Dtype.FLOAT32
        self._relative_error = None if exact else order.plan.tolerances[runner.precision].relative_error

    def canaries(self, test: OperatorTest) -> tuple[bool | None, str | None]:
        """A simple test must pass, and the same test with a wrong expectation must be a mismatch. The detail then names the device.

        None: the target is unavailable, or the simple test did not run on it.
        """
        right, wrong = test, _with_wrong_values(test)
        (good,) = self.run([right])
        if good.status is Status.UNAVAILABLE:
            return None, good.message
        if good.status is Status.FALLBACK:
            return None, f"{test.name} ran, but no part of it ran on the target"
        (bad,) = self.run([wrong])
        problems = [
            f"{test.name} {how} is {result.status.value}, not {wanted.value}: {result.message}"
            for how, result, wanted in (("as it is", good, Status.PASS), ("with a wrong expectation", bad, Status.MISMATCH))
            if result.status is not wanted
        ]
        return not problems, "; ".join(problems) or self._device

    def run(self, tests: Sequence[OperatorTest]) -> list[OperatorResult]:
        """Run tests, in as many children as necessary."""
        results = self._in_children(tests)
        if not self._keeps_state or len(tests) == 1:
            return results
        spoilt = {Status.MISMATCH, Status.ERROR}
        return [self._in_children([test])[0] if result.status in spoilt else result for test, result in zip(tests, results, strict=True)]

    def _in_children(self, tests: Sequence[OperatorTest]) -> list[OperatorResult]:
        results: list[OperatorResult] = []
        left = list(tests)
        while left:
            done, culprit = self._run_child(left)
            results += done
            left = left[len(done) :]
            if culprit is not None:
                if done:  # an earlier test in the same child may have caused it
                    alone, again = self._run_child(left[:1])
                    results += alone or [again or culprit]
                else:
                    results.append(culprit)
                left = left[1:]
        return results

    def _run_child(self, tests: list[OperatorTest]) -> tuple[list[OperatorResult], OperatorResult | None]:
        """Run one child: the results that it sent, and that of the test that ended it prematurely (None: no test did)."""
        begin = time.monotonic()
        try:
            address = self._keeper.address()
        except UnavailableError as failure:
            return [], self._result(tests[0], status=Status.UNAVAILABLE, error_type=failure.error_type, message=str(failure))
        limits = Limits(timeout_s=_START_S + TEST_S * len(tests), memory_mb=_MEMORY_MB)
        work = functools.partial(execute, self._order.target, tests, address, self._relative_error)
        end = run_forked(work, limits=limits, reserves_address_space=self._reserves)
        told, problem = self._results_of(end)
        done = [self._result(test, **dataclasses.asdict(each)) for test, each in zip(tests, told, strict=False)]
        if done and done[-1].status is Status.CRASH:  # the helper process crashed, so the child stopped there
            return done[:-1], done[-1]
        if len(done) == len(tests):
            return done, None
        wall_ms = (time.monotonic() - begin) * 1000
        if problem is not None:
            message = f"the process sent an invalid message: {problem}"
            return done, self._result(tests[len(done)], status=Status.CRASH, error_type="bad_message", message=message, wall_ms=wall_ms)
        return done, self._result_of_end(tests[len(done)], end, limits, wall_ms)

    def _results_of(self, end: End) -> tuple[list[TestTold], str | None]:
        """A child's test reports up to the first invalid line, and what is wrong with that line."""
        told: list[TestTold] = []
        try:
            for number, message in enumerate(end.messages, 1):
                if "device" in message:
                    self._device = read(DeviceTold, message, number).device
                else:
                    told.append(read(TestTold, message, number))
        except BadMessageError as error:
            return told, str(error)
        return told, end.refused

    def _result_of_end(self, test: OperatorTest, end: End, limits: Limits, wall_ms: float) -> OperatorResult:
        """The result of the test that was running when the child ended."""
        if end.timed_out or end.signal == signal.SIGALRM:
            status, message = Status.TIMEOUT, f"timed out after {TEST_S:g} s"
        else:
            status, message = (Status.OOM if end.oom_killed else Status.CRASH), describe(end, limits)
            message = f"{signal.Signals(end.signal).name}: {message}" if end.signal in _SIGNALS else message
        found = match(message, hardware=self._order.target.backend, status=status)
        return self._result(test, status=status, error_type=found.type, message=message, wall_ms=wall_ms)

    def _result(self, test: OperatorTest, **found: Any) -> OperatorResult:
        return OperatorResult(
            target=self._order.target.name,
            test=test.name,
            operator=test.operator,
            domain=test.domain,
            opset=test.opset,
            expanded=test.expanded,
            **found,
        )


def execute(
    target: TargetPlan, tests: Sequence[OperatorTest], service: dict[str, Any] | None, relative_error: float | None, send: Send
) -> None:
    """In the child: run the tests in order, one message each. Stop after a test that crashed the helper process."""
    runner = operators_class(target.backend)(options=target.options, service=service)
    try:
        send({"device": runner.check()})
    except CellFailure as failure:
        for _ in tests:
            send(_failure(failure, target))
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel kills this process, even inside a library call that never returns
    for test in tests:
        signal.setitimer(signal.ITIMER_REAL, TEST_S)
        begin = time.perf_counter()
        message = _outcome(runner, test, target, relative_error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(message | {"wall_ms": (time.perf_counter() - begin) * 1000})
        if message["status"] == Status.CRASH.value:
            return


def _outcome(runner: OperatorRunner, test: OperatorTest, target: TargetPlan, relative_error: float | None) -> dict[str, Any]:
    try:
        executed = runner.execute(test)
        verdict = judge(test, executed.outputs, relative_error=relative_error)
    except Exception as failure:  # noqa: BLE001 - a failing test is data, whatever it raises
        return _failure(failure, target)
    right = Status.PASS if executed.on_target > 0 else Status.FALLBACK
    status = right if verdict.problem is None else Status.MISMATCH
    return {
        "status": status.value,
        "on_target": executed.on_target,
        "max_error": None if verdict.max_error is None else min(verdict.max_error, sys.float_info.max),
        "error_type": "mismatch" if verdict.problem is not None else None,
        "message": verdict.problem,
        "needs": [],
    }


def _failure(failure: Exception, target: TargetPlan) -> dict[str, Any]:
    text = str(failure)[:_MESSAGE_LIMIT]
    found = classify(failure, hardware=target.backend)
    needs = list(getattr(failure, "needs", ())) if found.status is Status.UNSUPPORTED else []
    message = text if isinstance(failure, CellFailure) else f"{type(failure).__name__}: {text}"
    return {
        "status": found.status.value,
        "on_target": None,
        "max_error": None,
        "error_type": found.type,
        "message": message,
        "needs": needs,
    }


def _with_wrong_values(test: OperatorTest) -> OperatorTest:
    """The same test with expected values that are off by one."""
    outputs = tuple(
        (name, dataclasses.replace(value, array=np.asarray(value.array + 1)) if isinstance(value, Tensor) else value)
        for name, value in test.outputs
    )
    return dataclasses.replace(test, outputs=outputs)
