"""A diff as Markdown, JSON and HTML."""

# ruff: noqa: RUF001 - typographic signs are meant
from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Final

import pydantic

from hwmatrix.basics import templates
from hwmatrix.basics.text import plain, plural
from hwmatrix.report.comparing import LEAST_CHANGE, NOISE_FACTOR, Change, ComparedCell, Kind
from hwmatrix.report.diff_contract import CellState, ChangeEntry, DiffDocument, PackageEntry, RunSide
from hwmatrix.report.markdown import markdown_environment
from hwmatrix.report.settings import short

if TYPE_CHECKING:
    import jinja2

    from hwmatrix.report.diff import Diff, Side

TITLES: Final[dict[Kind, str]] = {
    Kind.BROKEN: "Newly broken",
    Kind.LOST: "Verdict lost",
    Kind.WORKS: "Newly works",
    Kind.TESTED: "First verdict",
    Kind.FAILS_OTHERWISE: "Fails differently",
    Kind.PLACEMENT: "Placement changed",
    Kind.SLOWER: "Slower",
    Kind.FASTER: "Faster",
    Kind.MORE_MEMORY: "More memory",
    Kind.LESS_MEMORY: "Less memory",
    Kind.VANISHED: "No longer planned",
    Kind.APPEARED: "New in the plan",
}
SYMBOLS: Final[dict[Kind, str]] = {
    Kind.BROKEN: "❌",
    Kind.LOST: "➖",
    Kind.WORKS: "✅",
    Kind.TESTED: "🆕",
    Kind.FAILS_OTHERWISE: "🔀",
    Kind.PLACEMENT: "📍",
    Kind.SLOWER: "🐢",
    Kind.FASTER: "🐇",
    Kind.MORE_MEMORY: "▲",
    Kind.LESS_MEMORY: "▼",
    Kind.VANISHED: "➖",
    Kind.APPEARED: "🆕",
}
"""Beside the words, so that a long list can be read at a glance."""


def diff_md(diff: Diff) -> str:
    """The text of diff.md."""
    return markdown_environment().get_template("diff.md.j2").render(**_template_values(diff)).strip() + "\n"


def diff_html(diff: Diff) -> str:
    """The text of diff.html: one file without scripts that loads nothing."""
    return _html().get_template("diff.html.j2").render(**_template_values(diff)).strip() + "\n"


def diff_json(diff: Diff) -> str:
    """The text of diff.json."""
    data = pydantic.TypeAdapter(DiffDocument).dump_python(document(diff), mode="json")
    return json.dumps({"schema": data.pop("schema"), **data}, indent=2, ensure_ascii=False) + "\n"


def document(diff: Diff) -> DiffDocument:
    """The diff as its published types."""
    return DiffDocument(
        old=_side(diff.old),
        new=_side(diff.new),
        compared=diff.compared,
        timed=diff.timed,
        untimed=diff.untimed,
        notes=diff.notes,
        counts=diff.counts,
        changes=tuple(_change(change) for change in diff.changes),
        packages=tuple(
            PackageEntry(target=each.target, isolation=each.isolation, package=each.package, old=each.old, new=each.new)
            for each in diff.packages
        ),
    )


def _template_values(diff: Diff) -> dict[str, object]:
    return {
        "diff": diff,
        "groups": [(kind, TITLES[kind], SYMBOLS[kind], diff.of(kind)) for kind in diff.counts],
        "settings": short,
        "least": f"{LEAST_CHANGE:.0%}",
        "factor": f"{NOISE_FACTOR:g}",
    }


def _side(side: Side) -> RunSide:
    run = side.run
    return RunSide(
        run_id=run.run_id, created_at=run.created_at, hwmatrix_version=run.hwmatrix_version, commit=run.commit_id, cells=len(side.cells)
    )


def _change(change: Change) -> ChangeEntry:
    cell = change.cell
    return ChangeEntry(
        kind=change.kind,
        model=cell.model,
        target=cell.target,
        size=cell.size,
        dtype=cell.dtype,
        batch=cell.batch,
        sequence_length=cell.sequence_length,
        threads=cell.threads,
        new_tokens=cell.new_tokens,
        isolation=cell.isolation,
        detail=change.detail,
        ratio=change.ratio,
        old=_state(change.old) if change.old else None,
        new=_state(cell) if change.kind is not Kind.VANISHED else None,
    )


def _state(cell: ComparedCell) -> CellState:
    return CellState(
        status=cell.status,
        error_type=cell.error_type,
        message=cell.message,
        on_target=cell.on_target,
        p50_ms=cell.p50_ms,
        ttft_ms=cell.ttft_ms,
        tpot_ms=cell.tpot_ms,
        noise_ms=cell.noise_ms,
        delta_mb=cell.delta_mb,
        device_peak_mb=cell.device_peak_mb,
        image_digest=cell.image_digest,
        command=cell.command,
    )


@functools.cache
def _html() -> jinja2.Environment:
    return templates.environment("hwmatrix.report", autoescape=True, filters={"plain": plain}, functions={"plural": plural})
