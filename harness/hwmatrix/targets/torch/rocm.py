"""PyTorch on AMD GPUs. PyTorch for ROCm uses CUDA's names, and is recognized by ``torch.version.hip``."""

from __future__ import annotations

import torch

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import rocm as hardware
from hwmatrix.targets.torch.cuda import TorchCuda, built_for


class TorchRocm(TorchCuda):
    """Like :class:`TorchCuda`. PyTorch calls the device ``cuda``. The name includes the GPU's architecture (gfx...)."""

    def check(self) -> str:
        """Find the driver and the GPU, and start HIP on it.

        Raises:
            UnavailableError: PyTorch is built for something else, or the driver, the GPU or permissions are missing. The message says
                which.
        """
        if torch.version.hip is None:
            raise UnavailableError(f"this PyTorch ({torch.__version__}) {built_for()}, not for ROCm", error_type="torch_build")
        hardware.detect()
        self._others = hardware.processes()  # before HIP starts in this process, so that it does not count itself
        self._begin()
        architecture = str(getattr(torch.cuda.get_device_properties(self.device), "gcnArchName", "gfx?")).partition(":")[0]
        self._name = f"{self._name} ({architecture})"
        return f"{self.device}: {self._name}"

    def _processes_now(self) -> int | None:
        return hardware.processes()
