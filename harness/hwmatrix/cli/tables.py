"""Output that several commands share: rows as a table, facts by name, and the measurements behind an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hwmatrix.basics.escape import plain, visible
from hwmatrix.records import Dtype, Level, threads_in_words
from hwmatrix.report.numbers import number, scientific, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hwmatrix.knowledge.on_record import EvidenceAnswer

LEVEL_STYLES: Final = {Level.HIGH: "green", Level.MEDIUM: "yellow", Level.LOW: "dark_orange", Level.NONE: "red", None: "dim"}


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows with lines between them. A word that is too long for its column is folded, never cut."""
    table = Table(show_lines=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell, keep="\n")) for cell in row))
    Console().print(table)


def facts(features: dict[str, Any]) -> str:
    """Facts by name, one per line; unknown ones are left out."""
    return "\n".join(f"{name}: {_fact(value)}" for name, value in features.items() if value is not None)


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def show_measured(choices: Iterable[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print measured cells that can be compared, a table for each machine, and which of them is best within the limits."""
    console = console or Console()
    for choice in choices:
        where = f"{choice['isolation'] or 'unknown isolation'}, machine {(choice['host'] or 'unknown')[:6]}"
        threads = threads_in_words(choice["threads"])
        console.print(Text(plain(f"measured ({where}, {threads}), the best first:")), soft_wrap=True)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for column in ("target", "precision"):
            table.add_column(column, no_wrap=True)
        for column in ("p50 ms", "MiB", "loss"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("within the limits")
        for cell in choice["cells"]:
            chosen = cell["precision"] if cell["dtype"] == Dtype.DEFAULT else None
            words = "; ".join(cell["against"])
            table.add_row(
                Text(plain(cell["target"])),
                f"{cell['dtype']} ({chosen})" if chosen else cell["dtype"],
                number(cell["p50_ms"]),
                whole(cell["memory_mb"]),
                "0" if cell["loss"] == 0 else scientific(cell["loss"]),
                Text(f"no: {words}" if words else "yes, the best" if cell == choice["best"] else "yes"),
            )
        console.print(table)


def show_evidence(asked: Sequence[EvidenceAnswer], console: Console | None = None) -> None:
    """Print the measurements that were used, or that there are none."""
    from hwmatrix.knowledge.on_record import sentence

    console = console or Console()
    for each in asked:
        console.print(Text(f"measurements: {plain(sentence(each))}"), soft_wrap=True)
    if not asked:
        console.print(Text("measurements: there are none here"), soft_wrap=True)
