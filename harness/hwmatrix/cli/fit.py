"""``hwmatrix fit``: whether a model fits into the memory of given hardware, and the basis of that answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from hwmatrix.app.environment import read_environment
from hwmatrix.basics.text import plain
from hwmatrix.cli.options import Format, FormatOption
from hwmatrix.cli.tables import show_evidence, show_measured
from hwmatrix.cli.terminal import echo, safe_text
from hwmatrix.hardware.api import HardwareDetector
from hwmatrix.knowledge.fit import will_it_fit
from hwmatrix.knowledge.fit_document import Verdict, as_data
from hwmatrix.knowledge.fit_question import FitQuestion
from hwmatrix.records import Basis, Dtype

if TYPE_CHECKING:
    from hwmatrix.knowledge.fit_document import FitDocument, HardwareFit, Need

_SIGNS: Final = {
    Verdict.FITS: ("✅", "green"),
    Verdict.DOES_NOT_FIT: ("❌", "red"),
    Verdict.EXTRAPOLATED: ("❔", "yellow"),
    Verdict.UNKNOWN: ("❔", "dim"),
}
"""Printed before the verdict, never instead of it."""


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("fit")(fit_command)


Name = Annotated[str, typer.Argument(help="A name of matrix.yaml or of the database, a hub id, a checkpoint's folder.", metavar="MODEL")]
Hardware = Annotated[
    list[str] | None,
    typer.Option("--hw", help="On this hardware. [default: the hardware here, and what such models usually run on]", metavar="HW ..."),
]
Memory = Annotated[int | None, typer.Option("--memory", help="Available memory in MiB. [default: the free memory here]", metavar="MB")]
Batch = Annotated[int | None, typer.Option("--batch", help="Batch size. [default: the model's]", metavar="N")]
Length = Annotated[int | None, typer.Option("--sequence-length", help="Sequence length in tokens. [default: the model's]", metavar="N")]
Precision = Annotated[Dtype | None, typer.Option("--dtype", help="The compute precision. [default: the usual one of the hardware]")]
MaxLoss = Annotated[
    float | None, typer.Option("--max-loss", help="The largest relative error of the outputs, as measured: 0.01 is 1 %.", metavar="L")
]
MaxLatency = Annotated[float | None, typer.Option("--max-latency", help="The longest median latency, as measured.", metavar="MS")]
Database = Annotated[
    Path | None,
    typer.Option(
        "--database", help="A merged database, or a folder of reports. [default: reports/latest and the published results]", metavar="DB"
    ),
]


def fit_command(
    model: Name,
    *,
    hw: Hardware = None,
    memory: Memory = None,
    batch: Batch = None,
    sequence_length: Length = None,
    dtype: Precision = None,
    max_loss: MaxLoss = None,
    max_latency: MaxLatency = None,
    database: Database = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show whether a model fits: needed and available memory, the largest batch, and what would make it fit.

    Measured peaks come first, then the calibrated estimate. Outside both, the answer is "extrapolated", neither yes nor no.
    With limits of loss or latency, the precision is the best measured one. Nothing is executed or downloaded. Examples:

        hwmatrix fit bert

        hwmatrix fit gpt2 --hw cpu cuda --memory 8000 --batch 16

        hwmatrix fit bert --memory 1200 --max-loss 0.02 --max-latency 100

        hwmatrix fit ./my-checkpoint --hw cuda --dtype float16 --format json
    """
    question = FitQuestion(
        model=model,
        hardware=tuple(hw or ()),
        memory_mb=memory,
        batch=batch,
        sequence_length=sequence_length,
        dtype=dtype,
        max_loss=max_loss,
        max_latency_ms=max_latency,
    )
    question.check()  # before any hardware is queried
    document = will_it_fit(question, HardwareDetector().detect(), database=database, cache=read_environment().cache)
    if output is Format.JSON:
        echo(json.dumps(as_data(document), indent=2, ensure_ascii=False))
    else:
        show(document, Console())


def show(document: FitDocument, console: Console) -> None:
    """Print the answer as a table, and below it the basis of each line."""
    known = f"{document.parameters:,} parameters" if document.parameters is not None else "parameters not known"
    about = f"{plain(document.model_class)}, {document.size.value}, {known}; known from {plain(document.known_from)}"
    console.print(safe_text(f"{plain(document.model)}: batch {document.batch}, {document.sequence_length} tokens", style="bold"))
    console.print(safe_text(about, style="dim"), soft_wrap=True)
    console.print(_table(document))
    if any(_batch(fit) for fit in document.hardware):
        legend = "largest batch that fits: 8: measured; ≈8: estimated; (8?): by the formula alone, beyond everything that was measured"
        console.print(safe_text(legend, style="dim"), soft_wrap=True)
    for fit in document.hardware:
        for line in _lines(fit):
            console.print(safe_text(line), soft_wrap=True)
    _show_measured(document, console)
    show_evidence(as_data(document)["evidence"], console)


def _table(document: FitDocument) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("hardware", "answer", "precision"):
        table.add_column(column, no_wrap=True)
    for column in ("needs\nMiB", "there\nMiB", "largest\nbatch"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("basis", no_wrap=True)
    for fit in document.hardware:
        sign, style = _SIGNS[fit.verdict]
        table.add_row(
            fit.hardware,
            safe_text(f"{sign} {fit.verdict.value}", style=style),
            fit.need.dtype.value if fit.need else "",
            f"{fit.need.peak_mb:,.0f}" if fit.need else "",
            f"{fit.memory_mb:,}" if fit.memory_mb is not None else "",
            _batch(fit),
            _basis(fit),
        )
    return table


def _show_measured(document: FitDocument, console: Console) -> None:
    """Print the measured cells with the requested settings, a table for each machine, and which of them is best within the limits."""
    limits = document.max_loss is not None or document.max_latency_ms is not None
    if not document.measured and limits:
        size = f"in {document.size.value} size with batch {document.batch} and {document.sequence_length} tokens"
        console.print(safe_text(f"no measured cell of it {size}: loss and latency are not known"), soft_wrap=True)
    show_measured(as_data(document)["measured"], console)


def _basis(fit: HardwareFit) -> str:
    """The basis of the verdict: another batch's peak if there is one, the weights if the peak is extrapolated."""
    decisive = fit.decided_by or fit.need
    if decisive is None:
        return ""
    by_weights = fit.verdict is Verdict.DOES_NOT_FIT and decisive.basis is Basis.EXTRAPOLATED
    return "weights" if by_weights else decisive.basis.value


def _needed(need: Need) -> str:
    if need.low_mb is not None and need.high_mb is not None:
        return f"{need.low_mb:,.0f} to {need.high_mb:,.0f}"
    return f"{'about ' if need.basis is Basis.EXTRAPOLATED else ''}{need.peak_mb:,.0f}"


def _batch(fit: HardwareFit) -> str:
    """``8`` if measured, ``≈8`` if estimated; ``8 (64?)`` if the larger one is extrapolated."""
    sure = f"{'' if fit.largest.basis is Basis.MEASURED else '≈'}{fit.largest.batch}" if fit.largest else ""
    perhaps = f"({fit.largest_extrapolated.batch}?)" if fit.largest_extrapolated else ""
    return " ".join(part for part in (sure, perhaps) if part)


def _lines(fit: HardwareFit) -> list[str]:
    lines = [f"{fit.hardware}: {plain(fit.reason)}"]
    decisive = fit.decided_by or fit.need
    if decisive is not None:
        lines.append(f"  {plain(decisive.stands_on)}")
    for remedy in fit.remedies:
        would = "fits" if remedy.verdict is Verdict.FITS else "would fit by the formula alone"
        lines.append(f"  {remedy.change}: {would}, with {_needed(remedy.need)} MiB ({remedy.need.basis.value})")
    if not fit.here and fit.memory_asked:
        lines.append(f"  not on this machine: {plain(fit.absence or 'no reason is given')}")
    return lines
