"""The descriptor of QNN: Qualcomm's HTP, emulated on x86-64."""

from __future__ import annotations

from typing import Final

from hwmatrix.records.backends import Descriptor, Hardware, OnnxUse, Option
from hwmatrix.records.vocabulary import Backend, Dtype, Execution
from hwmatrix.targets.onnx.descriptor import EXPORTERS

QNN: Final = Descriptor(
    name=Backend.QNN.value,
    target="hwmatrix.targets.qnn.target:Qnn",
    operators="hwmatrix.targets.qnn.qnn_operators:QnnOperators",
    hardware=Hardware(
        detector="hwmatrix.hardware.qnn", light=True, versions=(("onnxruntime-qnn", "onnxruntime_qnn"), ("ONNX Runtime", "onnxruntime"))
    ),
    image="qnn",
    requires=("onnxruntime", "onnxruntime_qnn", "onnxscript"),
    packages=("onnxruntime-qnn", "onnxruntime", "onnx", "onnxscript"),
    precisions=(Dtype.FLOAT16, Dtype.A16W8, Dtype.A8W8),
    execution=Execution.EMULATED,
    held_out=8,
    onnx=OnnxUse.BEST,
    exports=EXPORTERS,
    rewrites=True,
    script="qnn",
    no_generation="QNN prepares a graph for fixed shapes, and the cache of the exported graphs grows with every token",
    options=(Option(name="soc_model", kind=int),),
)
