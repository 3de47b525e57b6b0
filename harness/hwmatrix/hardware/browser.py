"""The browser that executes WebGPU and WebNN, and the runtime that its pages load. Which adapter it gives is asked in each cell."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

ASSETS: Final = Path("/opt/hwmatrix/onnxruntime-web")
"""Where images/webgpu and images/webnn put ONNX Runtime Web."""
EXECUTABLES: Final = ("chromium", "chromium-browser", "google-chrome")
SPARTICUZ: Final = Path("/opt/hwmatrix/chromium")
"""Where images/webnn puts the Chromium of the npm package."""
_DEBIAN: Final = Path("/usr/lib/chromium")
_DRM: Final = Path("/dev/dri")
_VERSION_S: Final = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installed:
    """Which browser, and which ONNX Runtime Web. ``executable`` is a path or a program's name; None looks for the usual ones."""

    executable: str | None = None
    assets: Path = ASSETS
    libraries: Path | None = None

    def command(self) -> tuple[str, ...]:
        """How to start the browser.

        Raises:
            UnavailableError: there is none.
        """
        names = EXECUTABLES if self.executable is None else (self.executable,)
        found = next((path for path in map(shutil.which, names) if path), None)
        if found is None:
            raise UnavailableError(f"no browser here: {', '.join(names)} not found", error_type="browser_missing")
        return (found,)

    def environment(self) -> Mapping[str, str]:
        """What the browser needs set."""
        return {"LD_LIBRARY_PATH": str(self.libraries)} if self.libraries else {}

    def runtime_version(self) -> str:
        """The version of ONNX Runtime Web.

        Raises:
            UnavailableError: it is not there.
        """
        try:
            return str(json.loads((self.assets / "package.json").read_text(encoding="utf-8"))["version"])
        except (OSError, ValueError, KeyError) as error:
            raise UnavailableError(f"no ONNX Runtime Web in {self.assets}: {error}", error_type="browser_missing") from error

    def browser_version(self) -> str:
        """What the browser calls itself, such as "Chromium 156.0.8078.79".

        Raises:
            UnavailableError: there is none, or it does not start.
        """
        return _version(self.command(), tuple(self.environment().items()))


def sparticuz() -> Installed:
    """The Chromium of the npm package, which has its libraries beside it."""
    return Installed(executable=str(SPARTICUZ / "chromium"), libraries=SPARTICUZ)


def detect() -> tuple[str, dict[str, Any]]:
    """The browser and the runtime of this image. No page is opened: each cell says which adapter it was given.

    Raises:
        UnavailableError: one of them is missing.
    """
    installed = sparticuz() if SPARTICUZ.is_dir() else Installed()
    installed.command()
    runtime = installed.runtime_version()  # before a browser is started for its version, which takes a tenth of a second
    browser = installed.browser_version()
    facts: dict[str, Any] = {
        "browser": browser,
        "onnxruntime_web": runtime,
        "render_nodes": sorted(str(node) for node in _DRM.glob("renderD*")),
        "software_adapter": any((folder / "libvk_swiftshader.so").is_file() for folder in (_DEBIAN, SPARTICUZ)),
    }
    return browser, facts


@functools.cache
def _version(command: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> str:
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=True, timeout=_VERSION_S, env=dict(environment) or None
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"{command[0]} does not start: {error}", error_type="browser_not_started") from error
    found = re.search(r"\S+ [\d.]+", done.stdout)
    return found[0] if found else done.stdout.strip()
