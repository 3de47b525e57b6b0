"""The pool's automatic maintenance: settings, the timer, memory used by other programs."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from typing import Any

import pytest
from pool_machines import Clock, FakeMachine, Model, pool_of

from hwmatrix.errors import ConfigError
from hwmatrix.pool.pool import ResourcePool
from hwmatrix.pool.settings import PoolSettings

CPU = {"device": "cpu"}
END_S = 60.0


def held(pool: ResourcePool) -> list[str]:
    return [entry["name"] for entry in pool.get_stats()["entries"]]


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_recommended_configuration_can_be_applied_even_from_a_file() -> None:
    pool = pool_of()
    config = json.loads('{"resource_pool_config": {"low_memory_mode": true, "recommended_timeout_mins": 10}}')
    settings = pool.configure(**config["resource_pool_config"])
    assert (settings.low_memory, settings.timeout_minutes) == (True, 10)
    stats = pool.get_stats()
    assert (stats["low_memory_mode"], stats["timeout_minutes"]) == (True, 10)


def test_settings_that_are_not_given_do_not_change() -> None:
    pool = pool_of(settings=PoolSettings(low_memory=True, budget_mb={"host": 100}))
    assert pool.configure(timeout_minutes=5) == PoolSettings(low_memory=True, timeout_minutes=5, timer=False, budget_mb={"host": 100})


def test_a_new_timeout_applies_to_existing_models() -> None:
    clock = Clock()
    pool = pool_of(clock=clock)
    pool.get_model("vision", "old", Model, CPU)
    clock.minutes += 11
    pool.configure(recommended_timeout_mins=10)
    assert pool.cleanup_unused_resources() == 1


def test_switching_low_memory_mode_on_evicts_unused_models_and_off_keeps_them() -> None:
    pool = pool_of()
    mine = pool.get_model("vision", "mine", Model, CPU)
    pool.get_model("vision", "idle", Model, CPU)
    pool.configure(low_memory=True)
    assert held(pool) == ["mine"]
    pool.configure(low_memory=False)
    del mine
    assert held(pool) == ["mine"]


def test_a_smaller_budget_applies_immediately() -> None:
    pool = pool_of()
    mine = pool.get_model("vision", "mine", Model, CPU, memory_mb=200)
    for name in ("old", "young"):
        pool.get_model("vision", name, Model, CPU, memory_mb=100)
    pool.configure(budget_mb={"host": 300})
    assert held(pool) == ["mine", "young"]
    assert pool.get_stats()["memory"]["host"]["budget_mb"] == 300
    assert pool.get_model("vision", "mine", None, CPU) is mine


def test_what_was_released_stays_released() -> None:
    pool = pool_of()
    mine = pool.get_model("vision", "mine", Model, CPU)
    pool.release("vision", "mine")
    pool.configure(timeout_minutes=5)
    del mine
    assert held(pool) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"timeout": 3}, "timeout: is not a setting of the pool .*timeout_minutes"),
        ({"recommended_timeout_mins": 0}, "timeout_minutes: 0 is not a positive number"),
        ({"recommended_timeout_mins": 3, "timeout_minutes": 4}, "it means timeout_minutes, which is given as well"),
        ({"low_memory_mode": "yes"}, "low_memory: 'yes' is neither True nor False"),
        ({"timer": 1}, "timer: 1 is neither True nor False"),
        ({"memory_limit_percent": 101}, "more than 100 percent"),
        ({"memory_limit_percent": 0}, "not a positive number"),
    ],
)
def test_an_invalid_setting_is_refused_and_changes_nothing(wrong: dict[str, Any], message: str) -> None:
    pool = pool_of(settings=PoolSettings(timeout_minutes=7))
    with pytest.raises(ConfigError, match=message):
        pool.configure(**wrong)
    assert pool.get_stats()["timeout_minutes"] == 7


def test_every_setting_except_budgets_has_a_variable() -> None:
    found = PoolSettings.from_environment(
        {
            "RESOURCE_POOL_LOW_MEMORY": "1",
            "RESOURCE_POOL_TIMEOUT_MINS": "2.5",
            "RESOURCE_POOL_TIMER": "off",
            "RESOURCE_POOL_MEMORY_LIMIT_PERCENT": "80",
        }
    )
    assert found == PoolSettings(low_memory=True, timeout_minutes=2.5, timer=False, memory_limit_percent=80)
    assert PoolSettings.from_environment({"RESOURCE_POOL_TIMEOUT_MINS": ""}) == PoolSettings()


def test_every_invalid_variable_is_reported() -> None:
    wrong = {"RESOURCE_POOL_TIMER": "often", "RESOURCE_POOL_TIMEOUT_MINS": "soon", "RESOURCE_POOL_MEMORY_LIMIT_PERCENT": "500"}
    with pytest.raises(ConfigError) as told:
        PoolSettings.from_environment(wrong)
    assert {problem.where for problem in told.value.problems} == set(wrong)


# ── the timer ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Ended:
    """Signals when a model is deleted."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def construct(self) -> Model:
        model = Model()
        weakref.finalize(model, self.event.set)
        return model


def test_an_expired_model_is_evicted_without_a_request() -> None:
    pool, ended = ResourcePool(PoolSettings(timeout_minutes=0.1 / 60), machine=FakeMachine()), Ended()
    pool.get_model("vision", "idle", ended.construct, CPU)
    assert ended.event.wait(END_S)
    assert pool.get_stats()["models"] == 0


def test_a_shorter_timeout_wakes_the_timer() -> None:
    pool, ended = ResourcePool(machine=FakeMachine()), Ended()
    pool.get_model("vision", "idle", ended.construct, CPU)
    pool.configure(timeout_minutes=0.1 / 60)
    assert ended.event.wait(END_S)


def test_a_model_in_use_stays_and_is_evicted_afterwards() -> None:
    pool, ended, other = ResourcePool(PoolSettings(timeout_minutes=0.1 / 60), machine=FakeMachine()), Ended(), Ended()
    mine = pool.get_model("vision", "mine", ended.construct, CPU)
    pool.get_model("vision", "idle", other.construct, CPU)
    assert other.event.wait(END_S)
    assert pool.get_model("vision", "mine", None, CPU) is mine
    assert not ended.event.is_set()
    del mine
    assert ended.event.wait(END_S)


def timers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hwmatrix-pool-timer"]


def test_without_the_timer_there_is_no_thread_and_no_automatic_eviction() -> None:
    before = set(timers())
    pool = ResourcePool(PoolSettings(timer=False), machine=FakeMachine())
    pool.get_model("vision", "idle", Model, CPU)
    assert set(timers()) <= before
    pool.configure(timer=True)
    assert len(set(timers()) - before) == 1


def test_the_timer_ends_with_its_pool_and_does_not_keep_it_alive() -> None:
    before = set(timers())
    pool = ResourcePool(machine=FakeMachine())
    pool.get_model("vision", "idle", Model, CPU)
    (thread,) = set(timers()) - before
    assert thread.daemon
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
    thread.join(END_S)
    assert not thread.is_alive()


# ── memory pressure ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def crowded(limit: float = 90) -> tuple[FakeMachine, ResourcePool, Model]:
    """A host with 1000 MiB, a model in use and two unused ones."""
    machine = FakeMachine(host_mb=1000)
    pool = pool_of(machine, PoolSettings(memory_limit_percent=limit))
    mine = pool.get_model("vision", "mine", Model, CPU, memory_mb=50)
    for name in ("old", "young"):
        pool.get_model("vision", name, Model, CPU, memory_mb=50)
    return machine, pool, mine


@pytest.mark.parametrize(
    ("used_mb", "left"), [(900, ["mine", "old", "young"]), (910, ["mine", "young"]), (951, ["mine"]), (1000, ["mine"])]
)
def test_above_the_limit_the_least_recently_used_models_are_evicted_until_it_is_met(used_mb: float, left: list[str]) -> None:
    machine, pool, _mine = crowded()
    machine.host_used_mb = used_mb
    pool.get_model("vision", "next", Model, CPU)
    assert held(pool) == [*left, "next"]
    assert pool.get_stats()["evicted_for_memory"] == 3 - len(left)


def test_the_limit_can_be_disabled() -> None:
    machine, pool, _mine = crowded(100)
    machine.host_used_mb = 1000
    pool.get_model("vision", "next", Model, CPU)
    assert held(pool) == ["mine", "old", "young", "next"]


def test_memory_pressure_is_handled_without_a_request() -> None:
    """The timer checks whenever it wakes, here after a change of a setting."""
    machine, ended = FakeMachine(host_mb=1000), Ended()
    pool = ResourcePool(machine=machine)
    pool.get_model("vision", "idle", ended.construct, CPU, memory_mb=50)
    machine.host_used_mb = 999
    pool.configure(memory_limit_percent=90)
    assert ended.event.wait(END_S)
    assert pool.get_stats()["evicted_for_memory"] == 1


def test_a_gpu_s_memory_counts_separately() -> None:
    machine = FakeMachine(cuda=(1000, 1000))
    pool = pool_of(machine)
    for device in ("cuda:0", "cuda:1", "cpu"):
        pool.get_model("vision", device, Model, {"device": device}, memory_mb=50)
    machine.used[1] = 990
    pool.get_model("vision", "next", Model, CPU)
    assert held(pool) == ["cuda:0", "cpu", "next"]


def test_if_free_memory_is_unknown_nothing_is_evicted() -> None:
    pool = pool_of(FakeMachine(cuda=(None,)))
    pool.get_model("vision", "idle", Model, {"device": "cuda"}, memory_mb=50)
    pool.get_model("vision", "next", Model, CPU)
    assert held(pool) == ["idle", "next"]
