"""The descriptor of TorchInductor on the CPU."""

from __future__ import annotations

from typing import Final

from hwmatrix.records.backends import Descriptor, Hardware, Option
from hwmatrix.records.vocabulary import Backend, Dtype

INDUCTOR: Final = Descriptor(
    name=Backend.INDUCTOR.value,
    target="hwmatrix.targets.inductor.target:Inductor",
    hardware=Hardware(
        detector="hwmatrix.targets.inductor.compiler",
        light=True,
        container_reason="the image brings PyTorch and a compiler; it needs the CPU alone",
        versions=(("", "version"), ("compiler", "compiler_version")),
    ),
    image="inductor",
    requires=("torch", "transformers"),
    packages=("torch", "transformers"),
    precisions=(Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16),
    torch_device="cpu",
    script="torch",
    compiles=True,
    options=(Option(name="attention"),),
)
