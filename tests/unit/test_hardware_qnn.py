"""What keeps QNN's emulation from being loaded, each told with its own type."""

from __future__ import annotations

import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import qnn
from hwmatrix.hardware.detector import detect
from hwmatrix.records import Backend


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
def test_a_host_that_fits_is_not(version: str) -> None:
    qnn._check_platform("linux", "x86_64", "glibc", version)


def test_a_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qnn, "_check_platform", lambda *_: None)
    monkeypatch.setattr(qnn.util, "find_spec", lambda _: None)
    found = detect(Backend.QNN)
    assert (found.available, found.reason) == (False, "the package onnxruntime-qnn is not installed")


def test_a_runtime_without_the_provider_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qnn, "_check_platform", lambda *_: None)
    monkeypatch.setattr(qnn.util, "find_spec", lambda _: object())
    monkeypatch.setattr(qnn, "provider_devices", list)
    with pytest.raises(UnavailableError, match="QNNExecutionProvider") as caught:
        qnn.detect()
    assert caught.value.error_type == "qnn_provider_missing"
