from __future__ import annotations

import importlib.machinery
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import cuda

RECORDED = Path(__file__).parents[1] / "recorded"
B200 = (RECORDED / "nvidia-smi-b200.txt").read_text(encoding="utf-8")
MODULE = RECORDED / "nvidia-version-580.173.02"
UUIDS = ("GPU-1", "GPU-2")
LIBRARY_NOT_FOUND, NOT_LOADED, MISMATCH, NO_PERMISSION, NOT_SUPPORTED, UNKNOWN = 12, 9, 18, 4, 3, 999


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class Nvml(types.ModuleType):
    """NVML on the recorded machine: the values that its nvidia-smi printed, in NVML's units. Each call can be made to fail."""

    NVMLError = NVMLError
    NVML_ERROR_LIBRARY_NOT_FOUND = LIBRARY_NOT_FOUND
    NVML_ERROR_DRIVER_NOT_LOADED = NOT_LOADED
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = MISMATCH
    NVML_ERROR_NO_PERMISSION = NO_PERMISSION
    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED

    def __init__(self, errors: dict[str, int] | None = None) -> None:
        super().__init__("pynvml")
        self.__spec__ = importlib.machinery.ModuleSpec("pynvml", None)
        self.errors = errors or {}
        self.closed = 0
        self.names = re.findall(r"^\|\s+\d+  (.+?)\s+(?:On|Off)\s", B200, re.MULTILINE)
        self.memory = re.findall(r"(\d+)MiB / +(\d+)MiB", B200)

    def told(self, call: str, answer: Any) -> Any:
        if call in self.errors:
            raise NVMLError(self.errors[call])
        return answer

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self.told("init", None)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.closed += 1

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802
        return self.told("driver", re.search(r"KMD Version: (\S+)", B200)[1])  # type: ignore[index]

    def nvmlSystemGetCudaDriverVersion_v2(self) -> Any:  # noqa: N802
        major, minor = re.search(r"CUDA UMD Version: (\d+)\.(\d+)", B200).groups()  # type: ignore[union-attr]
        return int(major) * 1000 + int(minor) * 10

    def nvmlDeviceGetCount(self) -> Any:  # noqa: N802
        return self.told("count", len(self.names))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return self.told("handle", index)

    def nvmlDeviceGetName(self, handle: int) -> Any:  # noqa: N802
        return self.names[handle].encode() if handle else self.names[handle]  # the two types that versions of the package return

    def nvmlDeviceGetUUID(self, handle: int) -> Any:  # noqa: N802
        return UUIDS[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        used, total = (int(text) * 2**20 for text in self.memory[handle])
        return self.told("memory", types.SimpleNamespace(total=total, used=used, free=total - used))

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> Any:  # noqa: ARG002, N802
        return self.told("capability", (10, 0))  # that of a B200, from NVIDIA's table of GPUs

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:  # noqa: ARG002, N802
        return self.told("processes", [])


@pytest.fixture
def no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine without any trace of the driver."""
    monkeypatch.setattr(cuda, "_PROC", tmp_path / "version")
    monkeypatch.setattr(cuda, "_CONTROL", tmp_path / "nvidiactl")
    monkeypatch.setattr(cuda, "_WSL", tmp_path / "dxg")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(cuda, "_CUDNN_FOLDERS", (tmp_path / "none", tmp_path))
    monkeypatch.setattr(cuda, "_CUDNN_PACKAGES", ("no-such-package",))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return tmp_path


@pytest.fixture
def driver(no_driver: Path) -> Path:
    """Simulate a machine with only the driver's control node."""
    (no_driver / "nvidiactl").touch()
    return no_driver


def install(monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(cuda.util, "find_spec", lambda _name: nvml and nvml.__spec__)


def refused(error_type: str) -> str:
    with pytest.raises(UnavailableError) as caught:
        cuda.detect()
    assert caught.value.error_type == error_type
    return str(caught.value)


@pytest.mark.usefixtures("driver")
def test_a_recorded_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    install(monkeypatch, nvml)
    name, facts = cuda.detect()
    assert name == "2 x NVIDIA B200"
    assert (facts["driver"], facts["cuda"], facts["count"]) == ("610.43.02", "13.3", 2)
    assert facts["gpus"][1] == {
        "index": 1,
        "name": "NVIDIA B200",
        "uuid": "GPU-2",
        "memory_mb": 183359,
        "used_mb": 0,
        "free_mb": 183359,
        "compute_capability": "10.0",
        "processes": 0,
    }
    assert nvml.closed == 1


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
@pytest.mark.usefixtures("driver")
def test_facts_that_a_driver_does_not_report_are_unknown(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    install(monkeypatch, Nvml({"memory": code, "capability": code, "processes": code}))
    _, facts = cuda.detect()
    assert [facts["gpus"][0][name] for name in ("memory_mb", "used_mb", "free_mb", "compute_capability", "processes")] == [None] * 5


@pytest.mark.parametrize("call", ["count", "handle", "memory", "driver"])
@pytest.mark.usefixtures("driver")
def test_a_driver_that_fails_during_a_query(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    nvml = Nvml({call: UNKNOWN})
    install(monkeypatch, nvml)
    assert "code 999" in refused("gpu_driver_broken")
    assert nvml.closed == 1


@pytest.mark.usefixtures("driver")
def test_a_driver_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    nvml.names = []
    install(monkeypatch, nvml)
    assert "610.43.02 is installed but lists no GPU" in refused("gpu_not_found")


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_the_package_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for nvml in (None, Nvml({"init": UNKNOWN})):
        install(monkeypatch, nvml)
        assert refused("gpu_no_driver").startswith("no NVIDIA driver is loaded here")


@pytest.mark.usefixtures("no_driver")
def test_if_a_driver_leaves_no_trace_the_library_is_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the case on Windows."""
    monkeypatch.setattr(sys, "platform", "win32")
    install(monkeypatch, Nvml())
    assert cuda.detect()[0] == "2 x NVIDIA B200"
    for nvml in (None, Nvml({"init": LIBRARY_NOT_FOUND})):
        install(monkeypatch, nvml)
        assert refused("gpu_no_driver").startswith("no NVIDIA driver is loaded here")


def test_wsl_has_only_its_own_node(no_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (no_driver / "dxg").touch()
    install(monkeypatch, Nvml())
    assert cuda.detect()[0] == "2 x NVIDIA B200"


@pytest.mark.usefixtures("driver")
def test_with_a_driver_the_package_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert "nvidia-ml-py" in refused("missing_package")


@pytest.mark.parametrize(
    ("code", "error_type", "words"),
    [
        (LIBRARY_NOT_FOUND, "gpu_no_driver", "kernel module 580.173.02 is loaded, and its library libnvidia-ml.so.1 is missing"),
        (MISMATCH, "gpu_driver_broken", "of another version than the loaded kernel module (580.173.02): restart the machine"),
        (NO_PERMISSION, "gpu_no_permission", "this user may not use"),
        (UNKNOWN, "gpu_driver_broken", "(580.173.02) does not start: code 999"),
    ],
)
def test_a_driver_that_does_not_start(monkeypatch: pytest.MonkeyPatch, code: int, error_type: str, words: str) -> None:
    monkeypatch.setattr(cuda, "_PROC", MODULE)
    install(monkeypatch, Nvml({"init": code}))
    assert words in refused(error_type)


def test_the_version_of_the_kernel_module(no_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda.module_version() is None
    (no_driver / "version").touch()
    assert cuda.module_version() is None
    monkeypatch.setattr(cuda, "_PROC", MODULE)
    assert cuda.module_version() == "580.173.02"


@pytest.mark.usefixtures("driver")
def test_memory_use_is_queried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    install(monkeypatch, nvml)
    _, facts = cuda.detect()
    nvml.memory = [("1000", "183359"), ("2000", "183359")]
    now = cuda.refreshed(facts)
    assert [(gpu["used_mb"], gpu["free_mb"]) for gpu in now["gpus"]] == [(1000, 182359), (2000, 181359)]
    assert [gpu["used_mb"] for gpu in facts["gpus"]] == [0, 0]
    assert {name: value for name, value in now.items() if name != "gpus"} == {
        name: value for name, value in facts.items() if name != "gpus"
    }
    assert nvml.closed == 2


@pytest.mark.usefixtures("driver")
def test_other_gpus_than_before_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    install(monkeypatch, nvml)
    _, facts = cuda.detect()
    nvml.names = nvml.names[:1]
    with pytest.raises(UnavailableError, match="other GPUs than before"):
        cuda.refreshed(facts)


def test_cudnn_of_the_system(no_driver: Path) -> None:
    assert cuda.cudnn_version() is None
    for name in ("libcudnn.so.9", "libcudnn.so.9.1.0", "libcudnn_ops.so.9.1.0"):
        (no_driver / name).touch()
    assert cuda.cudnn_version() == "9.1.0"


def test_cudnn_of_a_package(no_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (no_driver / "libcudnn.so.9.1.0").touch()
    monkeypatch.setattr(cuda, "_CUDNN_PACKAGES", ("no-such-package", "pytest"))
    assert cuda.cudnn_version() == pytest.__version__


@pytest.mark.parametrize(("told", "version"), [(92000, "9.20.0"), (90101, "9.1.1"), (8907, "8.9.7"), (None, None)])
def test_cudnn_of_an_imported_pytorch(monkeypatch: pytest.MonkeyPatch, told: int | None, version: str | None) -> None:
    torch = types.ModuleType("torch")
    torch.version = types.SimpleNamespace(cuda="13.0", hip=None)  # type: ignore[attr-defined]
    torch.cuda = types.SimpleNamespace()  # type: ignore[attr-defined]
    torch.backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: told))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert cuda.cudnn_version() == version
