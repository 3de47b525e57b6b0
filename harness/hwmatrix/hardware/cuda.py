"""NVIDIA GPUs as reported by the driver's own library (NVML), without creating a CUDA context."""

from __future__ import annotations

import contextlib
import re
import sys
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import torch_build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PROC: Final = Path("/proc/driver/nvidia/version")
"""The kernel module's description of itself, which exists as soon as the module is loaded."""
_MODULE_VERSION: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_CONTROL: Final = Path("/dev/nvidiactl")
_WSL: Final = Path("/dev/dxg")
"""The only device node in the Windows Subsystem for Linux, where the driver is Windows'."""
_CUDNN_PACKAGES: Final = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11")
_CUDNN_FOLDERS: Final = tuple(
    Path(folder) for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/cuda/lib64")
)
_CUDNN_FILE: Final = re.compile(r"libcudnn\.so\.(\d+\.\d+\.\d+)$")
_MIB: Final = 2**20


def detect() -> tuple[str, dict[str, Any]]:
    """Return the GPUs' name and their facts: driver, the newest CUDA that it supports, cuDNN, and NVML's facts of each GPU.

    ``processes`` counts the processes that have a CUDA context on a GPU now. A value that the driver does not report is None. Memory in
    MiB. ``index`` is NVML's, which follows the order on the bus.

    Raises:
        UnavailableError: no driver, no GPU, or no way to query it. The message says which, and what to do.
    """
    with _nvml() as nvml:
        gpus = [{"index": index, **_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index))} for index in range(nvml.nvmlDeviceGetCount())]
        driver, cuda = _text(nvml.nvmlSystemGetDriverVersion()), nvml.nvmlSystemGetCudaDriverVersion_v2()
    if not gpus:
        raise UnavailableError(f"NVIDIA's driver {driver} is installed but lists no GPU", error_type="gpu_not_found")
    names = [str(gpu["name"]) for gpu in gpus]
    facts = {"driver": driver, "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}", "cudnn": cudnn_version(), "count": len(gpus), "gpus": gpus}
    return ", ".join(f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)), facts


def refreshed(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts with each GPU's current memory and processes. The others do not change while the machine runs.

    Raises:
        UnavailableError: the driver no longer answers, or lists other GPUs.
    """
    with _nvml() as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        if [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles] != [gpu["uuid"] for gpu in facts["gpus"]]:
            raise UnavailableError("NVIDIA's driver lists other GPUs than before", error_type="gpu_not_found")
        return facts | {"gpus": [gpu | _use(nvml, handle) for gpu, handle in zip(facts["gpus"], handles, strict=True)]}


def cudnn_version() -> str | None:
    """Return the version of cuDNN: of the imported PyTorch, NVIDIA's package, or the system's library; None if unknown."""
    torch = torch_build.imported()
    if torch is not None and torch.version.cuda is not None:
        told = torch.backends.cudnn.version()  # 92000 for 9.20.0, 8907 for 8.9.7
        return None if told is None else _dotted(told)
    for package in _CUDNN_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    names = (path.name for folder in _CUDNN_FOLDERS for path in folder.glob("libcudnn.so.*"))
    return next((found[1] for name in names if (found := _CUDNN_FILE.match(name))), None)


def _dotted(number: int) -> str:
    """Format the library's own number: major * 10000 + minor * 100 + patch since version 9, major * 1000 before (cudnn_version.h)."""
    major, rest = divmod(number, 10000) if number >= 90000 else divmod(number, 1000)  # noqa: PLR2004 - the first number of version 9
    return f"{major}.{rest // 100}.{rest % 100}"


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    traces = any(trace.exists() for trace in (_PROC, _CONTROL, _WSL))
    if not traces and (sys.platform.startswith("linux") or util.find_spec("pynvml") is None):
        raise UnavailableError(_without_driver(), error_type="gpu_no_driver")  # the driver, not the package, is what is missing first
    if util.find_spec("pynvml") is None:
        message = "NVIDIA's driver is here, but the package nvidia-ml-py, which queries it, is not installed"
        raise UnavailableError(message, error_type="missing_package")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _unavailable(pynvml, error) from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVIDIA's driver does not answer: {error}", error_type="gpu_driver_broken") from error
    finally:
        pynvml.nvmlShutdown()


def _unavailable(nvml: Any, error: Exception) -> UnavailableError:
    """Return the failure for NVML's error at its start."""
    code = getattr(error, "value", None)
    if code in {nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED}:
        return UnavailableError(_without_driver(), error_type="gpu_no_driver")
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        message = f"NVIDIA's libraries are of another version than the loaded kernel module ({module_version()}): restart the machine"
        return UnavailableError(message, error_type="gpu_driver_broken")
    if code == nvml.NVML_ERROR_NO_PERMISSION:
        return UnavailableError(f"this user may not use {_CONTROL}", error_type="gpu_no_permission")
    return UnavailableError(
        f"NVIDIA's driver ({module_version() or 'no kernel module'}) does not start: {error}", error_type="gpu_driver_broken"
    )


def _without_driver() -> str:
    version = module_version()
    if version is None:
        return "no NVIDIA driver is loaded here (there is no /proc/driver/nvidia): it needs a machine with an NVIDIA GPU and its driver"
    return (
        f"NVIDIA's kernel module {version} is loaded, and its library libnvidia-ml.so.1 is missing: install the driver's libraries "
        "(in a container, the container toolkit on its host)"
    )


def module_version() -> str | None:
    """Return the version of the loaded kernel module; None if there is none."""
    try:
        found = _MODULE_VERSION.search(_PROC.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def _gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    capability = _asked(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return {
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
        **_use(nvml, handle),
    }


def _use(nvml: Any, handle: Any) -> dict[str, Any]:
    memory = _asked(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))  # unavailable if the GPU has no memory of its own
    processes = _asked(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return {
        "memory_mb": memory.total // _MIB if memory else None,
        "used_mb": memory.used // _MIB if memory else None,
        "free_mb": memory.free // _MIB if memory else None,
        "processes": len(processes) if processes is not None else None,
    }


def _asked(nvml: Any, call: Callable[[], Any]) -> Any:
    """Return the answer; None if it is not available for this GPU or user."""
    try:
        return call()
    except nvml.NVMLError as error:
        if getattr(error, "value", None) in {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION}:
            return None
        raise


def _text(value: str | bytes) -> str:
    """Return text: older versions of the package return bytes."""
    return value.decode() if isinstance(value, bytes) else value
