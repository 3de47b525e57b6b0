"""Detects whether a browser here implements WebNN. Many have only the interface, so it starts one and requests a context."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import browser

if TYPE_CHECKING:
    from hwmatrix.hardware.browser import Installed

_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # it opens one empty page of ours; in a container its sandbox would need privileges
    "--remote-debugging-pipe",
    "--enable-features=WebMachineLearningNeuralNetwork",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
)
_PIPED: Final = ("sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null', "sh")
"""The browser reads commands from file descriptor 3, and writes answers to 4."""
_ASK: Final = """
navigator.ml
    ? navigator.ml.createContext({deviceType: "cpu"}).then(() => "", error => String(error))
    : "it has no navigator.ml"
"""
PROBE_S: Final = 20.0
_END_S: Final = 5.0
_CHUNK: Final = 1 << 16


def detect() -> tuple[str, dict[str, Any]]:
    """Return the browser and its runtime, if it grants a context. Starting it takes a second or two, and at most ``PROBE_S``.

    Raises:
        UnavailableError: browser or runtime is missing, it does not answer (``browser_hung``), or has no WebNN (``webnn_unavailable``).
    """
    name, facts = browser.detect()
    refused = asked(browser.chosen())
    if refused:
        raise UnavailableError(f"{name} has no WebNN: {refused}", error_type="webnn_unavailable")
    return name, facts | {"context": "cpu"}


def installed() -> tuple[str, dict[str, Any]]:
    """Always raise, because only a probe can tell.

    Raises:
        UnavailableError: browser or runtime is missing, or not probed.
    """
    name, _ = browser.detect()
    raise UnavailableError(
        f"not probed: {name} is installed, but must be started to find out whether it has WebNN", error_type="webnn_unavailable"
    )


def asked(installed: Installed, timeout_s: float = PROBE_S) -> str:
    """Return why a browser grants no WebNN context, with the browser's message; empty if it grants one.

    Raises:
        UnavailableError: it does not start, does not answer in time, or cannot be probed on this system.
    """
    if sys.platform == "win32":
        raise UnavailableError("not probed: browsers are not probed for WebNN on Windows", error_type="webnn_unavailable")
    with tempfile.TemporaryDirectory(prefix="hwmatrix-probe-", ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "page.html"  # a file is a secure context, which an empty tab is not
        page.write_text("<!doctype html><title>probe</title>", encoding="utf-8")
        command = [*_PIPED, *installed.command(), *_FLAGS, f"--user-data-dir={folder}/profile", "about:blank"]
        own = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "TMPDIR"), folder)
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | installed.environment() | own,
            start_new_session=True,
        )
        try:
            return _answer(_Pipe(process, time.monotonic() + timeout_s), page.as_uri())
        except (OSError, KeyError, ValueError) as error:
            message = f"the browser does not answer: {type(error).__name__}: {error}"
            raise UnavailableError(message, error_type="browser_hung") from error
        finally:
            _end(process)


class _Pipe:
    """Calls of the DevTools protocol over two pipes: JSON, each ended by a null byte."""

    def __init__(self, process: subprocess.Popen[bytes], until: float) -> None:
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101 - as above
        self._writing, self._reading = process.stdin, process.stdout
        self._until = until
        self._number = 0
        self._received = b""

    def call(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method and return its result.

        Raises:
            OSError: the browser has ended (BrokenPipeError), or there was no answer in time (TimeoutError).
            ValueError: the browser rejected the call.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        self._writing.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = read_json(self._next())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise ValueError(f"{method}: {answer['error'].get('message')}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> bytes:
        while b"\0" not in self._received:
            left = self._until - time.monotonic()
            if left <= 0 or not select.select([self._reading], [], [], left)[0]:
                raise TimeoutError("no answer in time")
            chunk = os.read(self._reading.fileno(), _CHUNK)
            if not chunk:
                raise BrokenPipeError("it has ended")
            self._received += chunk
        message, _, self._received = self._received.partition(b"\0")
        return message


def _answer(pipe: _Pipe, address: str) -> str:
    target = pipe.call("Target.createTarget", url="about:blank")["targetId"]
    session = pipe.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    pipe.call("Page.navigate", session=session, url=address)
    told = pipe.call("Runtime.evaluate", session=session, expression=_ASK, awaitPromise=True, returnByValue=True)
    return str(told["result"]["value"])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the browser and everything that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    process.wait(_END_S)
