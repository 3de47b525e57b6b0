"""Backends: the facts about each that are known without importing its framework, and the table that says where to find it.

A descriptor is in the folder of its backend, under ``targets/`` or in another package. Packages below ``targets`` need its facts too (which
hardware, which precisions), so its type and the table are here. The table has names of modules, not modules: a descriptor is imported on
first use.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.records.vocabulary import Backend, Dtype, Execution, exported_by

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

GROUP: Final = "hwmatrix.targets"
"""The entry point group through which an installed package adds backends: ``name = "module:DESCRIPTOR"``."""

TABLE: Final[dict[str, str]] = {
    Backend.CPU: "hwmatrix.targets.torch.descriptors:CPU",
    Backend.OPENVINO: "hwmatrix.targets.openvino.descriptor:OPENVINO",
    Backend.ONNXRUNTIME: "hwmatrix.targets.onnx.descriptor:ONNXRUNTIME",
    Backend.CUDA: "hwmatrix.targets.torch.descriptors:CUDA",
    Backend.ROCM: "hwmatrix.targets.torch.descriptors:ROCM",
    Backend.MPS: "hwmatrix.targets.torch.descriptors:MPS",
    Backend.WEBGPU: "hwmatrix.targets.browser.descriptors:WEBGPU",
    Backend.WEBNN: "hwmatrix.targets.browser.descriptors:WEBNN",
    Backend.QNN: "hwmatrix.targets.qnn.descriptor:QNN",
    Backend.INDUCTOR: "hwmatrix.targets.inductor.descriptor:INDUCTOR",
    Backend.EXECUTORCH: "hwmatrix.targets.executorch.descriptor:EXECUTORCH",
}
"""The backends of this package and their descriptors."""


FLOATING: Final = frozenset({Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16})
"""The precisions that a runtime may choose by itself. In the others, a tool makes another graph."""


class OnnxUse(enum.StrEnum):
    """Whether a backend executes a bundle's ONNX exports, which the reference image makes, and which of them it needs."""

    NONE = "none"
    FIRST = "first"
    """It uses the first export that works: another exporter is called only if the first one's export was rejected."""
    BEST = "best"
    """It keeps the export with the larger share of nodes on the target, and so needs the exports of all exporters."""


class Memory(enum.StrEnum):
    """Whose memory holds a model's tensors."""

    HOST = "host"
    SHARED = "shared"
    """Unified memory, shared by device and host (Apple silicon)."""
    DEVICE = "device"
    """The device's own. There may be several devices, distinguished by an index: ``cuda:1``."""


class InContainer(enum.StrEnum):
    """What a container started on this machine sees of the hardware."""

    ALWAYS = "always"
    """It needs only a CPU."""
    NEVER = "never"
    NVIDIA = "nvidia"
    """The GPUs that NVIDIA's container toolkit passes in."""
    AMD = "amd"
    """The GPUs behind the device nodes /dev/kfd and /dev/dri."""
    SOFTWARE = "software"
    """The image's software works on every CPU; a GPU or an NPU is visible only if the container gets its device node."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """The hardware that a backend needs, and how to detect it.

    ``detector`` is a module with a function ``detect() -> (name, features)``, which raises ``UnavailableError`` if there is none.
    ``needed_here``: this machine must have it, whatever the image contains, so it is detected before an image is built. ``light``: the
    module also has ``installed()``, which imports no framework and opens no browser. ``started``: only a started runtime can detect it, so
    light detection reports it absent. ``changing``: the module has ``refreshed(features)``, because some facts change while the machine
    runs. ``slow``: detection starts a driver, a runtime or a program, so its result is cached in a file.
    """

    detector: str
    needed_here: bool = False
    light: bool = False
    started: bool = False
    changing: bool = False
    slow: bool = False
    in_container: InContainer = InContainer.ALWAYS
    container_reason: str = "the image brings it; it needs the CPU alone"
    """Why a container sees it (``always``), or never does; for ``software``, what the image contains."""
    if_missing: str | None = None
    """What the user can do if this machine must have it but does not."""
    versions: tuple[tuple[str, str], ...] = ()
    """Which of its ``features`` are shown as versions: the displayed name and the key of each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A key that a target of a backend may have under ``options`` in matrix.yaml, and what its value may be.

    ``values`` are the allowed ones; empty: any of the type ``kind``. A number is at least 0.
    """

    name: str
    kind: type[str] | type[int] | type[bool] = str
    values: tuple[str, ...] = ()

    def allows(self, value: object) -> bool:
        """Whether a value is allowed. True and false are no numbers."""
        if type(value) is not self.kind or (isinstance(value, int) and value < 0):
            return False
        return not self.values or value in self.values

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        return (
            f"one of: {', '.join(self.values)}"
            if self.values
            else {str: "a text", int: "a number, from 0", bool: "true or false"}[self.kind]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Descriptor:
    """Everything about a backend that can be known without importing its framework.

    ``target`` is the class that executes models (``module:Class``, see ``targets/protocol.py``), ``operators`` the class that executes
    small ONNX graphs for the operator tests; None: it executes none. ``image`` is the folder of its image under images/.
    ``requires`` are the modules that it needs, ``packages`` the distributions whose versions are recorded as evidence.
    ``precisions`` are the ones it supports (``default`` if its targets report what they chose), the usual one first, whatever
    matrix.yaml tests. ``execution`` is the kind of execution if detection does not determine it.

    ``torch_device`` is PyTorch's name for its devices; None: another runtime executes a converted or exported model.
    ``in_browser``: models run in a browser, in a separate process that comes with the image.
    ``exports`` are its export methods, in the order in which it tries them (``options["export"]`` selects a single one).
    ``rewrites``: with ``options["rewrite"]`` its target replaces operators that the runtime lacks or computes incorrectly.
    ``forward_export`` is the bundle's export with its graph, made once for the cells of all precisions; a cell converts the model itself if
    there is none, or if one of the options ``own_graph`` is set.
    ``wide_weights``: weights stay in float32 in every precision. ``fallback`` lists the targets to try after it, for any model.
    ``script`` is the template in ``generate/templates/reproduce`` that reproduces a failing cell without hwmatrix; None: there is none.
    ``generation_script``: the template of this name in its folder ``generation`` does so for cells that generate text.
    ``held_out`` is how many held-out examples of a trained model's task are run, fewer where one takes long. ``generates``: its target
    can generate text with a cache, with the bundle's export of the name ``generation_export``; None: the model itself. ``no_generation``
    says why it cannot: cells that generate are then ``unsupported`` for this reason. With neither, there are no such cells.
    ``compiles``: models are compiled to native code while they run. Its image has a compiler, containers may execute files in their
    temporary folder, and its target says how it compiled (``targets/protocol.py``, ``Compiling``).
    ``rounds`` are the precisions in which its target rounds weights itself, and can run the same graph with the rounded weights in float32
    (``targets/protocol.py``, ``Rounding``).
    ``forward_only`` are the precisions in which it runs a forward pass, and does not generate.
    ``options`` are what its targets may set in matrix.yaml, besides ``export``, which those with ``exports`` have.
    ``errors`` is a file with patterns of its errors (``package:file.yaml``, format of faults/catalogue.yaml); they are matched first.
    """

    name: str
    target: str
    hardware: Hardware
    image: str
    requires: tuple[str, ...]
    packages: tuple[str, ...]
    operators: str | None = None
    precisions: tuple[Dtype, ...] = (Dtype.FLOAT32,)
    execution: Execution = Execution.HARDWARE
    torch_device: str | None = None
    memory: Memory = Memory.HOST
    in_browser: bool = False
    onnx: OnnxUse = OnnxUse.NONE
    exports: tuple[str, ...] = ()
    rewrites: bool = False
    forward_export: str | None = None
    own_graph: tuple[str, ...] = ()
    wide_weights: bool = False
    fallback: tuple[str, ...] = (Backend.CPU.value,)
    script: str | None = None
    generation_script: bool = False
    errors: str | None = None
    held_out: int = 64
    generates: bool = False
    generation_export: str | None = None
    no_generation: str | None = None
    compiles: bool = False
    rounds: tuple[Dtype, ...] = ()
    forward_only: tuple[Dtype, ...] = ()
    options: tuple[Option, ...] = ()

    @property
    def every_option(self) -> dict[str, Option]:
        """The options of its targets by name."""
        export = (Option(name="export", values=self.exports),) if self.exports else ()
        rewrite = (Option(name="rewrite", kind=bool),) if self.rewrites else ()
        return {option.name: option for option in (*self.options, *export, *rewrite)}

    def compiling(self, options: Mapping[str, Any]) -> bool:
        """Return whether a target with these options compiles models to native code while they run; PyTorch's devices do if asked to."""
        return self.compiles or (self.torch_device is not None and bool(options.get("compile")))

    def computes_in(self, dtype: Dtype) -> tuple[Dtype, ...]:
        """Return the precisions in which a cell of this precision may compute: for ``default`` any that the runtime may choose."""
        return (dtype,) if dtype is not Dtype.DEFAULT else tuple(each for each in self.precisions if each in FLOATING)

    def export_of(self, preparation: Collection[str] | None) -> str | None:
        """Return the one of ``exports`` that made a cell's graph, by the cell's ``preparation``; None if unknown."""
        return next((way for way in self.exports if exported_by(way) in (preparation or ())), None)

    def on_cpu(self, options: Mapping[str, Any]) -> bool:
        """Return whether a target with these options computes on the CPU, in its cell's own process."""
        return self.memory is Memory.HOST and not self.in_browser and options.get("device", "CPU") == "CPU"

    @property
    def several(self) -> bool:
        """Whether there may be several devices of this kind, distinguished by an index."""
        return self.memory is Memory.DEVICE

    def torch_name(self, index: int) -> str | None:
        """Return PyTorch's name for one of its devices; None if PyTorch does not execute its models."""
        return f"{self.torch_device}:{index}" if self.torch_device is not None and self.several else self.torch_device


def names() -> tuple[str, ...]:
    """Return every backend of this environment: those of this package, then those of other installed packages."""
    return (*TABLE, *_from_elsewhere())


@functools.cache
def descriptor_of(name: str) -> Descriptor:
    """Return the descriptor of a backend.

    Raises:
        ConfigError: no installed package has a backend with this name.
    """
    place = TABLE.get(name) or _from_elsewhere().get(name)
    if place is None:
        what = f"no package in this interpreter has a backend {str(name)!r}"
        raise ConfigError(
            [Problem(where="backend", what=what, hint=f"install it, in its target's image too; here are: {', '.join(names())}")]
        )
    found = imported(place)
    if not isinstance(found, Descriptor) or found.name != name:
        what = f"{place} is not the descriptor of a backend {str(name)!r}"
        raise ConfigError([Problem(where="backend", what=what, hint=f"see the entry points {GROUP} in docs/adding-a-target.md")])
    return found


def descriptors() -> tuple[Descriptor, ...]:
    """Return the descriptors of this package's backends."""
    return tuple(descriptor_of(name) for name in TABLE)


def imported(place: str) -> Any:
    """Import and return the object that ``module:name`` refers to."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.cache
def _from_elsewhere() -> dict[str, str]:
    """Find the backends of other packages by their entry points, without importing them.

    Raises:
        ConfigError: two packages have a backend with the same name.
    """
    found: dict[str, str] = {}
    for point in metadata.entry_points(group=GROUP):
        if point.name in TABLE or found.get(point.name, point.value) != point.value:
            what = f"the package {point.dist.name if point.dist else point.value} has a backend {point.name!r}, and so has another"
            raise ConfigError([Problem(where="backend", what=what, hint="give one of them another name")])
        found[point.name] = point.value
    return found
