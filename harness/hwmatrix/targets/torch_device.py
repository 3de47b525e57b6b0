"""PyTorch in eager mode on a torch device. Today: the CPU."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from hwmatrix.models.build import load_model
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.records import Placement
from hwmatrix.targets.torch_preload import preload_torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import Settings
    from hwmatrix.targets.protocol import Arrays


class TorchCpu:
    """The model as transformers loads it, executed by PyTorch on the CPU."""

    packages: tuple[str, ...] = ("torch", "transformers")

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._settings = settings
        self._options = options
        self._dtype: torch.dtype = getattr(torch, settings.dtype.value)
        self._model: torch.nn.Module | None = None
        self._inputs: dict[str, Any] = {}
        self._result: dict[str, torch.Tensor] = {}

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Torch, transformers, and the models' modules."""
        preload_torch(model_classes)

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """Cells share nothing."""

    def check(self) -> str:
        """The CPU is always there. Sets the number of threads, which torch may do only once before it computes."""
        torch.set_num_threads(self._settings.threads)
        return "cpu"

    def load(self, bundle: Bundle) -> int:
        """Load from safetensors through ``from_pretrained``."""
        self._model = load_model(bundle.model_dir, bundle.model_class, self._settings.dtype, attention=self._options.get("attention"))
        return sum(parameter.numel() for parameter in self._model.parameters())

    def prepare(self, inputs: Arrays) -> str:
        """Move the inputs; eager mode needs nothing else."""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        self._inputs |= call_options(self._model)
        for name, array in inputs.items():
            tensor = torch.from_numpy(array)
            self._inputs[name] = tensor.to(self._dtype) if tensor.is_floating_point() else tensor
        attention = getattr(self._model.config, "_attn_implementation", None)
        return f"torch eager mode, {attention} attention" if attention else "torch eager mode"

    def run(self) -> Any:
        """One forward pass. The CPU is synchronous."""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        with torch.inference_mode():
            return self._model(**self._inputs)

    def elapsed_ns(self) -> int | None:
        """The host's clock is right: a run returns when it is done."""
        return None

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs as float32, or as the integers they are."""
        self._result = flatten_outputs(result)
        return {name: (t.float() if t.is_floating_point() else t).detach().cpu().numpy() for name, t in self._result.items()}

    def placement(self) -> Placement:
        """The device of every parameter, buffer and output; shares by number of elements."""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        elements: Counter[str] = Counter()
        for tensor in (*self._model.parameters(), *self._model.buffers(), *self._result.values()):
            elements[tensor.device.type] += tensor.numel()
        total = sum(elements.values())
        detail = ", ".join(f"{device} {count / total:.1%}" for device, count in elements.most_common())
        return Placement(on_target=elements["cpu"] / total, detail=f"device of parameters, buffers and outputs: {detail}")
