"""The descriptor of ExecuTorch with the XNNPACK delegate, on the CPU."""

from __future__ import annotations

from typing import Final

from hwmatrix.records.backends import Descriptor, Hardware
from hwmatrix.records.vocabulary import Backend, Dtype

TRANSFORMERS: Final = "transformers"
TORCH: Final = "torch"
"""The alternative to transformers' exporter: torch.export alone."""

EXECUTORCH: Final = Descriptor(
    name=Backend.EXECUTORCH.value,
    target="hwmatrix.targets.executorch.target:Executorch",
    hardware=Hardware(detector="hwmatrix.targets.executorch.runtime", light=True, versions=(("", "version"),)),
    image="executorch",
    requires=("torch", "transformers", "executorch"),
    packages=("executorch", "torch", "transformers"),
    precisions=(Dtype.FLOAT32, Dtype.A8W8),
    exports=(TRANSFORMERS, TORCH),
    rewrites=True,
    script="executorch",
    generates=True,
    forward_only=(Dtype.A8W8,),
    rounds=(Dtype.A8W8,),
)
