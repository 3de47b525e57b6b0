"""Concurrent threads. No test sleeps: barriers and events set the order, and every wait has a timeout that fails the test."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pool_machines import FakeMachine, Model, pool_of

from hwmatrix.pool import pool as pool_module
from hwmatrix.pool.pool import ResourcePool, get_global_resource_pool
from hwmatrix.pool.settings import PoolSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

CPU = {"device": "cpu"}
MANY = 16
END_S = 120.0
CUDA_MEMORY = "CUDA out of memory. Tried to allocate 22.00 MiB."


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=2 * MANY) as executor:
        yield executor


def results(futures: list[Future[Any]]) -> list[Any]:
    return [future.result(END_S) for future in futures]


def test_simultaneous_requests_construct_once(threads: ThreadPoolExecutor) -> None:
    for _ in range(20):
        pool, barrier, made = pool_of(), threading.Barrier(MANY), []

        def ask(pool: ResourcePool = pool, barrier: threading.Barrier = barrier, made: list[int] = made) -> Any:
            barrier.wait(END_S)
            return pool.get_model("vision", "vit", lambda: made.append(1) or Model(), CPU, memory_mb=1)

        models = results([threads.submit(ask) for _ in range(MANY)])
        assert all(model is models[0] for model in models)
        assert made == [1]
        assert pool.get_stats()["memory"]["host"]["used_mb"] == 1


def test_a_model_in_the_pool_is_returned_while_another_is_constructed(threads: ThreadPoolExecutor) -> None:
    pool, began, may_end = pool_of(), threading.Event(), threading.Event()
    present = pool.get_model("vision", "present", Model, CPU)

    def construct() -> Model:
        began.set()
        assert may_end.wait(END_S)
        return Model()

    slow = threads.submit(pool.get_model, "vision", "slow", construct, CPU)
    assert began.wait(END_S)
    assert threads.submit(pool.get_model, "vision", "present", Model, CPU).result(END_S) is present
    may_end.set()
    assert slow.result(END_S) is not present


def test_a_waiting_thread_takes_over_from_an_interrupted_one(threads: ThreadPoolExecutor) -> None:
    pool, began, may_end = pool_of(), threading.Event(), threading.Event()

    def interrupted() -> Model:
        began.set()
        assert may_end.wait(END_S)
        raise KeyboardInterrupt

    cut_off = threads.submit(pool.get_model, "vision", "vit", interrupted, CPU)
    assert began.wait(END_S)
    waiting = [threads.submit(pool.get_model, "vision", "vit", Model, CPU) for _ in range(MANY)]
    may_end.set()
    assert isinstance(cut_off.exception(END_S), KeyboardInterrupt)
    models = results(waiting)
    assert all(model is models[0] for model in models)


def test_threads_that_wait_for_a_full_device_share_the_fallback(threads: ThreadPoolExecutor) -> None:
    pool, start = pool_of(FakeMachine(cuda=(1000,))), threading.Barrier(MANY)

    def ask() -> Any:
        start.wait(END_S)
        return pool.get_model("vision", "vit", lambda: Model(refuses={"cuda:0": RuntimeError(CUDA_MEMORY)}), {"device": "cuda"})

    models = results([threads.submit(ask) for _ in range(MANY)])
    assert all(model is models[0] for model in models)
    assert models[0].moves == ["cuda:0", "cpu"]
    assert pool.get_stats()["constructed"] == 1


def test_models_are_constructed_one_after_another(threads: ThreadPoolExecutor) -> None:
    pool, lock, inside, most, start = pool_of(), threading.Lock(), [0], [0], threading.Barrier(MANY)

    def construct() -> Model:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        part = pool.get_model("vision", f"part {threading.get_ident()}", Model, CPU)  # a constructor may request other models
        with lock:
            inside[0] -= 1
        return Model(part)

    def ask(number: int) -> Any:
        start.wait(END_S)
        return pool.get_model("vision", str(number), construct, CPU)

    models = results([threads.submit(ask, number) for number in range(MANY)])
    assert most == [1]
    assert len({id(model) for model in models}) == MANY


def test_there_is_one_pool_per_process_whichever_thread_is_first(threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_GLOBAL", [])
    barrier = threading.Barrier(MANY)

    def ask() -> ResourcePool:
        barrier.wait(END_S)
        return get_global_resource_pool()

    assert len({id(pool) for pool in results([threads.submit(ask) for _ in range(MANY)])}) == 1


def test_a_pool_under_load_keeps_correct_accounts(threads: ThreadPoolExecutor) -> None:
    """Threads request, use, release and clean up at random, in a pool that is much too small for them."""
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
            else:
                assert isinstance(pool.get_model("vision", name, Model, {"device": device}, memory_mb=size), Model)

    results([threads.submit(work, seed) for seed in range(MANY)])
    pool.cleanup_unused_resources(0)
    stats = pool.get_stats()
    assert (stats["entries"], stats["memory"], stats["failed"]) == ([], {}, 0)
