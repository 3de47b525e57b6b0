"""Tiny models that learn a task: what a bundle keeps of it, what a target's answers are worth, and what happens if nothing is learned."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch
from factory_plans import cell_plan, target_plan
from fake_target import outcome_of

from hwmatrix.models.build import build_model, load_model
from hwmatrix.models.bundle import bundle_key, find_or_build, verify
from hwmatrix.models.inputs import make_inputs
from hwmatrix.models.learning import tasks, train
from hwmatrix.models.learning.choice import task_of
from hwmatrix.records import Dtype, Family, ModelPlan, Settings, Size, Tolerance
from hwmatrix.runner import cell
from hwmatrix.runner.job import CellJob
from hwmatrix.targets.torch.cpu import TorchCpu

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.models.learning.quality import Quality

VIT = ModelPlan(
    name="vit",
    size=Size.TINY,
    family=Family.VISION,
    architecture="vit",
    model_class="ViTForImageClassification",
    trained=True,
    config={
        "image_size": 32,
        "patch_size": 8,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_labels": 8,
        "initializer_range": 0.1,
    },
)
GPT2 = dataclasses.replace(
    VIT,
    name="gpt2",
    family=Family.TEXT_GENERATION,
    architecture="gpt2",
    model_class="GPT2LMHeadModel",
    config={"vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.1},
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def on_the_cpu(bundle: Any, dtype: Dtype = Dtype.FLOAT32, change: Any = None) -> Quality:
    """How a cell on the CPU does the task of a bundle's model, after a change of its weights."""
    target = TorchCpu(settings=Settings(dtype=dtype, batch=1, sequence_length=16, threads=1), options={})
    target.load(bundle)
    if change is not None:
        with torch.no_grad():
            change(target._model)
    target.prepare(bundle.input_arrays())
    found, _ = cell._quality(cell._answers(lambda given: cell._fed(target, given), bundle, 64), bundle, 64)
    assert found is not None
    return found


def ended(bundle: Any, plan: ModelPlan) -> dict[str, Any]:
    """The last message of a cell on the CPU."""
    told: list[dict[str, Any]] = []
    job = CellJob(
        cell=cell_plan(),
        model=plan,
        target=dataclasses.replace(target_plan(), backend="cpu"),
        bundle=bundle.path,
        rule=None,
        tolerances={Dtype.FLOAT32: Tolerance(relative_error=1e-3, reason="a test")},
    )
    cell.execute(job, told.append)
    return outcome_of(told)


@pytest.mark.parametrize("plan", [VIT, GPT2], ids=lambda plan: plan.name)
def test_a_trained_bundle_has_held_out_examples_that_its_model_answers(plan: ModelPlan, cache: Path) -> None:
    bundle = find_or_build(plan, cache)
    training, held_out = bundle.training, bundle.held_out()
    assert training is not None
    assert training["accuracy"] >= 0.99
    assert held_out is not None
    assert len(held_out.labels) == 64
    assert all(len(array) == 64 for array in (*held_out.inputs.values(), *held_out.expected.values()))
    assert {name: list(array.shape[1:]) for name, array in held_out.inputs.items()} == {
        name: list(array.shape) for name, array in bundle.input_arrays().items()
    }
    found = on_the_cpu(bundle)
    assert found.value == found.reference
    assert found.value >= 60 / 64
    assert found.agreement == 1.0
    assert found.inputs == 64


def test_a_larger_batch_has_as_many_held_out_examples_in_fewer_batches(cache: Path) -> None:
    plan = dataclasses.replace(VIT, batch=16)
    bundle = find_or_build(plan, cache)
    held_out = bundle.held_out()
    assert held_out is not None
    assert held_out.labels.shape[:2] == (4, 16)
    facts = ended(bundle, plan)["facts"]
    assert (facts["quality_inputs"], facts["quality"]) == (64, facts["quality_reference"])


def test_training_from_one_seed_gives_one_bundle(cache: Path, tmp_path: Path) -> None:
    assert find_or_build(VIT, cache).digest == find_or_build(VIT, tmp_path).digest


def test_a_trained_recipe_and_a_random_one_are_two_bundles() -> None:
    assert bundle_key(VIT) != bundle_key(dataclasses.replace(VIT, trained=False))


def test_a_wrong_kernel_loses_the_task(cache: Path) -> None:
    def height_for_width(model: Any) -> None:
        kernel = model.vit.embeddings.patch_embeddings.projection.weight
        kernel.copy_(kernel.transpose(2, 3).clone())

    assert on_the_cpu(find_or_build(VIT, cache), change=height_for_width).value < 0.9


def test_half_precision_keeps_the_task(cache: Path) -> None:
    found = on_the_cpu(find_or_build(VIT, cache), Dtype.BFLOAT16)
    assert found.agreement >= 0.95
    assert found.kl is not None
    assert 0 < found.kl < 0.05


def test_what_a_cell_finds_out_passes_the_pipe(cache: Path) -> None:
    last = ended(find_or_build(VIT, cache), VIT)
    assert last["verdict"] == "pass"
    assert last["facts"]["quality"] >= 60 / 64
    assert last["facts"]["quality_detail"].startswith("task orientation, learned in ")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model_class": "ViTModel"}, "no task for ViTModel"),
        (
            {
                "model_class": "GPT2LMHeadModel",
                "architecture": "gpt2",
                "config": GPT2.config | {"vocab_size": 3, "bos_token_id": 0, "eos_token_id": 0},
            },
            "a vocabulary of 3 tokens",
        ),
    ],
    ids=["no task", "three tokens"],
)
def test_what_cannot_learn_keeps_random_weights_and_says_so(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    plan = dataclasses.replace(VIT, **changed)
    bundle = find_or_build(plan, tmp_path)
    assert bundle.training is not None
    assert reason in bundle.training["reason"]
    assert bundle.training["reason"].endswith("; its weights are random")
    assert bundle.held_out() is None
    same_weights(bundle, plan)
    facts = ended(bundle, plan)["facts"]
    assert facts["quality_detail"] == bundle.training["reason"]
    assert "quality" not in facts
    verify(bundle.path)


def same_weights(bundle: Any, plan: ModelPlan) -> None:
    random = build_model(plan).state_dict()
    kept = load_model(bundle.model_dir, bundle.model_class, Dtype.FLOAT32).state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in random.items())


def test_a_task_that_is_not_learned_in_its_budget_leaves_random_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(train, "_MOST_STEPS", 2)
    monkeypatch.setattr(train, "_EVERY", 2)
    bundle = find_or_build(VIT, tmp_path)
    assert bundle.training is not None
    assert "after 2 steps" in bundle.training["reason"]
    same_weights(bundle, VIT)


def test_training_that_diverges_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(VIT)
    monkeypatch.setattr(tasks.Orientation, "loss", lambda _self, outputs, _labels: outputs["logits"].sum() * float("nan"))
    with pytest.raises(tasks.CannotLearnError, match="diverged: its loss is nan after 1 steps"):
        train.train(model, task_of(model, VIT), 0)


def test_examples_look_like_the_inputs_that_are_made_up_otherwise() -> None:
    for plan in (VIT, GPT2):
        model = build_model(plan)
        drawn = task_of(model, plan).draw(plan.batch, torch.Generator().manual_seed(0)).inputs
        usual = make_inputs(model, plan)
        assert {name: (t.shape, t.dtype) for name, t in drawn.items()} == {name: (t.shape, t.dtype) for name, t in usual.items()}
