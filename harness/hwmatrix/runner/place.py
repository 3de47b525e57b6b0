"""Where a model is tested: a device, its precision, and the tolerance for its outputs."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import UnavailableError
from hwmatrix.knowledge.requirements import available_memory_mb
from hwmatrix.records import Backend, Dtype, Settings
from hwmatrix.records.backends import Descriptor, OnnxUse, descriptor_of
from hwmatrix.targets.protocol import target_class

if TYPE_CHECKING:
    from hwmatrix.targets.protocol import Target

_EXPORTING: Final = ("torch", "transformers", "onnxscript")
"""What the ONNX export needs. A run of cells exports in the reference image; a test exports in its own process."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a model is tested, and how its outputs are compared.

    ``device`` is the name of a backend; ``options`` are those of its target. ``tolerance`` is the largest relative L2 error that counts
    as the same result in this precision. ``memory_mb`` is what the model needs there (MiB), None if unknown.
    """

    device: str
    dtype: Dtype = Dtype.FLOAT32
    tolerance: float = 1e-4
    memory_mb: int | None = None
    threads: int = 1
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.device}-{self.dtype.value}"

    @property
    def backend(self) -> Backend:
        """The backend of the device."""
        return Backend(self.device)

    @property
    def is_torch(self) -> bool:
        """Whether PyTorch runs models there."""
        return self._descriptor.torch_device is not None

    @property
    def takes_onnx(self) -> bool:
        """Whether the backend runs ONNX exports."""
        return self._descriptor.onnx is not OnnxUse.NONE

    @property
    def torch_name(self) -> str:
        """PyTorch's name for this kind of device."""
        return self._descriptor.torch_device or self.device

    @property
    def preferences(self) -> dict[str, Any]:
        """The device to request from a resource pool: with several GPUs, the one in the options."""
        return {"device": f"{self.device}:{int(self.options.get('device', 0))}" if self._descriptor.several else self.device}

    @property
    def _descriptor(self) -> Descriptor:
        return descriptor_of(self.backend)

    def target(self) -> Target:
        """The target, not started yet."""
        settings = Settings(dtype=self.dtype, batch=1, sequence_length=1, threads=self.threads)
        return target_class(self.backend)(settings=settings, options=self.options)

    def check(self) -> str:
        """Start the device's runtime, and return the device's name.

        Raises:
            UnavailableError: the hardware, driver, runtime or a Python package is missing, or the model needs more memory than is free.
        """
        needed = (*self._descriptor.requires, *(_EXPORTING if self.takes_onnx else ()))
        missing = [module for module in dict.fromkeys(needed) if importlib.util.find_spec(module) is None]
        if missing:
            packages = f"see images/{self._descriptor.image}/requirements.txt"
            message = f"not installed in {sys.executable}: {', '.join(missing)} ({packages})"
            raise UnavailableError(message, error_type="missing_package")
        name = self.target().check()
        free = None if self.memory_mb is None else available_memory_mb(self.backend)
        if free is not None and self.memory_mb is not None and free < self.memory_mb:
            message = f"the model needs {self.memory_mb} MiB on {self.device}, but only {free} MiB are free"
            raise UnavailableError(message, error_type="memory_pressure")
        return name
