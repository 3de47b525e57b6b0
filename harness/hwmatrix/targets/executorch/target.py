"""ExecuTorch: exports the model, delegates what XNNPACK supports, and runs the program with ExecuTorch's runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from hwmatrix.errors import UnsupportedError
from hwmatrix.models import exporter_imports
from hwmatrix.models.calibration import calibration_inputs
from hwmatrix.models.onnx_exporters import loaded
from hwmatrix.records import Dtype, Placement
from hwmatrix.targets.executorch import lowering, runtime
from hwmatrix.targets.executorch.descriptor import EXECUTORCH
from hwmatrix.targets.executorch.generator import make as make_generator
from hwmatrix.targets.executorch.in_float import GraphInFloat
from hwmatrix.targets.torch.device import preload_torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from hwmatrix.models.bundle import Bundle, GenerationPrompt
    from hwmatrix.records import Prepared, Settings
    from hwmatrix.records.traces import Trace
    from hwmatrix.targets.executorch.generator import Generator
    from hwmatrix.targets.protocol import Arrays, OnStep

_MOST: Final = 12
"""How many operators outside delegates are listed by name."""
_SLOWEST: Final = 3
"""Of how many of them the share of the time is told."""


class Executorch:
    """Lowers the model with the XNNPACK delegate in each cell.

    ``options["export"]`` names an exporter, then the only one tried. ``options["rewrite"]`` replaces operators that ExecuTorch lacks or
    computes incorrectly (:mod:`hwmatrix.targets.executorch.operators`).
    """

    reserves_address_space = False

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        self._settings = settings
        self._export = options.get("export")
        self._rewrite = bool(options.get("rewrite"))
        self._bundle: Bundle | None = None
        self._model: torch.nn.Module | None = None
        self._exported: lowering.Exported | None = None
        self._lowered: lowering.Lowered | None = None
        self._program: runtime.Program | None = None
        self._values: list[Any] = []
        self._generator: Generator | None = None

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Import the exporter, the lowering and the runtime, whose thread pool starts with its first use."""
        exporter_imports.for_executorch()
        preload_torch(model_classes)
        lowering.prepare_patterns()

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """Return None: cells share nothing."""

    def check(self) -> str:
        """Load the runtime, and give its thread pool the cell's number of threads.

        Raises:
            UnavailableError: it is not installed, does not load, or has no XNNPACK delegate.
            UnsupportedError: the cell's precision is none of the descriptor's.
        """
        if self._settings.dtype not in EXECUTORCH.precisions:
            message = f"models are lowered in {', '.join(EXECUTORCH.precisions)}, not in {self._settings.dtype.value}"
            raise UnsupportedError(message, needs=(self._settings.dtype.value,), error_type="unsupported_dtype")
        name, _ = runtime.detect()
        torch.set_num_threads(self._settings.threads)
        runtime.use_threads(self._settings.threads)
        return f"{name}, {runtime.DELEGATE}"

    def load(self, bundle: Bundle) -> int:
        """Load the PyTorch model for the export. Return its number of parameters."""
        self._bundle, self._model = bundle, loaded(bundle, attention=None)
        return sum(parameter.numel() for parameter in self._model.parameters())

    def prepare(self, inputs: Arrays) -> Prepared:
        """Export and lower the model for inputs of these shapes, and load the program. The PyTorch model is released afterwards.

        Raises:
            UnsupportedError: ExecuTorch does not know an operator of the model, or its runtime has no kernel for it: the message names it.
                Or the model cannot be quantized.
        """
        assert self._bundle is not None  # noqa: S101 - the order of the protocol
        calibrated = calibration_inputs(self._bundle, inputs) if self._settings.dtype is Dtype.A8W8 else []
        samples = [lowering.tensors_of(sample) for sample in calibrated]
        self._exported, self._lowered = lowering.make(
            self._loaded, lowering.tensors_of(inputs), only=self._export, samples=samples, rewrite=self._rewrite
        )
        self._model = None
        self._program = runtime.Program(self._lowered.data, kernels=self._lowered.kernels)
        self.feed(inputs)
        return self._exported.prepared

    def _loaded(self) -> torch.nn.Module:
        """The loaded model, and for a second export the same anew: the first one may have changed it."""
        assert self._bundle is not None  # noqa: S101 - the order of the protocol
        model, self._model = self._model, None
        return loaded(self._bundle, attention=None) if model is None else model

    def precision(self) -> None:
        """Return None: the program fixes the precision."""

    def feed(self, inputs: Arrays) -> None:
        """Replace the arguments of the next runs."""
        assert self._exported is not None  # noqa: S101 - the order of the protocol
        self._values = self._exported.values(lowering.tensors_of(inputs))

    def run(self) -> Any:
        """Run the program once."""
        assert self._program is not None  # noqa: S101 - the order of the protocol
        return self._program.run(self._values)

    def elapsed_ns(self) -> int | None:
        """None: the host's clock is right, since a run returns when it is done."""
        return None

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return the outputs by the reference's names."""
        assert self._exported is not None  # noqa: S101 - the order of the protocol
        return lowering.arrays_of(self._exported.named(result))

    def in_float(self) -> GraphInFloat:
        """Let PyTorch compute the quantized graph."""
        assert self._exported is not None  # noqa: S101 - the order of the protocol
        return GraphInFloat(self._exported)

    def placement(self) -> Placement:
        """The share of nodes that XNNPACK executes, as the program has them, with the operators left to the runtime's own kernels."""
        assert self._lowered is not None  # noqa: S101 - the order of the protocol
        lowered = self._lowered
        kernels = lowering.moving_data(lowered.kernels)
        inside, total = lowered.delegated.total(), lowered.delegated.total() + kernels.total()
        parts = f"{lowered.delegates} part{'' if lowered.delegates == 1 else 's'}"
        detail = f"{inside} of {total} nodes delegated to {runtime.DELEGATE} in {parts}"
        if kernels:
            listed = [f"{name} {count}" for name, count in kernels.most_common(_MOST)]
            more = [f"{len(kernels) - _MOST} other operators"] if len(kernels) > _MOST else []
            detail += f"; the runtime's own kernels: {', '.join([*listed, *more])}"
        detail += f"; {self._shares()}"
        return Placement(on_target=inside / total if total else 0.0, detail=detail)

    def _shares(self) -> str:
        """What the delegates and the kernels take of the time, and have of the memory, in words."""
        assert self._lowered is not None  # noqa: S101 - the order of the protocol
        assert self._program is not None  # noqa: S101 - the order of the protocol
        lowered = self._lowered
        times = self._program.times(self._values) if self._generator is None else self._generator.times()
        memory = f"{_mib(lowered.delegated_weights)} of weights in {runtime.DELEGATE}, {_mib(lowered.constants)} outside"
        memory += f", {_mib(lowered.planned)} for values between calls"
        if times is None or not times.total_ms:
            return memory
        slowest = sorted(times.kernels_ms.items(), key=lambda one: -one[1])[:_SLOWEST]
        spent = [(runtime.DELEGATE, times.delegates_ms), *slowest]
        told = ", ".join(f"{spent_ms / times.total_ms:.0%} in {name}" for name, spent_ms in spent)
        return f"of the time {told}; {memory}"

    def load_generator(self, bundle: Bundle) -> int:
        """Return the model's number of parameters. It is loaded when it is exported."""
        self._bundle = bundle
        return bundle.parameters

    def prepare_generator(self, prompt: GenerationPrompt) -> Prepared:  # noqa: ARG002 - the bundle has all prompts
        """Export and lower prefill and decoding for lengths up to that of the longest prompt, and load the programs.

        Raises:
            UnsupportedError: ExecuTorch does not know an operator of the model, or its runtime has no kernel for it: the message names it.
                Or the model has nothing to replace.
        """
        assert self._bundle is not None  # noqa: S101 - the order of the protocol
        self._generator = make_generator(self._bundle, rewrite=self._rewrite)
        self._lowered, self._program = self._generator.decode.lowered, self._generator.decode.program
        return self._generator.prepared

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> None:
        """Run the programs step by step."""
        assert self._generator is not None  # noqa: S101 - the order of the protocol
        self._generator.generate(prompt, on_step, forced=forced)

    def cache_mb(self) -> float | None:
        """The size of the cache between two steps."""
        return self._generator.cache_mb() if self._generator is not None else None

    def device_use(self) -> None:
        """Return None: the CPU uses the host's memory."""

    def trace(self, bundle: Bundle) -> Trace:
        """Compare all values of the exported graph, lowered with each of them as an output, with those of PyTorch on the same graph."""
        from hwmatrix.targets.executorch.trace import trace_graph

        assert self._exported is not None  # noqa: S101 - the order of the protocol
        return trace_graph(self._exported, lowering.tensors_of(bundle.input_arrays()))


def _mib(size: int) -> str:
    return f"{size / 2**20:.2f} MiB"
