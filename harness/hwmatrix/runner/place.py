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
"""What makes the ONNX export that a backend needs: a run of cells has an image for that, a test does it itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where a model is tried, and by which measure.

    ``device`` is the name of a backend, ``options`` are that target's. ``tolerance`` is the largest relative L2 error that counts as
    the same result in this precision. ``memory_mb`` is what the model needs there (MiB), None where nobody knows.
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
        """Whether ONNX exports of models run there."""
        return self._descriptor.onnx is not OnnxUse.NONE

    @property
    def torch_name(self) -> str:
        """What PyTorch calls this kind of device."""
        return self._descriptor.torch_device or self.device

    @property
    def preferences(self) -> dict[str, Any]:
        """What a resource pool is asked for: of several GPUs, the one of the options."""
        return {"device": f"{self.device}:{int(self.options.get('device', 0))}" if self._descriptor.several else self.device}

    @property
    def _descriptor(self) -> Descriptor:
        return descriptor_of(self.backend)

    def target(self) -> Target:
        """The target, not started yet."""
        settings = Settings(dtype=self.dtype, batch=1, sequence_length=1, threads=self.threads)
        return target_class(self.backend)(settings=settings, options=self.options)

    def check(self) -> str:
        """Start the device's runtime, and name the device.

        Raises:
            UnavailableError: there is no such hardware, driver, runtime, Python package, or not the memory that the model needs.
        """
        needed = (*self._descriptor.requires, *(_EXPORTING if self.takes_onnx else ()))
        missing = [module for module in dict.fromkeys(needed) if importlib.util.find_spec(module) is None]
        if missing:
            packages = f"images/{self._descriptor.image}/requirements.txt has the packages"
            message = f"not installed in {sys.executable}: {', '.join(missing)} ({packages})"
            raise UnavailableError(message, error_type="missing_package")
        name = self.target().check()
        free = None if self.memory_mb is None else available_memory_mb(self.backend)
        if free is not None and self.memory_mb is not None and free < self.memory_mb:
            message = f"the model needs {self.memory_mb} MiB on {self.device}, and {free} MiB are free"
            raise UnavailableError(message, error_type="memory_pressure")
        return name
