"""The descriptors of WebGPU and WebNN, both in a real browser."""

from __future__ import annotations

from typing import Final

from hwmatrix.records.backends import Descriptor, Hardware, InContainer, OnnxUse, Option
from hwmatrix.records.vocabulary import Backend, Dtype, Execution
from hwmatrix.targets.onnx.descriptor import EXPORTERS

_BROUGHT: Final = "the browser's software adapter"
_ROUNDS: Final = (Dtype.INT8_DYNAMIC, Dtype.A8W8, Dtype.INT4, Dtype.INT4_FLOAT16)
_REDUCED: Final = (Dtype.FLOAT16, *_ROUNDS)
_VERSIONS: Final = (("ONNX Runtime Web", "onnxruntime_web"),)
_BROWSER: Final = (
    Option(name="browser", values=("image", "debian", "sparticuz")),
    Option(name="executable"),
    Option(name="assets"),
)

WEBGPU: Final = Descriptor(
    name=Backend.WEBGPU.value,
    target="hwmatrix.targets.browser.target:WebGpu",
    operators="hwmatrix.targets.browser.browser_operators:WebGpuOperators",
    hardware=Hardware(
        detector="hwmatrix.hardware.browser", slow=True, in_container=InContainer.SOFTWARE, container_reason=_BROUGHT, versions=_VERSIONS
    ),
    image="webgpu",
    requires=("websocket",),
    packages=("websocket-client",),
    precisions=(Dtype.FLOAT32, *_REDUCED),
    rounds=_ROUNDS,
    forward_only=(Dtype.A8W8,),
    execution=Execution.SOFTWARE,
    held_out=8,
    in_browser=True,
    onnx=OnnxUse.BEST,
    exports=EXPORTERS,
    rewrites=True,
    fallback=("webnn", "cpu"),
    script="browser",
    generates=True,
    generation_export="generation",
    options=(Option(name="adapter", values=("software", "hardware")), *_BROWSER),
)
WEBNN: Final = Descriptor(
    name=Backend.WEBNN.value,
    target="hwmatrix.targets.browser.target:WebNn",
    operators="hwmatrix.targets.browser.browser_operators:WebNnOperators",
    hardware=Hardware(
        detector="hwmatrix.hardware.webnn",
        light=True,
        started=True,
        slow=True,
        in_container=InContainer.SOFTWARE,
        container_reason=_BROUGHT,
        versions=_VERSIONS,
    ),
    image="webnn",
    requires=("websocket",),
    packages=("websocket-client",),
    precisions=(Dtype.FLOAT32, *_REDUCED),
    rounds=_ROUNDS,
    forward_only=(Dtype.A8W8,),
    execution=Execution.SOFTWARE,
    held_out=8,
    in_browser=True,
    onnx=OnnxUse.BEST,
    exports=EXPORTERS,
    rewrites=True,
    script="browser",
    generates=True,
    generation_export="generation",
    options=(Option(name="device", values=("cpu", "gpu", "npu")), *_BROWSER),
)
