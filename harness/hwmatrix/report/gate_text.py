"""The output of a gate: a short table, JSON, and annotations for GitHub."""

from __future__ import annotations

from typing import Final

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.basics import github_log
from hwmatrix.basics.text import plain
from hwmatrix.report.gate import Rule, Violation

GATE_SCHEMA: Final = "hwmatrix/gate/1"
_SHOWN: Final = 160

_STRICT = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="null")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ViolationEntry:
    """One reason why the gate fails. ``line`` is the related line of matrix.yaml."""

    rule: Rule
    model: str | None
    target: str | None
    settings: str | None
    what: str
    advice: str
    line: int | None
    command: str | None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class GateDocument:
    """What ``hwmatrix gate --format json`` prints: of ``cells``, so many have a verdict (``verdicts``).

    ``unmatched_expectations`` are the entries of expect: in matrix.yaml that cover no cell of the run, if it is one of all its models
    and targets.
    """

    ok: bool
    run_id: str
    baseline: str | None
    cells: int
    verdicts: int
    unmatched_expectations: tuple[str, ...]
    violations: tuple[ViolationEntry, ...]
    schema: str = GATE_SCHEMA


def entry(violation: Violation) -> ViolationEntry:
    """A violation as its published type."""
    return ViolationEntry(
        rule=violation.rule,
        model=violation.model,
        target=violation.target,
        settings=violation.settings,
        what=violation.what,
        advice=violation.advice,
        line=violation.line,
        command=violation.command,
    )


def row(violation: Violation) -> tuple[str, str, str]:
    """The rule, what it is about, and what is wrong: short, on one line each."""
    about = " on ".join(part for part in (violation.model, violation.target) if part)
    settings = f" ({violation.settings})" if violation.settings else ""
    what = plain(violation.what)
    return violation.rule.value.replace("_", " "), plain(about) + settings, what if len(what) <= _SHOWN else f"{what[:_SHOWN]}…"


def annotation(violation: Violation, file: str) -> str:
    """A workflow command of GitHub Actions: an error on the related line of matrix.yaml."""
    rule, about, what = row(violation)
    title = f"{rule}: {about}" if about else rule
    return github_log.annotation("error", f"{what} {violation.advice}", title=title, file=file, line=violation.line)
