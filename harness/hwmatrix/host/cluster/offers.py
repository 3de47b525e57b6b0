"""What a machine offers a cluster: which kinds of targets it can run, its cores and memory, and the code it has.

Dask decides by resources which worker gets a task: names with numbers that a worker announces when it joins, and a task asks for
(https://distributed.dask.org/en/stable/resources.html). A worker announces one for every backend whose hardware is here, one for its
memory, one for the exact code of hwmatrix, and one that each task takes, so that it works on one part of a run at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

import hwmatrix
from hwmatrix.errors import EngineError
from hwmatrix.hardware.detector import detect, machine_identity
from hwmatrix.host.engine import connect
from hwmatrix.measure.cores import usable
from hwmatrix.records.backends import descriptor_of, names

if TYPE_CHECKING:
    from collections.abc import Mapping

CORES_VARIABLE: Final = "HWMATRIX_WORKER_CORES"
"""The cores that a worker may use, as in ``0,1``; unset: all."""
MEMORY_VARIABLE: Final = "HWMATRIX_WORKER_MEMORY_MB"
"""The memory in MiB that a worker may use; unset: the machine's."""
_TURN: Final = "hwmatrix-turn"
_MEMORY: Final = "hwmatrix-memory-mb"
_CODE: Final = "hwmatrix-code-"
_TARGET: Final = "hwmatrix-target-"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """What a worker offers.

    ``devices`` are the names of the hardware by backend (empty: it needs none but the CPU), ``absent`` the reasons for what it cannot run.
    ``machine`` identifies the machine: several workers can be on one. ``no_engine`` says why it cannot run containers; None: it can.
    """

    host: str
    machine: str
    version: str
    code: str
    cores: int
    memory_mb: int
    devices: dict[str, str]
    absent: dict[str, str]
    no_engine: str | None

    @property
    def resources(self) -> dict[str, float]:
        """The resources to announce."""
        targets = {_TARGET + backend: 1.0 for backend in self.devices}
        return {_TURN: 1.0, _MEMORY: float(self.memory_mb), _CODE + self.code: 1.0, **targets}


def needed(backend: str, memory_mb: int) -> dict[str, float]:
    """The resources that a part of a run needs on this backend, with the code that runs here. ``memory_mb`` is a cell's limit in MiB."""
    return {_TURN: 1.0, _MEMORY: float(memory_mb), _CODE + code_digest(): 1.0, _TARGET + backend: 1.0}


def offer(variables: Mapping[str, str]) -> Offer:
    """Detect what this machine offers. ``variables`` are those of its environment."""
    devices: dict[str, str] = {}
    absent: dict[str, str] = {}
    for backend in names():
        if not descriptor_of(backend).hardware.needed_here:
            devices[backend] = ""
            continue
        found = detect(backend)
        if found.available:
            devices[backend] = found.name or backend
        else:
            absent[backend] = found.reason or "not found"
    return Offer(
        host=platform.node(),
        machine=machine_identity(),
        version=hwmatrix.__version__,
        code=code_digest(),
        cores=len(cores_of(variables) or usable()),
        memory_mb=memory_of(variables) or psutil.virtual_memory().total // 2**20,
        devices=devices,
        absent=absent,
        no_engine=_no_engine(variables),
    )


def cores_of(variables: Mapping[str, str]) -> frozenset[int]:
    """The cores that this worker may use; empty: all."""
    return frozenset(int(core) for core in variables.get(CORES_VARIABLE, "").split(",") if core)


def memory_of(variables: Mapping[str, str]) -> int | None:
    """The MiB that this worker may use; None: all of the machine's."""
    return int(variables[MEMORY_VARIABLE]) if variables.get(MEMORY_VARIABLE) else None


@functools.cache
def code_digest() -> str:
    """A digest of every file of this package: machines with another one are not given parts of a run."""
    package = Path(hwmatrix.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(
        path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts and "shipped" not in path.parts
    ):
        digest.update(f"{path.relative_to(package)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _no_engine(variables: Mapping[str, str]) -> str | None:
    try:
        engine = connect(variables)
    except EngineError as error:
        return error.message
    return engine.builder_problem if engine.builder is None else None
