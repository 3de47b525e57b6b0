from __future__ import annotations

import importlib
import platform
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from fake_machine import detected_by

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import detector
from hwmatrix.records import Backend, to_json
from hwmatrix.records.backends import Descriptor, descriptors

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


@pytest.mark.parametrize("backend", descriptors(), ids=lambda each: each.name)
def test_every_backend_has_a_detector_with_the_functions_of_its_descriptor(backend: Descriptor) -> None:
    module = importlib.import_module(backend.hardware.detector)
    assert callable(module.detect)
    assert hasattr(module, "installed") == backend.hardware.light
    assert hasattr(module, "refreshed") == backend.hardware.changing


def detecting(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    module = types.ModuleType("fake_detector")

    def detect() -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    module.detect = detect  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_detector", module)
    detected_by(monkeypatch, {Backend.CPU: "fake_detector"})


def test_available_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_unavailable_hardware_says_why(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    detecting(monkeypatch, error)
    found = detector.detect(Backend.CPU)
    assert (found.available, found.name, found.features, found.reason) == (False, None, {}, reason)


def test_every_kind_is_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    detecting(monkeypatch, ("A CPU", {}))
    detected_by(monkeypatch, {Backend.CPU: "fake_detector", Backend.OPENVINO: "no_such_module"})
    found = {detection.hardware_type: detection.reason for detection in detector.detect_all((Backend.CPU, Backend.OPENVINO))}
    assert found == {"cpu": None, "openvino": "ModuleNotFoundError: No module named 'no_such_module'"}


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


def test_without_an_id_the_host_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "_MACHINE_ID", (tmp_path / "missing",))
    first = detector.machine_identity()
    monkeypatch.setattr(platform, "node", lambda: "another-name")
    assert detector.machine_identity() != first


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"uninitialized\n"])
def test_an_invalid_machine_id_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """systemd images contain an empty file or this word, so all machines made from one image would be the same."""
    (tmp_path / "id").write_bytes(content)
    monkeypatch.setattr(detector, "_MACHINE_ID", (tmp_path / "id",))
    first = detector.machine_identity()
    monkeypatch.setattr(platform, "node", lambda: "another-name")
    assert detector.machine_identity() != first


def test_changing_facts_are_queried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    detecting(monkeypatch, ("A CPU", {"cores": 2, "free": 1}))
    found = detector.detect(Backend.CPU)
    module = sys.modules["fake_detector"]
    module.refreshed = lambda facts: facts | {"free": 0}  # type: ignore[attr-defined]
    now = detector.refreshed(found)
    assert (now.features, now.name, now.detected_at) == ({"cores": 2, "free": 0}, found.name, found.detected_at)
    assert found.features["free"] == 1


def test_hardware_that_cannot_be_refreshed_is_detected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    detecting(monkeypatch, ("A CPU", {}))
    found = detector.detect(Backend.CPU)

    def gone(_facts: Any) -> Any:
        raise RuntimeError("the driver broke")

    detecting(monkeypatch, UnavailableError("no driver", error_type="x"))
    sys.modules["fake_detector"].refreshed = gone  # type: ignore[attr-defined]
    assert detector.refreshed(found).reason == "no driver"


def test_missing_hardware_and_constant_facts_are_not_queried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    detecting(monkeypatch, UnavailableError("no driver", error_type="x"))
    absent = detector.detect(Backend.CPU)
    assert detector.refreshed(absent) is absent
    detecting(monkeypatch, ("QNN", {}))
    detected_by(monkeypatch, {Backend.QNN: "fake_detector"})
    steady = detector.detect(Backend.QNN)
    assert detector.refreshed(steady) is steady


def test_each_query_is_logged_with_its_time(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """LOGLEVEL=DEBUG shows which queries are slow."""
    detecting(monkeypatch, ("A CPU", {}))
    with caplog.at_level("DEBUG", logger="hwmatrix.hardware"):
        detector.detect(Backend.CPU)
    assert caplog.messages[0].startswith("cpu detected in ")
    assert caplog.messages[0].endswith(" ms: A CPU")
