from __future__ import annotations

import logging
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from pool_machines import FakeMachine, Model, detection, pool_of

from hwmatrix.errors import UnavailableError, UnsupportedError
from hwmatrix.pool import devices as pool_devices
from hwmatrix.pool.devices import Device, Gpu, Machine, device_of
from hwmatrix.pool.errors import ModelStartError
from hwmatrix.pool.placing import give_back, move
from hwmatrix.pool.settings import PoolSettings
from hwmatrix.records import Backend, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.pool.pool import ResourcePool

CUDA_MEMORY = "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB is free."
NOT_COMPILED = AssertionError("Torch not compiled with CUDA enabled")


def where(pool: ResourcePool) -> list[tuple[str, str]]:
    return [(entry["name"], entry["device"]) for entry in pool.get_stats()["entries"]]


def refusing(device: str, error: Exception) -> Any:
    return lambda: Model(refuses={device: error})


# ── which device ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("preferences", "expected"),
    [
        ({"device": "cuda"}, "cuda:0"),
        ({"device": "cuda:1"}, "cuda:1"),
        ({"device": "cuda", "preferred_index": 1}, "cuda:1"),
        ({"priority_list": ["cuda", "cpu"], "preferred_index": 1}, "cuda:1"),
        ({"priority_list": ["cuda", "cpu"], "preferred_index": 0}, "cuda:0"),
        ({"priority_list": ["cuda", "openvino", "cpu"], "preferred_index": 5}, "cuda:0"),
        ({"priority_list": ["mps", "rocm", "cpu"]}, "cpu"),
        ({"priority_list": ["rocm"]}, "cpu"),
        ({"device": "auto"}, "cuda:0"),
        (None, "cuda:0"),
        ({"device": "webgpu"}, "cpu"),
    ],
)
def test_the_first_available_preferred_hardware_is_used(preferences: Mapping[str, Any] | None, expected: str) -> None:
    pool = pool_of(FakeMachine(cuda=(2000, 1000)))
    model = pool.get_model("vision", "vit", Model, preferences)
    assert where(pool) == [("vit", expected)]
    assert model.moves == [expected]


def test_without_a_preference_the_family_decides() -> None:
    machine = FakeMachine(others=("openvino", "mps"))
    pool = pool_of(machine)
    for family in ("vision", "audio", "text_generation", "something else", None):
        pool.get_model(family, "a model", lambda: (1,))
    assert [entry["device"] for entry in pool.get_stats()["entries"]] == ["mps", "openvino", "mps", "mps", "mps"]


def test_a_request_for_the_cpu_detects_no_other_hardware() -> None:
    machine = FakeMachine()
    pool_of(machine).get_model("vision", "vit", Model, {"device": "cpu"})
    assert machine.asked == []


def test_for_an_existing_model_nothing_is_detected_again() -> None:
    machine = FakeMachine(cuda=(1000,))
    pool = pool_of(machine)
    for preferences in ({"device": "cuda"}, {"device": "cuda:0"}):
        pool.get_model("vision", "vit", Model, preferences)
        asked = len(machine.asked)
        pool.get_model("vision", "vit", Model, preferences)
        assert len(machine.asked) == asked


@pytest.mark.parametrize(
    ("used", "expected"), [({}, "cuda:0"), ({0: 500}, "cuda:1"), ({0: 500, 1: 900}, "cuda:2"), ({1: 1, 2: 1}, "cuda:0")]
)
def test_the_gpu_with_the_most_free_memory_is_used(used: dict[int, float], expected: str) -> None:
    machine = FakeMachine(cuda=(1000, 1000, 1000))
    machine.used = used
    pool = pool_of(machine)
    pool.get_model("vision", "vit", Model, {"device": "cuda"})
    assert where(pool) == [("vit", expected)]


def test_without_driver_data_the_gpu_least_used_by_the_pool_is_used() -> None:
    pool = pool_of(FakeMachine(cuda=(None, None)))
    models = [pool.get_model("vision", str(n), Model, {"device": "cuda"}, memory_mb=size) for n, size in enumerate((30, 10, 10, 20))]
    assert len(models) == 4
    assert where(pool) == [("0", "cuda:0"), ("1", "cuda:1"), ("2", "cuda:1"), ("3", "cuda:1")]


def test_a_request_for_any_gpu_shares_an_existing_copy() -> None:
    machine = FakeMachine(cuda=(1000, 2000))
    pool = pool_of(machine)
    model = pool.get_model("vision", "vit", Model, {"device": "cuda"})
    machine.used = {1: 1900}  # now the other one has more free memory
    assert pool.get_model("vision", "vit", Model, {"device": "cuda"}) is model
    assert pool.get_model("vision", "vit", Model, {"device": "cuda:0"}) is not model


# ── fallback ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_missing_hardware_is_replaced_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    pool = pool_of()
    for _ in range(3):
        pool.get_model("vision", "vit", Model, {"device": "cuda"})
    (report,) = pool.fallbacks
    assert (report.model, report.expected, report.actual, report.status) == ("vit", "cuda", "cpu", Status.PASS)
    missing = [(tried.attempt.hardware, tried.status, tried.reason) for tried in report.attempts]
    assert missing[0] == ("cuda", Status.UNAVAILABLE, "no cuda here")
    assert [name for name, _, _ in missing] == ["cuda", "rocm", "mps", "openvino", "qnn", "cpu"]
    assert report.sentence().startswith("vit ran on cpu; cuda was expected (cuda: unavailable, no cuda here;")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]  # a repeated fallback is not reported again


def test_hardware_that_was_not_requested_is_no_fallback() -> None:
    pool = pool_of()
    pool.get_model("vision", "vit", Model)
    pool.get_model("vision", "vit", Model, {"device": "auto"})
    assert pool.fallbacks == ()


def test_a_gpu_without_enough_memory_is_replaced_by_the_cpu() -> None:
    pool = pool_of(FakeMachine(cuda=(1000,), others=("openvino",)))
    calls = []

    def construct() -> Model:
        calls.append(1)
        return Model(refuses={"cuda:0": RuntimeError(CUDA_MEMORY)})

    model = pool.get_model("vision", "vit", construct, {"device": "cuda"})
    assert model.moves == ["cuda:0", "cpu"]
    assert where(pool) == [("vit", "cpu")]
    (report,) = pool.fallbacks
    assert [tried.status for tried in report.attempts] == [Status.OOM, Status.PASS]
    assert report.attempts[0].error_type == "memory_pressure"
    assert report.attempts[0].wall_ms is not None
    assert report.lost_ms == report.attempts[0].wall_ms
    assert "Use a smaller model or a smaller batch." in report.recommendations
    again = pool.get_model("vision", "vit", construct, {"device": "cuda"})
    assert again is model
    assert calls == [1]  # a GPU that is too small is not tried again while the model is in the pool


def test_a_gpu_that_was_too_small_is_retried_after_the_model_is_removed() -> None:
    pool = pool_of(FakeMachine(cuda=(1000,)))
    pool.get_model("vision", "vit", refusing("cuda:0", RuntimeError(CUDA_MEMORY)), {"device": "cuda"})
    pool.release("vision", "vit")
    pool.get_model("vision", "vit", Model, {"device": "cuda"})
    assert where(pool) == [("vit", "cuda:0")]


def test_unused_models_are_evicted_from_a_gpu_before_another_device_is_used() -> None:
    machine = FakeMachine(cuda=(1000,))
    pool = pool_of(machine)
    pool.get_model("vision", "idle", Model, {"device": "cuda"}, memory_mb=100)
    refusals = [RuntimeError(CUDA_MEMORY)]

    class Crowded(Model):
        def to(self, device: str) -> Model:
            if device == "cuda:0" and refusals:
                raise refusals.pop()
            return super().to(device)

    pool.get_model("vision", "vit", Crowded, {"device": "cuda"}, memory_mb=100)
    assert where(pool) == [("vit", "cuda:0")]
    assert pool.fallbacks == ()


def test_a_model_that_cannot_fit_is_not_even_constructed_for_the_gpu() -> None:
    pool = pool_of(FakeMachine(cuda=(1000,)))
    mine = pool.get_model("vision", "mine", Model, {"device": "cuda"}, memory_mb=500)
    told = []

    def construct(device: str) -> Model:
        told.append(device)
        return Model()

    large = pool.get_model("vision", "large", construct, {"device": "cuda"}, memory_mb=400)
    assert told == ["cpu"]
    assert where(pool) == [("mine", "cuda:0"), ("large", "cpu")]
    (report,) = pool.fallbacks
    assert "it needs 400 MiB of cuda:0, and 500 MiB of the budget of 800 MiB are in use" in str(report.attempts[0].reason)
    assert mine is not large
    assert pool.get_stats()["memory"]["cuda:0"] == {"used_mb": 500, "budget_mb": 800, "unmeasured_models": 0}


def test_each_gpu_has_its_own_budget() -> None:
    pool = pool_of(FakeMachine(cuda=(1000, 500)), PoolSettings(budget_mb={"cuda:1": 100}))
    models = [pool.get_model("vision", device, Model, {"device": device}, memory_mb=10) for device in ("cuda:0", "cuda:1", "cpu")]
    assert {place: facts["budget_mb"] for place, facts in pool.get_stats()["memory"].items()} == {
        "cuda:0": 800,
        "cuda:1": 100,
        "host": 8000,
    }
    assert len(models) == 3


def test_a_failed_operation_falls_back_to_general_purpose_hardware() -> None:
    pool = pool_of(FakeMachine(others=("openvino", "qnn")))

    def construct(device: str) -> Model:
        if device == "openvino":
            raise RuntimeError("Check 'false' failed: No conversion rule found for operations: aten::special_bessel_j0")
        return Model(device)

    model = pool.get_model("vision", "vit", construct, {"device": "openvino"})
    assert model.part == "cpu"  # not qnn, which is next in the order but does not run a model's own code either
    (report,) = pool.fallbacks
    assert [(tried.attempt.hardware, tried.status) for tried in report.attempts] == [("openvino", Status.ERROR), ("cpu", Status.PASS)]
    assert report.attempts[0].error_type == "unsupported_operator"


def test_an_unusable_device_is_skipped() -> None:
    pool = pool_of(FakeMachine(cuda=(1000,), others=("mps",)))
    pool.get_model("vision", "vit", refusing("cuda:0", NOT_COMPILED), {"device": "cuda"})
    assert where(pool) == [("vit", "mps")]
    (report,) = pool.fallbacks
    assert report.attempts[0].status is Status.UNAVAILABLE


def test_a_missing_gpu_is_reported_with_the_number_of_gpus() -> None:
    pool = pool_of(FakeMachine(cuda=(1000, 1000)))
    pool.get_model("text_generation", "gpt2", Model, {"device": "cuda:7"})
    (report,) = pool.fallbacks
    assert (report.expected, report.actual) == ("cuda:7", "cpu")
    assert report.attempts[0].reason == "there is no cuda:7: 2 found"


def test_a_missing_preferred_gpu_is_replaced_by_another_gpu() -> None:
    pool = pool_of(FakeMachine(cuda=(1000,)))
    pool.get_model("vision", "vit", Model, {"priority_list": ["cuda", "cpu"], "preferred_index": 1})
    (report,) = pool.fallbacks
    assert (report.expected, report.actual) == ("cuda:1", "cuda:0")


def test_if_nothing_works_all_attempts_are_reported() -> None:
    pool = pool_of(FakeMachine(cuda=(1000,)))

    def construct(device: str) -> Model:
        raise UnavailableError(f"no runtime for {device}", error_type="missing_package")

    with pytest.raises(ModelStartError) as told:
        pool.get_model("text_generation", "gpt2", construct, {"device": "cuda"})
    assert told.value.report is not None
    assert told.value.report.actual is None
    assert "unavailable: cuda:0: UnavailableError: no runtime for cuda:0" in told.value.message
    assert "unavailable: cpu: UnavailableError: no runtime for cpu" in told.value.message
    assert pool.get_stats()["models"] == 0


# ── moving ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_movable_objects_are_moved_and_only_to_pytorch_devices() -> None:
    assert move((1, 2), Device(hardware="cuda", index=1)) == (1, 2)
    model = Model()
    assert move(model, Device(hardware="openvino")) is model
    assert model.moves == []
    assert move(model, Device(hardware="rocm", index=1)) is model
    assert model.moves == ["cuda:1"]  # the name in PyTorch's ROCm build


def test_a_method_to_that_returns_another_object_or_none() -> None:
    other = Model()
    copying = types.SimpleNamespace(to=lambda _device: other)
    in_place = types.SimpleNamespace(to=lambda _device: None)
    assert move(copying, Device(hardware="cpu")) is other
    assert move(in_place, Device(hardware="cpu")) is in_place


def test_a_pytorch_module_does_not_compute_on_the_cpu_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type("Module", (), {"parameters": lambda _self: (), "buffers": lambda _self: (), "to": lambda self, _device: self})
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(nn=types.SimpleNamespace(Module=module)))
    with pytest.raises(UnsupportedError, match="PyTorch does not support openvino"):
        move(module(), Device(hardware="openvino"))
    pool = pool_of(FakeMachine(others=("openvino",)))
    pool.get_model("vision", "vit", module, {"priority_list": ["openvino", "cpu"]})
    assert where(pool) == [("vit", "cpu")]
    assert pool.fallbacks[0].attempts[0].status is Status.UNSUPPORTED


def test_a_gpu_s_memory_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def runtime(name: str, *, here: bool) -> types.SimpleNamespace:
        return types.SimpleNamespace(is_available=lambda: here, empty_cache=lambda: done.append(name))

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=runtime("cuda", here=True), mps=runtime("mps", here=False)))
    for hardware in ("cuda", "rocm", "mps", "cpu", "openvino"):
        give_back(Device(hardware=hardware))
    assert done == ["cuda", "cuda"]


# ── machines ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def probed(gpus: list[dict[str, Any]]) -> Machine:
    def probe(kind: Backend) -> Any:
        return detection(kind.value, gpus=gpus, memory_limit_mb=100)

    return Machine(FakeMachine(), probe=probe)


GPUS = [
    {"uuid": "GPU-aaa", "memory_mb": 1000, "free_mb": 900},
    {"uuid": "GPU-bbb", "memory_mb": 2000, "free_mb": 1500},
]


def test_gpus_have_pytorch_s_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES=1,0 swaps them, CUDA_VISIBLE_DEVICES=1 hides one."""
    monkeypatch.setattr(pool_devices, "_torch_uuids", lambda: ["bbb", "aaa"])
    assert probed(GPUS).gpus("cuda") == (Gpu(index=0, total_mb=2000, free_mb=1500), Gpu(index=1, total_mb=1000, free_mb=900))
    monkeypatch.setattr(pool_devices, "_torch_uuids", lambda: ["bbb"])
    assert probed(GPUS).gpus("cuda") == (Gpu(index=0, total_mb=2000, free_mb=1500),)
    assert probed(GPUS).total_mb("cuda:0") == 2000
    assert probed(GPUS).total_mb("cuda:3") is None


def test_gpus_without_uuids_are_matched_by_index_if_none_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_devices, "_torch_uuids", lambda: ["", ""])
    assert [gpu.total_mb for gpu in probed(GPUS).gpus("cuda")] == [1000, 2000]
    monkeypatch.setattr(pool_devices, "_torch_uuids", lambda: [""])
    assert probed(GPUS).gpus("cuda") == (Gpu(index=0, total_mb=None, free_mb=None),)


def test_without_pytorch_gpus_have_their_driver_s_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_devices, "_torch_uuids", lambda: None)
    assert [gpu.free_mb for gpu in probed(GPUS).gpus("cuda")] == [900, 1500]
    assert probed([{"memory_mb": 1000}]).gpus("rocm") == (Gpu(index=0, total_mb=1000, free_mb=None),)
    assert probed([]).gpus("cuda") == ()


def test_the_host_s_memory_is_the_limit_of_its_cgroup() -> None:
    assert probed([]).total_mb("host") == 100
    for settings, budget in ((PoolSettings(), 80), (PoolSettings(low_memory=True), 40), (PoolSettings(budget_mb={"host": 7}), 7)):
        pool = pool_of(probed([]), settings)
        _model = pool.get_model("vision", "vit", Model, {"device": "cpu"})
        assert pool.get_stats()["memory"]["host"]["budget_mb"] == budget


def test_hardware_missing_in_a_detection_is_unavailable() -> None:
    class Silent:
        def detect(self) -> dict[str, Any]:
            return {"mps": detection("mps", reason="no Apple GPU")}

    machine = Machine(Silent())
    assert machine.absence("cpu") is None
    assert machine.absence("mps") == "no Apple GPU"
    assert machine.absence("cuda") == "the detector did not report it"


@pytest.mark.parametrize(("word", "name", "memory"), [("cpu", "cpu", "host"), ("mps", "mps", "host"), ("cuda:1", "cuda:1", "cuda:1")])
def test_devices_and_their_memory(word: str, name: str, memory: str) -> None:
    device = device_of(word)
    assert (str(device), device.torch_name, device.memory) == (word, name, memory)
    assert device_of("rocm:0").torch_name == "cuda:0"
    assert device_of("openvino").torch_name is None
