"""The locations of browsers on Linux, macOS and Windows, in folders that simulate these systems."""

from __future__ import annotations

import sys
from pathlib import Path, PureWindowsPath

import pytest

from hwmatrix.hardware import browser_places
from hwmatrix.hardware.browser_places import Found, installed

MAC = ("Google Chrome", "Microsoft Edge", "Brave Browser", "Chromium", "Firefox", "Safari")
WINDOWS = (
    r"Google\Chrome\Application\chrome.exe",
    r"Microsoft\Edge\Application\msedge.exe",
    r"BraveSoftware\Brave-Browser\Application\brave.exe",
    r"Chromium\Application\chrome.exe",
    r"Mozilla Firefox\firefox.exe",
)
DRIVEN = {"Chromium", "Chrome", "Edge", "Brave"}


def program(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return str(path)


def driven(found: tuple[Found, ...]) -> dict[str, bool]:
    return {each.name: each.driven for each in found}


@pytest.mark.parametrize(
    ("name", "browser"),
    [
        *(("chromium", "Chromium"), ("chromium-browser", "Chromium"), ("google-chrome", "Chrome"), ("google-chrome-stable", "Chrome")),
        *(("microsoft-edge", "Edge"), ("brave-browser", "Brave"), ("firefox", "Firefox"), ("firefox-esr", "Firefox")),
    ],
)
def test_browsers_on_linux_are_found_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, browser: str) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    path = program(tmp_path / "bin" / name)
    found = installed({"PATH": str(tmp_path / "bin")}, tmp_path)
    assert found == (Found(name=browser, program=path, driven=browser in DRIVEN),)


@pytest.mark.parametrize(
    ("file", "browser"),
    [
        ("/opt/google/chrome/chrome", "Chrome"),
        ("/opt/microsoft/msedge/msedge", "Edge"),
        ("/opt/brave.com/brave/brave", "Brave"),
        ("/snap/bin/chromium", "Chromium"),
        ("/snap/bin/firefox", "Firefox"),
    ],
)
def test_browsers_on_linux_are_found_outside_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, browser: str) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    program(tmp_path / file.removeprefix("/"))
    assert installed({"PATH": str(tmp_path / "none")}, tmp_path) == (Found(name=browser, program=file, driven=browser in DRIVEN),)


def test_browsers_on_macos_are_found_in_applications(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for name in MAC:
        folder = tmp_path / ("home/Applications" if name == "Brave Browser" else "Applications")
        program(folder / f"{name}.app/Contents/MacOS" / ("firefox" if name == "Firefox" else name))
    found = installed({"HOME": str(tmp_path / "home"), "PATH": ""}, tmp_path)
    assert driven(found) == dict.fromkeys(DRIVEN, True) | {"Firefox": False, "Safari": False}
    assert all(Path(each.program).is_file() for each in found)


@pytest.mark.parametrize("variable", ["ProgramFiles", "ProgramFiles(x86)", "LOCALAPPDATA"])
def test_browsers_on_windows_are_found_in_program_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    for path in WINDOWS:
        program(tmp_path.joinpath(*PureWindowsPath(path).parts))
    found = installed({variable: str(tmp_path)}, tmp_path)
    assert driven(found) == dict.fromkeys(DRIVEN, True) | {"Firefox": False}
    edge = next(each.program for each in found if each.name == "Edge")
    assert browser_places.windows_version(edge) is None
    for version in ("99.0.1.2", "156.0.8078.79", "Locales"):
        (Path(edge).parent / version).mkdir()
    assert browser_places.windows_version(edge) == "156.0.8078.79"


def test_supported_browsers_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("firefox", "brave-browser", "microsoft-edge"):
        program(tmp_path / name)
    assert [each.name for each in installed({"PATH": str(tmp_path)}, tmp_path)] == ["Edge", "Brave", "Firefox"]


def test_a_machine_without_browsers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for system in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sys, "platform", system)
        assert installed({"PATH": str(tmp_path)}, tmp_path) == ()
