"""The minimal interface that a backend implements to run a cell.

A target is constructed in the forked child of one cell and used in this order: ``check``, ``load``, ``prepare``, ``run``
(many times), ``outputs``, ``placement``. It may raise the typed failures of ``hwmatrix.errors``; anything else that it
raises is recorded as ``error`` with its traceback.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, cast

from hwmatrix.models.operator_tests import Value
from hwmatrix.records.backends import descriptor_of, imported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.models.operator_tests import OperatorTest
    from hwmatrix.records import Dtype, Placement, Settings
    from hwmatrix.records.traces import Trace

    Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """What a cell used of its device, in MiB, and who else was there. None: the device does not tell.

    ``peak_mb`` is the most that tensors took at one time, ``reserved_mb`` what the allocator held for them;
    ``other_processes`` is the number of processes besides this one that used the device while the cell ran.
    """

    peak_mb: float | None
    reserved_mb: float | None
    other_processes: int | None


class Service(Protocol):
    """A process that cells share, such as a browser. Who runs them (the warm parent, or each worker) starts one, and anew if it died."""

    shares_device: bool
    """Whether it computes on a device that another one would use too, so that there can be only one at a time."""

    def start(self) -> Mapping[str, Any]:
        """Start it; give the address that cells reach it by.

        Where models run in it, its key ``process`` is the id of its process: their memory is that of it and of all below it.

        Raises:
            UnavailableError: it cannot be started here.
        """

    def alive(self) -> bool:
        """Does it still answer?"""

    def stop(self) -> None:
        """End it and everything it left. May be called again."""


class Target(Protocol):
    """One backend, executing one model."""

    reserves_address_space: bool
    """Whether the runtime reserves address space far beyond what it uses (CUDA maps whole GPUs), so that it cannot be limited."""

    def __init__(self, *, settings: Settings, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        """Remember what to do; do nothing yet. ``service`` is the address of the service that the parent keeps, if any."""

    @staticmethod
    def preload(model_classes: Sequence[str]) -> None:
        """Import what every cell needs, in the warm parent. Must start neither threads nor a device's runtime."""

    @staticmethod
    def service(options: Mapping[str, Any]) -> Service | None:
        """What all cells of a shard share, not started yet; None for most."""

    def check(self) -> str:
        """Start the runtime and name the device.

        Raises:
            UnavailableError: there is no such hardware, driver or runtime here.
        """

    def load(self, bundle: Bundle) -> int:
        """Load the weights by the real loading code; give the number of parameters."""

    def prepare(self, inputs: Arrays) -> str:
        """Bring the model to the device for inputs of these shapes (export, convert, compile); name the way it was done.

        Raises:
            UnsupportedError: the target lacks an operator or feature, which is named.
        """

    def feed(self, inputs: Arrays) -> None:
        """Have the next runs take other inputs, of the names, shapes and types that it was prepared for."""

    def run(self) -> Any:
        """Run once on the prepared inputs; return only when the device is done."""

    def elapsed_ns(self) -> int | None:
        """What the device's own clock measured for the last run, in nanoseconds; None where the host's clock is right."""

    def outputs(self, result: Any) -> dict[str, np.ndarray[Any, Any]]:
        """The result of ``run`` as host arrays by the reference's output names (float32 or the exact integer type)."""

    def placement(self) -> Placement:
        """Where it really ran, as the runtime tells after a run."""

    def device_use(self) -> DeviceUse | None:
        """What the cell used of a device with memory of its own; None where it is the host's.

        Asked after the first run, before its outputs are fetched, and once more at the end, for the other processes.
        """

    def trace(self, bundle: Bundle) -> Trace | None:
        """One more run with the values between inputs and outputs kept, beside those of a reference: why the result is wrong.

        Asked after everything else, of a cell whose outputs differ. It may build what it needs anew. None where the backend cannot tell.
        Whatever it raises, and whatever ends the process meanwhile, the verdict stands.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Executed:
    """A small ONNX graph that was executed: its outputs in the graph's order, and the share of its nodes (0 to 1) on the target."""

    outputs: tuple[Value, ...]
    on_target: float


class OperatorRunner(Protocol):
    """How a backend executes small ONNX graphs, many in one forked child: ``check`` first, then ``execute`` for each."""

    packages: tuple[str, ...]
    """Distributions whose versions are evidence."""
    precision: Dtype
    """What floating-point numbers are computed in at least: it decides how exact results must be."""
    keeps_state: bool
    """Whether one graph can spoil the next in the same process: a test that fails in company is then tried again alone."""
    reserves_address_space: bool
    """As of a :class:`Target`."""

    def __init__(self, *, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        """Remember what to do; do nothing yet."""

    @staticmethod
    def preload() -> None:
        """Import what every child needs, in the warm parent; as of a :class:`Target`."""

    @staticmethod
    def service(options: Mapping[str, Any]) -> Service | None:
        """What all children share, not started yet; None for most."""

    def check(self) -> str:
        """Start the runtime and name the device.

        Raises:
            UnavailableError: there is no such hardware, driver or runtime here.
        """

    def execute(self, test: OperatorTest) -> Executed:
        """Run a test's graph on its inputs.

        Raises:
            UnsupportedError: the target lacks an operator, a version of it, or a type of values, which is named.
        """


def target_class(backend: str) -> type[Target]:
    """The class of a backend, imported now: its framework comes along only where it is used."""
    return cast("type[Target]", imported(descriptor_of(backend).target))


def operators_class(backend: str) -> type[OperatorRunner]:
    """The class that executes operator tests for a backend whose descriptor has ``operators``, imported now."""
    place = descriptor_of(backend).operators
    assert place is not None  # noqa: S101 - targets without are refused before a run is planned
    return cast("type[OperatorRunner]", imported(place))
