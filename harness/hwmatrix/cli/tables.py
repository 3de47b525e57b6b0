"""Output that several commands share: rows as a table, facts by name, and the measurements behind an answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from hwmatrix.basics.text import plain, visible
from hwmatrix.cli.terminal import safe_text
from hwmatrix.knowledge.evidence import DISTURBED, NOT_CONVERGED, with_instructions
from hwmatrix.records import Dtype, Level, threads_in_words
from hwmatrix.report.numbers import NOTHING, number, scientific, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


DOUBTS: Final = {NOT_CONVERGED: "?", DISTURBED: "!"}
"""The signs of doubts about a time."""
_SPEED_UPS: Final = (("x\ncpu", "speed_up"), ("x\nown", "own_speed_up"))
"""The columns of speed-ups: their heads, and the keys of their values."""
LEVEL_STYLES: Final = {Level.HIGH: "green", Level.MEDIUM: "yellow", Level.LOW: "dark_orange", Level.NONE: "red", None: "dim"}


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows with lines between them. A word that is too long for its column is folded, never cut."""
    table = Table(show_lines=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(safe_text(visible(cell, keep="\n")) for cell in row))
    Console().print(table)


def facts(features: dict[str, Any]) -> str:
    """Facts by name, one per line; unknown ones are left out."""
    return "\n".join(f"{name}: {_fact(value)}" for name, value in features.items() if value is not None)


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def show_measured(choices: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print measured cells that can be compared, a table for each machine, which of them is best, and by which rule."""
    console = console or Console()
    for choice in choices:
        work = f"generating {choice['new_tokens']} tokens" if choice["new_tokens"] else "one forward pass"
        where = f"{choice['isolation'] or 'unknown isolation'}, machine {(choice['host'] or 'unknown')[:6]}"
        threads = threads_in_words(choice["threads"])
        machine = with_instructions(choice["processor"], choice["instructions"])
        console.print(safe_text(plain(f"measured, {work} ({choice['size']}; {machine}; {where}, {threads}):")), soft_wrap=True)
        if choice["lacking"]:
            lacking = ", ".join(choice["lacking"])
            note = f"this machine's processor lacks {lacking}: expect other times here, above all in reduced precisions"
            console.print(safe_text(note, style="yellow"), soft_wrap=True)
        runs = len({cell["run_id"] for cell in choice["cells"]}) > 1
        table = _measured_table(choice, runs=runs)
        console.print(table if fits(table, console) else _measured_table(choice, runs=False))
        for line in _reasons_against(choice["cells"]):
            console.print(safe_text(plain(line)), soft_wrap=True)
    doubts = {doubt for choice in choices for cell in choice["cells"] for doubt in cell["doubts"]}
    legend = ["of: so many samples"] if choices else []
    if any(cell[key] for choice in choices for cell in choice["cells"] for _, key in _SPEED_UPS):
        legend.append("x cpu, x own: times as fast as cpu in float32, and as the same target in float32, in the same run")
        legend.append(f"{NOTHING}: no significant difference, or nothing to compare with")
    legend += [f"{sign}: the timing {doubt}" for doubt, sign in DOUBTS.items() if doubt in doubts]
    for line in (*(f"best: {rule}" for rule in dict.fromkeys(choice["rule"] for choice in choices)), *legend):
        console.print(safe_text(line, style="dim"), soft_wrap=True)


def fits(table: Table, console: Console) -> bool:
    """Whether the terminal is wide enough for the minimum widths of a table's columns."""
    return Measurement.get(console, console.options.update(max_width=sys.maxsize), table).minimum <= console.width


def longest_word(*texts: str) -> int:
    """The width of the longest word of these texts, the minimum width of a column that wraps between words."""
    return max((cell_len(word) for text in texts for word in text.split()), default=1)


def _measured_table(choice: Mapping[str, Any], *, runs: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    cells = choice["cells"]
    table.add_column("", no_wrap=True)
    table.add_column("target", no_wrap=True)
    table.add_column("precision", min_width=longest_word("precision", *(cell["dtype"] for cell in cells)))
    speed = ("tokens/s", "tokens_s") if choice["new_tokens"] else ("p50 ms", "p50_ms")
    over = [(head, key) for head, key in _SPEED_UPS if any(cell[key] for cell in cells)]
    for head in (speed[0], "of", *(head for head, _ in over), "MiB", "loss", *(["run"] if runs else [])):
        table.add_column(head, justify="right", no_wrap=True)
    for cell in cells:
        chosen = cell["precision"] if cell["dtype"] == Dtype.DEFAULT else None
        table.add_row(
            "no" if cell["against"] else "best" if cell == choice["best"] else "yes",
            safe_text(plain(cell["target"])),
            f"{cell['dtype']} ({chosen})" if chosen else cell["dtype"],
            number(cell[speed[1]]),
            f"{cell['samples'] or ''}{''.join(DOUBTS[doubt] for doubt in cell['doubts'])}",
            *(number(cell[key], 2) for _, key in over),
            whole(cell["memory_mb"]),
            "0" if cell["loss"] == 0 else scientific(cell["loss"]),
            *([cell["run_id"][-6:]] if runs else []),
        )
    return table


def _reasons_against(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line for each reason against cells, with their number and names."""
    by_reason: dict[str, list[str]] = {}
    for cell in cells:
        for reason in cell["against"]:
            by_reason.setdefault(reason, []).append(f"{cell['target']} {cell['dtype']}")
    return [f"no, {reason} ({len(names)}): {', '.join(names)}" for reason, names in by_reason.items()]


def show_evidence(asked: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print the measurements that were used, or that there are none."""
    from hwmatrix.knowledge.on_record import Measurements

    console = console or Console()
    for each in asked:
        console.print(safe_text(f"measurements: {plain(str(Measurements(**each)))}"), soft_wrap=True)
    if not asked:
        console.print(safe_text("measurements: there are none here"), soft_wrap=True)
