from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pool_machines import Clock, Model, pool_of

from hwmatrix.errors import ConfigError
from hwmatrix.pool.settings import PoolSettings

if TYPE_CHECKING:
    from hwmatrix.pool.pool import ResourcePool

CPU = {"device": "cpu"}


def held(pool: ResourcePool) -> list[str]:
    return [entry["name"] for entry in pool.get_stats()["entries"]]


def test_a_recommended_configuration_can_be_applied_even_from_a_file() -> None:
    pool = pool_of()
    config = json.loads('{"resource_pool_config": {"low_memory_mode": true, "recommended_timeout_mins": 10}}')
    settings = pool.configure(**config["resource_pool_config"])
    assert (settings.low_memory, settings.timeout_minutes) == (True, 10)
    stats = pool.get_stats()
    assert (stats["low_memory_mode"], stats["timeout_minutes"]) == (True, 10)


def test_settings_that_are_not_given_do_not_change() -> None:
    pool = pool_of(settings=PoolSettings(low_memory=True, budget_mb={"host": 100}))
    assert pool.configure(timeout_minutes=5) == PoolSettings(low_memory=True, timeout_minutes=5, budget_mb={"host": 100})


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
    assert pool.get_model("vision", "mine", Model, CPU) is mine
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
        ({"low_memory_mode": "yes"}, "low_memory: 'yes' is neither True nor False"),
    ],
)
def test_an_invalid_setting_is_refused_and_changes_nothing(wrong: dict[str, Any], message: str) -> None:
    pool = pool_of(settings=PoolSettings(timeout_minutes=7))
    with pytest.raises(ConfigError, match=message):
        pool.configure(**wrong)
    assert pool.get_stats()["timeout_minutes"] == 7


def test_every_setting_except_budgets_has_a_variable() -> None:
    found = PoolSettings.from_environment({"RESOURCE_POOL_LOW_MEMORY": "1", "RESOURCE_POOL_TIMEOUT_MINS": "2.5"})
    assert found == PoolSettings(low_memory=True, timeout_minutes=2.5)
    assert PoolSettings.from_environment({"RESOURCE_POOL_TIMEOUT_MINS": ""}) == PoolSettings()


@pytest.mark.parametrize("minutes", ["soon", "-1", "nan"])
def test_every_invalid_variable_is_reported(minutes: str) -> None:
    wrong = {"RESOURCE_POOL_LOW_MEMORY": "often", "RESOURCE_POOL_TIMEOUT_MINS": minutes}
    with pytest.raises(ConfigError) as told:
        PoolSettings.from_environment(wrong)
    assert {problem.where for problem in told.value.problems} == set(wrong)
