"""The resource pool with real PyTorch modules; on a GPU, too, where there is one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
import transformers

from hwmatrix.knowledge.resolving import torch_absences
from hwmatrix.pool.devices import Gpu, Machine
from hwmatrix.pool.errors import ModelStartError
from hwmatrix.pool.placing import tensor_mb
from hwmatrix.pool.pool import ResourcePool
from hwmatrix.pool.settings import PoolSettings
from hwmatrix.records import Detection, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.torch

HARNESS = Path(__file__).parents[2] / "harness"
CPU = {"device": "cpu"}
WITH_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA GPU on this machine")
FIRST_USE = """
import os
from hwmatrix import get_global_resource_pool
pool = get_global_resource_pool()
os.environ["RESOURCE_POOL_LOW_MEMORY"] = "1"
import sys
assert "torch" not in sys.modules
print(pool.get_stats()["low_memory_mode"], pool is get_global_resource_pool())
"""


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64
    )
    return transformers.BertForMaskedLM(config).eval()


def size_mb(module: Any) -> float:
    return sum(tensor_mb(module, "cuda").values())


def run(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = model(torch.zeros(1, 8, dtype=torch.long, device=next(model.parameters()).device)).logits
    return result


class Pretended(Machine):
    """A machine whose detector speaks of GPUs."""

    def __init__(self, count: int) -> None:
        self._count = count
        super().__init__(self)

    def detect(self) -> dict[str, Detection]:
        """CUDA is here, it says."""
        details: Any = {"name": "a GPU", "features": {}, "reason": None, "detected_at": "2026-01-01"}
        return {"cuda": Detection(hardware_type="cuda", available=True, **details)}

    def gpus(self, hardware: str) -> tuple[Gpu, ...]:
        """As many as it was told."""
        assert hardware == "cuda"
        return tuple(Gpu(index=index, total_mb=1000.0, free_mb=500.0) for index in range(self._count))


# ── accounts ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_module_takes_its_parameters_and_buffers() -> None:
    module = torch.nn.Linear(1024, 1024)
    module.register_buffer("table", torch.zeros(512, 1024))
    assert size_mb(module) == (1024 * 1024 + 1024 + 512 * 1024) * 4 / 2**20
    assert size_mb(module.half()) == (1024 * 1024 + 1024 + 512 * 1024) * 2 / 2**20


def test_tied_weights_count_once() -> None:
    embedding, head = torch.nn.Embedding(1000, 256), torch.nn.Linear(256, 1000, bias=False)
    apart = size_mb(torch.nn.ModuleList([embedding, head]))
    head.weight = embedding.weight
    assert size_mb(torch.nn.ModuleList([embedding, head])) == apart / 2
    view = torch.nn.Module()
    view.register_buffer("whole", torch.zeros(1000))
    view.register_buffer("part", view.whole[:500])
    assert size_mb(view) == 4000 / 2**20


def test_a_sparse_tensor_counts_its_values() -> None:
    module = torch.nn.Module()
    module.register_buffer("sparse", torch.eye(1024).to_sparse())
    assert size_mb(module) == 1024 * 4 / 2**20


def test_what_has_no_memory_takes_none() -> None:
    assert size_mb(torch.nn.Linear(1024, 1024, device="meta")) == 0


def test_the_pool_counts_a_real_model_whatever_the_caller_says() -> None:
    pool = ResourcePool()
    model = pool.get_model("embedding", "bert", bert, CPU, memory_mb=5000)
    (entry,) = pool.get_stats()["entries"]
    expected = sum({p.data_ptr(): p.numel() * 4 for p in model.parameters()}.values()) + sum(b.nbytes for b in model.buffers())
    assert entry["memory_mb"] == pytest.approx(expected / 2**20)
    assert run(model).shape == (1, 8, 99)


def test_a_model_that_was_used_goes_when_room_is_needed() -> None:
    pool = ResourcePool(PoolSettings(budget_mb={"host": 1.5 * size_mb(bert())}))
    gone = weakref.ref(pool.get_model("embedding", "first", bert, CPU))
    run(gone())
    kept = pool.get_model("embedding", "second", bert, CPU)
    assert gone() is None
    assert [entry["name"] for entry in pool.get_stats()["entries"]] == ["second"]
    assert run(kept).isfinite().all()


def test_a_model_in_use_is_kept_although_it_is_too_large() -> None:
    pool = ResourcePool(PoolSettings(budget_mb={"host": 0.01}))
    first, second = pool.get_model("embedding", "first", bert, CPU), pool.get_model("embedding", "second", bert, CPU)
    assert pool.get_model("embedding", "first", bert, CPU) is first
    del first, second
    assert pool.get_stats()["models"] == 0  # what exceeds the budget goes with its last user


def test_threads_share_one_model() -> None:
    pool, made, start = ResourcePool(), [], threading.Barrier(8)

    def ask() -> Any:
        start.wait(30)
        model = pool.get_model("embedding", "bert", lambda: made.append(1) or bert(), CPU)
        return model, run(model)

    with ThreadPoolExecutor(8) as threads:
        results = [each.result(120) for each in [threads.submit(ask) for _ in range(8)]]
    assert made == [1]
    assert all(model is results[0][0] and torch.equal(logits, results[0][1]) for model, logits in results)


# ── devices ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(torch.version.cuda is not None or torch.version.hip is not None, reason="this PyTorch is built for GPUs")
def test_a_pytorch_that_is_not_built_for_the_gpu_falls_back_to_the_cpu() -> None:
    pool = ResourcePool(machine=Pretended(2))
    model = pool.get_model("embedding", "bert", bert, {"device": "cuda:1"})
    assert next(model.parameters()).device.type == "cpu"
    (report,) = pool.fallbacks
    assert (report.expected, report.actual) == ("cuda:1", "cpu")
    assert report.attempts[0].status is Status.UNAVAILABLE
    assert "Torch not compiled with CUDA enabled" in str(report.attempts[0].reason)
    assert run(model).isfinite().all()


def test_a_model_that_its_constructor_spread_over_devices_stays_there() -> None:
    """accelerate records in ``hf_device_map`` what it did for ``device_map``."""

    def spread() -> Any:
        model = bert()
        model.hf_device_map = {"": "cpu"}
        return model

    pool = ResourcePool(machine=Pretended(2))
    model = pool.get_model("embedding", "bert", spread, {"device": "cuda"})
    assert next(model.parameters()).device.type == "cpu"
    assert pool.fallbacks == ()
    memory = pool.get_stats()["memory"]
    assert {place: facts["used_mb"] for place, facts in memory.items()} == {"host": size_mb(model)}  # where the weights really are


def test_weights_without_data_cannot_be_moved_and_the_error_says_so() -> None:
    pool = ResourcePool()
    with pytest.raises(ModelStartError, match="Cannot copy out of meta tensor") as told:
        pool.get_model("embedding", "meta", lambda: torch.nn.Linear(4, 4, device="meta"), CPU)
    assert isinstance(told.value.__cause__, NotImplementedError)
    assert pool.get_stats()["models"] == 0


def test_the_machine_itself() -> None:
    machine = Machine()
    assert len(machine.gpus("cuda")) == torch.cuda.device_count()
    assert 0 < (machine.total_mb("host") or 0) <= psutil.virtual_memory().total / 2**20
    assert machine.absence("cpu") is None
    assert (machine.absence("openvino") is None) == (importlib.util.find_spec("openvino") is not None)


def test_pytorch_is_asked_where_detection_is_missing() -> None:
    reasons = torch_absences()
    assert reasons["cpu"] is None
    assert (reasons["cuda"] is None) == (torch.cuda.is_available() and torch.version.cuda is not None)
    assert (reasons["mps"] is None) == torch.backends.mps.is_available()


def test_the_pool_of_the_process_needs_no_pytorch_and_reads_its_settings_when_it_is_first_used() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RESOURCE_POOL_LOW_MEMORY"}
    command = [sys.executable, "-W", "error", "-c", FIRST_USE]
    done = subprocess.run(command, env={**environment, "PYTHONPATH": str(HARNESS)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr


# ── on a GPU ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_gpu() -> Iterator[None]:
    """PyTorch may use a GiB of the GPU, and its allocator refuses more as it would on a GPU of that size."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.mem_get_info()[1])
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def blocks(number: int) -> Callable[[], Any]:
    """A module of so many blocks of 100 MiB."""

    def construct() -> Any:
        module = torch.nn.Module()
        for block in range(number):
            module.register_buffer(f"block_{block}", torch.zeros(100 * 2**20, dtype=torch.uint8))
        return module

    return construct


@WITH_GPU
def test_a_model_on_the_gpu() -> None:
    pool = ResourcePool()
    before = torch.cuda.memory_allocated()
    model = pool.get_model("embedding", "bert", bert, {"device": "cuda:0"})
    assert next(model.parameters()).device == torch.device("cuda", 0)
    assert run(model).isfinite().all()
    (entry,) = pool.get_stats()["entries"]
    assert (entry["device"], entry["memory"]) == ("cuda:0", "cuda:0")
    assert torch.cuda.memory_allocated() - before >= entry["memory_mb"] * 2**20
    facts = pool.get_stats()["memory"]["cuda:0"]
    assert facts["budget_mb"] == pytest.approx(0.8 * torch.cuda.mem_get_info()[1] / 2**20, rel=0.05)
    del model
    assert pool.cleanup_unused_resources(0) == 1
    assert pool.get_stats()["models"] == 0


@WITH_GPU
@pytest.mark.usefixtures("small_gpu")
def test_a_model_that_does_not_fit_on_the_gpu_runs_on_the_cpu_and_leaves_nothing_there() -> None:
    pool, before = ResourcePool(), torch.cuda.memory_allocated()
    model = pool.get_model("embedding", "large", blocks(15), {"device": "cuda:0"})
    assert {buffer.device.type for buffer in model.buffers()} == {"cpu"}
    (report,) = pool.fallbacks
    assert [(tried.attempt.hardware, tried.status) for tried in report.attempts] == [("cuda:0", Status.OOM), ("cpu", Status.PASS)]
    assert report.attempts[0].error_type == "memory_pressure"
    assert torch.cuda.memory_allocated() == before
    assert pool.get_stats()["memory"].keys() == {"host"}


@WITH_GPU
@pytest.mark.usefixtures("small_gpu")
def test_unused_models_on_the_gpu_make_room() -> None:
    pool = ResourcePool()
    pool.get_model("embedding", "idle", blocks(6), {"device": "cuda:0"})
    model = pool.get_model("embedding", "wanted", blocks(8), {"device": "cuda:0"})
    assert {buffer.device.type for buffer in model.buffers()} == {"cuda"}
    assert [entry["name"] for entry in pool.get_stats()["entries"]] == ["wanted"]
    assert pool.fallbacks == ()
