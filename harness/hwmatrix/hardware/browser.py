"""The browser that runs WebGPU and WebNN, and the runtime that its pages load. Each cell determines the adapter itself.

Only a started browser can tell whether it has WebNN: see ``webnn``.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import browser_places, cgroups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ASSETS: Final = Path("/opt/hwmatrix/onnxruntime-web")
"""The folder where images/webgpu and images/webnn put ONNX Runtime Web."""
SPARTICUZ: Final = Path("/opt/hwmatrix/chromium")
"""The folder where images/webnn puts the Chromium of the npm package."""
_NOT_FETCHED: Final = "missing.txt"
"""The file in ``ASSETS`` of an image that was built without npm: the reason."""
_DEBIAN: Final = Path("/usr/lib/chromium")
_DRM: Final = Path("/dev/dri")
_SYSTEM_DRM: Final = Path("/sys/class/drm")
_MIB: Final = 2**20
_VERSION_S: Final = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installed:
    """A browser and an ONNX Runtime Web. ``executable`` is a path or a program's name; None selects the first installed browser."""

    executable: str | None = None
    assets: Path = ASSETS
    libraries: Path | None = None

    def command(self) -> tuple[str, ...]:
        """Return the command that starts the browser.

        Raises:
            UnavailableError: there is none.
        """
        if self.executable is not None:
            program = shutil.which(self.executable)
            if program is None:
                raise UnavailableError(f"no browser here: {self.executable} not found", error_type="browser_missing")
            return (program,)
        here = browser_places.installed()
        driven = next((found.program for found in here if found.driven), None)
        if driven is None:
            looked_for = ", ".join(places.name for places in browser_places.BROWSERS if places.driven)
            message = f"no supported browser here ({looked_for}){_others(here)}{self._not_fetched()}"
            raise UnavailableError(message, error_type="browser_missing")
        return (driven,)

    def environment(self) -> Mapping[str, str]:
        """The environment variables that the browser needs."""
        return {"LD_LIBRARY_PATH": str(self.libraries)} if self.libraries else {}

    def runtime_version(self) -> str:
        """Return the version of ONNX Runtime Web.

        Raises:
            UnavailableError: it is missing.
        """
        try:
            return str(read_json((self.assets / "package.json").read_text(encoding="utf-8"))["version"])
        except (OSError, ValueError, KeyError) as error:
            why = error.strerror if isinstance(error, OSError) else f"its package.json is broken: {error}"
            message = f"no ONNX Runtime Web in {self.assets}: {why}{self._not_fetched()}"
            raise UnavailableError(message, error_type="browser_missing") from error

    def browser_version(self) -> str:
        """Return the browser's name and version, such as "Chromium 156.0.8078.79".

        Raises:
            UnavailableError: there is none, or it does not start.
        """
        return _version(self.command(), tuple(self.environment().items()))

    def _not_fetched(self) -> str:
        """Why the image was built without them, as an addition to a reason; empty if it was not."""
        reason = cgroups.read(self.assets / _NOT_FETCHED)
        return f"; {reason}" if reason else ""


def sparticuz() -> Installed:
    """The Chromium of the npm package, with its libraries beside it."""
    return Installed(executable=str(SPARTICUZ / "chromium"), libraries=SPARTICUZ)


def detect() -> tuple[str, dict[str, Any]]:
    """Return the browser and the runtime of this image. No page is opened: each cell reports its adapter.

    Raises:
        UnavailableError: one of them is missing.
    """
    installed, here = chosen(), browser_places.installed()
    program = installed.command()[0]
    try:
        runtime = installed.runtime_version()  # before the browser is started for its version, which takes a tenth of a second
    except UnavailableError as missing:
        raise UnavailableError(f"{missing}; {program} is installed{_others(here)}", error_type=missing.error_type) from missing
    browser = installed.browser_version()
    nodes = sorted(_DRM.glob("renderD*"))
    facts: dict[str, Any] = {
        "browser": browser,
        "onnxruntime_web": runtime,
        "browsers": [dataclasses.asdict(found) for found in here],
        "render_nodes": [str(node) for node in nodes],
        "device_memory_mb": {str(node): size for node in nodes if (size := _memory_mb(node)) is not None},
        "memory_mb": None,
        "memory_reason": "a browser does not tell a device's memory; its software adapter computes in the host's",
        "software_adapter": any((folder / "libvk_swiftshader.so").is_file() for folder in (_DEBIAN, SPARTICUZ)),
    }
    return browser, facts


def chosen() -> Installed:
    """The browser of this image, or the first installed one."""
    return sparticuz() if (SPARTICUZ / "chromium").is_file() else Installed()


def _others(here: Sequence[browser_places.Found]) -> str:
    """List the installed but unsupported browsers, as an addition to a reason."""
    names = [found.name for found in here if not found.driven]
    return f"; {' and '.join(names)} present, but not supported for WebGPU and WebNN" if names else ""


def _memory_mb(node: Path) -> int | None:
    """The memory of a GPU in MiB. AMD's driver reports it without special rights (mem_info_vram_total, bytes); None for other drivers."""
    told = (cgroups.read(_SYSTEM_DRM / node.name / "device/mem_info_vram_total") or "").strip()
    return int(told) // _MIB if told.isdigit() else None


@functools.cache
def _version(command: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> str:
    if sys.platform == "win32":
        return f"{Path(command[0]).stem} {browser_places.windows_version(command[0]) or 'of an unknown version'}"
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=True, timeout=_VERSION_S, env=dict(environment) or None
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"{command[0]} does not start: {error}", error_type="browser_not_started") from error
    found = re.search(r"\S+ \d[\d.]*", done.stdout)
    return found[0] if found else done.stdout.strip()
