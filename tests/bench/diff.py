"""Measures how often `hwmatrix diff` is wrong, on pairs of runs of the same code, with and without a slowdown injected in the newer one.

python tests/bench/diff.py                  # runs the default suite four times on cpu, openvino and onnxruntime, and writes docs/gate.md
python tests/bench/diff.py A B C            # compares two or more existing folders of reports
python tests/bench/diff.py A B C --write    # and writes docs/gate.md
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Self

import duckdb

from hwmatrix.hardware.cpu import cpuinfo
from hwmatrix.report.comparing import Change, Kind
from hwmatrix.report.diff import Diff, Side, make_diff, read_side

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gate.md"
TARGETS = ("cpu", "openvino", "onnxruntime")
RUNS = 4
SLOWDOWN = 1.10
MARKS = ("<!-- measured by tests/bench/diff.py -->", "<!-- end -->")


def main() -> int:
    """Measure, print, and write the page."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folders = arguments.folders or [_run(work / str(number)) for number in range(RUNS)]
        sides = [read_side(folder) for folder in folders]
        slowed = [read_side(_slowed_down(folder, work / f"slowed-{number}.duckdb")) for number, folder in enumerate(folders)]
        pairs = list(itertools.permutations(range(len(sides)), 2))
        text = _text(
            Compared.of([make_diff(sides[old], sides[new]) for old, new in pairs]),
            Compared.of([make_diff(_without_yardstick(sides[old]), sides[new]) for old, new in pairs]),
            Compared.of([make_diff(sides[old], slowed[new]) for old, new in pairs]),
            sides,
        )
    sys.stdout.write(text)
    if arguments.write or not arguments.folders:
        page = PAGE.read_text(encoding="utf-8")
        begin, end = (re.escape(mark) for mark in MARKS)
        written = re.sub(f"{begin}.*{end}", lambda _: f"{MARKS[0]}\n{text}{MARKS[1]}", page, flags=re.DOTALL)
        if written == page:
            raise SystemExit(f"{PAGE} has no place for it: {' '.join(MARKS)}")
        PAGE.write_text(written, encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of reports that are there, instead of runs")
    parser.add_argument("--write", action="store_true", help="write the page, too")
    arguments = parser.parse_args()
    if len(arguments.folders) == 1:
        parser.error("one folder cannot be compared: name two or more")
    return arguments


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """Several comparisons together: cells whose speed was compared, and reported changes."""

    timed: int
    changes: list[Change]
    slower: int
    untimed: Counter[str]

    @classmethod
    def of(cls, diffs: list[Diff]) -> Self:
        """The sum of comparisons."""
        return cls(
            timed=sum(diff.timed for diff in diffs),
            changes=[change for diff in diffs for change in diff.of(Kind.SLOWER, Kind.FASTER)],
            slower=sum(len(diff.of(Kind.SLOWER)) for diff in diffs),
            untimed=sum((Counter(diff.untimed) for diff in diffs), Counter[str]()),
        )


def _without_yardstick(side: Side) -> Side:
    return dataclasses.replace(side, cells=tuple(dataclasses.replace(cell, yardstick=None) for cell in side.cells))


def _run(output: Path) -> Path:
    command = [sys.executable, "-m", "hwmatrix", "matrix", "--targets", *TARGETS, "--output-dir", str(output)]
    subprocess.run(command, cwd=ROOT, check=True)
    return output


def _slowed_down(folder: Path, copy: Path) -> Path:
    """A copy of a run with every sample slowed down by the same factor. Everything else, including noise, is as measured."""
    shutil.copyfile(folder / "matrix.duckdb" if folder.is_dir() else folder, copy)
    with duckdb.connect(str(copy)) as connection:
        connection.execute(
            "UPDATE samples SET wall_ns = CAST(round(wall_ns * $by) AS BIGINT), cpu_ns = CAST(round(cpu_ns * $by) AS BIGINT)",
            {"by": SLOWDOWN},
        )
    return copy


def _text(same: Compared, bare: Compared, slowed: Compared, sides: list[Side]) -> str:
    names = ", ".join(sorted(f"{each.cell.model} on {each.cell.target} (x {each.ratio:.2f})" for each in same.changes)) or "none"
    reasons = "; ".join(f"{count} times: {reason}" for reason, count in same.untimed.items()) or "none"
    rows = (
        ("The same code: cells reported as slower or faster", len(same.changes), same.timed, "at most 2 %"),
        ("The same without the yardstick", len(bare.changes), bare.timed, ""),
        (f"A slowdown of {SLOWDOWN - 1:.0%} in every cell: cells reported as slower", slowed.slower, slowed.timed, "at least 95 %"),
    )
    table = "\n".join(f"| {what} | {cells} of {timed} ({cells / max(1, timed):.1%}) | {goal} |" for what, cells, timed, goal in rows)
    machine = cpuinfo().get("model name", platform.machine())
    made = ", ".join(sorted(f"{side.run.created_at:%H:%M}" for side in sides))
    return f"""
| What | Measured | Goal |
| --- | --- | --- |
{table}

Reported in runs of the same code: {names}. Not compared: {reasons}.
{max(side.run.created_at for side in sides):%Y-%m-%d}, {machine}, {os.cpu_count()} cores; the default suite on {", ".join(TARGETS)},
{len(sides)} runs (started at {made} UTC), each compared with each other in both directions.

"""


if __name__ == "__main__":
    sys.exit(main())
