"""PyTorch's devices with fake drivers. The CPU does the computing."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hwmatrix.errors import UnavailableError, UnsupportedError
from hwmatrix.records import Dtype, Settings

torch = pytest.importorskip("torch")

from hwmatrix.targets.protocol import DeviceUse  # noqa: E402
from hwmatrix.targets.torch import cuda, mps, rocm  # noqa: E402
from hwmatrix.targets.torch.cpu import TorchCpu  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwmatrix.targets.torch.device import TorchDevice

pytestmark = pytest.mark.torch
FACTS = {"driver": "1", "cuda": "13.0", "count": 2, "gpus": [{"uuid": "GPU-a", "processes": 0}, {"uuid": "GPU-b", "processes": 3}]}


class Model(torch.nn.Module):  # type: ignore[name-defined, misc]
    """The parts of a transformers model that the targets use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)
        self.register_buffer("positions", torch.arange(4))
        self.config = types.SimpleNamespace(_attn_implementation="sdpa")

    def forward(self, pixels: Any, **_options: Any) -> dict[str, Any]:
        return {"logits": self.linear(pixels), "indices": pixels.argmax(-1)}


def settings(dtype: Dtype = Dtype.FLOAT32) -> Settings:
    return Settings(dtype=dtype, batch=1, sequence_length=1, threads=torch.get_num_threads())


def ready(target: TorchDevice, dtype: Dtype = Dtype.FLOAT32) -> Any:
    """Prepare a target on the CPU, whatever its device, and return the result of its first run."""
    target.device = torch.device("cpu")
    target._model = Model().to(getattr(torch, dtype.value)).eval()
    method = target.prepare({"pixels": np.ones((2, 2), np.float32)}).method
    assert method == "torch eager mode, sdpa attention"
    return target.run()


PRECISIONS: tuple[Any, ...] = (
    torch.backends,
    torch.backends.cuda.matmul,
    torch.backends.cudnn,
    torch.backends.cudnn.conv,
    torch.backends.cudnn.rnn,
)
"""Parents come before children: setting a parent changes its children. All that ``check`` sets, since `torch.export` rejects a mix."""


@pytest.fixture(autouse=True)
def _precision() -> Iterator[None]:
    before = [kind.fp32_precision for kind in PRECISIONS]
    yield
    for kind, precision in zip(PRECISIONS, before, strict=True):
        kind.fp32_precision = precision


class Driver:
    """A fake of torch.cuda with the parts that the targets use. None of its values are measurements."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, uuid: str = "b", count: int = 2) -> None:
        self.synchronized = 0
        driver = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                pass

            def synchronize(self) -> None:
                driver.synchronized += 1

            def elapsed_time(self, _other: object) -> float:
                return 0.0125

        fakes = {
            "init": lambda: None,
            "device_count": lambda: count,
            "set_device": lambda _device: None,
            "get_device_name": lambda _device: "A GPU",
            "get_device_properties": lambda _device: types.SimpleNamespace(uuid=uuid, gcnArchName="gfx90a:sramecc+:xnack-"),
            "reset_peak_memory_stats": lambda _device: None,
            "max_memory_allocated": lambda _device: 3 * 2**20,
            "max_memory_reserved": lambda _device: 4 * 2**20,
            "Event": Event,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)


def built_for(monkeypatch: pytest.MonkeyPatch, *, nvidia: str | None = None, amd: str | None = None) -> None:
    monkeypatch.setattr(torch.version, "cuda", nvidia)
    monkeypatch.setattr(torch.version, "hip", amd)


def refused(target: Any, error_type: str) -> str:
    with pytest.raises(UnavailableError) as caught:
        target.check()
    assert caught.value.error_type == error_type
    return str(caught.value)


def test_the_cpu() -> None:
    target = TorchCpu(settings=settings(), options={})
    assert target.check() == "cpu"
    outputs = target.outputs(ready(target))
    assert (outputs["logits"].dtype, outputs["logits"].shape, outputs["indices"].dtype) == (np.float32, (2, 3), np.int64)
    assert target.placement().on_target == 1.0
    assert target.placement().detail == "device of parameters, buffers and outputs: cpu 100.0%"
    assert (target.elapsed_ns(), target.device_use(), target.reserves_address_space) == (None, None, False)


def test_inputs_come_in_the_cells_precision_and_outputs_in_float32() -> None:
    target = TorchCpu(settings=settings(Dtype.BFLOAT16), options={})
    result = ready(target, Dtype.BFLOAT16)
    assert result["logits"].dtype == torch.bfloat16
    assert target.outputs(result)["logits"].dtype == np.float32


def test_tensors_on_other_devices_are_not_on_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    built_for(monkeypatch, nvidia="13.0")
    Driver(monkeypatch)
    monkeypatch.setattr(cuda.hardware, "detect", lambda: ("2 GPUs", FACTS))
    target = cuda.TorchCuda(settings=settings(), options={"device": 1})
    target.check()
    target.outputs(ready(target))
    target.device = torch.device("cuda", 1)
    placement = target.placement()
    assert placement.on_target == 0.0
    assert placement.detail == "A GPU; device of parameters, buffers and outputs: cpu 100.0%; other processes on the GPU: 3"


def test_a_run_on_cuda_is_timed_by_device_events(monkeypatch: pytest.MonkeyPatch) -> None:
    built_for(monkeypatch, nvidia="13.0")
    driver = Driver(monkeypatch)
    monkeypatch.setattr(cuda.hardware, "detect", lambda: ("2 GPUs", FACTS))
    target = cuda.TorchCuda(settings=settings(), options={"device": 1})
    assert target.check() == "cuda:1: A GPU"
    ready(target)
    assert (driver.synchronized, target.elapsed_ns()) == (1, 12_500)
    assert target.reserves_address_space


def test_float32_on_cuda_has_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    built_for(monkeypatch, nvidia="13.0")
    Driver(monkeypatch)
    monkeypatch.setattr(cuda.hardware, "detect", lambda: ("2 GPUs", FACTS))
    for kind in PRECISIONS:
        kind.fp32_precision = "tf32"
    cuda.TorchCuda(settings=settings(), options={}).check()
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"


@pytest.mark.parametrize(
    ("before", "now", "others"), [(0, 1, 0), (0, 2, 1), (2, 3, 2), (2, 1, 2), (0, 0, 0), (None, 5, None), (1, None, 1)]
)
def test_other_processes_are_counted_excluding_our_own(before: int | None, now: int | None, others: int | None) -> None:
    assert cuda.more(before, now) == others


def test_the_gpu_memory_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    built_for(monkeypatch, nvidia="13.0")
    Driver(monkeypatch)
    told = iter([FACTS, {**FACTS, "gpus": [{"uuid": "GPU-a", "processes": 9}, {"uuid": "GPU-b", "processes": 6}]}])
    monkeypatch.setattr(cuda.hardware, "detect", lambda: ("2 GPUs", next(told)))
    target = cuda.TorchCuda(settings=settings(), options={"device": 1})
    target.check()
    assert target.device_use() == DeviceUse(peak_mb=3.0, reserved_mb=4.0, other_processes=5)


def test_a_gpu_unknown_to_nvml_has_no_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    built_for(monkeypatch, nvidia="13.0")
    Driver(monkeypatch, uuid="MIG-of-another")
    monkeypatch.setattr(cuda.hardware, "detect", lambda: ("2 GPUs", FACTS))
    target = cuda.TorchCuda(settings=settings(), options={})
    target.check()
    use = target.device_use()
    assert use is not None
    assert use.other_processes is None


@pytest.mark.parametrize(
    ("nvidia", "amd", "target", "words"),
    [
        (None, None, cuda.TorchCuda, "is built for CPUs only, not for CUDA"),
        (None, "7.2", cuda.TorchCuda, "is built for ROCm 7.2, not for CUDA"),
        ("13.0", None, rocm.TorchRocm, "is built for CUDA 13.0, not for ROCm"),
        (None, None, rocm.TorchRocm, "is built for CPUs only, not for ROCm"),
    ],
)
def test_builds_are_distinguished(monkeypatch: pytest.MonkeyPatch, nvidia: str | None, amd: str | None, target: Any, words: str) -> None:
    built_for(monkeypatch, nvidia=nvidia, amd=amd)
    assert words in refused(target(settings=settings(), options={}), "torch_build")


def test_missing_hardware_is_reported_with_the_detection_s_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Any:
        raise UnavailableError("no driver here", error_type="gpu_no_driver")

    built_for(monkeypatch, nvidia="13.0")
    monkeypatch.setattr(cuda.hardware, "detect", absent)
    assert refused(cuda.TorchCuda(settings=settings(), options={}), "gpu_no_driver") == "no driver here"


@pytest.mark.parametrize("error", [RuntimeError("The NVIDIA driver on your system is too old"), AssertionError("not compiled")])
def test_a_gpu_that_pytorch_cannot_start(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail() -> None:
        raise error

    built_for(monkeypatch, nvidia="13.0")
    Driver(monkeypatch)
    monkeypatch.setattr(torch.cuda, "init", fail)
    monkeypatch.setattr(cuda.hardware, "detect", lambda: ("2 GPUs", FACTS))
    assert str(error) in refused(cuda.TorchCuda(settings=settings(), options={}), "gpu_not_usable")


def test_an_index_beyond_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    built_for(monkeypatch, nvidia="13.0")
    Driver(monkeypatch)
    monkeypatch.setattr(cuda.hardware, "detect", lambda: ("2 GPUs", FACTS))
    target = cuda.TorchCuda(settings=settings(), options={"device": 2})
    assert refused(target, "gpu_not_usable") == "there is no cuda:2: PyTorch finds 2 GPUs"


def test_rocm_reports_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    built_for(monkeypatch, amd="7.2.53211")
    Driver(monkeypatch)
    monkeypatch.setattr(rocm.hardware, "detect", lambda: ("gfx90a", {}))
    counts = iter([1, 3])
    monkeypatch.setattr(rocm.hardware, "processes", lambda: next(counts))
    target = rocm.TorchRocm(settings=settings(), options={})
    assert target.check() == "cuda:0: A GPU (gfx90a)"
    use = target.device_use()
    assert use is not None
    assert use.other_processes == 2


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> mps.TorchMps:
    monkeypatch.setattr(mps.hardware, "detect", lambda: ("Apple M1", {}))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 5 * 2**20)
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    return mps.TorchMps(settings=settings(), options={})


def test_a_mac(mac: mps.TorchMps, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[bool] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append(True))
    assert mac.check() == "mps: Apple M1"
    assert mac.outputs(ready(mac))["logits"].shape == (2, 3)
    assert waited == [True]
    assert mac.device_use() == DeviceUse(peak_mb=None, reserved_mb=5.0, other_processes=None)


@pytest.mark.parametrize(("built", "words"), [(True, "needs a newer macOS"), (False, "is built without MPS")])
def test_a_mac_whose_pytorch_does_not_support_mps(mac: mps.TorchMps, monkeypatch: pytest.MonkeyPatch, built: bool, words: str) -> None:  # noqa: FBT001
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: built)
    assert words in refused(mac, "torch_build")


def test_a_silent_fallback_is_refused(mac: mps.TorchMps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    assert "unset it" in refused(mac, "mps_fallback_enabled")


MISSING = (  # github.com/pytorch/pytorch issues 86195 and 77764
    "The operator 'aten::_slow_conv2d_forward' is not currently implemented for the MPS device. If you want this op to be added ...",
    "The operator 'aten::_index_put_impl_' is not current implemented for the MPS device. If you want this op to be added ...",
)


@pytest.mark.parametrize(("message", "operator"), [(MISSING[0], "aten::_slow_conv2d_forward"), (MISSING[1], "aten::_index_put_impl_")])
def test_an_operator_that_mps_lacks_is_named(mac: mps.TorchMps, monkeypatch: pytest.MonkeyPatch, message: str, operator: str) -> None:
    def fail() -> None:
        raise NotImplementedError(message)

    monkeypatch.setattr(mac, "forward", fail)
    with pytest.raises(UnsupportedError, match=operator) as caught:
        mac.run()
    assert caught.value.needs == (operator,)


def test_another_not_implemented_error_is_not_changed(mac: mps.TorchMps, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NotImplementedError("of the model itself")

    monkeypatch.setattr(mac, "forward", fail)
    with pytest.raises(NotImplementedError, match="of the model itself"):
        mac.run()


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    target = TorchCpu(settings=settings(), options={"compile": True})
    target._model = Model().eval()
    with pytest.raises(UnsupportedError, match="C compiler") as caught:
        target.prepare({"pixels": np.ones((2, 2), np.float32)})
    assert caught.value.error_type == "compiler_missing"


def test_a_compiled_model_is_called_once_before_it_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def compiled(model: Any) -> Any:
        return lambda **inputs: calls.append("called") or model(**inputs)

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    target = TorchCpu(settings=settings(), options={"compile": True})
    target._model = Model().eval()
    assert target.prepare({"pixels": np.ones((2, 2), np.float32)}).method == "torch.compile (inductor), sdpa attention"
    assert calls == ["called"]
