"""What a machine offers a cluster, and what a part of a run needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hwmatrix.errors import EngineError
from hwmatrix.hardware.detector import _absent
from hwmatrix.host.cluster import offers
from hwmatrix.records import Detection

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture(autouse=True)
def a_machine_with_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect(kind: str) -> Detection:
        if kind == "cuda":
            return Detection(hardware_type=kind, available=True, name="NVIDIA H100", features={}, reason=None, detected_at="2026-11-25")
        return _absent(kind, f"no {kind} here", "2026-11-25")

    def connect(variables: Mapping[str, str]) -> None:
        raise EngineError(f"no engine answers ({variables.get('DOCKER_HOST')})")

    monkeypatch.setattr(offers, "detect", detect)
    monkeypatch.setattr(offers, "connect", connect)


def test_a_machine_offers_what_images_bring_and_the_hardware_that_it_has() -> None:
    found = offers.offer({"DOCKER_HOST": "tcp://box"})
    assert {"cpu", "openvino", "onnxruntime", "qnn", "webgpu", "webnn"} < found.devices.keys()
    assert (found.devices["cuda"], found.devices["cpu"]) == ("NVIDIA H100", "")
    assert found.absent == {"rocm": "no rocm here", "mps": "no mps here"}
    assert found.no_engine == "no engine answers (tcp://box)"


def test_its_share_of_the_machine_is_what_it_was_given() -> None:
    found = offers.offer({offers.CORES_VARIABLE: "0,3", offers.MEMORY_VARIABLE: "5000"})
    assert (found.cores, found.memory_mb) == (2, 5000)
    assert offers.cores_of({}) == frozenset()
    assert offers.memory_of({}) is None


def _fits(resources: Mapping[str, float], needed: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0) >= least for name, least in needed.items())


@pytest.mark.parametrize(
    ("backend", "memory_mb", "fits"),
    [("cpu", 4096, True), ("cuda", 4096, True), ("rocm", 4096, False), ("cpu", 5000, True), ("cpu", 5001, False)],
)
def test_a_part_fits_a_machine_with_its_hardware_and_memory(backend: str, memory_mb: int, *, fits: bool) -> None:
    found = offers.offer({offers.MEMORY_VARIABLE: "5000"})
    assert _fits(found.resources, offers.needed(backend, memory_mb)) is fits


def test_a_machine_with_other_code_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = offers.offer({})
    monkeypatch.setattr(offers, "code_digest", lambda: "another")
    assert not _fits(found.resources, offers.needed("cpu", 1))
