"""PyTorch on the CPU: the reference that every other target is compared with."""

from __future__ import annotations

import torch

from hwmatrix.targets.torch.device import TorchDevice


class TorchCpu(TorchDevice):
    """PyTorch on the CPU, which is synchronous."""

    def check(self) -> str:
        """Set the number of threads, which torch allows only before it computes. The CPU is always available."""
        torch.set_num_threads(self._settings.threads)
        return "cpu"
