"""Facts about a browser and its runtime that are known before any page is opened."""

from __future__ import annotations

import dataclasses
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import browser, webnn
from hwmatrix.hardware.browser_places import Found

if TYPE_CHECKING:
    from pathlib import Path

PRINTED = "Chromium 156.0.8078.79 built on Debian GNU/Linux 12 (bookworm)\n"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image with Debian's Chromium and ONNX Runtime Web, on a machine with one GPU."""
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "package.json").write_text('{"version": "1.31.0"}', encoding="ascii")
    for file in ("debian/libvk_swiftshader.so", "dri/renderD128", "dri/card0"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(browser, "SPARTICUZ", tmp_path / "sparticuz")
    monkeypatch.setattr(browser, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(browser, "_DRM", tmp_path / "dri")
    monkeypatch.setattr(browser, "Installed", lambda: browser_installed(assets))
    here(monkeypatch, CHROMIUM, FIREFOX)
    browser._version.cache_clear()
    return tmp_path


INSTALLED = browser.Installed
CHROMIUM = Found(name="Chromium", program="/usr/bin/chromium", driven=True)
FIREFOX = Found(name="Firefox", program="/usr/bin/firefox", driven=False)


def here(monkeypatch: pytest.MonkeyPatch, *found: Found) -> None:
    monkeypatch.setattr(browser.browser_places, "installed", lambda: found)


def browser_installed(assets: Path) -> browser.Installed:
    return INSTALLED(assets=assets)


def starting(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> list[list[str]]:
    started: list[list[str]] = []

    def run(command: list[str], **_options: Any) -> Any:
        started.append(command)
        if isinstance(outcome, Exception):
            raise outcome
        return subprocess.CompletedProcess(command, 0, outcome)

    monkeypatch.setattr(browser.subprocess, "run", run)
    return started


def refused() -> UnavailableError:
    with pytest.raises(UnavailableError) as caught:
        browser.detect()
    return caught.value


def test_an_image_that_was_built_without_npm_says_so(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "npm could not fetch @sparticuz/chromium@147.0.0 when the image was built (ENOTFOUND)"
    (image / "assets/missing.txt").write_text(f"{reason}\n", encoding="ascii")
    (image / "sparticuz").mkdir()
    here(monkeypatch)
    assert str(refused()).endswith(f"; {reason}")
    assert refused().error_type == "browser_missing"
    here(monkeypatch, CHROMIUM)
    (image / "assets/package.json").unlink()
    assert reason in str(refused())


def test_both_versions(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = starting(monkeypatch, PRINTED)
    name, facts = browser.detect()
    assert name == "Chromium 156.0.8078.79"
    assert facts.pop("memory_reason")
    assert facts == {
        "browser": "Chromium 156.0.8078.79",
        "onnxruntime_web": "1.31.0",
        "browsers": [dataclasses.asdict(found) for found in (CHROMIUM, FIREFOX)],
        "render_nodes": [str(image / "dri/renderD128")],
        "device_memory_mb": {},
        "memory_mb": None,
        "software_adapter": True,
    }
    browser.detect()  # the same for WebNN
    assert started == [["/usr/bin/chromium", "--version"]]


@pytest.mark.usefixtures("image")
def test_without_a_browser_or_a_runtime_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = starting(monkeypatch, PRINTED)
    (tmp_path / "assets/package.json").unlink()
    assert "no ONNX Runtime Web" in str(refused())
    assert "/usr/bin/chromium is installed" in str(refused())
    assert "Firefox present" in str(refused())
    here(monkeypatch, FIREFOX)
    assert "no supported browser here" in str(refused())
    assert "Firefox present" in str(refused())
    here(monkeypatch)
    assert "no supported browser here" in str(refused())
    assert "Firefox" not in str(refused())
    assert started == []


def test_a_gpu_has_the_memory_that_its_driver_reports(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starting(monkeypatch, PRINTED)
    monkeypatch.setattr(browser, "_SYSTEM_DRM", image / "drm")
    (image / "drm/renderD128/device").mkdir(parents=True)
    (image / "drm/renderD128/device/mem_info_vram_total").write_text(f"{16368 << 20}\n", encoding="ascii")
    (image / "dri/renderD129").touch()
    assert browser.detect()[1]["device_memory_mb"] == {str(image / "dri/renderD128"): 16368}


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("refusal", ["", "NotSupportedError: WebNN is not supported on this platform."])
def test_webnn_is_available_only_if_a_started_browser_provided_a_context(monkeypatch: pytest.MonkeyPatch, refusal: str) -> None:
    starting(monkeypatch, PRINTED)
    probed: list[Any] = []
    monkeypatch.setattr(webnn, "asked", lambda installed: probed.append(installed) or refusal)
    with pytest.raises(UnavailableError, match="not probed"):
        webnn.installed()
    assert probed == []
    if refusal:
        with pytest.raises(UnavailableError, match="not supported on this platform") as caught:
            webnn.detect()
        assert caught.value.error_type == "webnn_unavailable"
    else:
        assert webnn.detect()[0] == "Chromium 156.0.8078.79"
    assert len(probed) == 1


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize(
    "error", [OSError("gone"), subprocess.CalledProcessError(127, "chromium"), subprocess.TimeoutExpired("chromium", 20)]
)
def test_a_browser_that_does_not_start(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    starting(monkeypatch, error)
    assert refused().error_type == "browser_not_started"
