"""Generation with ExecuTorch: programs of prefill and decoding run the steps that the reference recorded."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("executorch")

from generation_faults import NEW, RULE, bundle_for, ended, random_model  # noqa: E402 - after the checks that its package is there

from hwmatrix.models.generation_export import GraphInput  # noqa: E402 - as above
from hwmatrix.records import Dtype  # noqa: E402 - as above
from hwmatrix.targets.executorch import generator, lowering, runtime, target  # noqa: E402 - as above

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def test_a_mask_leaves_something_of_the_scores_in_a8w8(shared_cache: Path) -> None:
    """Eager attention would not: its scores are rounded together with the lowest number of float32."""
    plan = dataclasses.replace(random_model("gpt2"), new_tokens=0)
    found = ended(plan, bundle_for(plan, shared_cache / "bundles"), "executorch", dtype=Dtype.A8W8, rewrite=True)
    assert found["verdict"] == "pass", found["error"]
    assert 1e-4 < found["facts"]["loss"] < 0.05, "0.18 with eager attention"


@pytest.fixture(scope="module")
def llama(shared_cache: Path) -> tuple[Any, Any, generator.Generator]:
    """A model with random weights, its bundle, and its programs, which are made once."""
    plan = random_model("llama")
    bundle = bundle_for(plan, shared_cache / "bundles")
    runtime.use_threads(1)
    return plan, bundle, generator.make(bundle)


@pytest.fixture
def llama_ended(llama: tuple[Any, Any, generator.Generator], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a cell of the model."""
    plan, bundle, made = llama
    monkeypatch.setattr(target, "make_generator", lambda _bundle: made)
    monkeypatch.setattr(runtime, "use_threads", lambda _number: None)  # the programs hold on to the threads that they were loaded with
    return lambda rule=None: ended(plan, bundle, "executorch", rule=rule)


@pytest.mark.long
def test_prompts_of_every_length_are_continued_with_the_cache(llama_ended: Any) -> None:
    found = llama_ended(RULE)
    facts = found["facts"]
    assert found["verdict"] == "pass", found["error"]
    assert facts["relative_error"] < 1e-5
    assert "prefill and decode" in facts["method"]
    assert "for at most 27 tokens" in facts["method"], "a prompt of 21, the longest, and six more"
    assert 0 < facts["on_target"] < 1
    assert "of the time" in facts["placement_detail"]
    assert min(facts["ttft_ms"], facts["tpot_ms"], *facts["itl_ms"], facts["cache_mb"]) > 0
    assert len(facts["itl_ms"]) == NEW - 1


@pytest.mark.long
def test_a_fault_of_the_cache_is_found_where_it_is(llama_ended: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = generator.Generator._step

    def swapped(made: Any, component: Any, given: Any) -> Any:
        others = [name.replace(".keys", ".values") if ".keys" in name else name.replace(".values", ".keys") for name in made._state]
        made._state = {name: made._state[other] for name, other in zip(made._state, others, strict=True)}
        return real(made, component, given)

    monkeypatch.setattr(generator.Generator, "_step", swapped)
    found = llama_ended()
    facts = found["facts"]
    assert (found["verdict"], found["error"]["type"]) == ("mismatch", "cache_mismatch")
    assert (facts["failing_prompt"], facts["failing_component"], facts["failing_step"]) == ("traced", "decode", 1)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "t5",  # an encoder, whose states stay the same while the cache grows
        "mixtral",  # a split along a dynamic first axis, which ExecuTorch's own check would make a constant
    ],
)
def test_other_models_are_continued_too(name: str, shared_cache: Path) -> None:
    plan = random_model(name)
    found = ended(plan, bundle_for(plan, shared_cache / "bundles"), "executorch")
    assert found["verdict"] == "pass", found["error"]
    assert found["facts"]["relative_error"] < 1e-5


def test_a_step_takes_names_and_constants_in_the_programs_order_and_skips_states_changed_in_place() -> None:
    given: list[Any] = []

    def run(values: Any) -> list[Any]:
        given.extend(values)
        return [torch.zeros(1), torch.ones(2), torch.full((1,), 3.0)]  # the state changed in place comes first

    results = torch.utils._pytree.tree_flatten({"logits": 0, "past": 0})[1]
    step = generator.Component(
        component="decode",
        inputs=(
            GraphInput(name="ids", own="ids", shape=(1, None), dtype="int64", state=False),
            GraphInput(name="past", own="past", shape=(1,), dtype="float32", state=True),
        ),
        order=(lowering.Argument(name="past"), 7, lowering.Argument(name="ids")),
        results=results,
        lowered=None,  # type: ignore[arg-type] # not used here
        program=SimpleNamespace(run=run),  # type: ignore[arg-type] # as above
    )
    past = torch.tensor([5.0])
    values, outputs = step.run({"ids": np.array([[1, 2]])}, {"past": past})
    assert values == given
    assert (given[0], given[1], given[2].tolist()) == (past, 7, [[1, 2]])
    assert {name: tensor.tolist() for name, tensor in outputs.items()} == {"logits": [1.0, 1.0], "past": [3.0]}
