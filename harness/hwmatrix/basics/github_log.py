"""Lines for the log of a GitHub runner, which interprets some output as commands."""

from __future__ import annotations

from typing import Final

_COMMAND: Final = "::"
_OLD_COMMAND: Final = "##["
END_OF_GROUP: Final = "::endgroup::"
_BREAK: Final = "\u200b"
"""A zero-width space. It can be copied, but the runner no longer recognizes a command."""


def harmless(text: str) -> str:
    """Escape text so that the runner finds no command in it: it interprets ``::`` at the beginning of a line, and ``##[`` anywhere."""
    lines = text.replace(_OLD_COMMAND, f"##{_BREAK}[").splitlines(keepends=True)
    return "".join(_BREAK + line if line.lstrip().startswith(_COMMAND) else line for line in lines)


def group(title: str) -> str:
    """Return a command that begins a collapsible group of lines."""
    return f"::group::{_data(title)}"


def annotation(level: str, message: str, *, title: str = "", file: str = "", line: int | None = None) -> str:
    """Return a command that shows a message beside a run, or on a line of a file. Escaped like GitHub's toolkit does."""
    properties = {"file": file, "line": str(line) if file and line else "", "title": title}
    told = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value)
    return f"::{level} {told}::{_data(message)}" if told else f"::{level}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
