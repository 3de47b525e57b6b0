"""Starting a browser: programs in its place that a signal ends, that exit, and that listen."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware.browser import Installed
from hwmatrix.targets.browser import chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")

LISTENS = """
for each in "$@"; do case "$each" in --user-data-dir=*) profile="${each#--user-data-dir=}";; esac; done
printf '4242\\n/devtools\\n' > "$profile/DevToolsActivePort"
exec sleep 300
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a browser that runs a script after counting its starts. Its DevTools are invented: a program in its place has none."""

    class DevTools:
        def __init__(self, url: str) -> None:
            assert url == "ws://127.0.0.1:4242/devtools"

        def call(self, method: str, **_: Any) -> Any:
            return {"product": method}

    class Page:
        @staticmethod
        def open(*_: Any, **__: Any) -> Page:
            return Page()

        def evaluate(self, *_: Any, **__: Any) -> None:
            return None

    monkeypatch.setattr(chromium, "DevTools", lambda url: contextlib.nullcontext(DevTools(url)))
    monkeypatch.setattr(chromium, "Page", Page)
    program = tmp_path / "browser"
    made = chromium.Chromium(Installed(executable=str(program)), flags=(), shares_device=False)

    def start(script: str) -> Any:
        program.write_text(f"#!/bin/sh\necho >> '{tmp_path}/starts'\n{script}\n", encoding="ascii")
        program.chmod(0o755)
        return made.start()

    yield start
    made.stop()


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


def test_a_browser_that_a_signal_ends_is_started_once_more(started: Any, tmp_path: Path) -> None:
    found = started(f'[ "$(wc -l < "{tmp_path}/starts")" -gt 1 ] || kill -SEGV $$\n{LISTENS}')
    assert (found["url"], found["product"]) == ("ws://127.0.0.1:4242/devtools", "Browser.getVersion")
    assert starts(tmp_path) == 2


@pytest.mark.parametrize(("script", "code", "times"), [("kill -SEGV $$", -11, 2), ("echo no display >&2; exit 7", 7, 1)])
def test_a_browser_that_never_starts_is_unavailable_with_its_end(started: Any, tmp_path: Path, script: str, code: int, times: int) -> None:
    with pytest.raises(UnavailableError, match=f"the browser does not start: it ended with code {code}") as caught:
        started(script)
    assert caught.value.error_type == "browser_not_started"
    assert ("no display" in str(caught.value)) is (code == 7)
    assert starts(tmp_path) == times
