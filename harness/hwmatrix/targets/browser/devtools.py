"""The part of Chromium's DevTools protocol (CDP) that our pages need, over one websocket.

Synchronous, without threads or a driver process: a cell's child may use little address space, and the warm parent must have no threads.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from typing import TYPE_CHECKING, Any, Final, Self

import websocket

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import CrashedError

if TYPE_CHECKING:
    from types import TracebackType

_CONNECT_S: Final = 5.0


class DevTools:
    """A connection to a browser. Use it as a context manager, or close it.

    ``url`` is the browser's own websocket address. Every wait ends: with the answer, when the browser exits, or with a TimeoutError if
    ``timeout_s`` is given.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count(1)
        self._socket: websocket.WebSocket | None = None

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            CrashedError: the browser does not answer.
        """
        try:
            # A browser rejects connections that send a web origin. The text is validated when it is decoded; the library's own check before
            # that takes six times as long as everything else.
            self._socket = websocket.create_connection(
                self._url, timeout=_CONNECT_S, suppress_origin=True, enable_multithread=False, skip_utf8_validation=True
            )
        except (OSError, websocket.WebSocketException) as error:
            raise CrashedError(f"the browser does not answer: {error}", error_type="browser_lost") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connection."""
        if self._socket is not None:
            with contextlib.suppress(OSError, websocket.WebSocketException):
                self._socket.close(timeout=0)
            self._socket = None

    def call(self, method: str, *, session: str | None = None, timeout_s: float | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method and return its result. ``session`` is the session of an attached page.

        Raises:
            CrashedError: the browser or the page's process has ended.
            TimeoutError: there was no answer in time.
            DevToolsError: the browser rejected the call.
        """
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self._send(json.dumps(message))
        while True:
            answer = self._receive(until)
            if answer.get("method") in {"Inspector.targetCrashed", "Target.targetCrashed"}:
                raise CrashedError("the page's process crashed", error_type="page_crashed")
            if answer.get("id") == number:
                if "error" in answer:
                    raise DevToolsError(f"{method}: {answer['error'].get('message')}")
                result: dict[str, Any] = answer["result"]
                return result

    def _send(self, text: str) -> None:
        assert self._socket is not None  # noqa: S101 - used inside its own block
        try:
            self._socket.send(text)
        except (OSError, websocket.WebSocketException) as error:
            raise CrashedError(f"the browser has ended: {error}", error_type="browser_lost") from error

    def _receive(self, until: float | None) -> dict[str, Any]:
        assert self._socket is not None  # noqa: S101 - used inside its own block
        self._socket.settimeout(None if until is None else max(until - time.monotonic(), 0.001))
        try:
            text = self._socket.recv()
        except websocket.WebSocketTimeoutException as error:
            raise TimeoutError("the browser did not answer in time") from error
        except (OSError, websocket.WebSocketException) as error:
            raise CrashedError(f"the browser has ended: {error}", error_type="browser_lost") from error
        if not text:
            raise CrashedError("the browser has closed the connection", error_type="browser_lost")
        message: dict[str, Any] = read_json(text)
        return message


class DevToolsError(RuntimeError):
    """The browser rejected a call."""


class Page:
    """One tab of a connected browser. The owner of the browser closes it."""

    def __init__(self, browser: DevTools, target: str, session: str) -> None:
        self._browser = browser
        self.target = target
        self._session = session

    @classmethod
    def open(cls, browser: DevTools, url: str = "about:blank", *, timeout_s: float | None = None) -> Self:
        """Open a new tab that loads ``url``."""
        target = str(browser.call("Target.createTarget", url=url, timeout_s=timeout_s)["targetId"])
        return cls.attach(browser, target, timeout_s=timeout_s)

    @classmethod
    def attach(cls, browser: DevTools, target: str, *, timeout_s: float | None = None) -> Self:
        """Attach to an existing tab."""
        session = str(browser.call("Target.attachToTarget", targetId=target, flatten=True, timeout_s=timeout_s)["sessionId"])
        browser.call("Inspector.enable", session=session, timeout_s=timeout_s)  # reports crashes
        return cls(browser, target, session)

    def go(self, url: str, *, timeout_s: float | None = None) -> None:
        """Load a page with its modules, and wait until it is complete.

        Raises:
            DevToolsError: the page cannot be loaded.
        """
        answer = self._browser.call("Page.navigate", session=self._session, timeout_s=timeout_s, url=url)
        if answer.get("errorText"):
            raise DevToolsError(f"{url}: {answer['errorText']}")
        self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))", timeout_s=timeout_s
        )

    def evaluate(self, expression: str, *, timeout_s: float | None = None) -> Any:
        """Evaluate a JavaScript expression, await it, and return its value as JSON. ``undefined`` becomes None.

        Raises:
            CrashedError: the browser or the page's process has ended.
            DevToolsError: the expression threw.
            TimeoutError: there was no answer in time.
        """
        answer = self._browser.call(
            "Runtime.evaluate",
            session=self._session,
            timeout_s=timeout_s,
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise DevToolsError(str(details.get("exception", {}).get("description") or details.get("text")))
        return answer["result"].get("value")
