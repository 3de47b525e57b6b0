"""The places where systems install browsers: supported ones (with Chromium's DevTools protocol), and those that are only listed."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """A browser and its possible places: names on Linux's PATH, Linux files, the program of a macOS application, Windows files.

    ``windows`` is relative to %ProgramFiles%, %ProgramFiles(x86)% or %LOCALAPPDATA%. ``driven`` says whether hwmatrix can run models in it.
    """

    name: str
    driven: bool = True
    names: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    mac: str | None = None
    windows: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """An installed browser."""

    name: str
    program: str
    driven: bool


BROWSERS: Final = (
    Places(
        name="Chromium",
        names=("chromium", "chromium-browser"),
        files=("/snap/bin/chromium", "/var/lib/flatpak/exports/bin/org.chromium.Chromium"),
        mac="Chromium.app/Contents/MacOS/Chromium",
        windows=r"Chromium\Application\chrome.exe",
    ),
    Places(
        name="Chrome",
        names=("google-chrome", "google-chrome-stable"),
        files=("/opt/google/chrome/chrome", "/var/lib/flatpak/exports/bin/com.google.Chrome"),
        mac="Google Chrome.app/Contents/MacOS/Google Chrome",
        windows=r"Google\Chrome\Application\chrome.exe",
    ),
    Places(
        name="Edge",
        names=("microsoft-edge", "microsoft-edge-stable"),
        files=("/opt/microsoft/msedge/msedge", "/var/lib/flatpak/exports/bin/com.microsoft.Edge"),
        mac="Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
        windows=r"Microsoft\Edge\Application\msedge.exe",
    ),
    Places(
        name="Brave",
        names=("brave-browser", "brave-browser-stable", "brave"),
        files=("/opt/brave.com/brave/brave", "/snap/bin/brave", "/var/lib/flatpak/exports/bin/com.brave.Browser"),
        mac="Brave Browser.app/Contents/MacOS/Brave Browser",
        windows=r"BraveSoftware\Brave-Browser\Application\brave.exe",
    ),
    Places(
        name="Firefox",
        driven=False,
        names=("firefox", "firefox-esr"),
        files=("/snap/bin/firefox", "/var/lib/flatpak/exports/bin/org.mozilla.firefox"),
        mac="Firefox.app/Contents/MacOS/firefox",
        windows=r"Mozilla Firefox\firefox.exe",
    ),
    Places(name="Safari", driven=False, mac="Safari.app/Contents/MacOS/Safari"),
)
"""In the order of preference."""
_WINDOWS_FOLDERS: Final = ("ProgramFiles", "ProgramFiles(x86)", "LOCALAPPDATA")
_WINDOWS_VERSION: Final = re.compile(r"\d+(?:\.\d+){3}")


def installed(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[Found, ...]:
    """Return the browsers of this machine, in the order of BROWSERS. No program is started. ``root`` is the root of absolute paths."""
    found = []
    for places in BROWSERS:
        program = next(_candidates(places, environment, root), None)
        if program is not None:
            found.append(Found(name=places.name, program=program, driven=places.driven))
    return tuple(found)


def windows_version(program: str) -> str | None:
    """Return a browser's version on Windows, from the folder beside its program: with a version argument, it would open a window."""
    folder = Path(program).parent
    versions = [tuple(map(int, each.name.split("."))) for each in folder.glob("*") if _WINDOWS_VERSION.fullmatch(each.name)]
    return ".".join(map(str, max(versions))) if versions else None


def _candidates(places: Places, environment: Mapping[str, str], root: Path) -> Iterator[str]:
    """Yield the programs that exist."""
    if sys.platform == "win32":
        if places.windows is not None:
            below = (environment.get(name) for name in _WINDOWS_FOLDERS)
            files = (Path(folder, *PureWindowsPath(places.windows).parts) for folder in below if folder)
            yield from (str(file) for file in files if file.is_file())
    elif sys.platform == "darwin":
        if places.mac is not None:
            folders = (root / "Applications", Path(environment.get("HOME", "/")) / "Applications")
            yield from (str(folder / places.mac) for folder in folders if (folder / places.mac).is_file())
    else:
        path = environment.get("PATH")
        yield from (program for program in (shutil.which(name, path=path) for name in places.names) if program)
        yield from (file for file in places.files if (root / file.removeprefix("/")).is_file())
