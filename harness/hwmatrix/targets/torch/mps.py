"""PyTorch on Apple GPUs, through Metal Performance Shaders. Always native, because containers on a Mac run Linux."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any, Final

import torch

from hwmatrix.errors import UnavailableError, UnsupportedError
from hwmatrix.hardware import mps as hardware
from hwmatrix.targets.protocol import DeviceUse
from hwmatrix.targets.torch.device import TorchDevice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hwmatrix.models.bundle import GenerationPrompt
    from hwmatrix.records import Prepared, Settings
    from hwmatrix.targets.protocol import Arrays, OnStep

_FALLBACK: Final = "PYTORCH_ENABLE_MPS_FALLBACK"
_MISSING: Final = re.compile(r"The operator '([^']+)' is not current(?:ly)? (?:implemented|supported) for the MPS device")
"""The message is from aten/src/ATen/mps/MPSFallback.mm. Versions before 2.0 wrote "current" without "ly"."""
_MIB: Final = 2**20


class TorchMps(TorchDevice):
    """PyTorch on the Mac's GPU. Its queue is asynchronous, so a run waits for it."""

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings=settings, options=options, service=service)
        self.device = torch.device("mps")

    def check(self) -> str:
        """Find the chip, and check that PyTorch can use it.

        Raises:
            UnavailableError: no Mac, no Apple silicon, PyTorch without MPS, or the silent fallback to the CPU is enabled.
        """
        chip, _ = hardware.detect()
        torch.set_num_threads(self._settings.threads)
        if os.environ.get(_FALLBACK) == "1":  # PyTorch read it when it was loaded, so clearing it here is too late
            message = f"{_FALLBACK}=1 is set: PyTorch would silently run on the CPU what MPS lacks; unset it"
            raise UnavailableError(message, error_type="mps_fallback_enabled")
        if not torch.backends.mps.is_available():
            why = "needs a newer macOS" if torch.backends.mps.is_built() else "is built without MPS"
            raise UnavailableError(f"this PyTorch ({torch.__version__}) {why}", error_type="torch_build")
        return f"mps: {chip}"

    def prepare(self, inputs: Arrays) -> Prepared:
        """Prepare as on every device. With ``compile`` this runs the model, and may find an operator that MPS lacks."""
        with _missing_operators():
            return super().prepare(inputs)

    def run(self) -> Any:
        """Run one forward pass and wait for it.

        Raises:
            UnsupportedError: MPS has no kernel for an operator, which the message names.
        """
        with _missing_operators():
            result = self.forward()
        torch.mps.synchronize()
        return result

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """Generate as on every device.

        Raises:
            UnsupportedError: as :meth:`run`.
        """
        with _missing_operators():
            super().generate(prompt, on_step, forced=forced)

    def device_use(self) -> DeviceUse | None:
        """The memory that Metal has allocated to this process. Metal reports neither a peak of its use nor other processes."""
        return DeviceUse(peak_mb=None, reserved_mb=torch.mps.driver_allocated_memory() / _MIB, other_processes=None)


@contextlib.contextmanager
def _missing_operators() -> Iterator[None]:
    """Raise an UnsupportedError for an operator that MPS lacks; any other error is unchanged."""
    try:
        yield
    except NotImplementedError as error:
        found = _MISSING.search(str(error))
        if found is None:
            raise
        raise UnsupportedError(f"MPS has no kernel for {found[1]}", needs=(found[1],)) from error
