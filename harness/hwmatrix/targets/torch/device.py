"""What all PyTorch devices share: load, move, run, verify placement. Each device is a separate module."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import torch

from hwmatrix.errors import UnsupportedError
from hwmatrix.models.build import load_model
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.records import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import Settings
    from hwmatrix.records.traces import Trace
    from hwmatrix.targets.protocol import Arrays, DeviceUse


_COMPILERS: Final = ("cc", "gcc", "clang")


class TorchDevice:
    """The model as transformers loads it, executed by PyTorch on ``device``: eagerly, or with ``options["compile"]`` compiled.

    A device adds how it is found (``check``) and, where it is asynchronous, how a run waits for it.
    """

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._settings = settings
        self._options = options
        self.device = torch.device("cpu")
        self._dtype: torch.dtype = getattr(torch, settings.dtype.value)
        self._model: torch.nn.Module | None = None
        self._call: Callable[..., Any] | None = None
        self._inputs: dict[str, Any] = {}
        self._result: dict[str, torch.Tensor] = {}

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Torch, transformers, and the models' modules; no device's runtime, which no forked child could use any more."""
        preload_torch(model_classes)

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """Cells share nothing."""

    def load(self, bundle: Bundle) -> int:
        """Load from safetensors through ``from_pretrained``, into the host's memory."""
        self._model = load_model(bundle.model_dir, bundle.model_class, self._settings.dtype, attention=self._options.get("attention"))
        return sum(parameter.numel() for parameter in self._model.parameters())

    def prepare(self, inputs: Arrays) -> str:
        """Move model and inputs to the device. Compiling happens in the first call, so with ``compile`` that is made here."""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        self._call = self._model.to(self.device)
        self._inputs |= call_options(self._model)
        self._inputs |= self._placed(inputs)
        way = self._compile() if self._options.get("compile") else "torch eager mode"
        attention = getattr(self._model.config, "_attn_implementation", None)
        return f"{way}, {attention} attention" if attention else way

    def feed(self, inputs: Arrays) -> None:
        """Move other inputs to the device."""
        self._inputs |= self._placed(inputs)

    def _placed(self, inputs: Arrays) -> dict[str, torch.Tensor]:
        """The inputs on the device, in the cell's precision."""
        tensors = {name: torch.from_numpy(array).to(self.device) for name, array in inputs.items()}
        return {name: tensor.to(self._dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}

    def _compile(self) -> str:
        """Compile for these very shapes. The graph breaks, which leave parts of a model to Python, are counted."""
        from torch._dynamo.utils import counters

        if not any(shutil.which(name) for name in _COMPILERS):
            message = "torch.compile builds what it generates with a C compiler, and there is none here"
            raise UnsupportedError(message, needs=("C compiler",), error_type="compiler_missing")
        self._call = torch.compile(self._model, dynamic=False)
        counters.clear()
        self.run()
        breaks = sum(counters["graph_break"].values())
        return f"torch.compile (inductor, {breaks} graph break{'' if breaks == 1 else 's'})"

    def run(self) -> Any:
        """One forward pass, for a device that is synchronous."""
        return self.forward()

    def forward(self) -> Any:
        """One forward pass, which an asynchronous device may not have finished yet."""
        assert self._call is not None  # noqa: S101 - the order of the protocol
        with torch.inference_mode():
            return self._call(**self._inputs)

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
            elements[str(tensor.device)] += tensor.numel()
        total = sum(elements.values())
        detail = ", ".join(f"{device} {count / total:.1%}" for device, count in elements.most_common())
        # A device without a number (cpu, mps) is the only one of its kind; torch gives mps a number in tensors alone.
        wanted = sum(count for device, count in elements.items() if str(self.device) in {device, device.partition(":")[0]})
        return Placement(on_target=wanted / total, detail=f"device of parameters, buffers and outputs: {detail}")

    def device_use(self) -> DeviceUse | None:
        """Nothing beyond the host's own memory and time."""
        return None

    def trace(self, bundle: Bundle) -> Trace:
        """The model's layers beside the reference's. Those of a compiled model run uncompiled: if they are right, compiled code is not."""
        from hwmatrix.targets.torch.trace import trace_layers

        assert self._model is not None  # noqa: S101 - the order of the protocol
        return trace_layers(self._model, self._placed(bundle.input_arrays()), bundle)


def preload_torch(model_classes: Iterable[str]) -> None:
    """Import torch, transformers and the modules of these classes. Torch stays at one thread here and computes nothing.

    transformers imports a model's module when its class is first asked for (a second or so); in the parent that is paid once.
    """
    import transformers

    from hwmatrix.models import bundle, inputs  # noqa: F401

    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    for name in sorted(set(model_classes)):
        try:
            getattr(transformers, name)
        except (AttributeError, ImportError, RuntimeError):
            continue  # the cell itself meets the same error, and there it is data
