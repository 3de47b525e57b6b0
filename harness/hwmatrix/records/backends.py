"""Backends: what is known of each without importing its framework, and the one table that says where to find it.

A descriptor lies in the folder of its backend, under ``targets/`` or in a package of somebody else's. Rooms below ``targets`` ask for its
facts too (which hardware, which precisions), so its type and the table are here, and the table holds names of modules, not modules:
a descriptor is imported when it is first asked for.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
from importlib import metadata
from typing import Any, Final

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.records.vocabulary import Backend, Dtype, Execution

GROUP: Final = "hwmatrix.targets"
"""The group of entry points by which an installed package brings backends: ``name = "module:DESCRIPTOR"``."""

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
}
"""The backends of this package and their descriptors."""


class OnnxUse(enum.StrEnum):
    """Whether a backend executes a bundle's ONNX exports, which the reference image makes, and which of them it needs."""

    NONE = "none"
    FIRST = "first"
    """It takes the first export that it can use: another exporter is called only when the first one's was refused."""
    BEST = "best"
    """It keeps the export of which the larger share is on the target, and so needs what every exporter gives."""


class Memory(enum.StrEnum):
    """Whose memory a model's tensors take."""

    HOST = "host"
    SHARED = "shared"
    """A device's, which is the host's as well (Apple silicon)."""
    DEVICE = "device"
    """A device's own. There may be several devices, which are told apart by a number: ``cuda:1``."""


class InContainer(enum.StrEnum):
    """What a container that is started here sees of the hardware."""

    ALWAYS = "always"
    """It needs a processor, and nothing else of this machine."""
    NEVER = "never"
    NVIDIA = "nvidia"
    """What NVIDIA's container toolkit gives it."""
    AMD = "amd"
    """What the nodes /dev/kfd and /dev/dri give it."""
    SOFTWARE = "software"
    """What the image brings works on every processor; a GPU or an NPU only if its node is given to the container."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """The hardware that a backend needs, and how to ask for it.

    ``detector`` is a module with a function ``detect() -> (name, features)``, which raises ``UnavailableError`` where there is none.

    ``needed_here``: this machine must have it, whatever an image brings along, so it is asked for before an image is built.
    ``light``: the module has ``installed()`` too, which imports no framework and opens no browser. ``started``: only a started runtime
    can tell that it is here, so asked lightly it is absent. ``changing``: the module has ``refreshed(features)``, because some facts
    change while the machine runs. ``slow``: asking starts a driver, a runtime or a program, so that what was found is kept in a file.
    """

    detector: str
    needed_here: bool = False
    light: bool = False
    started: bool = False
    changing: bool = False
    slow: bool = False
    in_container: InContainer = InContainer.ALWAYS
    container_reason: str = "the image brings it; it needs the CPU alone"
    """Why a container sees it (``always``), or never does; for ``software``, what the image brings."""
    if_missing: str | None = None
    """What a person does where this machine must have it and has not."""
    versions: tuple[tuple[str, str], ...] = ()
    """Which of its ``features`` are shown as versions: what each is called, and its key."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Descriptor:
    """Everything about a backend that can be known without importing its framework.

    ``target`` is the class that executes models (``module:Class``, see ``targets/protocol.py``), ``operators`` the one that executes
    small ONNX graphs, and so the tests of the standard's operators; None: it executes none. ``image`` is the folder of its image
    under images/. ``requires`` are the modules that it cannot do without, ``packages`` the distributions whose versions are evidence.
    ``precisions`` are what it can compute in, the usual one first, whatever matrix.yaml has tested. ``execution`` is what does the
    computing where the hardware itself does not say.

    ``torch_device`` is PyTorch's name for its devices, None: a runtime of its own executes models, from something that was made of them.
    ``in_browser``: models run in a browser, which is a process of its own and comes with the image.
    ``exports`` are the ways in which it has a model exported, in the order in which it tries them (``options["export"]`` asks for one
    alone). ``converter`` is how what a cell says of its preparation begins where the last of them made its graph; None: it names the way.
    ``wide_weights``: weights stay in float32 whatever it computes in. ``fallback`` is what to try after it, whatever the model is.
    ``script`` is the template in ``generate/templates/reproduce`` that shows a failing cell again without hwmatrix; None: there is none.
    ``errors`` is a file with words of its errors (``package:file.yaml``), as faults/catalogue.yaml has them; they are looked up first.
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
    converter: str | None = None
    wide_weights: bool = False
    fallback: tuple[str, ...] = (Backend.CPU.value,)
    script: str | None = None
    errors: str | None = None

    def export_of(self, method: str | None) -> str | None:
        """The way of ``exports`` in which a cell's model was exported, by what the cell says of its preparation; None: not known."""
        if method is None or not self.exports:
            return None
        if self.converter is not None:
            return self.exports[-1] if method.startswith(self.converter) else self.exports[0]
        words = method.split()
        return next((way for way in self.exports if way in words), None)

    @property
    def several(self) -> bool:
        """Whether there may be several devices of this kind, which are told apart by a number."""
        return self.memory is Memory.DEVICE

    def torch_name(self, index: int) -> str | None:
        """PyTorch's name for one of its devices; None where PyTorch executes no models there."""
        return f"{self.torch_device}:{index}" if self.torch_device is not None and self.several else self.torch_device


def names() -> tuple[str, ...]:
    """Every backend that this interpreter has: those of this package, then those that installed packages bring."""
    return (*TABLE, *_from_elsewhere())


@functools.cache
def descriptor_of(name: str) -> Descriptor:
    """The descriptor of a backend.

    Raises:
        ConfigError: no package here brings one of that name.
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
    """The descriptors of the backends of this package."""
    return tuple(descriptor_of(name) for name in TABLE)


def imported(place: str) -> Any:
    """What ``module:name`` stands for, imported now."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.cache
def _from_elsewhere() -> dict[str, str]:
    """Backends of other packages, by their entry points. Nothing of them is imported for that.

    Raises:
        ConfigError: two packages have a backend of one name.
    """
    found: dict[str, str] = {}
    for point in metadata.entry_points(group=GROUP):
        if point.name in TABLE or found.get(point.name, point.value) != point.value:
            what = f"the package {point.dist.name if point.dist else point.value} has a backend {point.name!r}, and so has another"
            raise ConfigError([Problem(where="backend", what=what, hint="give one of them another name")])
        found[point.name] = point.value
    return found
