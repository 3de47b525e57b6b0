"""Probing browsers for WebNN: a real one if it is installed, and programs that do not respond."""

from __future__ import annotations

import re
import shlex
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import webnn
from hwmatrix.hardware.browser import Installed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="on Windows no browser is asked")


def fake_browser(folder: Path, script: str) -> Installed:
    program = folder / "browser"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    program.chmod(0o755)
    return Installed(executable=str(program))


def test_a_hanging_browser_is_killed_with_its_child_processes(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(UnavailableError, match="no answer in time") as caught:
        webnn.asked(fake_browser(tmp_path, f"echo $$ > {shlex.quote(str(tmp_path))}/pid; sleep 300 & wait"), timeout_s=1)
    assert caught.value.error_type == "browser_hung"
    assert time.monotonic() - begin < 60
    left = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("script", ["exit 3", "printf 'no JSON\\0' >&4; sleep 300", "printf '{\"id\": 1}\\0' >&4; sleep 300"])
def test_a_program_that_does_not_answer_like_a_browser_counts_as_hung(tmp_path: Path, script: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        webnn.asked(fake_browser(tmp_path, script))
    assert caught.value.error_type == "browser_hung"


def test_a_real_browser_provides_a_context_or_a_reason() -> None:
    try:
        Installed().command()
    except UnavailableError as missing:
        pytest.skip(str(missing))
    refused = webnn.asked(Installed(), timeout_s=60)
    assert refused == "" or re.search(r"navigator\.ml|\w+Error\b", refused), refused
