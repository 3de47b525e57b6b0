"""The toy's descriptor: facts that are known without importing onnx."""

from __future__ import annotations

from hwmatrix.records import Execution
from hwmatrix.records.backends import Descriptor, Hardware, OnnxUse

TOY = Descriptor(
    name="toy",
    target="hwmatrix_toy.target:Toy",
    hardware=Hardware(detector="hwmatrix_toy.machine", light=True, versions=(("onnx", "onnx"),)),
    image="toy",
    requires=("onnx",),
    packages=("hwmatrix-toy", "onnx"),
    execution=Execution.SOFTWARE,
    onnx=OnnxUse.FIRST,
    exports=("transformers", "torch"),
)
