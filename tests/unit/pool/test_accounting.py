"""The pool's accounts under any sequence of requests: hypothesis generates the sequences, and an independent ledger checks each step."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from pool_machines import Clock, FakeMachine, Model

from hwmatrix.pool.errors import ModelStartError
from hwmatrix.pool.pool import ResourcePool
from hwmatrix.pool.settings import PoolSettings

BUDGETS = {"host": 100.0, "cuda:0": 60.0, "cuda:1": 40.0}
TIMEOUT_MINUTES = 10.0
CUDA_MEMORY = "CUDA out of memory. Tried to allocate 22.00 MiB."

NAMES = st.sampled_from(["a", "b", "c", "d"])
DEVICES = st.sampled_from(["cpu", "cuda", "cuda:0", "cuda:1", "auto", "mps"])
SIZES = st.sampled_from([5.0, 20.0, 35.0, 50.0, 70.0, 120.0])
KINDS = st.sampled_from(["good", "good", "good", "cyclic", "full gpu"])


class Ledger(RuleBasedStateMachine):
    """Records constructed models with their sizes. The interpreter says which of them are alive."""

    used = Bundle("used")

    @initialize(low_memory=st.booleans())
    def begin(self, low_memory: bool) -> None:  # noqa: FBT001 - hypothesis passes it
        gc.disable()  # automatic garbage collection would make examples irreproducible
        gc.freeze()  # the pool collects at nearly every step, and need not traverse older objects each time
        self.clock = Clock()
        self.low_memory = low_memory
        self.pool = ResourcePool(
            PoolSettings(low_memory=low_memory, timeout_minutes=TIMEOUT_MINUTES, budget_mb=BUDGETS),
            machine=FakeMachine(cuda=(100.0, 100.0)),
            clock=self.clock,
        )
        self.made: list[tuple[weakref.ref[Model], float]] = []
        self.mine: dict[int, Model] = {}

    def constructor(self, size: float, kind: str) -> Any:
        def construct() -> Model:
            model = Model(refuses={f"cuda:{index}": RuntimeError(CUDA_MEMORY) for index in (0, 1)} if kind == "full gpu" else None)
            model.part = model if kind == "cyclic" else None
            self.made.append((weakref.ref(model), size))
            return model

        return construct

    @rule(target=used, name=NAMES, device=DEVICES, size=SIZES, kind=KINDS, keep=st.booleans())
    def ask(self, name: str, device: str, size: float, kind: str, keep: bool) -> Any:  # noqa: FBT001 - hypothesis passes it
        model = self.pool.get_model("vision", name, self.constructor(size, kind), {"device": device}, memory_mb=size)
        assert isinstance(model, Model)
        assert any(seen() is model for seen, _ in self.made)
        if not keep:
            return multiple()
        self.mine[id(model)] = model
        return id(model)

    @rule(name=NAMES, device=DEVICES)
    def fail(self, name: str, device: str) -> None:
        def construct() -> Model:
            raise ValueError("on purpose")

        with contextlib.suppress(ModelStartError):  # it may already be in the pool
            self.pool.get_model("vision", name, construct, {"device": device}, memory_mb=10.0)

    @rule(model=consumes(used))
    def stop_using(self, model: int) -> None:
        self.mine.pop(model, None)

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        self.pool.release("vision", name)

    @rule()
    def clear(self) -> None:
        self.pool.clear()

    @rule(minutes=st.sampled_from([0.0, 5.0, 20.0]))
    def clean_up(self, minutes: float) -> None:
        self.pool.cleanup_unused_resources(minutes)

    @rule(minutes=st.sampled_from([1.0, 6.0, 30.0]))
    def wait(self, minutes: float) -> None:
        self.clock.minutes += minutes

    @rule()
    def the_timeout_evicts_everything_unused(self) -> None:
        self.clock.minutes += TIMEOUT_MINUTES
        self.pool.cleanup_unused_resources()
        assert all(id(seen()) in self.mine for seen, _ in self.made if seen() is not None)

    @invariant()
    def the_pool_s_total_is_the_sum_of_its_entries_and_of_living_models(self) -> None:
        stats = self.pool.get_stats()
        entries = stats["entries"]
        for memory, facts in stats["memory"].items():
            assert facts["used_mb"] == sum(entry["memory_mb"] for entry in entries if entry["memory"] == memory)
            assert facts["budget_mb"] == BUDGETS[memory]
        alive = [size for seen, size in self.made if seen() is not None]
        assert sum(entry["memory_mb"] for entry in entries) <= sum(alive)
        # Everything in use is in the accounts. Only cyclic garbage may be alive without being in the pool.
        in_use = {id(model): size for model in self.mine.values() for seen, size in self.made if seen() is model}
        assert sum(entry["memory_mb"] for entry in entries) >= sum(in_use.values())

    @invariant()
    def only_models_in_use_can_exceed_a_budget(self) -> None:
        for memory, budget in BUDGETS.items():
            there = [entry for entry in self.pool._cache.entries() if memory in entry.shares]
            if sum(entry.shares[memory] for entry in there) > budget:
                assert all(id(entry.model) in self.mine or entry.model.part is entry.model for entry in there)

    @invariant()
    def in_low_memory_mode_only_models_in_use_are_kept(self) -> None:
        if self.low_memory:
            assert all(id(entry.model) in self.mine or entry.model.part is entry.model for entry in self.pool._cache.entries())

    @invariant()
    def a_gpu_never_gets_more_than_its_budget(self) -> None:
        for memory in ("cuda:0", "cuda:1"):
            assert self.pool._cache.taken_mb(memory) <= BUDGETS[memory]

    def teardown(self) -> None:
        gc.unfreeze()
        gc.enable()
        if hasattr(self, "pool"):
            self.mine.clear()
            self.pool.cleanup_unused_resources(0)
            assert self.pool.get_stats()["models"] == 0


TestLedger = Ledger.TestCase
TestLedger.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
