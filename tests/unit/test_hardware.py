from __future__ import annotations

import importlib.machinery
import json
import platform
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import cpu, detector, openvino
from hwmatrix.records import Backend, to_json

if TYPE_CHECKING:
    from pathlib import Path

INTEL = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Example CPU @ 2.00GHz
flags\t\t: fpu avx avx2 avx512f fma

processor\t: 1
model name\t: another
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n"


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpu, "_CGROUP", tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def test_every_backend_has_a_detector() -> None:
    assert detector.DETECTORS.keys() == set(Backend)


def test_this_machines_processor() -> None:
    name, facts = cpu.detect()
    assert name
    assert facts["cores"] >= facts["usable_cores"] > 0
    assert facts["memory_mb"] >= facts["available_memory_mb"] > 0
    json.dumps(facts)


def test_the_first_processor_is_read(tmp_path: Path) -> None:
    write(tmp_path / "intel", INTEL)
    write(tmp_path / "arm", ARM)
    assert cpu.cpuinfo(tmp_path / "intel")["model name"] == "Example CPU @ 2.00GHz"
    assert cpu.cpuinfo(tmp_path / "arm")["Features"] == "fp asimd sve"
    assert cpu.cpuinfo(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    ("text", "vendor", "instructions"),
    [(INTEL, "GenuineIntel", ["avx", "avx2", "avx512f", "fma"]), (ARM, "0x41", ["asimd", "sve"])],
)
def test_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, vendor: str, instructions: list[str]) -> None:
    write(tmp_path / "cpuinfo", text)
    info = cpu.cpuinfo(tmp_path / "cpuinfo")
    monkeypatch.setattr(cpu, "cpuinfo", lambda: info)
    monkeypatch.setattr(platform, "processor", lambda: "")
    name, facts = cpu.detect()
    assert (facts["vendor"], facts["instructions"]) == (vendor, instructions)
    assert name == info.get("model name", platform.machine())


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("memory.max", "1073741824\n", 1024),
        ("memory.max", "max\n", None),
        ("memory/memory.limit_in_bytes", "536870912\n", 512),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
        ("other", "", None),
    ],
)
def test_the_memory_limit_of_either_cgroup(cgroup: Path, file: str, text: str, expected: int | None) -> None:
    write(cgroup / file, text)
    assert cpu.memory_limit_mb() == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, 4.0),
        ({"cpu.max": "800000 100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({}, 4.0),
    ],
)
def test_usable_cores(cgroup: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: float) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setattr(sys, "platform", "linux")
    for name, text in files.items():
        write(cgroup / name, text)
    assert cpu.usable_cores() == expected


def detecting(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    module = types.ModuleType("fake_detector")

    def detect() -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    module.detect = detect  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_detector", module)
    monkeypatch.setitem(detector.DETECTORS, Backend.CPU, "fake_detector")


def test_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    detecting(monkeypatch, ("A CPU", {"cores": 2}))
    found = detector.detect(Backend.CPU)
    assert (found.hardware_type, found.available, found.name, found.features, found.reason) == ("cpu", True, "A CPU", {"cores": 2}, None)
    assert '"available":true' in to_json(found)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnavailableError("no driver", error_type="x"), "no driver"),
        (RuntimeError("the driver broke"), "RuntimeError: the driver broke"),
        (OSError(2, "gone"), "FileNotFoundError: [Errno 2] gone"),
    ],
)
def test_what_is_not_here_says_why(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    detecting(monkeypatch, error)
    found = detector.detect(Backend.CPU)
    assert (found.available, found.name, found.features, found.reason) == (False, None, {}, reason)


def test_every_kind_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    detecting(monkeypatch, ("A CPU", {}))
    monkeypatch.setitem(detector.DETECTORS, Backend.OPENVINO, "no_such_module")
    found = {detection.hardware_type: detection.reason for detection in detector.detect_all((Backend.CPU, Backend.OPENVINO))}
    assert found == {"cpu": None, "openvino": "ModuleNotFoundError: No module named 'no_such_module'"}


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UnavailableError, match="openvino is not installed") as caught:
        openvino.detect()
    assert caught.value.error_type == "missing_package"


@pytest.mark.parametrize("devices", [[], ["CPU", "GPU"]])
def test_the_devices_of_a_runtime(monkeypatch: pytest.MonkeyPatch, devices: list[str]) -> None:
    class Core:
        available_devices = devices

        def get_property(self, device: str, _name: str) -> str:
            return f"the {device}"

    module = types.ModuleType("openvino")
    module.Core, module.__version__ = Core, "1.2"  # type: ignore[attr-defined]
    module.__spec__ = importlib.machinery.ModuleSpec("openvino", None)
    monkeypatch.setitem(sys.modules, "openvino", module)
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "1.2.3")
    if devices:
        assert openvino.detect() == ("OpenVINO 1.2.3", {"version": "1.2", "devices": {"CPU": "the CPU", "GPU": "the GPU"}})
    else:
        with pytest.raises(UnavailableError, match="lists no device"):
            openvino.detect()


def test_a_machine_has_one_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "id", "0123456789abcdef\n")
    monkeypatch.setattr(detector, "_MACHINE_ID", (tmp_path / "missing", tmp_path / "id"))
    first = detector.machine_identity()
    monkeypatch.setattr(platform, "node", lambda: "another-name")
    assert detector.machine_identity() == first
    assert len(first) == 16
    assert "0123" not in first
    write(tmp_path / "id", "fedcba9876543210\n")
    assert detector.machine_identity() != first


def test_without_an_id_the_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "_MACHINE_ID", (tmp_path / "missing",))
    first = detector.machine_identity()
    monkeypatch.setattr(platform, "node", lambda: "another-name")
    assert detector.machine_identity() != first


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"uninitialized\n"])
def test_an_id_that_is_none_is_not_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """systemd writes an empty file or this word into images: all machines made from one would be the same."""
    (tmp_path / "id").write_bytes(content)
    monkeypatch.setattr(detector, "_MACHINE_ID", (tmp_path / "id",))
    first = detector.machine_identity()
    monkeypatch.setattr(platform, "node", lambda: "another-name")
    assert detector.machine_identity() != first
