"""Printing for a terminal: names, messages and paths may come from strangers, so no control character is ever printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from hwmatrix.basics.text import visible

_KEPT = "\n\t"


def echo(message: Any = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a message. Control characters other than line breaks and tabs become the replacement character."""
    typer.echo(visible(str(message), keep=_KEPT), err=err, nl=nl)


def safe_text(message: str = "", style: str = "", **options: Any) -> Text:
    """A text for a rich console, without markup and without such control characters."""
    return Text(visible(message, keep=_KEPT), style=style, **options)


def runnable(command: str) -> str:
    """A command that repeats a cell, as it works in this folder: without nox if there is no noxfile.py."""
    return command if Path("noxfile.py").is_file() else command.replace("nox -s matrix -- ", "hwmatrix matrix ", 1)
