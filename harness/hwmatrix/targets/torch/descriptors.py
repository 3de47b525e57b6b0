"""The descriptors of the PyTorch backends: the CPU, and the GPUs of NVIDIA, AMD and Apple."""

from __future__ import annotations

from typing import Final

from hwmatrix.records.backends import Descriptor, Hardware, InContainer, Memory, Option
from hwmatrix.records.vocabulary import Backend, Dtype

_PACKAGES: Final = ("torch", "transformers")
_OPTIONS: Final = (Option(name="attention"), Option(name="compile", kind=bool))
_PRECISIONS: Final = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)

CPU: Final = Descriptor(
    name=Backend.CPU.value,
    target="hwmatrix.targets.torch.cpu:TorchCpu",
    hardware=Hardware(
        detector="hwmatrix.hardware.cpu",
        changing=True,
        container_reason="every container has the CPU",
        versions=(("", "system"),),
    ),
    image="cpu",
    requires=_PACKAGES,
    packages=_PACKAGES,
    precisions=(*_PRECISIONS, Dtype.INT8, Dtype.INT8_DYNAMIC),
    rounds=(Dtype.INT8, Dtype.INT8_DYNAMIC),
    torch_device="cpu",
    fallback=(),
    script="torch",
    generation_script=True,
    generates=True,
    options=_OPTIONS,
)
CUDA: Final = Descriptor(
    name=Backend.CUDA.value,
    target="hwmatrix.targets.torch.cuda:TorchCuda",
    hardware=Hardware(
        detector="hwmatrix.hardware.cuda",
        needed_here=True,
        changing=True,
        slow=True,
        in_container=InContainer.NVIDIA,
        if_missing="Install NVIDIA's driver, and reboot; nvidia-smi must list the GPU.",
        versions=(("driver", "driver"), ("CUDA", "cuda"), ("cuDNN", "cudnn")),
    ),
    image="cuda",
    requires=_PACKAGES,
    packages=_PACKAGES,
    precisions=(*_PRECISIONS, Dtype.INT8),
    rounds=(Dtype.INT8,),
    torch_device="cuda",
    memory=Memory.DEVICE,
    fallback=("openvino", "cpu"),
    script="torch",
    generation_script=True,
    generates=True,
    options=(Option(name="device", kind=int), *_OPTIONS),
)
ROCM: Final = Descriptor(
    name=Backend.ROCM.value,
    target="hwmatrix.targets.torch.rocm:TorchRocm",
    hardware=Hardware(
        detector="hwmatrix.hardware.rocm",
        needed_here=True,
        changing=True,
        slow=True,
        in_container=InContainer.AMD,
        if_missing="Install the amdgpu driver of a supported kernel; /dev/kfd must exist.",
        versions=(("driver", "driver"), ("ROCm", "rocm")),
    ),
    image="rocm",
    requires=_PACKAGES,
    packages=_PACKAGES,
    precisions=_PRECISIONS,
    torch_device="cuda",  # PyTorch built for ROCm uses CUDA's names
    memory=Memory.DEVICE,
    fallback=("openvino", "cpu"),  # as for CUDA, which it stands in for: OpenVINO's CPU device runs beside any GPU
    script="torch",
    generation_script=True,
    generates=True,
    options=(Option(name="device", kind=int), *_OPTIONS),
)
MPS: Final = Descriptor(
    name=Backend.MPS.value,
    target="hwmatrix.targets.torch.mps:TorchMps",
    hardware=Hardware(
        detector="hwmatrix.hardware.mps",
        needed_here=True,
        slow=True,
        in_container=InContainer.NEVER,
        container_reason="containers on a Mac run Linux, which has no Metal",
        if_missing="MPS needs macOS on Apple silicon: give this target another machine.",
        versions=(("macOS", "macos"),),
    ),
    image="cpu",
    requires=_PACKAGES,
    packages=_PACKAGES,
    precisions=(Dtype.FLOAT32, Dtype.FLOAT16),
    torch_device="mps",
    memory=Memory.SHARED,
    fallback=("openvino", "cpu"),
    script="torch",
    generation_script=True,
    generates=True,
    options=_OPTIONS,
)
