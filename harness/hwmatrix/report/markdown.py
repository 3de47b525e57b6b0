"""matrix.md, summary.md and errors.md: the templates in ``templates``, and their data."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import jinja2

from hwmatrix.basics import escape, templates
from hwmatrix.basics.text import plural
from hwmatrix.records import Execution, Status, threads_in_words
from hwmatrix.report import adapted, choosing, grid, numbers, origins
from hwmatrix.report.causes import grouped
from hwmatrix.report.compilation import compilations
from hwmatrix.report.failures import failures
from hwmatrix.report.groups import blocked_of, groups_of
from hwmatrix.report.packing import LONGEST_TEXT, fitting
from hwmatrix.report.rows import CellRow, DetectionRow, TargetRow
from hwmatrix.report.scaling import lines_of
from hwmatrix.report.totals import totals_of
from hwmatrix.report.tradeoffs import left_out, precision, short_name, tradeoffs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import jinja2
    from markupsafe import Markup

    from hwmatrix.report.plots import Chart
    from hwmatrix.report.rows import NeededOperator, ReportRows


LARGE: Final = 60
"""Rows of a matrix above which matrix.md begins with totals and causes, and omits the table of all times."""
LARGEST: Final = 10
"""Groups of failures that a large matrix.md lists per target; errors.md has all."""
_TRACEBACKS: Final = 110_000
_MESSAGES: Final = 90_000
"""Characters that all different tracebacks and messages of errors.md may have together, so that with the commands of some 600 failures it
stays below half a megabyte: beyond that, GitHub shows Markdown as plain text."""
_CROWDED: Final = 600
"""Errors above which errors.md omits their commands, and has a third of the space for texts."""
_MOMENTARY: Final = frozenset(
    {
        *("available_memory_mb", "memory_limit_mb", "memory_left_mb", "memory_pressure_percent", "memory_stalled_percent"),
        *("memory_all_stalled_percent", "memory_pressure_level", "used_mb", "free_mb", "processes"),
    }
)
"""Features of hardware that differ between two shards of one machine: what is in use, and how much of it a container may use."""
NOT_TIMED: Final = "No cell was timed: there is no latency, and nothing is said about speed."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A target as identical shards recorded it (``target`` is from the first), with the hardware that was found there."""

    target: TargetRow
    found: tuple[DetectionRow, ...]
    shards: int

    @property
    def ran_on(self) -> tuple[str, ...]:
        """The names of the hardware that this target can have used: its own kind, and the processor."""
        kinds = {"cpu", self.target.backend}
        return tuple(dict.fromkeys(row.name for row in self.found if row.available and row.name and row.hardware_type in kinds))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A piece of hardware, present or absent, as the shards of these targets found it."""

    columns: tuple[grid.Column, ...]
    row: DetectionRow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ran:
    """A target on hardware of one kind with the same versions, in one or several images; ``machine`` is the first of them."""

    machine: Machine
    images: int
    shards: int


def matrix_md(rows: ReportRows) -> str:
    """The text of matrix.md."""
    measured = [cell for cell in rows.cells if cell.status is Status.PASS and cell.p50_ms is not None]
    timed = [cell for cell in measured if cell.execution is not Execution.EMULATED]
    return _render(
        "matrix.md.j2",
        rows,
        timed=timed,
        generated=[cell for cell in timed if cell.ttft_ms is not None],
        by_length=[cell for cell in timed if cell.by_length],
        emulated=[cell for cell in measured if cell.execution is Execution.EMULATED],
        contended=sum(cell.contended is True for cell in timed),
        topics=grouped(failures(rows)),
        example=next((cell for cell in rows.cells if cell.command), None),
        attempts=adapted.paired(rows),
        compiled=compilations(rows.cells),
        scaling=lines_of(rows.cells),
    )


def summary_md(rows: ReportRows, pictures: Mapping[str, Chart] | None = None) -> str:
    """The text of summary.md. ``pictures`` are the charts beside it, as plots/<name>.svg."""
    choice = {
        "families": choosing.families(rows.analysis),
        "limits": choosing.memory_limits(rows.analysis),
        "only_tiny": choosing.only_tiny(rows.analysis),
    }
    found = tradeoffs_of(rows)
    compared = {"tradeoffs": found, "left_out": left_out(found)}
    return _render("summary.md.j2", rows, findings=findings_of(rows), pictures=pictures or {}, choice=choice, **compared)


def errors_md(rows: ReportRows) -> str:
    """The text of errors.md: messages and tracebacks, complete or, if they are too long together, shortened in the middle."""
    found = failures(rows)
    topics = grouped(found)
    entries = [alike.members[0].entry for topic in topics for alike in topic.alike]
    tracebacks, messages = [entry.traceback for entry in entries], [entry.message for entry in entries]
    crowded = len(entries) > _CROWDED
    share = 3 if crowded else 1
    shown = dict(zip(tracebacks, fitting(tracebacks, LONGEST_TEXT, _TRACEBACKS // share), strict=True))
    said = dict(zip(messages, fitting(messages, LONGEST_TEXT, _MESSAGES // share), strict=True))
    cut_short = sum(len(shown[text] or "") < len(text) for text in set(tracebacks) if text)
    cut_short += sum(len(said[text] or "") < len(text) for text in set(messages))
    return _render(
        "errors.md.j2",
        rows,
        topics=topics,
        count=len(found),
        traceback_of=shown,
        message_of=said,
        cut_short=cut_short,
        crowded=crowded,
    )


def machines_of(rows: ReportRows) -> tuple[Machine, ...]:
    """Every target as its shards recorded it, identical ones once: a large run has many shards per target."""
    found: defaultdict[str, list[DetectionRow]] = defaultdict(list)
    for row in rows.detections:
        found[row.shard_id].append(row)
    alike: dict[str, list[TargetRow]] = {}
    for target in rows.targets:
        same = dataclasses.asdict(target) | {
            "shard_id": target.shard_id is None,
            "started_at": None,
            "finished_at": target.finished_at is None,
        }
        alike.setdefault(json.dumps(same, sort_keys=True), []).append(target)
    return tuple(
        Machine(target=first, found=tuple(found[first.shard_id] if first.shard_id else ()), shards=1 + len(others))
        for first, *others in alike.values()
    )


def ran_of(rows: ReportRows) -> tuple[Ran, ...]:
    """The machines of each target, those that differ only in their image, their host or the time as one."""
    alike: dict[str, list[Machine]] = {}
    for machine in machines_of(rows):
        target = machine.target
        where = target.unavailable if target.shard_id is None else machine.ran_on
        unfinished = target.canary_ok is None and target.finished_at is None
        same = [target.name, target.isolation, target.execution, where, target.versions, target.canary_ok, unfinished]
        alike.setdefault(json.dumps(same, sort_keys=True), []).append(machine)
    return tuple(
        Ran(machine=same[0], images=len({each.target.image_digest for each in same}), shards=sum(each.shards for each in same))
        for same in alike.values()
    )


def findings_of(rows: ReportRows) -> tuple[Finding, ...]:
    """What shards found of each kind of hardware, each distinct answer once. What changes from moment to moment is left out."""
    columns: defaultdict[str, list[grid.Column]] = defaultdict(list)
    first: dict[str, DetectionRow] = {}
    for machine in machines_of(rows):
        if machine.target.isolation is None:
            continue
        for row in machine.found:
            lasting = dataclasses.replace(row, features=_lasting(row.features))
            alike = json.dumps(dataclasses.asdict(lasting) | {"shard_id": None}, sort_keys=True)
            first.setdefault(alike, lasting)
            columns[alike].append(grid.Column(target=machine.target.name, isolation=machine.target.isolation))
    found = [Finding(columns=tuple(dict.fromkeys(columns[alike])), row=row) for alike, row in first.items()]
    return tuple(sorted(found, key=lambda finding: (not finding.row.available, finding.row.hardware_type)))


def _lasting(features: dict[str, Any]) -> dict[str, Any]:
    """The features without those that change from moment to moment."""
    kept = {name: value for name, value in features.items() if name not in _MOMENTARY}
    gpus = kept.get("gpus")
    if isinstance(gpus, list):
        kept["gpus"] = [_lasting(gpu) if isinstance(gpu, dict) else gpu for gpu in gpus]
    return kept


def _tested(rows: ReportRows, cell: CellRow) -> tuple[NeededOperator, ...]:
    """The results of operator tests for the operators that a cell lacked."""
    same = (found for found in rows.operators if (found.target, found.isolation) == (cell.target, cell.column_isolation))
    return tuple(found for found in same if found.name in (cell.needs or ()))


def facts_of(features: dict[str, Any]) -> list[str]:
    """What is known about a piece of hardware, short enough to read: ``cores 8``, ``avx2 yes``."""
    facts = []
    for name, value in sorted(features.items()):
        if value is None or value in ([], {}, ""):
            continue
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        elif isinstance(value, (dict, list)):
            shown = json.dumps(value, ensure_ascii=False)
        else:
            shown = str(value)
        facts.append(escape.short(f"{name} {shown}", 100))
    return facts


def statuses_by_target(rows: ReportRows) -> dict[grid.Column, Counter[Status]]:
    """How the cells of each target ended."""
    found: defaultdict[grid.Column, Counter[Status]] = defaultdict(Counter)
    for cell in rows.cells:
        found[grid.Column(target=cell.target, isolation=cell.column_isolation)][cell.status] += 1
    return found


def _render(template: str, rows: ReportRows, **facts: Any) -> str:
    counts = Counter(cell.status for cell in rows.cells)
    built, groups = grid.grid_of(rows), groups_of(rows)
    text = (
        markdown_environment()
        .get_template(template)
        .render(
            run=rows.run,
            parts=rows.parts,
            cells=rows.cells,
            grid=built,
            large=sum(len(section.rows) for section in built.sections) > LARGE,
            largest=LARGEST,
            groups=groups,
            blocked=blocked_of(groups),
            totals=totals_of(rows),
            by_target=statuses_by_target(rows),
            not_timed=NOT_TIMED,
            counts={status: counts[status] for status in Status if counts[status]},
            machines=machines_of(rows),
            ran=ran_of(rows),
            rejected=rows.rejected,
            tested=functools.partial(_tested, rows),
            analysis=rows.analysis,
            **facts,
        )
    )
    return text.strip() + "\n"


def _label(cell: CellRow) -> Markup:
    """The escaped text of a matrix cell, cached because many are equal."""
    return _escaped(grid.label(cell))


@functools.lru_cache(maxsize=1024)
def _escaped(text: str) -> Markup:
    return escape.md(text)


@functools.cache
def markdown_environment() -> jinja2.Environment:
    """The environment of the report's Markdown templates."""
    filters = {
        "facts": facts_of,
        "threads": threads_in_words,
        "begins": origins.sentence,
        "precision": precision,
        "short_name": short_name,
        "word": grid.word,
        "label": _label,
        "speed": grid.speed,
        "number": numbers.number,
        "whole": numbers.whole,
        "times": numbers.times,
        "percent": numbers.percent,
        "scientific": numbers.scientific,
    }
    functions = {
        "plural": plural,
        "interval": numbers.interval,
        "over_cpu": numbers.over_cpu,
        "over_own": numbers.over_own,
        "by_position": numbers.by_position,
        "describe": grid.describe,
        "changed": adapted.tried,
    }
    return templates.markdown("hwmatrix.report", filters=filters, functions=functions)
