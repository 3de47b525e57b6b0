"""The minimal interface that a backend implements to run a cell.

A target is constructed in the forked child of one cell and used in this order: ``check``, ``load``, ``prepare``, ``run`` (many times),
``outputs``, ``placement``. It may raise the typed failures of ``hwmatrix.errors``. Anything else it raises is recorded as ``error`` with
its traceback.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, cast

from hwmatrix.models.operator_tests import Value
from hwmatrix.records.backends import descriptor_of, imported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from hwmatrix.models.bundle import Bundle, GenerationPrompt
    from hwmatrix.models.operator_tests import OperatorTest
    from hwmatrix.records import Dtype, Placement, Prepared, Settings
    from hwmatrix.records.traces import Trace

    Array = np.ndarray[Any, Any]
    Arrays = Mapping[str, Array]
    OnStep = Callable[[int, Callable[[], Array]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """A cell's use of its device, in MiB, and the other processes on it. None: the device does not report it.

    ``peak_mb`` is the peak memory of tensors, ``reserved_mb`` the peak that the allocator held for them. ``other_processes`` is the number
    of other processes that used the device while the cell ran.
    """

    peak_mb: float | None
    reserved_mb: float | None
    other_processes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compilation:
    """How a model was compiled while it ran, by the fields of :class:`hwmatrix.records.measured.Measured` with these names.

    ``compile_ms`` is None if an earlier cell may have compiled parts of it.
    """

    graphs: int
    graph_breaks: int
    break_reasons: tuple[str, ...]
    recompilations: int
    compile_ms: float | None
    cached_compile_ms: float | None = None

    def with_later(self, *, recompilations: int, cached_compile_ms: float | None) -> Compilation:
        """Return it with what later runs showed."""
        return dataclasses.replace(self, recompilations=recompilations, cached_compile_ms=cached_compile_ms)


class Service(Protocol):
    """A process that cells share, such as a browser. The warm parent or each worker starts it, and restarts it if it died."""

    shares_device: bool
    """Whether it computes on a device that a second service would use too, so that only one can run at a time."""
    start_s: float
    """The most seconds that a start takes. They are no part of a cell's time."""

    def start(self) -> Mapping[str, Any]:
        """Start the service and return the address for cells to connect to.

        If models run in it, its key ``process`` is its process id: the cell's memory is that of this process and all its descendants.

        Raises:
            UnavailableError: it cannot be started here.
        """

    def alive(self) -> bool:
        """Whether it still responds."""

    def stop(self) -> None:
        """End it and remove everything it left. May be called more than once."""


class Target(Protocol):
    """One backend that executes one model."""

    reserves_address_space: bool
    """Whether the runtime reserves address space far beyond its use (CUDA maps whole GPUs), so that no limit can be set."""

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        """Store the arguments only. ``service`` is the address of the service that the parent runs, if any."""

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Import in the warm parent what every cell needs. Must not start threads or a device's runtime.

        ``model_classes`` are the classes of the models that cells load; none if they only read graphs that were made with the bundles.
        """

    @staticmethod
    def service(options: Mapping[str, Any]) -> Service | None:
        """Return the service that all cells of a shard share, not started yet; None for most targets."""

    def check(self) -> str:
        """Start the runtime and return the device's name.

        Raises:
            UnavailableError: the hardware, driver or runtime is missing here.
        """

    def load(self, bundle: Bundle) -> int:
        """Load the weights with the real loading code. Return the number of parameters."""

    def prepare(self, inputs: Arrays) -> Prepared:
        """Prepare the model on the device for inputs of these shapes (export, convert, compile). Return how, in words and as data.

        Raises:
            UnsupportedError: the target lacks an operator or feature, which the message names.
        """

    def precision(self) -> Dtype | None:
        """The precision in which the prepared model computes, as the runtime reports; None: it reports none.

        A target whose descriptor has the precision ``default`` must report it.
        """

    def feed(self, inputs: Arrays) -> None:
        """Replace the inputs for the next runs, with the same names, shapes and types as in ``prepare``."""

    def run(self) -> Any:
        """Run once on the prepared inputs. Return only when the device is done."""

    def elapsed_ns(self) -> int | None:
        """The time of the last run in nanoseconds by the device's own clock; None if the host's clock is right."""

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return the result of ``run`` as host arrays by the reference's output names (float32 or the exact integer type)."""

    def placement(self) -> Placement:
        """Where the model really ran, as the runtime reports after a run."""

    def device_use(self) -> DeviceUse | None:
        """The cell's use of a device with its own memory; None if the device uses the host's.

        Called after the first run, before its outputs are fetched, and again at the end, for the number of other processes.
        """

    def trace(self, bundle: Bundle) -> Trace | None:
        """Run once more with intermediate values kept, beside those of a reference, to find where a wrong result begins.

        Called last, and only if a cell's outputs differ. It may build what it needs again. Returns None if the backend cannot do this.
        Whatever it raises, and even if it kills the process, the verdict stands.
        """


class Compiling(Target, Protocol):
    """A target that compiles models to native code while they run. Its descriptor says so (:meth:`Descriptor.compiling`)."""

    def start_cold(self) -> None:
        """Forget what earlier cells have compiled. Called after ``check`` in cells that are timed, whose time to compile is measured."""

    def compilation(self, *, again: bool) -> Compilation:
        """How the model was compiled, with the recompilations of all runs so far.

        ``again``: measure also how long it takes with a warm cache (``cached_compile_ms``). Called after ``prepare``, and again at the end.
        """


class InFloat(Protocol):
    """A graph of a target with its rounded weights as float32 numbers, computed by kernels for float32: its twin."""

    def outputs(self, inputs: Arrays) -> dict[str, Array]:
        """Run once. Return host arrays by the reference's output names, as :meth:`Target.outputs` does."""


class Rounding(Target, Protocol):
    """A target that rounds weights itself, and can also run the same graph with the rounded weights as float32 numbers.

    Its descriptor says in which precisions (``rounds``).
    """

    def in_float(self) -> InFloat:
        """Prepare that graph. Called after the first run.

        Raises:
            TwinError: some weight cannot be read back, or it is not known what the runtime rounds.
        """


class Generating(Target, Protocol):
    """A target that also generates text with a cache. Its descriptor says so (``generates``).

    It is used in this order: ``check``, ``load_generator``, ``prepare_generator``, ``generate`` (many times), ``placement``.
    """

    def load_generator(self, bundle: Bundle) -> int:
        """Load the weights for generation. Return the number of parameters."""

    def prepare_generator(self, prompt: GenerationPrompt) -> Prepared:
        """Prepare prefill and decoding on the device; exports are made for this prompt. Return a description of how.

        Raises:
            UnsupportedError: the target cannot generate with this model; the message says why.
        """

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> tuple[int, ...] | None:
        """Process a prompt, then decode with the cache until there are as many tokens as ``prompt.tokens`` (rows, steps) has.

        ``on_step`` is called as soon as the token of a step is on the host, with the number of the step and a function that returns its
        logits (rows, vocabulary; float32). The first step is the prefill. ``forced``: the next step gets the prompt's own token, else the
        one with the largest logit. Every call begins with an empty cache.

        Returns the time of each step in nanoseconds by the device's own clock; None if the host's clock is right, read when ``on_step`` is
        called.

        Raises:
            UnsupportedError: an export takes prompts of the traced length only (``shape_specialized``).
        """

    def cache_mb(self) -> float | None:
        """The size of the cache after the last :meth:`generate` in MiB; None: not known."""


class GeneratingInFloat(Protocol):
    """What a target generates with, with its rounded weights as float32 numbers, by kernels for float32."""

    def generate(self, prompt: GenerationPrompt, on_step: OnStep, *, forced: bool) -> tuple[int, ...] | None:
        """As :meth:`Generating.generate`."""


class RoundingGenerating(Generating, Protocol):
    """A target that rounds weights itself, and can also generate with the rounded weights in float32.

    Its descriptor says in which precisions (``rounds``, without ``forward_only``).
    """

    def generator_in_float(self) -> GeneratingInFloat:
        """Prepare that. Called after all prompts.

        Raises:
            TwinError: as for :meth:`Rounding.in_float`.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executed:
    """The result of a small ONNX graph: its outputs in the graph's order, and the share of its nodes on the target (0 to 1)."""

    outputs: tuple[Value, ...]
    on_target: float


class OperatorRunner(Protocol):
    """Executes small ONNX graphs on a backend, many in one forked child: first ``check``, then ``execute`` for each."""

    packages: tuple[str, ...]
    """Distributions whose versions are recorded as evidence."""
    precision: Dtype
    """The least precise floating-point type used in computations. It sets the tolerance of the results."""
    keeps_state: bool
    """Whether one graph can spoil the next in the same process. A test that fails after others is then retried alone."""
    reserves_address_space: bool
    """As in :class:`Target`."""

    def __init__(self, *, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        """Store the arguments only."""

    @staticmethod
    def preload() -> None:
        """Import in the warm parent what every child needs, as in :class:`Target`."""

    @staticmethod
    def service(options: Mapping[str, Any]) -> Service | None:
        """Return the service that all children share, not started yet; None for most backends."""

    def check(self) -> str:
        """Start the runtime and return the device's name.

        Raises:
            UnavailableError: the hardware, driver or runtime is missing here.
        """

    def execute(self, test: OperatorTest) -> Executed:
        """Run a test's graph on its inputs.

        Raises:
            UnsupportedError: the target lacks an operator, a version of it, or a value type, which the message names.
        """


def target_class(backend: str) -> type[Target]:
    """Import and return the target class of a backend. Its framework is loaded only here."""
    return cast("type[Target]", imported(descriptor_of(backend).target))


def operators_class(backend: str) -> type[OperatorRunner]:
    """Import and return the class that executes operator tests for a backend. Its descriptor must have ``operators``."""
    place = descriptor_of(backend).operators
    assert place is not None  # noqa: S101 - targets without operators are rejected before a run is planned
    return cast("type[OperatorRunner]", imported(place))
