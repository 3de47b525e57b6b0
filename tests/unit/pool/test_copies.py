"""Using facts about existing copies before a construction, and one model on several GPUs. Modules and accelerate are fake."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from pool_machines import FakeMachine, pool_of

from hwmatrix.pool.settings import PoolSettings
from hwmatrix.records import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.pool.pool import ResourcePool

MIB = 2**20
CUDA_MEMORY = "CUDA out of memory. Tried to allocate 22.00 MiB."
LIST = {"priority_list": ["cuda", "openvino", "cpu"]}


class Tensor:
    """The parts of a tensor that the pool uses."""

    device = types.SimpleNamespace(type="cpu")

    def __init__(self, mb: float) -> None:
        self.nbytes = int(mb * MIB)

    def untyped_storage(self) -> Any:
        return types.SimpleNamespace(data_ptr=lambda: id(self), nbytes=lambda: self.nbytes)


class Module:
    """A fake PyTorch module with layers of given sizes in MiB."""

    _no_split_modules = ("Block",)

    def __init__(self, *layers: float) -> None:
        self.tensors = {f"layer.{index}.weight": Tensor(mb) for index, mb in enumerate(layers)}
        self.moves: list[str] = []

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        return list(self.tensors.items())

    def named_buffers(self) -> list[tuple[str, Tensor]]:
        return []

    def parameters(self) -> list[Tensor]:
        return list(self.tensors.values())

    def buffers(self) -> list[Tensor]:
        return []

    def to(self, device: str) -> Module:
        self.moves.append(device)
        return self


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = types.SimpleNamespace(is_available=lambda: False)
    fake = types.SimpleNamespace(nn=types.SimpleNamespace(Module=Module), cuda=gpus, mps=gpus)
    monkeypatch.setitem(sys.modules, "torch", fake)


class Constructor:
    """Constructs modules and counts them."""

    def __init__(self, *layers: float) -> None:
        self.layers = layers
        self.calls = 0

    def __call__(self) -> Module:
        self.calls += 1
        return Module(*self.layers)


def where(pool: ResourcePool) -> list[str]:
    return [entry["device"] for entry in pool.get_stats()["entries"]]


# ── copies ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("preferences", [LIST, {"priority_list": ["openvino"]}, {"device": "auto"}, None])
def test_a_module_with_a_copy_is_not_constructed_for_hardware_without_pytorch(preferences: dict[str, Any] | None) -> None:
    pool, construct = pool_of(FakeMachine(others=("openvino",))), Constructor(10)
    first = pool.get_model("vision", "vit", construct, {"device": "cpu"})
    assert pool.get_model("vision", "vit", construct, preferences) is first
    assert construct.calls == 1
    report = pool.fallbacks[-1]
    assert (report.actual, [tried.status for tried in report.attempts if tried.attempt.hardware == "openvino"]) == (
        "cpu",
        [Status.UNSUPPORTED],
    )
    assert "PyTorch does not support openvino" in report.sentence()


def test_a_constructor_that_takes_or_is_for_the_device_is_called() -> None:
    def construct(device: str) -> Any:
        return types.SimpleNamespace(compiled_for=device)

    pool = pool_of(FakeMachine(others=("openvino",)))
    pool.get_model("vision", "vit", Constructor(10), {"device": "cpu"})
    assert pool.get_model("vision", "vit", construct, LIST).compiled_for == "openvino"

    pool.clear()
    kept = pool.get_model("vision", "vit", Constructor(10), {"device": "cpu"})
    assert pool.get_model("vision", "vit", lambda: types.SimpleNamespace(compiled_for="openvino"), {"device": "openvino"}) is not kept


def test_copies_of_other_models_families_and_precisions_do_not_count() -> None:
    pool = pool_of(FakeMachine(others=("openvino",)))
    pool.get_model("vision", "vit", Constructor(10), {"device": "cpu"})
    for family, name, dtype in (("vision", "swin", None), ("audio", "vit", None), ("vision", "vit", "float16")):
        pool.get_model(family, name, types.SimpleNamespace, LIST, dtype=dtype)
    assert where(pool) == ["cpu", "openvino", "openvino", "openvino"]


def test_a_module_whose_copy_is_too_large_for_the_gpu_is_not_constructed_for_it() -> None:
    pool, construct = pool_of(FakeMachine(cuda=(100,))), Constructor(60, 60)
    first = pool.get_model("vision", "vit", construct, {"device": "cpu"})
    assert pool.get_model("vision", "vit", construct, {"device": "cuda"}) is first
    assert construct.calls == 1
    assert "it needs 120 MiB of cuda:0, and 0 MiB of the budget of 80 MiB are in use" in pool.fallbacks[-1].sentence()


# ── one model on several GPUs ───────────────────────────────────────────────────────────────────────────────────────────────────


class Accelerate(types.ModuleType):
    """Assigns layers to the first GPU with room, and the rest to the disk, like ``infer_auto_device_map``."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__("accelerate")
        self.__spec__ = importlib.machinery.ModuleSpec("accelerate", None)
        self.error = error
        self.asked: dict[str, Any] = {}
        self.dispatched: list[dict[str, int]] = []

    def infer_auto_device_map(self, module: Module, *, max_memory: dict[int, int], **asked: Any) -> dict[str, int | str]:
        self.asked = asked
        left, found = dict(max_memory), dict[str, int | str]()
        for name, tensor in module.named_parameters():
            place = next((index for index, room in left.items() if tensor.nbytes <= room), None)
            found[name.removesuffix(".weight")] = "disk" if place is None else place
            if place is not None:
                left[place] -= tensor.nbytes
        return found

    def dispatch_model(self, module: Module, *, device_map: dict[str, int]) -> Module:
        if self.error is not None:
            raise self.error
        self.dispatched.append(device_map)
        return module


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Accelerate]:
    def install(error: Exception | None = None) -> Accelerate:
        fake = Accelerate(error)
        monkeypatch.setitem(sys.modules, "accelerate", fake)
        return fake

    return install


def test_a_model_that_fits_no_gpu_alone_is_split_over_several(accelerate: Callable[..., Accelerate]) -> None:
    library, pool = accelerate(), pool_of(FakeMachine(cuda=(100, 200)))  # budgets of 80 and 160 MiB
    model = pool.get_model("text_generation", "large", Constructor(60, 70, 70), {"device": "cuda"})
    assert library.dispatched == [{"layer.0": 0, "layer.1": 1, "layer.2": 1}]
    assert library.asked == {"no_split_module_classes": ["Block"]}
    assert model.moves == []
    assert where(pool) == ["cuda"]
    memory = pool.get_stats()["memory"]
    assert {place: (facts["used_mb"], facts["reserved_mb"]) for place, facts in memory.items()} == {"cuda:0": (60, 0), "cuda:1": (140, 0)}
    assert pool.fallbacks == ()
    assert pool.get_model("text_generation", "large", None, {"priority_list": ["cuda"]}) is model


def test_a_split_model_is_evicted_as_a_whole_and_frees_memory_on_each_gpu(accelerate: Callable[..., Accelerate]) -> None:
    accelerate()
    pool = pool_of(FakeMachine(cuda=(100, 100)))
    pool.get_model("vision", "in the way", Constructor(30), {"device": "cuda:1"})
    pool.get_model("text_generation", "large", Constructor(70, 70), {"device": "cuda"})
    assert where(pool) == ["cuda"]
    assert pool.get_stats()["evicted_for_memory"] == 1
    pool.get_model("vision", "next", Constructor(30), {"device": "cuda:1"})
    assert where(pool) == ["cuda:1"]
    assert pool.get_stats()["memory"].keys() == {"cuda:1"}


@pytest.mark.parametrize("preferences", [{"device": "cuda:0"}, {"device": "cuda", "preferred_index": 0}])
def test_a_model_is_not_split_if_one_gpu_is_requested(accelerate: Callable[..., Accelerate], preferences: dict[str, Any]) -> None:
    library, pool = accelerate(), pool_of(FakeMachine(cuda=(100, 100)))
    pool.get_model("text_generation", "large", Constructor(70, 70), preferences)
    assert (library.dispatched, where(pool)) == ([], ["cpu"])


def test_a_model_that_fits_on_one_gpu_is_not_split(accelerate: Callable[..., Accelerate]) -> None:
    library, pool = accelerate(), pool_of(FakeMachine(cuda=(100, 100)))
    pool.get_model("text_generation", "small", Constructor(35, 35), {"device": "cuda"})
    assert (library.dispatched, where(pool)) == ([], ["cuda:0"])


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ((90, 50), "2 GPUs together have no room for its parts"),  # one part is larger than each GPU
        ((100, 100), "it needs 200 MiB of cuda:0"),  # more than both budgets
    ],
)
def test_a_model_too_large_for_all_gpus_together_goes_to_the_cpu(
    accelerate: Callable[..., Accelerate], layers: tuple[float, ...], told: str
) -> None:
    library, pool = accelerate(), pool_of(FakeMachine(cuda=(100, 100)))
    construct = Constructor(*layers)
    pool.get_model("text_generation", "large", construct, {"device": "cuda"})
    assert (library.dispatched, where(pool), construct.calls) == ([], ["cpu"], 1)
    assert told in pool.fallbacks[-1].sentence()


def test_without_accelerate_the_report_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwmatrix.pool.loading.can_split", lambda: False)
    pool = pool_of(FakeMachine(cuda=(100, 100)))
    pool.get_model("text_generation", "large", Constructor(70, 70), {"device": "cuda"})
    assert where(pool) == ["cpu"]
    assert "accelerate, which splits a model over 2 GPUs, is not installed" in pool.fallbacks[-1].sentence()


def test_after_a_failed_split_the_model_is_constructed_again_for_the_cpu(accelerate: Callable[..., Accelerate]) -> None:
    accelerate(RuntimeError(CUDA_MEMORY))
    pool, construct = pool_of(FakeMachine(cuda=(100, 100))), Constructor(70, 70)
    model = pool.get_model("text_generation", "large", construct, {"device": "cuda"})
    assert (where(pool), construct.calls, model.moves) == (["cpu"], 2, ["cpu"])
    assert pool.get_stats()["memory"]["host"] == {"used_mb": 140, "reserved_mb": 0, "budget_mb": 8000, "unmeasured_models": 0}


def test_memory_used_by_other_programs_counts(accelerate: Callable[..., Accelerate]) -> None:
    library = accelerate()
    machine = FakeMachine(cuda=(100, 100))
    machine.used[0] = 95
    pool = pool_of(machine, PoolSettings(memory_limit_percent=100))
    pool.get_model("text_generation", "large", Constructor(50, 50), {"device": "cuda"})
    assert (library.dispatched, where(pool)) == ([], ["cpu"])
