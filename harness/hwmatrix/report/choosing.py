"""Recommendations in sentences: hardware for a family, and models under a memory limit.

Every number is a measurement of the run. Only models in full size say anything about speed, and only hardware is recommended: emulation
and software show what works.
"""

from __future__ import annotations

import dataclasses
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.text import plural
from hwmatrix.report.numbers import times, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hwmatrix.report.rows import Analysis

_SHOWN: Final = 8
"""Models named for each memory limit."""
_NOTABLE: Final = 1.25
"""A target is named too if it needs this many times the least memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """A sentence or two under a heading of one or two words."""

    subject: str
    text: str


def families(analysis: Analysis) -> list[Advice]:
    """For each family, the hardware on which most of its models pass, and of those the fastest on models in full size."""
    by_family = groupby(analysis.choices, key=lambda row: row["family"])
    return [Advice(subject=family.replace("_", " "), text=_family(list(rows))) for family, rows in by_family]


def memory_limits(analysis: Analysis) -> list[Advice]:
    """The models that ran below each limit and need more than the next lower one, with the target that needed least."""
    limits = []
    for row in analysis.memory_limits:
        named = [_least_memory(item) for item in row["least"][:_SHOWN]]
        if row["models"] > _SHOWN:
            named.append(f"{row['models'] - _SHOWN:,} more")
        place = " of device memory" if row["place"] == "device" else ""
        limits.append(Advice(subject=f"{whole(row['limit_mb'])} MiB{place}", text=f"{', '.join(named)}."))
    return limits


def only_tiny(analysis: Analysis) -> bool:
    """Whether all measured peaks are those of tiny models, which show the memory of frameworks, not of real models."""
    return all(row["size"] == "tiny" for row in analysis.memory_limits)


def _family(rows: Sequence[dict[str, Any]]) -> str:
    """Rows that were tried with the same models come first, the best of them first; the others are named, not ranked."""
    alike = [row for row in rows if row["alike"]]
    first = alike[0]
    sentences = []
    if not first["passed"]:
        sentences.append(f"no model passes on any hardware that was tried with {_models(first['tried'])}.")
    elif first["size"] == "tiny":
        best = [row for row in alike if row["passed"] == first["passed"]]
        sentences.append(f"{_listed(map(_column, best))} {'runs' if len(best) == 1 else 'each run'} {_passing(first)}.")
        sentences.append("Only tiny models were run, which say nothing about speed.")
        sentences += _next("Next", alike[len(best) :])
    else:
        sentences.append(f"choose {_column(first)}: it runs {_passing(first)}{_speed(first)}.")
        sentences += _next("Next", alike[1:])
    if others := [row for row in rows if not row["alike"]]:
        named = ", ".join(f"{_column(row)} {row['passed']} of {row['tried']}" for row in others)
        sentences.append(f"Tried with other models, so not ranked: {named}.")
    return " ".join(sentences)


def _next(word: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Other targets, as one sentence; empty if there are none."""
    return [f"{word}: {'; '.join(f'{_column(row)} ({_passing(row)}{_speed(row)})' for row in rows)}."] if rows else []


def _speed(row: dict[str, Any]) -> str:
    """How fast those models ran whose difference is real, on one machine."""
    if not row["compared"]:
        return ""
    which = "" if row["compared"] == row["tried"] == 1 else f", {row['compared']} of them"
    return f"{which} at {times(row['speed_up'])} the speed of cpu in float32{' (geometric mean)' if row['compared'] > 1 else ''}"


def _least_memory(item: dict[str, Any]) -> str:
    more = item["most"]
    notable = f"; {whole(item['most_mb'])} on {_cell(more)}" if item["most_mb"] > _NOTABLE * item["peak_mb"] else ""
    return f"{item['model']} on {_cell(item)} ({whole(item['peak_mb'])}{notable})"


def _passing(row: dict[str, Any]) -> str:
    return _models(row["tried"]) if row["passed"] == row["tried"] else f"{row['passed']:,} of {plural(row['tried'], 'model')}"


def _models(count: int) -> str:
    return "the only model" if count == 1 else f"all {count:,} models"


def _column(row: dict[str, Any]) -> str:
    return f"{row['target']}{' ' + row['dtype'] if row['dtype'] else ''} ({row['isolation']})"


def _cell(item: dict[str, Any]) -> str:
    return item["target"] if item["dtype"] == "float32" else f"{item['target']} in {item['dtype']}"


def _listed(words: Iterable[str]) -> str:
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last
