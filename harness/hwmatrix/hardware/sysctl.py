"""Reads macOS's sysctl: one name and value per line."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PROGRAM: Final = "/usr/sbin/sysctl"
_TIMEOUT_S: Final = 10


def ask(names: Iterable[str]) -> dict[str, str]:
    """Return the values that this Mac has. With ``-i``, missing names are skipped.

    Raises:
        OSError: the program cannot be started.
        subprocess.TimeoutExpired: it does not answer.
    """
    command = [PROGRAM, "-i", *names]
    return parse(subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False).stdout)


def parse(text: str) -> dict[str, str]:
    """Parse sysctl's output: ``name: value`` per line."""
    pairs = (line.partition(": ") for line in text.splitlines())
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}
