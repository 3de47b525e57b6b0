"""How often `hwmatrix diff` is wrong: two runs of the same code, and the second with a slowdown planted in its samples.

python tests/bench/diff.py            # runs the default suite twice on cpu, openvino and onnxruntime, and writes docs/gate.md
python tests/bench/diff.py A B        # compares two folders of reports that are there
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb

from hwmatrix.hardware.cpu import cpuinfo
from hwmatrix.report.comparing import Kind
from hwmatrix.report.diff import Diff, make_diff, read_side

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gate.md"
TARGETS = ("cpu", "openvino", "onnxruntime")
PLANTED = 1.10
MARKS = ("<!-- measured by tests/bench/diff.py -->", "<!-- end -->")


def main(argv: list[str]) -> int:
    """Measure, print, and write the page if the runs were made here."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        load = os.getloadavg()[0]
        old, new = (Path(name) for name in argv) if argv else (_run(work / "a"), _run(work / "b"))
        same = make_diff(read_side(old), read_side(new))
        planted = make_diff(read_side(old), read_side(_planted(new, work / "planted.duckdb")))
        text = _text(same, planted, load)
    sys.stdout.write(text)
    if not argv:
        page = PAGE.read_text(encoding="utf-8")
        begin, end = (re.escape(mark) for mark in MARKS)
        written = re.sub(f"{begin}.*{end}", lambda _: f"{MARKS[0]}\n{text}{MARKS[1]}", page, flags=re.DOTALL)
        if written == page:
            raise SystemExit(f"{PAGE} has no place for it: {' '.join(MARKS)}")
        PAGE.write_text(written, encoding="utf-8")
    return 0


def _run(output: Path) -> Path:
    command = [sys.executable, "-m", "hwmatrix", "matrix", "--targets", *TARGETS, "--output-dir", str(output)]
    subprocess.run(command, cwd=ROOT, check=True)
    return output


def _planted(folder: Path, copy: Path) -> Path:
    """The same run with every sample longer: the rest of what the test sees, its noise too, is as it was measured."""
    shutil.copyfile(folder / "matrix.duckdb" if folder.is_dir() else folder, copy)
    with duckdb.connect(str(copy)) as connection:
        connection.execute(
            "UPDATE samples SET wall_ns = CAST(round(wall_ns * $by) AS BIGINT), cpu_ns = CAST(round(cpu_ns * $by) AS BIGINT)",
            {"by": PLANTED},
        )
    return copy


def _text(same: Diff, planted: Diff, load: float) -> str:
    called = same.of(Kind.SLOWER, Kind.FASTER)
    found = planted.of(Kind.SLOWER)
    names = ", ".join(sorted(f"{change.cell.model} on {change.cell.target} (x {change.ratio:.2f})" for change in called)) or "none"
    reasons = "; ".join(f"{count} cells: {reason}" for reason, count in same.untimed.items()) or "none"
    rows = (
        ("Two runs of the same code: cells called slower or faster", called, same.timed, "at most 2 %"),
        (f"{PLANTED - 1:.0%} planted in every cell: cells called slower", found, planted.timed, "at least 95 %"),
    )
    table = "\n".join(
        f"| {what} | {len(cells)} of {timed} ({len(cells) / max(1, timed):.1%}) | {goal} |" for what, cells, timed, goal in rows
    )
    machine = cpuinfo().get("model name", platform.machine())
    return f"""
| What | Measured | Goal |
| --- | --- | --- |
{table}

Called in the two runs of the same code: {names}. Not compared: {reasons}.
{dt.datetime.now(dt.UTC):%Y-%m-%d}, {machine}, {os.cpu_count()} cores, load {load:.1f} before; the default suite on {", ".join(TARGETS)}.

"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
