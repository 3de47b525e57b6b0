"""A model under test, as generated tests see it: what it gives, what it refuses, and that a pool's fallback is no pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import UnavailableError, UnsupportedError
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.pool.pool import ResourcePool
from hwmatrix.records import Backend, Detection, Size
from hwmatrix.runner.place import Place
from hwmatrix.runner.under_test import ModelUnderTest, cache_folder, differences, model_under_test

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch
SPEC = load(Path(__file__).parents[2] / "matrix.yaml").spec


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> Path:
    return shared_cache / "bundles"


@pytest.fixture(scope="module")
def llava(cache: Path) -> Iterator[ModelUnderTest]:
    with model_under_test(model_plan("llava", SPEC, Size.TINY), Place(device="cpu"), pool=ResourcePool(), cache=cache) as model:
        yield model


def detector_of(*here: Backend) -> Any:
    class Detector:
        def detect(self) -> dict[str, Detection]:
            return {
                kind.value: Detection(
                    hardware_type=kind.value,
                    available=kind in here,
                    name=None,
                    features={},
                    reason=None if kind in here else "there is none",
                    detected_at="2026-01-02T03:04:05",
                )
                for kind in Backend
            }

    return Detector()


def test_samples_are_different_and_leave_special_tokens_where_they_are(llava: ModelUnderTest) -> None:
    import torch

    samples = llava.samples(3)
    assert 255 in llava.special_tokens
    for sample in samples:
        assert sample["input_ids"][0, :4].tolist() == [255] * 4
        assert bool((sample["attention_mask"] == 1).all())
    assert not torch.equal(samples[0]["input_ids"], samples[1]["input_ids"])
    assert not torch.equal(samples[1]["pixel_values"], samples[2]["pixel_values"])
    assert all(torch.equal(samples[0][name], tensor) for name, tensor in llava.inputs.items())


def test_one_token_is_replaced_by_another_ordinary_one(llava: ModelUnderTest) -> None:
    before, after = llava.inputs["input_ids"][0], llava.with_other_token(-1)["input_ids"][0]
    assert (before != after).nonzero().flatten().tolist() == [len(before) - 1]
    assert int(after[-1]) not in llava.special_tokens


def test_outputs_that_only_happen_to_be_as_long_as_the_text_have_no_token_axis(llava: ModelUnderTest) -> None:
    import torch

    length = llava.inputs["input_ids"].shape[1]
    outputs = {"logits": torch.zeros(1, length, 7), "pooler_output": torch.zeros(1, length), "start_logits": torch.zeros(1, length)}
    found = llava.at_tokens(outputs, slice(0, 2))
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"logits": (1, 2, 7), "start_logits": (1, 2)}


def test_differences_are_told_in_words() -> None:
    import torch

    expected = {"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(2), "d": torch.ones(2)}
    actual = {"a": torch.ones(2) * 1.1, "b": torch.ones(3), "c": torch.tensor([1.0, float("nan")]), "other": torch.ones(1)}
    assert differences(actual, expected, tolerance=0.01) == [
        "d is missing",
        "c: NaN or infinity",
        "other shape: b [3] instead of [2]",
        "a: relative L2 error 0.1 exceeds 0.01",
    ]
    assert differences(expected, expected, tolerance=0.0) == []


def test_a_model_that_the_pool_gave_to_other_hardware_is_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target says that CUDA is here, and the pool does not find it."""
    monkeypatch.setattr(Place, "check", lambda _self: "a GPU")
    pool = ResourcePool(detector=detector_of(Backend.CPU))
    opened = model_under_test(model_plan("bert", SPEC, Size.TINY), Place(device="cuda"), pool=pool, cache=cache)
    with pytest.raises(UnavailableError, match=r"ran on cpu; cuda:0 was expected \(cuda:0: unavailable, there is none;"), opened:
        pass


def test_a_model_that_a_device_refuses_is_a_failure_and_no_skip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hwmatrix.pool import loading as pool_loading

    right = pool_loading.move

    def refuses(model: Any, device: Any) -> Any:
        if device.hardware != Backend.CPU:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return right(model, device)

    monkeypatch.setattr(Place, "check", lambda _self: "a GPU")
    monkeypatch.setattr(pool_loading, "move", refuses)
    pool = ResourcePool(detector=detector_of(Backend.CPU, Backend.MPS))
    opened = model_under_test(model_plan("bert", SPEC, Size.TINY), Place(device="mps"), pool=pool, cache=cache)
    with pytest.raises(UnsupportedError, match="ran on cpu; mps was expected"), opened:
        pass


def test_the_pool_has_the_model_once_and_keeps_it_while_it_is_tested(cache: Path) -> None:
    pool = ResourcePool()
    plan, place = model_plan("bert", SPEC, Size.TINY), Place(device="cpu")
    with model_under_test(plan, place, pool=pool, cache=cache) as first:
        with model_under_test(plan, place, pool=pool, cache=cache) as second:
            assert first.module is second.module  # held by nobody else: what a test run remembers of a comparison would keep it
        assert pool.cleanup_unused_resources(max_age_minutes=0) == 0
        assert first.placement().on_target == 1
    assert pool.cleanup_unused_resources(max_age_minutes=0) == 1


def test_a_runtime_without_torch_runs_forward_passes_and_nothing_else(cache: Path) -> None:
    pytest.importorskip("onnxruntime")
    plan = model_plan("bert", SPEC, Size.TINY)
    with model_under_test(plan, Place(device="onnxruntime"), pool=ResourcePool(), cache=cache) as model:
        assert model.differences(model.run(), model.expected) == []
        assert model.differences(model.run(model.with_other_token(0)), model.expected) != []
        assert model.placement().on_target == 1
        assert not model.takes_other_shapes
        with pytest.raises(UnsupportedError, match="supports forward passes only"):
            model.generate(1, use_cache=False)


def test_the_cache_is_where_the_environment_says() -> None:
    assert cache_folder({"HWMATRIX_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}) == Path("/a/b")
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/hwmatrix")
    assert cache_folder({"HWMATRIX_CACHE": ""}).name == "hwmatrix"
