"""The reasons why QNN's emulation cannot be loaded, each with its own type."""

from __future__ import annotations

import importlib.machinery
from typing import TYPE_CHECKING

import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import qnn
from hwmatrix.hardware.detector import detect
from hwmatrix.records import Backend

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("platform", "error_type", "told"),
    [
        (("linux", "aarch64", "glibc", "2.36"), "qnn_platform", "aarch64 linux"),
        (("darwin", "x86_64", "", ""), "qnn_platform", "x86_64 darwin"),
        (("linux", "x86_64", "glibc", "2.31"), "qnn_glibc", "glibc 2.31"),
        (("linux", "x86_64", "glibc", "2.4"), "qnn_glibc", "glibc 2.4"),
        (("linux", "x86_64", "", ""), "qnn_glibc", "another C library"),
    ],
)
def test_another_host_is_refused(platform: tuple[str, str, str, str], error_type: str, told: str) -> None:
    with pytest.raises(UnavailableError, match=told) as caught:
        qnn._check_platform(*platform)
    assert caught.value.error_type == error_type


@pytest.mark.parametrize("version", ["2.35", "2.36", "2.41", "3.0"])
def test_a_supported_host_is_not_refused(version: str) -> None:
    qnn._check_platform("linux", "x86_64", "glibc", version)


def test_a_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qnn, "_check_platform", lambda *_: None)
    monkeypatch.setattr(qnn.util, "find_spec", lambda _: None)
    monkeypatch.setattr(qnn, "_SDK_VARIABLES", ())
    found = detect(Backend.QNN)
    assert (found.available, found.reason) == (False, "the package onnxruntime-qnn is not installed")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the two packages that are read, in the layout of their wheels (onnxruntime 1.31.1, onnxruntime-qnn 2.7.0)."""
    for name, text in (
        ("onnxruntime/capi/build_and_package_info.py", "package_name = 'onnxruntime'\n__version__ = '1.31.1'\n"),
        (
            "onnxruntime_qnn/build_and_package_info.py",
            "package_name = 'onnxruntime-qnn'\n__version__ = '2.7.0'\nqnn_version = '2.51.0'\n",
        ),
        ("onnxruntime_qnn/libonnxruntime_providers_qnn.so", ""),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")

    def find_spec(name: str) -> importlib.machinery.ModuleSpec:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(tmp_path / name)]
        return spec

    monkeypatch.setattr(qnn, "_check_platform", lambda *_: None)
    monkeypatch.setattr(qnn.util, "find_spec", find_spec)
    for variable in qnn._SDK_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.mark.usefixtures("packages")
def test_a_runtime_without_the_provider_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qnn, "provider_devices", list)
    with pytest.raises(UnavailableError, match="QNNExecutionProvider") as caught:
        qnn.detect()
    assert caught.value.error_type == "qnn_provider_missing"


@pytest.mark.usefixtures("packages")
def test_versions_are_read_without_importing_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    name, facts = qnn.installed()
    assert name == "Qualcomm HTP, emulated on x86-64 (QAIRT 2.51.0)"
    assert (facts["qairt"], facts["onnxruntime_qnn"], facts["onnxruntime"]) == ("2.51.0", "2.7.0", "1.31.1")
    assert (facts["execution"], facts["registered"]) == ("emulated", None)
    assert detect(Backend.QNN, light=True).available
    monkeypatch.setattr(qnn, "provider_devices", lambda: [object()])
    assert qnn.detect() == (name, facts | {"registered": True})


def test_a_package_without_its_library_is_reported(packages: Path) -> None:
    (packages / "onnxruntime_qnn/libonnxruntime_providers_qnn.so").unlink()
    found = detect(Backend.QNN, light=True)
    assert "has no libonnxruntime_providers_qnn.so" in (found.reason or "")


def test_the_sdk_is_found_by_its_variable_and_by_its_location(tmp_path: Path) -> None:
    for version, text in (("qairt/2.9.0.1", "version: 2.9.0.1\n"), ("qairt/2.44.0.260225", "name: qairt\nversion: 2.44.0.260225\n")):
        (tmp_path / version).mkdir(parents=True)
        (tmp_path / version / "sdk.yaml").write_text(text, encoding="ascii")
    newest, older = tmp_path / "qairt/2.44.0.260225", tmp_path / "qairt/2.9.0.1"
    assert qnn.sdk({}, tmp_path) == {"folder": str(newest), "version": "2.44.0.260225"}
    assert qnn.sdk({"QNN_SDK_ROOT": str(older)}, tmp_path) == {"folder": str(older), "version": "2.9.0.1"}
    assert qnn.sdk({"QAIRT_SDK_ROOT": str(tmp_path / "gone"), "QNN_SDK_ROOT": ""}, tmp_path / "gone") is None
    (older / "sdk.yaml").write_text("nothing\n", encoding="ascii")
    assert qnn.sdk({"QNN_SDK_ROOT": str(older)}, tmp_path) == {"folder": str(older), "version": None}


def test_the_sdk_alone_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sdk.yaml").write_text("version: 2.44.0\n", encoding="ascii")
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path))
    monkeypatch.setattr(qnn, "_check_platform", lambda *_: None)
    monkeypatch.setattr(qnn.util, "find_spec", lambda _: None)
    assert (detect(Backend.QNN, light=True).reason or "").endswith(f"(Qualcomm's own SDK in {tmp_path} is not used)")
