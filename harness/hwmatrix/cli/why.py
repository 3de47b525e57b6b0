"""``hwmatrix why``: explains the result of a cell."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from hwmatrix.basics.text import plain
from hwmatrix.cli.options import (
    DEFAULT_OUTPUT,
    CellGeneration,
    CellSize,
    Database,
    Format,
    FormatOption,
    OwnDtypes,
    RunId,
    chosen_cells,
    recorded,
)
from hwmatrix.cli.tables import LEVEL_STYLES
from hwmatrix.cli.terminal import echo, runnable, safe_text
from hwmatrix.errors import NothingSelectedError
from hwmatrix.faults.belonging import PRECISION_LOSS
from hwmatrix.knowledge.compatibility import LEVELS
from hwmatrix.knowledge.names import name_on_record
from hwmatrix.records import Dtype, Execution, Size, Status
from hwmatrix.report import adapted, compilation, grid, numbers, origins
from hwmatrix.report.settings import tokens
from hwmatrix.report.why import WhyDocument, explain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwmatrix.report.rows import CellRow
    from hwmatrix.report.why import Answer


_LINE: Final = 160
"""Characters of a cell's line."""


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("why")(why_command)


def why_command(
    model: Annotated[str, typer.Argument(help="A model of the run.", metavar="MODEL")],
    target: Annotated[str, typer.Argument(help="A target of the run.", metavar="TARGET")],
    *,
    dtypes: OwnDtypes = None,
    size: CellSize = None,
    generation: CellGeneration = None,
    everything: Annotated[bool, typer.Option("--all", help="Explain every cell, not only the worst.")] = False,
    database: Database = DEFAULT_OUTPUT,
    run: RunId = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Explain the results of a model on a target: a line for each cell, and for the worst how far it got, the first error, and what to do.

    Everything comes from the recorded run; nothing is executed. Examples:

        hwmatrix why xclip qnn

        hwmatrix why whisper openvino --dtype int8 --size full --generation

        hwmatrix why bert cuda --database reports/published --format json
    """
    where = recorded(database)
    found = explain(where, name_on_record(model, where), target, run_id=run)
    chosen = {cell.cell_key for cell in chosen_cells([answer.cell for answer in found], dtypes, size, generation)}
    answers = tuple(answer for answer in found if answer.cell.cell_key in chosen)
    if not answers:
        there = "; ".join(dict.fromkeys(_settings(answer.cell) for answer in found))
        raise NothingSelectedError(f"no cell of {model} on {target} has these settings", advice=f"There are: {there}.")
    if output is Format.JSON:
        document = dataclasses.asdict(WhyDocument(answers=answers))
        echo(json.dumps({"schema": document.pop("schema"), **document}, indent=2, ensure_ascii=False, default=_json_value))
        return
    console, legend = Console(), grid.build(answer.cell for answer in answers).legend
    if len(answers) > 1 and not everything:
        for answer in answers:
            console.print(safe_text(_summary(answer), style=LEVEL_STYLES[answer.cell.level]), soft_wrap=True)
        answers = (min(answers, key=lambda answer: _badness(answer.cell)),)
        console.print(safe_text("\nthe worst of them (--all explains every one):", style="dim"))
    for answer in answers:
        for line, style in _lines(answer, where):
            console.print(safe_text(line, style=style), soft_wrap=True)
        console.print()
    for each in legend:
        console.print(safe_text(f"{each.label}: {each.meaning}", style="dim"), soft_wrap=True)


def _settings(cell: CellRow) -> str:
    return f"{cell.size.value}, {cell.dtype.value}, batch {cell.batch}, {tokens(cell)}"


def _summary(answer: Answer) -> str:
    """A cell on one line: its label, its settings, and its speed or its error."""
    cell = answer.cell
    error = plain(answer.error.message).partition("\n")[0] if answer.error is not None else None
    timed = f"{numbers.number(cell.p50_ms)} ms" if cell.p50_ms is not None else None
    speed = f"{numbers.number(cell.decode_tokens_s)} tokens/s" if cell.decode_tokens_s is not None else timed
    told = error or (speed if cell.status is Status.PASS and cell.execution is not Execution.EMULATED else None)
    return textwrap.shorten(f"{grid.label(cell)}: {_settings(cell)}{f': {told}' if told else ''}", _LINE, placeholder=" ...")


def _badness(cell: CellRow) -> tuple[int, ...]:
    """The order of cells, the worst first: by level; of one level full before tiny, generating before a pass, float32 before the others."""
    level = -LEVELS.index(cell.level) if cell.level is not None else 1
    return level, cell.size is not Size.FULL, not cell.new_tokens, cell.dtype is not Dtype.FLOAT32


def _lines(answer: Answer, database: Path) -> list[tuple[str, str]]:
    """The answer as lines of text, with their styles."""
    cell = answer.cell
    lines = [(f"{grid.label(cell)}: {plain(cell.model)} on {cell.target} ({_settings(cell)})", f"bold {LEVEL_STYLES[cell.level]}")]
    entered = [step for step in answer.steps if step.wall_ms is not None or step.ended_here]
    if entered:
        stages = (f"{step.stage.value}{_ms(step.wall_ms)}{' ✗' if step.ended_here else ''}" for step in entered)
        lines.append((f"  how far:    {' → '.join(stages)}", ""))
    lines += _measurement_lines(cell)
    if cell.started_at is not None:
        place = f" in {cell.isolation.value}" if cell.isolation else ""
        digest = f", image {cell.image_digest.removeprefix('sha256:')[:12]}" if cell.image_digest else ""
        lines.append((f"  evidence:   executed {cell.started_at:%Y-%m-%d %H:%M} UTC{place}{plain(digest)}", ""))
    lines += [(f"  doubt:      {plain(doubt)}", "yellow") for doubt in answer.doubts]
    if answer.error is not None:
        lines.append((f"  error:      {answer.error.type} ({answer.error.severity.value}): {plain(answer.error.message)}", ""))
        lines += [(f"  what to do: {plain(each)}", "") for each in answer.error.recommendations if "hwmatrix why" not in each]
    if answer.belongs_to is not None:
        lines.append((f"  belongs to: {plain(answer.belongs_to)}", ""))
    lines += [(f"    | {plain(line)}", "dim") for line in answer.log]
    lines += [
        (f"  adapted:    {plain(adapted.sentence(cell, attempt))}", "green" if attempt.status is Status.PASS else "")
        for attempt in answer.attempts
    ]
    lines += [(f"  works:      {plain(each.differs)} ({grid.label(each.cell)})", "green") for each in answer.alternatives]
    if cell.status is not Status.PASS and not answer.alternatives:
        lines.append(("  works:      no similar configuration in this run", ""))
    if cell.versions:
        packages = ", ".join(f"{name} {version}" for name, version in sorted(cell.versions.items()))
        lines.append((f"  versions:   {plain(packages)}", "dim"))
    if cell.command:
        lines.append((f"  repeat it:  {plain(runnable(cell.command))}", "dim"))
    if cell.has_script:
        asked = ["hwmatrix", "generate", "--reproduce", cell.model, cell.target, "--dtype", cell.dtype.value, "--size", cell.size.value]
        asked += ["--generation"] if cell.new_tokens else []
        lines.append((f"  as script:  {plain(shlex.join([*asked, '--database', str(database)]))}", "dim"))
    return lines


def _measurement_lines(cell: CellRow) -> Iterator[tuple[str, str]]:
    """The inputs of the model, and what was measured."""
    if cell.inputs:
        only = ": only the text path of a model that accepts more" if cell.text_path else ""
        yield (f"  given:      {plain(', '.join(cell.inputs))}{only}", "")
    if cell.preparation:
        replaced = f"; operators replaced: {', '.join(cell.replaced)}" if cell.replaced else ""
        yield (f"  prepared:   {', '.join(cell.preparation)}{plain(replaced)}", "")
    if cell.on_target is not None:
        yield (f"  placement:  {numbers.percent(cell.on_target)} on the target; {plain(cell.placement_detail or '')}", "")
    compiled = compilation.sentence(cell)
    if compiled is not None:
        yield (f"  compiled:   {compiled}", "")
        yield from ((f"    | {plain(reason)}", "dim") for reason in cell.break_reasons or ())
    if cell.precision is not None:
        yield (f"  precision:  {cell.precision.value}, as the runtime reports", "")
    if cell.relative_error is not None:
        yield (f"  parity:     relative error {numbers.scientific(cell.relative_error)}, cosine {cell.cosine:.6f}{_noise(cell)}", "")
    yield from _rounded_lines(cell)
    if cell.quality is not None:
        yield (f"  task:       {plain(_quality(cell))}", "")
    elif cell.quality_detail is not None:
        yield (f"  task:       none: {plain(cell.quality_detail)}", "")
    begins = origins.sentence(cell)
    if begins is not None:
        yield (f"  begins:     {plain(begins)}", "")
    yield from _times(cell)
    yield from _memory(cell)


def _times(cell: CellRow) -> Iterator[tuple[str, str]]:
    """Where generation fails, and what was timed."""
    fails = origins.generation(cell)
    if fails is not None:
        yield (f"  fails first: {plain(fails)}", "")
    if cell.ttft_ms is not None and cell.execution is not Execution.EMULATED:
        yield (f"  generation: {_generation(cell)}", "")
        change = numbers.by_position(cell.itl_change_ms, cell.itl_change_at, cell.new_tokens)
        if change is not None:
            yield (f"  position:   {change}", "")
    if cell.p50_ms is not None and cell.execution is not Execution.EMULATED:
        interval = numbers.interval(cell.ci_low_ms, cell.ci_high_ms)
        yield (f"  latency:    p50 {numbers.number(cell.p50_ms)} ms ({interval}; {cell.samples} samples)", "")
    elif cell.status is Status.PASS and cell.p50_ms is None:
        yield (f"  latency:    not timed{f': {plain(cell.timing_detail)}' if cell.timing_detail else ''}", "")


def _generation(cell: CellRow) -> str:
    """The times of generation, and its cache."""
    first = f"first token after {numbers.number(cell.ttft_ms)} ms ({numbers.interval(cell.ttft_low_ms, cell.ttft_high_ms)})"
    rate = f"{numbers.number(cell.decode_tokens_s)} tokens/s"
    later = f"then {numbers.number(cell.tpot_ms)} ms per token ({numbers.interval(cell.tpot_low_ms, cell.tpot_high_ms)}; {rate})"
    cache = f"; cache {numbers.number(cell.cache_mb)} MiB" if cell.cache_mb is not None else ""
    return (f"{first}, {later}" if cell.tpot_ms is not None else first) + cache


def _noise(cell: CellRow) -> str:
    """The noise floor of the precision, and the target's error as a multiple of it."""
    if cell.loss is None or cell.excess is None or cell.kernel_error is not None:
        return ""
    dtype = cell.precision or cell.dtype
    floor = f"; noise floor of {dtype.value} {numbers.scientific(cell.loss)}, excess {numbers.times(cell.excess)}"
    return f"{floor}{_approximate(cell)}"


def _approximate(cell: CellRow) -> str:
    return "; approximate: it passes because it does the task as well as the reference" if cell.approximate else ""


def _rounded_lines(cell: CellRow) -> Iterator[tuple[str, str]]:
    """The distance from the target's own rounded weights in float32, if it was compared with these."""
    if cell.kernel_detail is not None:
        yield (f"  kernels:    not compared with its own rounded weights in float32: {cell.kernel_detail}", "")
    if cell.kernel_error is None:
        return
    limit = ""
    if cell.allowed_error is not None and cell.error_type != PRECISION_LOSS:
        limit = f" ({numbers.scientific(cell.allowed_error)} is allowed)"
    loss = f"; these are {numbers.scientific(cell.loss)} from the reference" if cell.loss is not None else ""
    apart = f"{numbers.scientific(cell.kernel_error)} from its own rounded weights in float32{limit}{loss}{_approximate(cell)}"
    yield (f"  kernels:    {apart}", "")
    if cell.quality_kernel_error is not None:
        yield (f"  held-out:   {numbers.scientific(cell.quality_kernel_error)} from its own rounded weights in float32", "")


def _quality(cell: CellRow) -> str:
    """The task's metric with its interval, the reference's metric, and how often both agree."""
    interval = f"{numbers.percent(cell.quality_low)} to {numbers.percent(cell.quality_high)}"
    metric = (cell.quality_metric or "").replace("_", " ")
    error = f", relative error {numbers.scientific(cell.quality_error)}" if cell.quality_error is not None else ""
    own = f"{metric} {numbers.percent(cell.quality)} ({interval}; {cell.quality_inputs} inputs{error})"
    if cell.quality_reference is None:  # its own answers count as right: the metric is the agreement
        return f"{own}; {cell.quality_detail}"
    both = f"reference {numbers.percent(cell.quality_reference)}, agreement {numbers.percent(cell.quality_agreement)}"
    return f"{own}, {both}; {cell.quality_detail}"


def _memory(cell: CellRow) -> Iterator[tuple[str, str]]:
    """The memory on the host and on the device, with what was measured, or why nothing was."""
    sizes = (
        ("peak", cell.peak_mb),
        ("added", cell.delta_mb),
        ("while it ran", cell.run_peak_mb),
        ("on the device", cell.device_peak_mb),
    )
    amounts = ", ".join(f"{what} {size:,.0f} MiB" for what, size in sizes if size is not None)
    if amounts or cell.memory_detail:
        yield (f"  memory:     {'; '.join(part for part in (amounts, plain(cell.memory_detail or '')) if part)}", "")


def _ms(value: float | None) -> str:
    return "" if value is None else f" {numbers.number(value, 2)} ms"


def _json_value(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
