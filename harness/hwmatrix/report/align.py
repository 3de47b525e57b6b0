"""Aligns Markdown tables, so that they are readable as raw text: columns padded to equal width."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup
from rich.cells import cell_len

_WIDEST: Final = 60
_WIDEST_LAST: Final = 120
"""A cell wider than this does not widen its column for all others; the last column disturbs nobody."""


def align(text: str) -> Markup:
    """Pad the columns of every table in a piece of Markdown.

    Only lines that start with ``|`` are touched; the second line of a table says which columns are numbers (``---:``). A ``|``
    within a cell must be an entity, as :mod:`hwmatrix.report.escape` writes it.
    """
    out: list[str] = []
    table: list[list[str]] = []
    for line in str(text).splitlines():
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        else:
            out += _padded(table)
            table = []
            out.append(line)
    out += _padded(table)
    end = "\n" if text.endswith("\n") else ""
    return Markup("\n".join(out) + end)  # noqa: S704 - only spaces were added to what was escaped before


def _padded(table: list[list[str]]) -> list[str]:
    if len(table) < 2:  # noqa: PLR2004 - a table has a header and a rule
        return [_line(row) for row in table]
    columns = max(len(row) for row in table)
    rows = [row + [""] * (columns - len(row)) for row in table]
    right = [cell.endswith(":") for cell in rows[1]]
    body = [rows[0], *rows[2:]]
    widest = [_WIDEST] * (columns - 1) + [_WIDEST_LAST]
    widths = [max(3, *(cell_len(row[column]) for row in body if cell_len(row[column]) <= widest[column])) for column in range(columns)]
    rule = ["-" * (width - 1) + (":" if to_right else "-") for width, to_right in zip(widths, right, strict=True)]
    padded = [[_pad(cell, width, to_right=to) for cell, width, to in zip(row, widths, right, strict=True)] for row in body]
    return [_line(padded[0]), _line(rule), *(_line(row) for row in padded[1:])]


def _pad(cell: str, width: int, *, to_right: bool) -> str:
    space = " " * max(0, width - cell_len(cell))
    return space + cell if to_right else cell + space


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
