"""The descriptor of OpenVINO, on the CPU or on Intel's GPUs and NPUs."""

from __future__ import annotations

from typing import Final

from hwmatrix.records.backends import Descriptor, Hardware, InContainer, Option
from hwmatrix.records.vocabulary import Backend, Dtype

TRACE: Final = "trace"
"""The alternative to transformers' exporter: OpenVINO's own converter, on a trace."""

OPENVINO: Final = Descriptor(
    name=Backend.OPENVINO.value,
    target="hwmatrix.targets.openvino.target:OpenVino",
    operators="hwmatrix.targets.openvino.openvino_operators:OpenVinoOperators",
    hardware=Hardware(
        detector="hwmatrix.hardware.openvino",
        slow=True,
        in_container=InContainer.SOFTWARE,
        container_reason="OpenVINO on the CPU",
        versions=(("devices", "devices"),),
    ),
    image="openvino",
    requires=("torch", "transformers", "openvino"),
    packages=("openvino", "torch", "transformers"),
    precisions=(Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.INT8, Dtype.INT4, Dtype.A8W8, Dtype.DEFAULT),
    rounds=(Dtype.INT8, Dtype.INT4, Dtype.A8W8),
    forward_only=(Dtype.A8W8,),
    exports=("transformers", TRACE),
    forward_export="openvino",
    own_graph=("export", "attention"),
    wide_weights=True,
    script="openvino",
    generation_script=True,
    generates=True,
    generation_export="generation-openvino",
    options=(Option(name="device"), Option(name="attention"), Option(name="precision_hints", kind=bool)),
)
