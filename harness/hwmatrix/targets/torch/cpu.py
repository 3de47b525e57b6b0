"""PyTorch on the CPU: the reference that every other target is compared with, and the same model in reduced precisions."""

from __future__ import annotations

import torch

from hwmatrix.targets.torch.rounding import RoundingDevice


class TorchCpu(RoundingDevice):
    """PyTorch on the CPU, which is synchronous."""

    def check(self) -> str:
        """Set the number of threads, which torch allows only before it computes. The CPU is always available."""
        torch.set_num_threads(self._settings.threads)
        return "cpu"
