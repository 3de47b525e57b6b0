"""The base of all PyTorch devices: load, move, run, verify placement. Each device is a separate module."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import torch

from hwmatrix.errors import UnsupportedError
from hwmatrix.models import generation
from hwmatrix.models.build import load_model
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.records import Dtype, Placement, Prepared
from hwmatrix.targets.torch import integers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from hwmatrix.models.bundle import Bundle, GenerationPrompt
    from hwmatrix.records import Settings
    from hwmatrix.records.traces import Trace
    from hwmatrix.targets.protocol import Arrays, Compilation, DeviceUse, OnStep, Service
    from hwmatrix.targets.torch.compiling import Compiled


_COMPILERS: Final = ("cc", "gcc", "clang")


class TorchDevice:
    """Runs the model as transformers loads it, on ``device``: eagerly, or compiled with ``options["compile"]``.

    A device adds how it is found (``check``) and, if it is asynchronous, how a run waits for it.
    """

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._settings = settings
        self._options = options
        self.device = torch.device("cpu")
        self._computes: Dtype = Dtype.FLOAT32 if settings.dtype in integers.CONFIGURATIONS else settings.dtype
        self._dtype: torch.dtype = getattr(torch, self._computes.value)
        self._model: torch.nn.Module | None = None
        self._call: Callable[..., Any] | None = None
        self._compiled: Compiled | None = None
        self._inputs: dict[str, Any] = {}
        self._result: dict[str, torch.Tensor] = {}
        self._cache: Any = None

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Import torch, transformers and the models' modules. Must not start a device's runtime, which a forked child could not use."""
        preload_torch(model_classes)

    @staticmethod
    def service(options: Mapping[str, Any]) -> Service | None:  # noqa: ARG004 - of the protocol
        """Return None: cells share nothing."""
        return None

    def load(self, bundle: Bundle) -> int:
        """Load from safetensors with ``from_pretrained`` into host memory. Return the number of parameters."""
        self._model = load_model(bundle.model_dir, bundle.model_class, self._computes, attention=self._options.get("attention"))
        return sum(parameter.numel() for parameter in self._model.parameters())

    def prepare(self, inputs: Arrays) -> Prepared:
        """Move the model and the inputs to the device. With ``compile``, also make the first call, in which torch.compile compiles."""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        self._call = self._model.to(self.device)
        self._inputs |= call_options(self._model)
        self._inputs |= self._placed(inputs)
        way = self._compile() if self._compiles else "torch eager mode"
        attention = getattr(self._model.config, "_attn_implementation", None)
        return Prepared(method=f"{way}, {attention} attention" if attention else way)

    def precision(self) -> None:
        """Return None: the tensors' types fix the precision."""

    def feed(self, inputs: Arrays) -> None:
        """Move other inputs to the device."""
        self._inputs |= self._placed(inputs)

    def _placed(self, inputs: Arrays) -> dict[str, torch.Tensor]:
        """Return the inputs on the device, in the cell's precision."""
        tensors = {name: torch.from_numpy(array).to(self.device) for name, array in inputs.items()}
        return {name: tensor.to(self._dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}

    @property
    def _compiles(self) -> bool:
        """Whether the model is compiled."""
        return bool(self._options.get("compile"))

    def _compile(self) -> str:
        """Compile. Experts are computed as one batched product, as in exports: a loop over those that were hit depends on the data.

        Raises:
            UnsupportedError: there is no compiler.
        """
        from hwmatrix.models.onnx_exporters import with_batched_experts
        from hwmatrix.targets.torch.compiling import Compiled

        if not any(shutil.which(name) for name in _COMPILERS):
            message = "torch.compile needs a C compiler for the code it generates, and none was found: install gcc or clang"
            raise UnsupportedError(message, needs=("C compiler",), error_type="compiler_missing")
        assert self._model is not None  # noqa: S101 - the order of the protocol
        with_batched_experts(self._model)
        self._call = self._compiled = Compiled(self._model)
        self._compiled.compile(self.run)
        return "torch.compile (inductor)"

    def start_cold(self) -> None:
        """Do nothing: a device's compiled code stays in PyTorch's own cache."""

    def compilation(self, *, again: bool) -> Compilation:
        """How the model was compiled."""
        assert self._compiled is not None  # noqa: S101 - only if it compiles
        return self._compiled.compilation(self.run if again else None)

    def run(self) -> Any:
        """Run one forward pass, on a synchronous device."""
        return self.forward()

    def forward(self) -> Any:
        """Start one forward pass, which an asynchronous device may not have finished on return."""
        assert self._call is not None  # noqa: S101 - the order of the protocol
        with torch.inference_mode():
            return self._call(**self._inputs)

    def elapsed_ns(self) -> int | None:
        """None: the host's clock is right, since a run returns when it is done."""
        return None

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return floating-point outputs as float32, and integers unchanged."""
        self._result = flatten_outputs(result)
        return {name: (t.float() if t.is_floating_point() else t).detach().cpu().numpy() for name, t in self._result.items()}

    def placement(self) -> Placement:
        """The devices of all parameters, buffers and outputs, with shares by number of elements."""
        assert self._model is not None  # noqa: S101 - the order of the protocol
        elements: Counter[str] = Counter()
        for tensor in (*self._model.parameters(), *self._model.buffers(), *self._result.values()):
            elements[str(tensor.device)] += tensor.numel()
        total = sum(elements.values())
        detail = ", ".join(f"{device} {count / total:.1%}" for device, count in elements.most_common())
        # A device without a number (cpu, mps) is the only one of its kind, but torch numbers mps in tensors.
        wanted = sum(count for device, count in elements.items() if str(self.device) in {device, device.partition(":")[0]})
        return Placement(on_target=wanted / total, detail=f"device of parameters, buffers and outputs: {detail}")

    def device_use(self) -> DeviceUse | None:
        """Return None: the device uses the host's memory."""
        return None

    def load_generator(self, bundle: Bundle) -> int:
        """Load as :meth:`load` does, with the cache on."""
        attention = self._options.get("attention")
        self._model = load_model(bundle.model_dir, bundle.model_class, self._computes, attention=attention, cache=True)
        return sum(parameter.numel() for parameter in self._model.parameters())

    def prepare_generator(self, prompt: GenerationPrompt) -> Prepared:  # noqa: ARG002 - nothing is exported
        """Move the model to the device.

        Raises:
            UnsupportedError: the target compiles its models.
        """
        assert self._model is not None  # noqa: S101 - the order of the protocol
        if self._compiles:
            message = "hwmatrix does not generate with torch.compile: remove the option `compile` of this target"
            raise UnsupportedError(message, needs=("torch.compile",), error_type="generation_unsupported")
        self._model.to(self.device)
        attention = getattr(self._model.config, "_attn_implementation", None)
        return Prepared(method="transformers generate" + (f", {attention} attention" if attention else ""))

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """Call ``generate`` of transformers."""

        def told(number: int, logits: torch.Tensor) -> None:
            on_step(number, lambda: logits.float().cpu().numpy().copy())

        self._cache = generation.generate(self._model, self._placed(prompt.inputs), torch.from_numpy(prompt.tokens), told, forced=forced)

    def cache_mb(self) -> float | None:
        """The size of the tensors in the cache."""
        size = generation.cache_bytes(self._cache)
        return size / 2**20 if size else None

    def trace(self, bundle: Bundle) -> Trace:
        """Compare the layers to the reference's. A compiled model runs uncompiled: if its layers are right, the compiled code is wrong."""
        from hwmatrix.targets.torch.trace import trace_layers

        assert self._model is not None  # noqa: S101 - the order of the protocol
        return trace_layers(self._model, self._placed(bundle.input_arrays()), bundle)


def preload_torch(model_classes: Iterable[str]) -> None:
    """Import torch, transformers and the modules of these classes. Torch stays at one thread here and computes nothing.

    transformers and diffusers import a model's module when its class is first accessed (about a second); the parent pays this once.
    diffusers itself is imported only if one of the classes is its own.
    """
    import transformers

    from hwmatrix.models import bundle, inputs  # noqa: F401
    from hwmatrix.models.diffusion.build import preload_diffusion

    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    for name in sorted(set(model_classes)):
        try:
            getattr(transformers, name)
        except (AttributeError, ImportError, RuntimeError):
            continue  # the cell meets the same error and records it
    preload_diffusion(model_classes)
