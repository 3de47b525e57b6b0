from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from pool_machines import Clock, FakeMachine, Model, pool_of

import hwmatrix
from hwmatrix.errors import ConfigError
from hwmatrix.pool import pool as pool_module
from hwmatrix.pool.errors import ModelStartError, NestedRequestError, NotInPoolError
from hwmatrix.pool.pool import ResourcePool, get_global_resource_pool
from hwmatrix.pool.settings import PoolSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = {"device": "cpu"}


def held(pool: ResourcePool) -> list[str]:
    return [entry["name"] for entry in pool.get_stats()["entries"]]


def used(pool: ResourcePool, memory: str = "host") -> float:
    return float(pool.get_stats()["memory"].get(memory, {"used_mb": 0.0})["used_mb"])


# ── sharing and keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_is_constructed_once_and_shared() -> None:
    pool, made = pool_of(), []
    first = pool.get_model("vision", "vit", lambda: made.append(1) or Model(), CPU)
    second = pool.get_model("vision", "vit", lambda: made.append(1) or Model(), CPU)
    assert first is second
    assert made == [1]
    stats = pool.get_stats()
    assert (stats["models"], stats["constructed"], stats["hits"], stats["failed"]) == (1, 1, 1, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"family": "audio"},
        {"name": "swin"},
        {"hardware_preferences": {"device": "cuda:0"}},
        {"hardware_preferences": {"device": "cuda:1"}},
        {"dtype": "float16"},
    ],
)
def test_family_name_device_and_precision_identify_a_model(other: dict[str, Any]) -> None:
    pool = pool_of(FakeMachine(cuda=(1000, 1000)))
    same = {"family": "vision", "name": "vit", "constructor": Model, "hardware_preferences": CPU, "dtype": "float32"}
    first = pool.get_model(**same)
    assert pool.get_model(**{**same, **other}) is not first
    assert pool.get_model(**same) is first


def test_a_precision_has_one_spelling() -> None:
    pool = pool_of()
    model = pool.get_model("vision", "vit", Model, CPU, dtype="torch.float16")
    assert pool.get_model("vision", "vit", Model, CPU, dtype="float16") is model
    assert [entry["dtype"] for entry in pool.get_stats()["entries"]] == ["float16"]


def test_without_a_constructor_the_pool_only_looks_up() -> None:
    pool = pool_of()
    with pytest.raises(NotInPoolError, match=r"vision/vit is not in the pool \(cuda, .*cpu\), and no constructor"):
        pool.get_model("vision", "vit")
    model = pool.get_model("vision", "vit", Model, CPU)
    assert pool.get_model("vision", "vit") is model


# ── arguments ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("preferences", "message"),
    [
        ({"devcie": "cpu"}, "did you mean 'device'"),
        ({"device": "gpu"}, "'gpu' is not a hardware name"),
        ({"device": "cuda:x"}, "'cuda:x' is not a known device"),
        ({"device": "cpu:1"}, "'cpu:1' is not a known device"),
        ({"device": "cuda", "priority_list": ["cpu"]}, "contradict each other"),
        ({"device": "cuda:1", "preferred_index": 0}, "contradict each other"),
        ({"priority_list": "cuda"}, "not a list of hardware"),
        ({"priority_list": []}, "not a list of hardware"),
        ({"priority_list": ["cuda", "tpu"]}, "'tpu' is not a hardware name"),
        ({"priority_list": ["cuda"], "preferred_index": -1}, "not a valid GPU index"),
        ({"priority_list": ["cuda"], "preferred_index": True}, "not a valid GPU index"),
    ],
)
def test_invalid_preferences_are_refused_before_anything_is_constructed(preferences: dict[str, Any], message: str) -> None:
    pool = pool_of()
    with pytest.raises(ConfigError, match=message):
        pool.get_model("vision", "vit", Model, preferences)
    assert pool.get_stats()["models"] == pool.get_stats()["failed"] == 0


def test_all_mistakes_are_reported_together() -> None:
    wrong = {"device": "cuda", "priority_list": [], "preferred_index": -1, "index": 0}
    with pytest.raises(ConfigError) as told:
        pool_of().get_model("vision", "vit", Model, wrong)
    assert len(told.value.problems) == 4


@pytest.mark.parametrize("constructor", ["vit", lambda config, weights: (config, weights)])
def test_a_constructor_that_cannot_be_called_has_failed(constructor: Any) -> None:
    with pytest.raises(ModelStartError, match="factory_error: cpu: TypeError"):
        pool_of().get_model("vision", "vit", constructor, CPU)


def test_a_constructor_may_take_the_device() -> None:
    told = []

    def construct(device: str) -> Model:
        told.append(device)
        return Model()

    pool = pool_of(FakeMachine(cuda=(1000, 1000), others=("openvino",)))
    pool.get_model("vision", "a", construct, {"device": "cuda:1"})
    pool.get_model("vision", "b", construct, {"device": "openvino"})
    assert told == ["cuda:1", "openvino"]


# ── failing constructors ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failed_constructor_leaves_nothing_behind_and_the_next_request_retries() -> None:
    pool = pool_of()

    def broken() -> Model:
        raise ValueError("no such checkpoint")

    with pytest.raises(
        ModelStartError, match=r"vision/vit could not be started\nfactory_error: cpu: ValueError: no such checkpoint"
    ) as told:
        pool.get_model("vision", "vit", broken, CPU, memory_mb=100)
    assert isinstance(told.value.__cause__, ValueError)
    stats = pool.get_stats()
    assert (stats["models"], stats["failed"], stats["memory"]) == (0, 1, {})
    assert isinstance(pool.get_model("vision", "vit", Model, CPU), Model)


def test_a_failed_start_says_what_to_do() -> None:
    def broken() -> Model:
        raise MemoryError

    pool = pool_of()
    with pytest.raises(ModelStartError) as told:
        pool.get_model("vision", "vit", broken, CPU)
    assert told.value.error_type == "memory_pressure"
    assert "Use a smaller model of the same architecture." in told.value.recommendations
    assert "- Use a smaller model of the same architecture." in str(told.value)
    (record,) = pool.errors()
    assert record["model_name"] == "vit"
    assert record["component"] == "resource_pool"
    assert (record["hardware_type"], record["error_type"], record["severity"]) == ("cpu", "memory_pressure", "error")
    assert record["recommendations"] == list(told.value.recommendations)
    assert "MemoryError" in record["traceback"]


def test_an_unrecognized_failure_also_has_advice() -> None:
    def broken() -> Model:
        raise ValueError("nobody has ever seen this")

    pool = pool_of()
    with pytest.raises(ModelStartError) as told:
        pool.get_model("vision", "vit", broken, CPU)
    assert told.value.error_type == "unmatched"
    assert told.value.recommendations
    assert all(f"- {line}" in str(told.value) for line in told.value.recommendations)
    (record,) = pool.errors()
    assert record["recommendations"] == list(told.value.recommendations)


@pytest.mark.parametrize(("dtype", "advised"), [(None, True), ("float32", True), ("float16", False)])
def test_the_requested_precision_is_not_recommended(dtype: str | None, *, advised: bool) -> None:
    def broken() -> Model:
        raise MemoryError

    with pytest.raises(ModelStartError) as told:
        pool_of().get_model("vision", "vit", broken, CPU, dtype=dtype)
    assert any("float16" in line for line in told.value.recommendations) is advised


def test_a_constructor_that_returns_none_has_failed() -> None:
    with pytest.raises(ModelStartError, match="returned None instead of a model"):
        pool_of().get_model("vision", "vit", lambda: None, CPU)


def test_a_constructor_may_request_other_models() -> None:
    pool = pool_of()
    part = pool.get_model("vision", "whole", lambda: (pool.get_model("vision", "part", Model, CPU),), CPU)[0]
    assert pool.get_model("vision", "part", Model, CPU) is part


def test_a_constructor_that_requests_its_own_model_gets_an_error() -> None:
    pool = pool_of()

    def construct() -> Model:
        model: Model = pool.get_model("vision", "vit", Model, CPU)
        return model

    with pytest.raises(ModelStartError, match="NestedRequestError") as told:
        pool.get_model("vision", "vit", construct, CPU)
    assert isinstance(told.value.__cause__, NestedRequestError)


def test_an_interrupted_constructor_leaves_nothing_behind() -> None:
    pool = pool_of()

    def interrupted() -> Model:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.get_model("vision", "vit", interrupted, CPU, memory_mb=10)
    assert isinstance(pool.get_model("vision", "vit", Model, CPU), Model)
    assert used(pool) == 0


def test_memory_is_freed_before_a_constructor_is_given_up() -> None:
    pool = pool_of()
    idle = weakref.ref(pool.get_model("vision", "idle", Model, CPU, memory_mb=10))
    calls = []

    def construct() -> Model:
        calls.append(idle() is None)
        if len(calls) == 1:
            raise MemoryError
        return Model()

    assert isinstance(pool.get_model("vision", "vit", construct, CPU, memory_mb=10), Model)
    assert calls == [False, True]


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_least_recently_used_model_is_evicted_first() -> None:
    pool = pool_of(settings=PoolSettings(budget_mb={"host": 300}))
    for name in ("a", "b", "c"):
        pool.get_model("vision", name, Model, CPU, memory_mb=100)
    pool.get_model("vision", "a", Model, CPU)
    pool.get_model("vision", "d", Model, CPU, memory_mb=150)
    assert held(pool) == ["a", "d"]
    assert used(pool) == 250
    assert pool.get_stats()["evicted_for_memory"] == 2


def test_models_in_use_are_never_evicted() -> None:
    pool = pool_of(settings=PoolSettings(budget_mb={"host": 300}))
    mine = pool.get_model("vision", "mine", Model, CPU, memory_mb=200)
    pool.get_model("vision", "idle", Model, CPU, memory_mb=100)
    other = pool.get_model("vision", "other", Model, CPU, memory_mb=250)
    assert held(pool) == ["mine", "other"]
    assert used(pool) == 450  # models in use exceed the budget
    assert pool.get_model("vision", "mine", Model, CPU) is mine
    del mine, other
    pool.get_model("vision", "small", Model, CPU, memory_mb=50)
    assert used(pool) <= 300


def test_a_model_in_a_reference_cycle_is_not_in_use() -> None:
    pool = pool_of(settings=PoolSettings(budget_mb={"host": 100}))

    def cyclic() -> Model:
        model = Model()
        model.part = model
        return model

    pool.get_model("vision", "cyclic", cyclic, CPU, memory_mb=100)
    pool.get_model("vision", "next", Model, CPU, memory_mb=100)
    assert held(pool) == ["next"]
    assert pool.get_stats()["evicted_for_memory"] == 1


def test_models_in_reference_cycles_leave_one_by_one() -> None:
    pool = pool_of(settings=PoolSettings(budget_mb={"host": 300}))

    def cyclic() -> Model:
        model = Model()
        model.part = model
        return model

    for name in ("a", "b", "c", "d"):
        pool.get_model("vision", name, cyclic, CPU, memory_mb=100)
    assert held(pool) == ["b", "c", "d"]


def test_models_in_use_are_not_collected_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(settings=PoolSettings(budget_mb={"host": 1000}))
    used = [pool.get_model("vision", str(number), Model, CPU, memory_mb=100) for number in range(10)]
    collections: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append(1))
    pool.get_model("vision", "one more", Model, CPU, memory_mb=100)
    assert len(used) == 10
    assert len(collections) <= 4, "once for each time that room is made"


def test_a_model_may_ask_the_pool_while_settings_evict_it() -> None:
    pool = pool_of()

    class Asking(Model):
        def __del__(self) -> None:
            pool.get_stats()

    pool.get_model("vision", "asking", Asking, CPU, memory_mb=100)
    ended = threading.Thread(target=lambda: pool.configure(low_memory=True), daemon=True)
    ended.start()
    ended.join(timeout=30)
    assert not ended.is_alive()
    assert held(pool) == []


def test_an_object_without_weak_references_is_in_use_until_released() -> None:
    pool = pool_of(settings=PoolSettings(budget_mb={"host": 100}))
    pool.get_model("vision", "tuple", lambda: (1, 2), CPU, memory_mb=80)
    pool.get_model("vision", "other", Model, CPU, memory_mb=80)
    assert "tuple" in held(pool)
    assert pool.release("vision", "tuple")
    assert "tuple" not in held(pool)


def test_unknown_memory_does_not_count_as_0() -> None:
    pool = pool_of()
    _model = pool.get_model("vision", "unknown", Model, CPU)
    (entry,) = pool.get_stats()["entries"]
    assert entry["memory_mb"] is None
    assert pool.get_stats()["memory"]["host"]["unmeasured_models"] == 1


def test_garbage_collection_may_happen_at_any_time() -> None:
    pool = pool_of(settings=PoolSettings(low_memory=True))
    for number in range(50):
        model = pool.get_model("vision", str(number), Model, CPU, memory_mb=1)
        model.part = model
        del model
    gc.collect()
    assert held(pool) == []
    assert used(pool) == 0


# ── age ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unused_model_is_evicted_after_the_timeout() -> None:
    clock = Clock()
    pool = pool_of(settings=PoolSettings(timeout_minutes=10), clock=clock)
    pool.get_model("vision", "old", Model, CPU)
    mine = pool.get_model("vision", "mine", Model, CPU)
    clock.minutes += 9
    pool.get_model("vision", "young", Model, CPU)
    clock.minutes += 1
    pool.get_model("vision", "newest", Model, CPU)
    assert held(pool) == ["mine", "young", "newest"]
    assert pool.get_stats()["evicted_for_age"] == 1
    assert pool.get_model("vision", "mine", Model, CPU) is mine


def test_clean_up_on_request() -> None:
    clock = Clock()
    pool = pool_of(clock=clock)
    mine = pool.get_model("vision", "mine", Model, CPU)
    pool.get_model("vision", "idle", Model, CPU)
    assert pool.cleanup_unused_resources(max_age_minutes=5) == 0
    clock.minutes += 5
    assert pool.cleanup_unused_resources(max_age_minutes=5) == 1
    assert held(pool) == ["mine"]
    del mine
    assert pool.cleanup_unused_resources() == 0  # younger than the pool's timeout
    assert pool.cleanup_unused_resources(0) == 1
    with pytest.raises(ConfigError, match="is not a valid age"):
        pool.cleanup_unused_resources(-1)


# ── low memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_low_memory_mode_keeps_no_unused_models() -> None:
    pool = pool_of(settings=PoolSettings(low_memory=True))
    mine = pool.get_model("vision", "vit", Model, CPU, memory_mb=10)
    assert pool.get_model("vision", "vit", Model, CPU) is mine
    assert used(pool) == 10
    del mine
    assert held(pool) == []
    assert used(pool) == 0


def test_low_memory_mode_has_half_the_budget() -> None:
    budgets = []
    for low in (False, True):
        pool = pool_of(settings=PoolSettings(low_memory=low))
        _model = pool.get_model("vision", "vit", Model, CPU)
        budgets.append(pool.get_stats()["memory"]["host"]["budget_mb"])
    assert budgets[0] == 2 * budgets[1] > 0


# ── release and clear ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_released_model_is_no_longer_kept() -> None:
    pool = pool_of()
    gone = weakref.ref(pool.get_model("vision", "vit", Model, CPU))
    assert pool.release("vision", "vit")
    assert gone() is None
    assert not pool.release("vision", "vit")


def test_a_released_model_in_use_counts_until_its_last_user_ends() -> None:
    pool = pool_of()
    mine = pool.get_model("vision", "vit", Model, CPU, memory_mb=10)
    assert pool.release("vision", "vit")
    assert used(pool) == 10
    assert pool.get_model("vision", "vit", Model, CPU) is mine  # found again, and kept again
    pool.release("vision", "vit")
    del mine
    assert used(pool) == 0


def test_clear_releases_everything() -> None:
    pool = pool_of()
    mine = pool.get_model("vision", "mine", Model, CPU, memory_mb=10)
    pool.get_model("vision", "idle", Model, CPU, memory_mb=10)
    pool.clear()
    assert held(pool) == ["mine"]
    assert used(pool) == 10
    del mine
    assert held(pool) == []


# ── the pool of the process ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def no_pool_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without a global pool yet."""
    monkeypatch.setattr(pool_module, "_GLOBAL", [])
    yield
    if pool_module._GLOBAL:
        pool_module._GLOBAL[0].clear()


@pytest.mark.usefixtures("no_pool_yet")
def test_the_process_has_one_pool_whose_settings_are_read_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = get_global_resource_pool()
    monkeypatch.setenv("RESOURCE_POOL_LOW_MEMORY", "1")  # after the pool was created, before its first use
    assert pool.get_stats()["low_memory_mode"] is True
    monkeypatch.setenv("RESOURCE_POOL_LOW_MEMORY", "0")
    assert get_global_resource_pool() is pool
    assert pool.get_stats()["low_memory_mode"] is True  # read once


def test_the_pool_is_a_public_name() -> None:
    assert hwmatrix.ResourcePool is ResourcePool
    assert hwmatrix.get_global_resource_pool is get_global_resource_pool


@pytest.mark.parametrize(("word", "low"), [("1", True), ("true", True), (" ON ", True), ("", False), ("0", False), ("no", False)])
def test_low_memory_mode_from_the_environment(word: str, low: bool) -> None:  # noqa: FBT001 - the column of the table above
    assert PoolSettings.from_environment({"RESOURCE_POOL_LOW_MEMORY": word}).low_memory is low
    assert PoolSettings.from_environment({}).low_memory is False


@pytest.mark.parametrize("word", ["2", "maybe", "-1"])
def test_an_invalid_boolean_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"RESOURCE_POOL_LOW_MEMORY: .* is neither yes nor no \(use 1"):
        PoolSettings.from_environment({"RESOURCE_POOL_LOW_MEMORY": word})


@pytest.mark.parametrize("wrong", [{"timeout_minutes": 0}, {"timeout_minutes": float("nan")}, {"budget_mb": {"host": -1}}])
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not a positive number"):
        PoolSettings(**wrong)
