"""A headless Chromium for tests, spoken to over two pipes: it needs no port, so that its container has no network at all."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import os
import select
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # it opens nothing but pages of these tests, mostly in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-pipe",
)
WAIT_S: Final = 60.0
_CHUNK: Final = 1 << 20


class PageError(RuntimeError):
    """The browser refused a call, or an expression threw."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """Something the browser told of a page."""

    session: str | None
    method: str
    parameters: dict[str, Any]


class Browser:
    """One browser. Use it as a context manager.

    ``command`` starts it with ``FLAGS``; it reads messages from its descriptor 3 and writes them to 4, each ended by a null byte. A shell
    in between takes these from its standard input and output, which a container has.
    """

    def __init__(self, command: Sequence[str], *, stderr: Path) -> None:
        self._command = [*command]
        self._stderr = stderr
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.events: list[Event] = []

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        with self._stderr.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0)
        self.product = str(self.call("Browser.getVersion")["product"])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ask it to end, and see that it does."""
        if self._process.poll() is None:
            self._send({"id": next(self._numbers), "method": "Browser.close"})
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def call(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and give its result; events that come meanwhile are kept.

        Raises:
            PageError: the browser refuses, ends, or does not answer.
        """
        number = next(self._numbers)
        self._send({"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {}))
        for message in self._messages(until=time.monotonic() + WAIT_S):
            if message.get("id") == number:
                if "error" in message:
                    raise PageError(f"{method}: {message['error'].get('message')}")
                result: dict[str, Any] = message["result"]
                return result
        raise PageError(f"{method}: no answer within {WAIT_S:g} s")

    def open(self, url: str = "about:blank") -> Page:
        """A new page that shares nothing with the others: no storage, no history."""
        context = str(self.call("Target.createBrowserContext")["browserContextId"])
        target = str(self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"])
        session = str(self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        page = Page(self, context, session)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            page.call(f"{domain}.enable")
        if url != "about:blank":
            page.go(url)
        return page

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\0")
        except BrokenPipeError as error:
            raise PageError(f"the browser has ended: {self._told()}") from error

    def _messages(self, *, until: float) -> Iterator[dict[str, Any]]:
        """Messages as they come; events are put aside."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while True:
            head, ended, rest = self._buffer.partition(b"\0")
            if ended:
                self._buffer = rest
                message = json.loads(head)
                if "method" in message:
                    self.events.append(
                        Event(session=message.get("sessionId"), method=message["method"], parameters=message.get("params", {}))
                    )
                yield message
                continue
            if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
                return
            chunk = os.read(descriptor, _CHUNK)
            if not chunk:
                raise PageError(f"the browser has ended: {self._told()}")
            self._buffer += chunk

    def _told(self) -> str:
        return self._stderr.read_text(encoding="utf-8", errors="replace")[-2000:]


class Page:
    """One page of a browser."""

    def __init__(self, browser: Browser, context: str, session: str) -> None:
        self._browser = browser
        self._context = context
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol on this page."""
        return self._browser.call(method, session=self._session, **parameters)

    def events(self, method: str) -> list[dict[str, Any]]:
        """What this page told so far of one kind."""
        return [event.parameters for event in self._browser.events if (event.session, event.method) == (self._session, method)]

    def go(self, url: str) -> None:
        """Load a page and wait until it is there.

        Raises:
            PageError: it cannot be loaded.
        """
        loaded = len(self.events("Page.loadEventFired"))
        answer = self.call("Page.navigate", url=url)
        if answer.get("errorText"):
            raise PageError(f"{url}: {answer['errorText']}")
        if "loaderId" not in answer:  # another fragment of the same document, of which the page is told in a moment
            self.settle()
            return
        self._wait_for_load(loaded)

    def reload(self) -> None:
        """Load the page again and wait until it is there."""
        loaded = len(self.events("Page.loadEventFired"))
        self.call("Page.reload")
        self._wait_for_load(loaded)

    def _wait_for_load(self, loaded: int) -> None:
        until = time.monotonic() + WAIT_S
        while len(self.events("Page.loadEventFired")) == loaded:
            if time.monotonic() > until:
                raise PageError(f"not loaded within {WAIT_S:g} s")
            self.call("Runtime.evaluate", expression="1")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited.

        Raises:
            PageError: it threw.
        """
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise PageError(str(details.get("exception", {}).get("description") or details.get("text")))
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true, and give its value.

        Raises:
            PageError: it does not become true.
        """
        until = time.monotonic() + WAIT_S
        while not (value := self.evaluate(expression)):
            if time.monotonic() > until:
                raise PageError(f"not true within {WAIT_S:g} s: {expression}")
            time.sleep(0.02)
        return value

    def settle(self) -> None:
        """Wait until what was asked for is painted."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    def press(self, key: str, *, text: str | None = None, modifiers: int = 0) -> None:
        """Press a key and let it go. ``text`` is what it types; of a single letter, itself."""
        codes = {"Enter": 13, "Escape": 27, " ": 32, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36, "Tab": 9}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        typed = text if text is not None else key if len(key) == 1 else "\r" if key == "Enter" else None
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper())), "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": typed} if typed else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)
        self.settle()

    def click(self, selector: str) -> None:
        """Press an element with the pointer, after bringing it into sight."""
        place = self.evaluate(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); found.scrollIntoView({{block: 'center'}});"
            " const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
        self.settle()

    def size(self, width: int, height: int = 900) -> None:
        """Make the window as large as that, in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features: str) -> None:
        """Prefer something, such as ``prefers_color_scheme="dark"``."""
        told = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=told)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is in sight, or the whole page, as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """Everything that is wrong by the browser's own account: console errors and warnings, exceptions, refusals of its policy."""
        told = [str(event["entry"]["text"]) for event in self.events("Log.entryAdded") if event["entry"]["level"] in {"error", "warning"}]
        told += [
            " ".join(str(argument.get("value", argument.get("description"))) for argument in event["args"])
            for event in self.events("Runtime.consoleAPICalled")
            if event["type"] in {"error", "warning", "assert"}
        ]
        thrown = (event["exceptionDetails"] for event in self.events("Runtime.exceptionThrown"))
        return [*told, *(str(each.get("exception", {}).get("description") or each["text"]) for each in thrown)]

    def requests(self) -> list[str]:
        """The address of everything that the page asked for."""
        return [str(event["request"]["url"]) for event in self.events("Network.requestWillBeSent")]

    def close(self) -> None:
        """Close it, with all that it kept."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)
