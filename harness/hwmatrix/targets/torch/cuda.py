"""PyTorch on NVIDIA GPUs. PyTorch for ROCm uses the same names, so ``rocm`` builds on this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import cuda as hardware
from hwmatrix.records import Placement
from hwmatrix.targets.protocol import DeviceUse
from hwmatrix.targets.torch.rounding import RoundingDevice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.records import Settings

_MIB = 2**20


class TorchCuda(RoundingDevice):
    """PyTorch on the GPU number ``options["device"]`` (default 0), timed by events on the device itself.

    float32 is computed in float32: TensorFloat-32, which rounds to 10 bits, is disabled for matrix products and convolutions, since the
    reference does not use it.
    """

    reserves_address_space = True

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings=settings, options=options, service=service)
        self.device = torch.device("cuda", int(options.get("device", 0)))
        self._name = ""
        self._others: int | None = None
        self._start: Any = None
        self._stop: Any = None

    def check(self) -> str:
        """Find the driver and the GPU, and start CUDA on it.

        Raises:
            UnavailableError: PyTorch is built for something else, or the driver or GPU is missing. The message says which.
        """
        if torch.version.cuda is None:
            raise UnavailableError(f"this PyTorch ({torch.__version__}) {built_for()}, not for CUDA", error_type="torch_build")
        _, facts = hardware.detect()  # before CUDA starts in this process, so that it does not count itself
        self._begin()
        self._others = _processes(facts, str(getattr(torch.cuda.get_device_properties(self.device), "uuid", "")))
        return f"{self.device}: {self._name}"

    def _begin(self) -> None:
        """Start the runtime on the chosen GPU, and reset its peak memory statistics."""
        torch.set_num_threads(self._settings.threads)
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (RuntimeError, AssertionError) as error:  # a PyTorch built without GPU support raises AssertionError
            raise UnavailableError(f"PyTorch cannot use the GPU: {error}", error_type="gpu_not_usable") from error
        count = torch.cuda.device_count()
        if not 0 <= (self.device.index or 0) < count:
            raise UnavailableError(f"there is no {self.device}: PyTorch finds {count} GPUs", error_type="gpu_not_usable")
        torch.cuda.set_device(self.device)
        # Set each one: a value that a library has set for one of them overrides the global value.
        backends: Any = torch.backends
        for kind in (backends, backends.cuda.matmul, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn):
            kind.fp32_precision = "ieee"
        self._name = torch.cuda.get_device_name(self.device)
        self._start, self._stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(self.device)

    def run(self) -> Any:
        """Run one forward pass between two events. Return when the second has passed."""
        self._start.record()
        result = self.forward()
        self._stop.record()
        self._stop.synchronize()
        return result

    def elapsed_ns(self) -> int | None:
        """The time between the events, by the device's clock (resolution about half a microsecond)."""
        return int(self._start.elapsed_time(self._stop) * 1e6)

    def placement(self) -> Placement:
        """The placement as on every device, with the GPU's name and the number of other processes when the cell began."""
        found = super().placement()
        others = "not known" if self._others is None else self._others
        return Placement(on_target=found.on_target, detail=f"{self._name}; {found.detail}; other processes on the GPU: {others}")

    def device_use(self) -> DeviceUse | None:
        """The allocator's peaks since ``check``, and the number of other processes: at the beginning or now, whichever is larger."""
        return DeviceUse(
            peak_mb=torch.cuda.max_memory_allocated(self.device) / _MIB,
            reserved_mb=torch.cuda.max_memory_reserved(self.device) / _MIB,
            other_processes=more(self._others, self._processes_now()),
        )

    def _processes_now(self) -> int | None:
        try:
            _, facts = hardware.detect()
        except UnavailableError:
            return None
        return _processes(facts, str(getattr(torch.cuda.get_device_properties(self.device), "uuid", "")))


def more(before: int | None, now: int | None) -> int | None:
    """Return the number of other processes, from a count before this process had a context and a later one that includes it.

    In a container, the driver may hide this process from itself. Then subtracting one is too much, and ``before`` still counts.
    """
    if before is None or now is None:
        return before
    return max(before, now - 1)


def built_for() -> str:
    """Describe what this PyTorch is built for, for a message."""
    if torch.version.cuda is not None:
        return f"is built for CUDA {torch.version.cuda}"
    return f"is built for ROCm {torch.version.hip}" if torch.version.hip is not None else "is built for CPUs only"


def _processes(facts: Mapping[str, Any], uuid: str) -> int | None:
    """The number of processes on the GPU with this UUID (PyTorch omits NVML's prefix), or on the only GPU if there is just one."""
    gpus = facts["gpus"]
    mine = [gpu for gpu in gpus if uuid and gpu["uuid"].endswith(uuid)] or (gpus if len(gpus) == 1 else [])
    found: int | None = mine[0]["processes"] if mine else None
    return found
