"""The last line of every answer from measurements: their sources, age and versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from hwmatrix.basics.escape import plain
from hwmatrix.knowledge.on_record import sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwmatrix.knowledge.on_record import EvidenceAnswer


def show_evidence(asked: Sequence[EvidenceAnswer], console: Console | None = None) -> None:
    """Name the measurements that were asked, or say that there are none."""
    console = console or Console()
    for each in asked:
        console.print(Text(f"measurements: {plain(sentence(each))}"), soft_wrap=True)
    if not asked:
        console.print(Text("measurements: there are none here"), soft_wrap=True)
