"""``hwmatrix types``: the model types of suite ``all``, their pinned results, and the changes since a version."""

from __future__ import annotations

import collections
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from hwmatrix.app.types_document import as_data, said, types_document
from hwmatrix.basics.text import plural, visible
from hwmatrix.cli.options import Format, FormatOption
from hwmatrix.cli.terminal import echo, safe_text
from hwmatrix.models.factory.pins import PASS, short
from hwmatrix.records import Family

if TYPE_CHECKING:
    from hwmatrix.app.types_document import TypeEntry, TypesDocument


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("types")(types_command)


Names = Annotated[list[str] | None, typer.Argument(help="Only these types.", metavar="[NAME ...]", show_default=False)]
FamilyOption = Annotated[Family | None, typer.Option("--family", help="Only types of this family.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--compare",
        help="Show the changes since this version of transformers. [without a value: the newest pinned one]",
        metavar="[VERSION]",
    ),
]


def types_command(
    names: Names = None,
    *,
    family: FamilyOption = None,
    since: Since = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the model types of transformers (suite `all`), and the result of each in the pinned list.

    Nothing is built, and torch is not needed. Examples:

        hwmatrix types gemma3 mamba2

        hwmatrix types --family audio

        hwmatrix types --compare

        hwmatrix types --compare 5.23.0 --format json
    """
    document = types_document(names or (), family=family, since=since)
    if output is Format.JSON:
        echo(json.dumps(as_data(document), indent=2, ensure_ascii=False))
        return
    console = Console()
    if document.note:
        console.print(safe_text(visible(document.note)), soft_wrap=True)
    if document.differences is not None:
        _show_differences(document, console)
        return
    console.print(_table(document))
    console.print(safe_text(_totals(document)), soft_wrap=True)


def _show_differences(document: TypesDocument, console: Console) -> None:
    """Print one line per difference, and the number of each kind."""
    found = document.differences or ()
    for each in found:
        console.print(safe_text(visible(said(each))), soft_wrap=True)
    counts = collections.Counter(each.what for each in found)
    total = f"{counts['new']} new, {counts['gone']} gone, {counts['class']} of another class, {counts['family']} of another family"
    console.print(safe_text(f"transformers {document.version} and the pinned list of {document.compared_with}: {total}"), soft_wrap=True)


def _table(document: TypesDocument) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("type", overflow="fold")
    table.add_column("class, mapping", overflow="fold")
    table.add_column("family", overflow="fold")
    table.add_column("pinned, override", overflow="fold", ratio=1)
    for entry in document.types:
        named = "\n".join(word for word in (entry.model_class, entry.mapping) if word)
        table.add_row(*(safe_text(visible(cell, keep="\n")) for cell in (entry.name, named, entry.family.value, _pinned_result(entry))))
    return table


def _pinned_result(entry: TypeEntry) -> str:
    """The type's result in the pinned list, and its override."""
    if entry.status is None:
        lines = ["not in a pinned list"]
    elif entry.status == PASS:
        lines = [f"pass: {'+'.join(entry.inputs or ()) or 'other inputs'}"]
    else:
        lines = [f"{entry.status}: {entry.message}" if entry.message else entry.status]
    if entry.override is not None:
        sets = f" of {', '.join(entry.override.sets)}" if entry.override.sets else ""
        lines.append(f"override{sets}: {entry.override.reason}")
        lines += [f"text only: {entry.override.text_path}"] if entry.override.text_path else []
        printed = entry.override.impossible is None or entry.message == short(entry.override.impossible)
        lines += [] if printed else [f"impossible: {entry.override.impossible}"]
    return "\n".join(lines)


def _totals(document: TypesDocument) -> str:
    counted = f"{plural(len(document.types), 'type')} of transformers {document.version}"
    if document.pinned is None:
        return f"{counted}, which has no pinned list (hwmatrix types --compare says what has changed since the newest)"
    return f"{counted}; by the pinned list, {sum(entry.status == PASS for entry in document.types)} of them passed"
