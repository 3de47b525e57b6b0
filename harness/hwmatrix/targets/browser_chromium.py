"""A headless Chromium: started with a profile of its own, asked whether it still answers, ended with all that it started."""

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
from hwmatrix.targets.browser_devtools import DevTools, DevToolsError, Page
from hwmatrix.targets.browser_files import listening_socket

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from hwmatrix.hardware.browser import Installed

_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # its sandbox needs privileges that a container of ours does not give; it loads nothing but our own page
    "--remote-debugging-port=0",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",  # whose process would outlive the browser
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
)
_START_S: Final = 30.0
_ANSWER_S: Final = 5.0
_END_S: Final = 5.0
_NAP_S: Final = 0.005
_WATCH_URL: Final = "chrome://version"
"""A page of the browser's own, and so one that may ask for adapters: it is open for as long as the browser lives."""
_PROBE: Final = "navigator.gpu ? navigator.gpu.requestAdapter().then(adapter => adapter !== null) : false"


class Chromium:
    """The service of the browser targets. ``once``: for one cell only, so that it never counts as alive afterwards."""

    def __init__(self, installed: Installed, *, flags: tuple[str, ...], shares_device: bool, once: bool = False) -> None:
        self.shares_device = shares_device
        self._installed = installed
        self._flags = flags
        self._once = once
        self._profile: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._files: socket.socket | None = None
        self._url = ""
        self._watch = ""
        self._had_adapter = False

    def start(self) -> Mapping[str, Any]:
        """Start the browser; give its DevTools address, what it calls itself, and the socket on which a cell's child serves the files.

        Raises:
            UnavailableError: it is not installed, or it does not start.
        """
        command = self._installed.command()
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
                page = Page.open(browser, _WATCH_URL, timeout_s=_START_S)
                self._watch = page.target
                self._had_adapter = not self._once and bool(page.evaluate(_PROBE, timeout_s=_START_S))
        except (CellFailure, DevToolsError, TimeoutError) as failure:
            told = self._told()
            self.stop()
            raise UnavailableError(f"the browser does not start: {failure}{told}", error_type="browser_not_started") from failure
        return {"url": self._url, "product": product, "files": self._files.fileno(), "port": self._files.getsockname()[1]}

    def alive(self) -> bool:
        """Is it there, without the page of a cell that was killed, and does its GPU process answer as it did at the start?"""
        if self._once or self._process is None or self._process.poll() is not None:
            return False
        try:
            with DevTools(self._url) as browser:
                _close_pages(browser, besides=self._watch)
                page = Page.attach(browser, self._watch, timeout_s=_ANSWER_S)
                return bool(page.evaluate(_PROBE, timeout_s=_ANSWER_S)) == self._had_adapter
        except (CellFailure, DevToolsError, TimeoutError):
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
        """The browser writes port and path into its profile as soon as it listens."""
        assert self._process is not None  # noqa: S101 - called by start alone
        assert self._profile is not None  # noqa: S101 - as above
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            with contextlib.suppress(FileNotFoundError):
                lines = (self._profile / "DevToolsActivePort").read_text(encoding="ascii").splitlines()
                if len(lines) == 2:  # noqa: PLR2004 - port and path
                    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            if self._process.poll() is not None:
                raise UnavailableError(f"it left with {self._process.returncode}", error_type="browser_not_started")
            time.sleep(_NAP_S)
        raise TimeoutError(f"no DevTools address within {_START_S:g} s")

    def _told(self) -> str:
        """The end of what the browser printed."""
        if self._profile is None:
            return ""
        with contextlib.suppress(OSError):
            text = (self._profile / "stderr").read_text(encoding="utf-8", errors="replace").strip()
            return f"; it printed: {text[-2000:]}" if text else ""
        return ""


def _dying_with_parent() -> tuple[str, ...]:
    """On Linux, util-linux's way to have a process killed when its parent is: a runner that was killed leaves no browser."""
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()


def _close_pages(browser: DevTools, *, besides: str) -> None:
    """Close what cells have left.

    Raises:
        TimeoutError: a page does not go: whatever hangs in it would disturb the next cell.
    """
    until = time.monotonic() + _ANSWER_S
    asked: set[str] = set()
    while time.monotonic() < until:
        targets = browser.call("Target.getTargets", timeout_s=_ANSWER_S)["targetInfos"]
        pages = {str(target["targetId"]) for target in targets if target["type"] == "page"} - {besides}
        if not pages:
            return
        for page in pages - asked:
            with contextlib.suppress(DevToolsError):  # it has just gone
                browser.call("Target.closeTarget", targetId=page, timeout_s=_ANSWER_S)
        asked |= pages
        time.sleep(_NAP_S)
    raise TimeoutError("a page does not close")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + _END_S
    while time.monotonic() < until:
        try:  # what it had started is ours now, where this process is a subreaper; elsewhere the system's
            gone, _ = os.waitpid(-process.pid, os.WNOHANG)
        except ChildProcessError:
            return
        if not gone:
            time.sleep(_NAP_S)


def _remove(profile: Path) -> None:
    """Processes that are just ending may still write into it."""
    until = time.monotonic() + _END_S
    while profile.exists() and time.monotonic() < until:
        shutil.rmtree(profile, ignore_errors=True)
        time.sleep(_NAP_S)
