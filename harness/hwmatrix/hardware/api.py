"""The public detection API: cached between processes, refreshed on request, imports no framework.

The public functions return plain dicts. Their keys are the contract (docs/hardware.md).
"""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from hwmatrix.hardware import cache, container, detector, torch_build, visible
from hwmatrix.hardware.choice import DEFAULT_ORDER, Circumstances, DeviceChoice, HardwareChoice, choose, first_here, kind_of, parse
from hwmatrix.records import Backend
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.records import Detection

CPU: Final[str] = Backend.CPU.value
CUDA: Final[str] = Backend.CUDA.value
ROCM: Final[str] = Backend.ROCM.value
MPS: Final[str] = Backend.MPS.value
OPENVINO: Final[str] = Backend.OPENVINO.value
WEBNN: Final[str] = Backend.WEBNN.value
WEBGPU: Final[str] = Backend.WEBGPU.value
QNN: Final[str] = Backend.QNN.value

_BEST: Final = (Backend.CUDA, Backend.ROCM, Backend.MPS, Backend.OPENVINO, Backend.CPU)
"""The order for the best hardware: GPUs, then OpenVINO, then the CPU. Emulators and browsers are never the best."""


class CudaDevice(TypedDict):
    """One NVIDIA GPU; memory in MiB. ``torch_device`` is PyTorch's name for it; None if it is hidden or the name is not certain."""

    index: int
    name: str
    uuid: str
    compute_capability: str | None
    memory_mb: int | None
    used_mb: int | None
    free_mb: int | None
    processes: int | None
    torch_device: str | None


class CudaDetails(TypedDict):
    """NVIDIA's GPUs. ``cuda_version`` is the newest that the driver supports, ``torch_cuda_version`` the one PyTorch is built for."""

    available: bool
    reason: str | None
    device_count: int
    driver_version: str | None
    cuda_version: str | None
    cudnn_version: str | None
    torch_cuda_version: str | None
    devices: list[CudaDevice]


class AvailableHardware(TypedDict):
    """The result of :func:`detect_available_hardware`: by hardware, whether it is here, its name and facts, or why it is not."""

    hardware: dict[str, bool]
    details: dict[str, dict[str, Any]]
    errors: dict[str, str]
    best_available: str
    torch_device: str


class ContainerView(TypedDict):
    """Whether a container sees a kind of hardware, and why."""

    visible: bool
    why: str


class HardwareDetector:
    """Detects each kind of hardware when it is first needed, and remembers the result.

    ``cache_path`` is a file, or a folder for ``hardware.json``; by default the project's cache folder (HWMATRIX_CACHE) is used.
    ``force_refresh`` ignores the cached file. Facts that change (memory in use, memory pressure, processes) are queried again by every call
    that returns facts. May be used by several threads.
    """

    def __init__(self, cache_path: Path | str | None = None, force_refresh: bool = False) -> None:  # noqa: FBT001, FBT002 - a public name
        self._path = None if cache_path is None else Path(cache_path)
        self._ignore_file = force_refresh
        self._found: dict[Backend, Detection] = {}
        self._kept: dict[str, Detection] | None = None
        self._probed: set[Backend] = set()
        self._lock = threading.RLock()

    def detect(self) -> dict[str, Detection]:
        """Return every kind of hardware by ``hardware_type``, with current values of the facts that change. Never raises."""
        with self._lock:
            older = [kind for kind in Backend if kind in self._found or kind.value in self._stored()]  # the others are detected now
            self._ask(tuple(Backend))
            self._found |= {kind: detector.refreshed(self._found[kind]) for kind in older}
            self._keep()
            return {kind.value: self._found[kind] for kind in Backend}

    def refresh(self) -> dict[str, Detection]:
        """Like :meth:`detect`, but detect everything again, including what only a started browser can report, and write the file."""
        with self._lock:
            self._found, self._kept, self._ignore_file = {}, None, True
            self._probed = set()
            return self.detect()

    def clear_cache(self) -> bool:
        """Forget the results and remove the file. Return whether there was one.

        Raises:
            StoreError: the file cannot be removed.
        """
        with self._lock:
            self._found, self._kept = {}, None
            file = self._file()
            return file is not None and cache.clear(file)

    def is_available(self, hw: str) -> bool:
        """Whether a kind of hardware is here. The first call for WebNN starts a browser, which takes some seconds at most.

        Raises:
            ConfigError: there is no such kind of hardware.
        """
        return self._one(kind_of(hw, where="hardware")).available

    def errors(self) -> list[tuple[str, str]]:
        """The kinds of hardware that are not here, each with the reason."""
        return [(hw, found.reason or "") for hw, found in self.detect().items() if not found.available]

    def get_cuda_details(self) -> CudaDetails:
        """Return NVIDIA's GPUs with their current memory and processes. Never raises."""
        with self._lock:
            found = self._found[Backend.CUDA] = detector.refreshed(self._one(Backend.CUDA))
        facts, build = found.features, torch_build.torch_build()
        gpus = facts.get("gpus", [])
        names = _torch_names(gpus, os.environ)
        return CudaDetails(
            available=found.available,
            reason=found.reason,
            device_count=len(gpus),
            driver_version=facts.get("driver"),
            cuda_version=facts.get("cuda"),
            cudnn_version=facts.get("cudnn"),
            torch_cuda_version=build.cuda if build else None,
            devices=[_cuda_device(gpu, names) for gpu in gpus],
        )

    def get_torch_device_with_priority(self, priority_list: Sequence[str] | None = None, preferred_index: int = 0) -> str:
        """Return PyTorch's name of the first device in a list that it can use here: ``cuda:1``, ``mps``, ``cpu``.

        PyTorch also calls ROCm's devices ``cuda:...``. The default list is CUDA, ROCm, MPS, CPU. An entry may have its own index
        (``cuda:1``), which overrides ``preferred_index``. An index that does not exist becomes 0, with a warning. Only devices that the
        installed PyTorch is built for are returned; without PyTorch, the drivers' lists count.

        Raises:
            ConfigError: an entry is not a kind of hardware, or its index is not a number.
        """
        return self.choose_torch_device(priority_list, preferred_index).torch_device

    def choose_torch_device(self, priority_list: Sequence[str] | None = None, preferred_index: int = 0) -> DeviceChoice:
        """Like :meth:`get_torch_device_with_priority`, with the reasons.

        Raises:
            ConfigError: an entry is not a kind of hardware, or its index is not a number.
        """
        wanted = parse([kind.value for kind in DEFAULT_ORDER] if priority_list is None else priority_list)
        return choose(wanted, preferred_index, Circumstances(ask=self._known, torch=torch_build.torch_build(), environment=os.environ))

    def choose_hardware(self, order: Sequence[str], *, asked_for: str | None = None) -> HardwareChoice:
        """Return the first kind in an order that is here, with the reasons. PyTorch need not support it.

        Emulators and browsers are chosen only if ``asked_for``.

        Raises:
            ConfigError: an entry is not a kind of hardware.
        """
        return first_here(order, lambda kind: self._one(kind) if kind.value == asked_for else self._known(kind), asked_for=asked_for)

    def in_container(self) -> dict[str, ContainerView]:
        """Return what a container sees of each kind of hardware: this container, or one started on this machine."""
        return container_views(self.detect(), container.look())

    def _known(self, kind: Backend) -> Detection:
        """Return the detection of a kind without a probe."""
        with self._lock:
            self._ask((kind,))
            return self._found[kind]

    def _one(self, kind: Backend) -> Detection:
        """Return the detection of a requested kind, with a probe if only that can tell."""
        with self._lock:
            self._ask((kind,))
            if descriptor_of(kind).hardware.started and kind not in self._probed and not self._found[kind].available:
                self._probe(kind)
                self._keep()
            return self._found[kind]

    def _probe(self, kind: Backend) -> None:
        self._found[kind] = detector.detect(kind)
        self._probed.add(kind)

    def _ask(self, kinds: tuple[Backend, ...]) -> None:
        """Detect the kinds that are not known yet, or take them from the file if it is valid."""
        for kind in kinds:
            if kind not in self._found:
                stored = self._stored().get(kind.value) if cache.is_kept(kind) else None
                if stored is None and descriptor_of(kind).hardware.started and self._ignore_file:
                    self._probe(kind)
                else:
                    self._found[kind] = stored or detector.detect(kind, light=True)
        self._keep()

    def _keep(self) -> None:
        """Write the file if the known detections differ from it."""
        stored = self._stored()
        now = dict(stored)
        for kind in filter(cache.is_kept, self._found):
            found = self._found[kind]
            if not found.available:
                now.pop(kind.value, None)
            elif kind.value not in now or now[kind.value].detected_at != found.detected_at:
                now[kind.value] = found
        if now != stored:
            self._kept = now
            file = self._file()
            if file is not None:
                cache.save(file, cache.current_key(), now.values())

    def _stored(self) -> dict[str, Detection]:
        """Return the file's content, read once. A file that is to be ignored is emptied, since it may be wrong."""
        if self._kept is None:
            self._kept = {}
            file = self._file()
            if file is not None and file.exists():
                if self._ignore_file:
                    cache.save(file, cache.current_key(), ())
                else:
                    self._kept = cache.load(file, cache.current_key())
        return self._kept

    def _file(self) -> Path | None:
        if self._path is None:
            return cache.default_file(os.environ)
        return self._path / cache.NAME if self._path.is_dir() else self._path


def detect_available_hardware(cache_path: Path | str | None = None, force_refresh: bool = False) -> AvailableHardware:  # noqa: FBT001, FBT002 - a public name
    """Return the hardware here with its facts, why the rest is missing, the best of it, and the device for PyTorch. Never raises."""
    asked = _shared() if cache_path is None else HardwareDetector(cache_path)
    found = asked.refresh() if force_refresh else asked.detect()
    return AvailableHardware(
        hardware={hw: each.available for hw, each in found.items()},
        details={hw: {"name": each.name, **each.features} if each.available else each.features for hw, each in found.items()},
        errors={hw: each.reason or "" for hw, each in found.items() if not each.available},
        best_available=best_of(found),
        torch_device=asked.get_torch_device_with_priority(),
    )


def container_views(found: Mapping[str, Detection], around: container.Surroundings) -> dict[str, ContainerView]:
    """Return what a container sees of each detected kind."""
    views = {hw: container.view(hw, each, around) for hw, each in found.items()}
    return {hw: ContainerView(visible=view.visible, why=view.why) for hw, view in views.items()}


def best_of(found: Mapping[str, Detection]) -> str:
    """Return the best kind of hardware that is here: GPUs, then OpenVINO, then the CPU."""
    return next(kind.value for kind in _BEST if found[kind.value].available or kind is Backend.CPU)


def get_cuda_details() -> CudaDetails:
    """Call :meth:`HardwareDetector.get_cuda_details` of this process's shared detector."""
    return _shared().get_cuda_details()


def get_torch_device_with_priority(priority_list: Sequence[str] | None = None, preferred_index: int = 0) -> str:
    """Call :meth:`HardwareDetector.get_torch_device_with_priority` of this process's shared detector.

    Raises:
        ConfigError: an entry is not a kind of hardware, or its index is not a number.
    """
    return _shared().get_torch_device_with_priority(priority_list, preferred_index)


@functools.cache
def _shared() -> HardwareDetector:
    return HardwareDetector()


def _cuda_device(gpu: Mapping[str, Any], names: Mapping[str, str]) -> CudaDevice:
    return CudaDevice(
        index=gpu["index"],
        name=gpu["name"],
        uuid=gpu["uuid"],
        compute_capability=gpu["compute_capability"],
        memory_mb=gpu["memory_mb"],
        used_mb=gpu["used_mb"],
        free_mb=gpu["free_mb"],
        processes=gpu["processes"],
        torch_device=names.get(gpu["uuid"]),
    )


def _torch_names(gpus: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> dict[str, str]:
    """PyTorch's names by UUID. CUDA sorts the fastest first by default, so names are certain only for equal GPUs or in bus order."""
    alike = len({gpu["name"] for gpu in gpus}) <= 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    shown = visible.cuda_gpus(gpus, environment) if alike else []
    return {gpu["uuid"]: f"cuda:{index}" for index, gpu in enumerate(shown) if gpu is not None}
