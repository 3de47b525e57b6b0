"""PyTorch on the CPU: the reference that every other target is compared with."""

from __future__ import annotations

import torch

from hwmatrix.targets.torch.device import TorchDevice


class TorchCpu(TorchDevice):
    """PyTorch on the CPU, which is synchronous."""

    def check(self) -> str:
        """The CPU is always there. Sets the number of threads, which torch may do only once before it computes."""
        torch.set_num_threads(self._settings.threads)
        return "cpu"
