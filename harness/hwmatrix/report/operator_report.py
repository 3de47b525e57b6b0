"""ops.md and ops.json: the coverage of ONNX operators on each target."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.records import Isolation
from hwmatrix.report.grid import Column
from hwmatrix.report.markdown import markdown_environment
from hwmatrix.report.write import replace
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from pathlib import Path

OPERATORS_SCHEMA: Final = "hwmatrix/operators/1"
_FAILED_OUTCOMES: Final = ("fallback", "unsupported", "mismatch", "error", "ended")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """The number of tests by outcome.

    ``on_target`` counts those of ``passed`` that ran entirely on the target; ``ended`` those that ended the process: crashes, timeouts,
    out of memory.
    """

    tests: int
    passed: int
    on_target: int
    fallback: int
    mismatch: int
    unsupported: int
    error: int
    ended: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetCounts:
    """One target's tests: of the operators themselves, or (``expanded``) of their definitions in terms of others."""

    target: str
    isolation: Isolation
    expanded: bool
    versions: dict[str, str]
    device: str | None
    started_at: dt.datetime
    counts: Counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coverage:
    """One operator on one target. An empty ``domain`` is the standard's own."""

    domain: str
    operator: str
    target: str
    isolation: Isolation
    counts: Counts

    @property
    def name(self) -> str:
        """The operator's full name."""
        return f"{self.domain}.{self.operator}" if self.domain else self.operator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
    """A target whose tests were not run, and why: it is unavailable, or (``broken``) a canary failed."""

    target: str
    isolation: Isolation
    broken: bool
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """Something that a target lacks, and how many tests need it."""

    target: str
    isolation: Isolation
    need: str
    tests: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorRows:
    """All data of the report."""

    targets: tuple[TargetCounts, ...]
    coverage: tuple[Coverage, ...]
    needs: tuple[Need, ...]
    refused: tuple[Refused, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The targets, in the order of their names."""
        return tuple(dict.fromkeys(Column(target=row.target, isolation=row.isolation) for row in self.targets))

    @property
    def lacks(self) -> dict[Column, list[Need]]:
        """What each target lacks most."""
        lacks: dict[Column, list[Need]] = {}
        for row in self.needs:
            lacks.setdefault(Column(target=row.target, isolation=row.isolation), []).append(row)
        return lacks

    @property
    def table(self) -> dict[str, dict[Column, Coverage]]:
        """The coverage by operator's name and column."""
        table: dict[str, dict[Column, Coverage]] = {}
        for row in self.coverage:
            table.setdefault(row.name, {})[Column(target=row.target, isolation=row.isolation)] = row
        return table


def read(database: Path) -> OperatorRows:
    """Read the latest result of every operator test from a merged database.

    Raises:
        StoreError: it cannot be read.
    """
    with reading(database) as connection:
        targets = tuple(_target(row) for row in records(connection, "report_operator_targets"))
        coverage = tuple(_coverage(row) for row in records(connection, "report_operator_coverage"))
        needs = tuple(
            Need(target=row["target"], isolation=Isolation(row["isolation"]), need=row["need"], tests=row["tests"])
            for row in records(connection, "report_operator_needs")
        )
        refused = tuple(_refused(row) for row in records(connection, "report_operator_refused"))
    return OperatorRows(targets=targets, coverage=coverage, needs=needs, refused=refused)


def operators_md(rows: OperatorRows) -> str:
    """The text of ops.md."""
    return markdown_environment().get_template("operators.md.j2").render(rows=rows, shown=shown).strip() + "\n"


def operators_json(rows: OperatorRows) -> str:
    """The text of ops.json."""
    document = {
        "schema": OPERATORS_SCHEMA,
        "targets": [dataclasses.asdict(row) | {"started_at": row.started_at.isoformat()} for row in rows.targets],
        "refused": [dataclasses.asdict(row) for row in rows.refused],
        "operators": [dataclasses.asdict(row) for row in rows.coverage],
    }
    return json.dumps(document, indent=1) + "\n"


def write_operators(database: Path, output_dir: Path, *, page: Path | None = None) -> list[Path]:
    """Write ``ops.md`` and ``ops.json``, and the text of ``ops.md`` also to ``page`` if given.

    A database without operator tests gives no files.

    Raises:
        StoreError: the database cannot be read, or a folder cannot be written.
    """
    rows = read(database)
    if not rows.targets and not rows.refused:
        return []
    written = replace(output_dir, {"ops.md": operators_md(rows), "ops.json": operators_json(rows)})
    return written + (replace(page.parent, {page.name: operators_md(rows)}) if page is not None else [])


def shown(found: Coverage | None) -> str:
    """One cell of the table: ``✅ 14``, ``🟡 9/14`` or the most frequent outcome, such as ``❌ unsupported``."""
    if found is None:
        return "⬜"
    counts = found.counts
    if counts.on_target == counts.tests:
        return f"✅ {counts.tests}"
    if counts.passed:
        part = f", {counts.on_target} wholly there" if counts.on_target < counts.passed else ""
        return f"🟡 {counts.passed}/{counts.tests}{part}"
    word = max(_FAILED_OUTCOMES, key=lambda name: int(getattr(counts, name)))
    return f"{'🟠' if word == 'fallback' else '❌'} {'no result' if word == 'ended' else word}"


def _counts(row: dict[str, Any]) -> Counts:
    return Counts(**{field.name: row[field.name] for field in dataclasses.fields(Counts)})


def _target(row: dict[str, Any]) -> TargetCounts:
    return TargetCounts(
        target=row["target"],
        isolation=Isolation(row["isolation"]),
        expanded=row["expanded"],
        versions=json.loads(row["versions"]),
        device=row["device"],
        started_at=row["started_at"],
        counts=_counts(row),
    )


def _coverage(row: dict[str, Any]) -> Coverage:
    return Coverage(
        domain=row["domain"], operator=row["operator"], target=row["target"], isolation=Isolation(row["isolation"]), counts=_counts(row)
    )


def _refused(row: dict[str, Any]) -> Refused:
    reason = row["canary_detail"] or "the run was cut off before its canaries ended"
    return Refused(target=row["target"], isolation=Isolation(row["isolation"]), broken=row["canary_ok"] is False, reason=reason)
