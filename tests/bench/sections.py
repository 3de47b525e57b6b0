"""Sections of docs/benchmarks.md, each written by a separate program: each is between two comments, and other programs do not change it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hwmatrix.basics.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

_SECTION = re.compile(r"<!-- (?P<name>[a-z-]+): begin -->\n.*?<!-- (?P=name): end -->\n", re.DOTALL)


def kept(path: Path) -> str:
    """The sections of a file, unchanged; empty if there is no such file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return "".join(f"\n{found[0]}" for found in _SECTION.finditer(text))


def put(path: Path, name: str, section: str) -> None:
    """Replace one section of a file, or append it. The rest of the file is not changed."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    marked = f"<!-- {name}: begin -->\n{section.strip()}\n<!-- {name}: end -->\n"
    found = next((each for each in _SECTION.finditer(text) if each["name"] == name), None)
    write_atomically(path, text[: found.start()] + marked + text[found.end() :] if found else f"{text.rstrip()}\n\n{marked}")
