"""Concurrent threads. No test sleeps: barriers and events set the order, and every wait has a timeout that fails the test."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pool_machines import FakeMachine, Model, pool_of

from hwmatrix.pool import pool as pool_module
from hwmatrix.pool.errors import ModelStartError, NestedRequestError
from hwmatrix.pool.pool import ResourcePool, get_global_resource_pool
from hwmatrix.pool.settings import PoolSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

CPU = {"device": "cpu"}
MANY = 16
END_S = 120.0
CUDA_MEMORY = "CUDA out of memory. Tried to allocate 22.00 MiB."


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=2 * MANY) as executor:
        yield executor


class Gate:
    """A constructor that signals its start and waits for permission to continue."""

    def __init__(self, make: Callable[[], Any] = Model) -> None:
        self.began = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.calls = 0
        self._make = make

    def __call__(self) -> Any:
        self.calls += 1
        self.began.release()
        assert self.may_end.wait(END_S)
        return self._make()


def until_waiting(pool: ResourcePool, number: int) -> None:
    """Block until this many threads wait for another's construction, by the pool's count, which is updated before they wait."""
    cache = pool._cache
    with cache.lock:
        waiting = len(cache._waiting)
    while waiting < number:
        threading.Event().wait(0.001)
        with cache.lock:
            waiting = len(cache._waiting)


def results(futures: list[Future[Any]]) -> list[Any]:
    return [future.result(END_S) for future in futures]


def test_simultaneous_requests_construct_once(threads: ThreadPoolExecutor) -> None:
    pool, gate = pool_of(), Gate()
    futures = [threads.submit(pool.get_model, "vision", "vit", gate, CPU) for _ in range(MANY)]
    assert gate.began.acquire(timeout=END_S)
    until_waiting(pool, MANY - 1)
    gate.may_end.set()
    models = results(futures)
    assert all(model is models[0] for model in models)
    assert gate.calls == 1
    stats = pool.get_stats()
    assert (stats["constructed"], stats["waits"], stats["models"], stats["entries"][0]["uses"]) == (1, MANY - 1, 1, MANY)


def test_requests_that_start_at_the_same_instant_construct_once(threads: ThreadPoolExecutor) -> None:
    """The same without a gate, for any interleaving of threads."""
    for _ in range(20):
        pool, barrier, made = pool_of(), threading.Barrier(MANY), []

        def ask(pool: ResourcePool = pool, barrier: threading.Barrier = barrier, made: list[int] = made) -> Any:
            barrier.wait(END_S)
            return pool.get_model("vision", "vit", lambda: made.append(1) or Model(), CPU, memory_mb=1)

        models = results([threads.submit(ask) for _ in range(MANY)])
        assert all(model is models[0] for model in models)
        assert made == [1]
        assert pool.get_stats()["memory"]["host"]["used_mb"] == 1


def test_different_models_are_constructed_at_the_same_time(threads: ThreadPoolExecutor) -> None:
    pool, together = pool_of(), threading.Barrier(MANY)

    def construct() -> Model:
        together.wait(END_S)  # fails unless all are in their constructors now
        return Model()

    results([threads.submit(pool.get_model, "vision", str(number), construct, CPU) for number in range(MANY)])
    assert pool.get_stats()["constructed"] == MANY


def test_the_same_model_for_different_devices_is_constructed_at_the_same_time(threads: ThreadPoolExecutor) -> None:
    pool, together = pool_of(FakeMachine(cuda=(1000, 1000))), threading.Barrier(3)

    def construct() -> Model:
        together.wait(END_S)
        return Model()

    results([threads.submit(pool.get_model, "vision", "vit", construct, {"device": device}) for device in ("cpu", "cuda:0", "cuda:1")])
    assert pool.get_stats()["constructed"] == 3


def test_all_waiting_threads_get_the_error_and_the_next_request_retries(threads: ThreadPoolExecutor) -> None:
    def fail() -> Model:
        raise ValueError("no such checkpoint")

    pool, gate = pool_of(), Gate(fail)
    futures = [threads.submit(pool.get_model, "vision", "vit", gate, CPU, memory_mb=10) for _ in range(MANY)]
    assert gate.began.acquire(timeout=END_S)
    until_waiting(pool, MANY - 1)
    gate.may_end.set()
    errors = [future.exception(END_S) for future in futures]
    assert all(isinstance(error, ModelStartError) and "no such checkpoint" in str(error) for error in errors)
    assert len({id(error) for error in errors}) == MANY  # one each, so that tracebacks are separate
    assert len({id(error.__cause__) for error in errors if error}) == 1
    assert gate.calls == 1
    assert (pool.get_stats()["failed"], len(pool.errors())) == (1, 1)
    assert isinstance(pool.get_model("vision", "vit", Model, CPU), Model)


def test_a_waiting_thread_takes_over_from_an_interrupted_one(threads: ThreadPoolExecutor) -> None:
    def interrupted() -> Model:
        raise KeyboardInterrupt

    pool, first, second = pool_of(), Gate(interrupted), Gate()
    second.may_end.set()
    cut_off = threads.submit(pool.get_model, "vision", "vit", first, CPU)
    assert first.began.acquire(timeout=END_S)
    waiting = [threads.submit(pool.get_model, "vision", "vit", second, CPU) for _ in range(MANY)]
    until_waiting(pool, MANY)
    first.may_end.set()
    assert isinstance(cut_off.exception(END_S), KeyboardInterrupt)
    models = results(waiting)
    assert all(model is models[0] for model in models)
    assert second.calls == 1


def test_threads_waiting_for_a_full_device_fall_back_with_the_constructing_one(threads: ThreadPoolExecutor) -> None:
    pool = pool_of(FakeMachine(cuda=(1000,)))
    gate = Gate(lambda: Model(refuses={"cuda:0": RuntimeError(CUDA_MEMORY)}))
    futures = [threads.submit(pool.get_model, "vision", "vit", gate, {"device": "cuda"}) for _ in range(MANY)]
    assert gate.began.acquire(timeout=END_S)
    until_waiting(pool, MANY - 1)
    gate.may_end.set()
    models = results(futures)
    assert all(model is models[0] for model in models)
    assert gate.calls == 1
    assert models[0].moves == ["cuda:0", "cpu"]
    assert pool.get_stats()["constructed"] == 1


def test_a_request_for_the_cpu_shares_a_model_that_falls_back_to_it(threads: ThreadPoolExecutor) -> None:
    pool = pool_of(FakeMachine(cuda=(1000,)))
    for_gpu, for_cpu = Gate(lambda: Model(refuses={"cuda:0": RuntimeError(CUDA_MEMORY)})), Gate()
    on_gpu = threads.submit(pool.get_model, "vision", "vit", for_gpu, {"device": "cuda"})
    on_cpu = threads.submit(pool.get_model, "vision", "vit", for_cpu, CPU)
    assert for_gpu.began.acquire(timeout=END_S)
    assert for_cpu.began.acquire(timeout=END_S)
    for_gpu.may_end.set()  # it falls back, and finds the construction for the CPU in progress
    until_waiting(pool, 1)
    for_cpu.may_end.set()
    assert on_gpu.result(END_S) is on_cpu.result(END_S)
    assert pool.get_stats()["models"] == 1


def test_two_constructors_that_wait_for_each_other_get_an_error(threads: ThreadPoolExecutor) -> None:
    pool, both = pool_of(), threading.Barrier(2)

    def constructor(other: str) -> Callable[[], Model]:
        def construct() -> Model:
            both.wait(END_S)
            model: Model = pool.get_model("vision", other, Model, CPU)
            return model

        return construct

    futures = [threads.submit(pool.get_model, "vision", name, constructor(other), CPU) for name, other in (("a", "b"), ("b", "a"))]
    errors = [future.exception(END_S) for future in futures]
    assert any(isinstance(error, ModelStartError) and isinstance(error.__cause__, NestedRequestError) for error in errors)


def test_low_memory_mode_loads_one_at_a_time(threads: ThreadPoolExecutor) -> None:
    pool = pool_of(settings=PoolSettings(low_memory=True))
    lock, inside, most = threading.Lock(), [0], [0]

    def construct() -> Model:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        part = pool.get_model("vision", f"part {threading.get_ident()}", Model, CPU)  # nested requests may load at the same time
        with lock:
            inside[0] -= 1
        return Model(part)

    start = threading.Barrier(MANY)

    def ask(number: int) -> Any:
        start.wait(END_S)
        return pool.get_model("vision", str(number), construct, CPU)

    models = results([threads.submit(ask, number) for number in range(MANY)])
    assert most == [1]
    assert len(models) == MANY


def test_low_memory_mode_also_constructs_once_for_simultaneous_requests(threads: ThreadPoolExecutor) -> None:
    pool, gate = pool_of(settings=PoolSettings(low_memory=True)), Gate()
    first = threads.submit(pool.get_model, "vision", "vit", gate, CPU)
    assert gate.began.acquire(timeout=END_S)
    others = [threads.submit(pool.get_model, "vision", "vit", gate, CPU) for _ in range(MANY - 1)]
    until_waiting(pool, MANY - 1)
    gate.may_end.set()
    models = results([first, *others])
    assert all(model is models[0] for model in models)
    assert gate.calls == 1


def test_simultaneous_models_are_spread_over_the_gpus(threads: ThreadPoolExecutor) -> None:
    """Memory is reserved for constructions in progress, which the drivers do not report yet."""
    pool = pool_of(FakeMachine(cuda=(1000, 1000, 1000, 1000)))
    gate = Gate()
    futures = []
    for number in range(4):
        futures.append(threads.submit(pool.get_model, "vision", str(number), gate, {"device": "cuda"}, memory_mb=500))
        assert gate.began.acquire(timeout=END_S)
    gate.may_end.set()
    results(futures)
    assert sorted(entry["device"] for entry in pool.get_stats()["entries"]) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]


def test_memory_is_not_reserved_twice(threads: ThreadPoolExecutor) -> None:
    pool, gate = pool_of(FakeMachine(cuda=(1000,))), Gate()
    first = threads.submit(pool.get_model, "vision", "first", gate, {"device": "cuda"}, memory_mb=500)
    assert gate.began.acquire(timeout=END_S)
    assert pool._cache.taken_mb("cuda:0") == 500
    second = pool.get_model("vision", "second", Model, {"device": "cuda"}, memory_mb=500)
    gate.may_end.set()
    assert first.result(END_S) is not second
    assert {entry["name"]: entry["device"] for entry in pool.get_stats()["entries"]} == {"first": "cuda:0", "second": "cpu"}


def test_there_is_one_pool_per_process_whichever_thread_is_first(threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_GLOBAL", [])
    barrier = threading.Barrier(MANY)

    def ask() -> ResourcePool:
        barrier.wait(END_S)
        return get_global_resource_pool()

    assert len({id(pool) for pool in results([threads.submit(ask) for _ in range(MANY)])}) == 1


def test_a_pool_under_load_keeps_correct_accounts(threads: ThreadPoolExecutor) -> None:
    """Threads request, use, lease, release and clean up at random, in a pool that is much too small for them."""
    pool = pool_of(FakeMachine(cuda=(200, 200)), PoolSettings(budget_mb={"host": 100}))
    start = threading.Barrier(MANY)

    def work(seed: int) -> None:
        start.wait(END_S)
        for step in range(15):
            name = f"model {(seed * 7 + step * 3) % 9}"
            device = ("cpu", "cuda", "cuda:0", "cuda:1")[(seed + step) % 4]
            size = 10 * (1 + (seed + step) % 5)
            action = (seed * 5 + step) % 5
            if action == 0:
                pool.release("vision", name)
            elif action == 1:
                pool.cleanup_unused_resources(0)
            elif action == 2:
                with pool.lease("vision", name, Model, {"device": device}, memory_mb=size) as model:
                    assert isinstance(model, Model)
            else:
                assert isinstance(pool.get_model("vision", name, Model, {"device": device}, memory_mb=size), Model)

    results([threads.submit(work, seed) for seed in range(MANY)])
    pool.cleanup_unused_resources(0)
    stats = pool.get_stats()
    assert stats["entries"] == []
    assert all(pool._cache.taken_mb(place) == 0 for place in ("host", "cuda:0", "cuda:1"))
    assert stats["failed"] == 0
