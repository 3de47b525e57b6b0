"""Recommendations in sentences: hardware for a family, models under a memory limit, and the strengths of each target.

Every number is a measurement of the run. Only models in full size say anything about speed, and only hardware is recommended: emulation
and software show what works.
"""

from __future__ import annotations

import dataclasses
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.report.numbers import plural, times, whole

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
    by_family = groupby(analysis.family_choices, key=lambda row: row["family"])
    return [Advice(subject=_words(family), text=_family(list(rows))) for family, rows in by_family]


def memory_limits(analysis: Analysis) -> list[Advice]:
    """The models that ran below each limit and need more than the next lower one, with the target that needed least."""
    found = []
    for row in analysis.memory_limits:
        named = [_least_memory(item) for item in row["least"][:_SHOWN]]
        if row["models"] > _SHOWN:
            named.append(f"{row['models'] - _SHOWN:,} more")
        place = " of device memory" if row["place"] == "device" else ""
        found.append(Advice(subject=f"{whole(row['limit_mb'])} MiB{place}", text=f"{', '.join(named)}."))
    return found


def only_tiny(analysis: Analysis) -> bool:
    """Whether all measured peaks are those of tiny models, which show the memory of frameworks, not of real models."""
    return all(row["size"] == "tiny" for row in analysis.memory_limits)


def reduced_precisions(analysis: Analysis) -> list[str]:
    """The precisions other than float32 in which any model passed on hardware."""
    ran = (row["dtype"] for row in analysis.strengths if row["execution"] == "hardware" and row["passed"])
    return sorted(set(ran) - {"float32"})


def strengths(analysis: Analysis) -> list[Advice]:
    """For each target and precision: how many models and which families pass, and how it compares with cpu in full size."""
    return [Advice(subject=_target_name(row), text=" ".join(_strength(row))) for row in analysis.strengths]


def _family(rows: Sequence[dict[str, Any]]) -> str:
    first = rows[0]
    if not first["passed"]:
        return "no model passes on any hardware that was tried."
    if first["size"] == "tiny":
        same = [row for row in rows if (row["passed"], row["tried"]) == (first["passed"], first["tried"])]
        runs = "runs" if len(same) == 1 else "each run"
        told = f"{_listed(map(_target_name, same))} {runs} {_passing(first)}."
        return " ".join(
            [told, "Only tiny models were run, which say nothing about speed.", *_next_targets(rows[len(same) :], first["tried"])]
        )
    if first["speed_up"] is not None and first["faster"]:
        mean = f" (geometric mean of {first['compared']} models)" if first["compared"] > 1 else ""
        reason = f"it runs {_passing(first)} at {times(first['speed_up'])} the speed of cpu{mean}."
    elif first["is_cpu"]:
        reason = f"it runs {_passing(first)}, and no other hardware that runs as many was faster."
    else:
        reason = (
            f"it runs {_passing(first)}. Its speed was {'not clearly different from' if first['compared'] else 'not compared with'} cpu's."
        )
    return " ".join([f"choose {_target_name(first)}: {reason}", *_next_targets(rows[1:], first["tried"])])


def _next_targets(rows: Sequence[dict[str, Any]], tried: int) -> list[str]:
    """The other targets that run any of the models, as one sentence; empty if there are none."""
    told = []
    for row in rows:
        facts = [] if row["speed_up"] is None else [times(row["speed_up"])]
        if (row["passed"], row["tried"]) != (tried, tried):
            facts.append(_passing(row))
        if row["passed"]:
            told.append(f"{_target_name(row)} ({', '.join(facts)})" if facts else _target_name(row))
    return [f"Next: {'; '.join(told)}."] if told else []


def _least_memory(item: dict[str, Any]) -> str:
    more = item["most"]
    notable = f"; {whole(item['most_mb'])} on {_cell(more)}" if item["most_mb"] > _NOTABLE * item["peak_mb"] else ""
    return f"{item['model']} on {_cell(item)} ({whole(item['peak_mb'])}{notable})"


def _strength(row: dict[str, Any]) -> list[str]:
    told = [f"{row['passed']} of {plural(row['tried'], 'model')} {'passes' if row['tried'] == 1 else 'pass'}."]
    if row["part"]:
        parts = [f"{_words(part['family'])} ({part['passed']} of {part['tried']})" for part in row["part"]]
        every = f"Every model of {_listed(map(_words, row['whole']))} passes, but not of" if row["whole"] else "Not every model passes of"
        told.append(f"{every} {_listed(parts)}.")
    if row["execution"] == "emulated":
        told.append("It is emulated: this shows what works, not how fast.")
    elif row["execution"] == "software":
        told.append("It ran in software: this shows what works, not how fast.")
    elif row["is_cpu"]:
        told.append("It is the baseline for speed.")
    elif row["compared"]:
        told.append(_compared(row))
    else:
        told.append("Its speed on full-size models was not compared with cpu.")
    return told


def _compared(row: dict[str, Any]) -> str:
    """Speed and memory against cpu, on models in full size with the same settings."""
    slower = f" and slower for {row['slower']}" if row["slower"] else ""
    least, most = times(row["least_gain"]), times(row["most_gain"])
    span = f"{least} the speed" if least == most else f"{least} to {most} the speed"
    told = f"In full size it was faster than cpu for {row['faster']} of {plural(row['compared'], 'model')}{slower} ({span})"
    if not row["weighed"]:
        return f"{told}."
    word, count = ("more", row["heavier"]) if row["heavier"] >= row["lighter"] else ("less", row["lighter"])
    running = row["weighed_running"]
    if running == row["weighed"]:
        return f"{told}, and took {word} memory while running for {count} of {running}."
    apart = f" ({running} of the {row['weighed']} compared while running, the others including loading)" if running else ""
    return f"{told}, and took {word} memory for {count} of {row['weighed']}{apart}."


def _passing(row: dict[str, Any]) -> str:
    if row["passed"] == row["tried"]:
        return "the only model" if row["tried"] == 1 else f"all {row['tried']:,} models"
    return f"{row['passed']:,} of {plural(row['tried'], 'model')}"


def _target_name(row: dict[str, Any]) -> str:
    return f"{row['target']}{' ' + row['dtype'] if row['several_dtypes'] else ''} ({row['isolation']})"


def _cell(item: dict[str, Any]) -> str:
    return item["target"] if item["dtype"] == "float32" else f"{item['target']} in {item['dtype']}"


def _words(family: str) -> str:
    return family.replace("_", " ")


def _listed(words: Iterable[str]) -> str:
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last
