"""A headless Chromium: started for each cell with its own profile, and stopped with all its processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import CellFailure, UnavailableError
from hwmatrix.targets.browser.devtools import DevTools, DevToolsError, Page
from hwmatrix.targets.browser.files import listening_socket

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from hwmatrix.hardware.browser import Installed

_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # its sandbox needs privileges that our containers do not grant; it loads only our own page
    "--remote-debugging-port=0",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",  # its process would outlive the browser
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
)
_START_S: Final = 30.0
_END_S: Final = 5.0
_NAP_S: Final = 0.005
_STARTS: Final = 2
"""How often a browser is started if a signal ends it first: of about 700 of npm's build, one ended with a segmentation fault."""
_OWN_PAGE: Final = "chrome://version"
"""One of the browser's built-in pages, which may request adapters."""
ADAPTER: Final = "navigator.gpu ? navigator.gpu.requestAdapter().then(adapter => adapter !== null) : false"


class _EndedBySignalError(UnavailableError):
    """A signal ended the browser while it started."""


class Chromium:
    """The service of the browser targets. Each cell gets its own browser, because memory left by one model would count as the next one's.

    ``warm_up`` is a JavaScript expression that is evaluated at the start on a separate page, so that the processes the browser starts for
    it exist before a cell is measured.
    """

    start_s = _STARTS * 4 * _START_S

    def __init__(self, installed: Installed, *, flags: tuple[str, ...], shares_device: bool, warm_up: str = "true") -> None:
        self.shares_device = shares_device
        self._installed = installed
        self._flags = flags
        self._warm_up = warm_up
        self._profile: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._files: socket.socket | None = None
        self._url = ""

    def start(self) -> Mapping[str, Any]:
        """Start the browser. Return its DevTools address, product name and process id, and the socket on which a cell's child serves files.

        If a signal ends it meanwhile, it is started once more.

        Raises:
            UnavailableError: it is not installed, or it does not start.
        """
        command = self._installed.command()
        for _ in range(_STARTS - 1):
            with contextlib.suppress(_EndedBySignalError):
                return self._started(command)
        return self._started(command)

    def _started(self, command: tuple[str, ...]) -> Mapping[str, Any]:
        self._profile = Path(tempfile.mkdtemp(prefix="hwmatrix-browser-"))
        self._files = listening_socket()
        with (self._profile / "stderr").open("wb") as log:
            self._process = subprocess.Popen(
                [*_dying_with_parent(), *command, *_FLAGS, *self._flags, f"--user-data-dir={self._profile}", "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=os.environ | self._installed.environment() | dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "TMPDIR"), str(self._profile)),
                start_new_session=True,
            )
        try:
            self._url = self._wait_for_url()
            with DevTools(self._url) as browser:
                product = str(browser.call("Browser.getVersion", timeout_s=_START_S)["product"])
                Page.open(browser, _OWN_PAGE, timeout_s=_START_S).evaluate(self._warm_up, timeout_s=_START_S)
        except (CellFailure, DevToolsError, TimeoutError) as failure:
            told, code = self._end_of_output(), self._process.poll()
            self.stop()
            kind = _EndedBySignalError if code is not None and code < 0 else UnavailableError
            raise kind(f"the browser does not start: {failure}{told}", error_type="browser_not_started") from failure
        files = {"files": self._files.fileno(), "port": self._files.getsockname()[1]}
        return {"url": self._url, "product": product, "process": self._process.pid, **files}

    def alive(self) -> bool:
        """Always False: a browser serves one cell. Some graphs kill the GPU process, and after a few crashes a browser disables WebNN."""
        return False

    def stop(self) -> None:
        """Kill every process of the browser, and remove its profile."""
        if self._process is not None:
            _kill_group(self._process)
            self._process = None
        if self._files is not None:
            self._files.close()
            self._files = None
        if self._profile is not None:
            _remove(self._profile)
            self._profile = None

    def _wait_for_url(self) -> str:
        """Wait for the port and path, which the browser writes into its profile as soon as it listens."""
        assert self._process is not None  # noqa: S101 - called by start alone
        assert self._profile is not None  # noqa: S101 - as above
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            with contextlib.suppress(FileNotFoundError):
                lines = (self._profile / "DevToolsActivePort").read_text(encoding="ascii").splitlines()
                if len(lines) == 2:  # noqa: PLR2004 - port and path
                    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            if self._process.poll() is not None:
                raise UnavailableError(f"it ended with code {self._process.returncode}", error_type="browser_not_started")
            time.sleep(_NAP_S)
        raise TimeoutError(f"no DevTools address within {_START_S:g} s")

    def _end_of_output(self) -> str:
        """The end of the browser's stderr, for an error message."""
        if self._profile is None:
            return ""
        with contextlib.suppress(OSError):
            text = (self._profile / "stderr").read_text(encoding="utf-8", errors="replace").strip()
            return f"; it printed: {text[-2000:]}" if text else ""
        return ""


def _dying_with_parent() -> tuple[str, ...]:
    """On Linux, the command prefix that kills a process when its parent dies (util-linux), so that a killed runner leaves no browser."""
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + _END_S
    while time.monotonic() < until:
        try:  # if this process is a subreaper, it inherits the browser's children; otherwise init does
            gone, _ = os.waitpid(-process.pid, os.WNOHANG)
        except ChildProcessError:
            return
        if not gone:
            time.sleep(_NAP_S)


def _remove(profile: Path) -> None:
    """Remove the profile, with retries: processes that are just exiting may still write into it."""
    until = time.monotonic() + _END_S
    while profile.exists() and time.monotonic() < until:
        shutil.rmtree(profile, ignore_errors=True)
        time.sleep(_NAP_S)
