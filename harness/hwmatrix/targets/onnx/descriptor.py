"""The descriptor of ONNX Runtime on the CPU."""

from __future__ import annotations

from typing import Final

from hwmatrix.records.backends import Descriptor, Hardware, OnnxUse
from hwmatrix.records.vocabulary import Backend, Dtype

EXPORTERS: Final = ("transformers", "torch")
"""The exporters that make ONNX exports of a bundle, in the order in which a backend tries them."""

ONNXRUNTIME: Final = Descriptor(
    name=Backend.ONNXRUNTIME.value,
    target="hwmatrix.targets.onnx.onnxruntime:OnnxRuntime",
    operators="hwmatrix.targets.onnx.onnxruntime_operators:OnnxRuntimeOperators",
    hardware=Hardware(detector="hwmatrix.hardware.onnxruntime", light=True, versions=(("", "version"),)),
    image="onnxruntime",
    requires=("onnxruntime",),
    packages=("onnxruntime",),
    precisions=(Dtype.FLOAT32, Dtype.FLOAT16, Dtype.INT8_DYNAMIC, Dtype.A8W8, Dtype.INT4),
    rounds=(Dtype.INT8_DYNAMIC, Dtype.A8W8, Dtype.INT4),
    forward_only=(Dtype.A8W8,),
    onnx=OnnxUse.FIRST,
    exports=EXPORTERS,
    rewrites=True,
    script="onnxruntime",
    generation_script=True,
    generates=True,
    generation_export="generation",
)
