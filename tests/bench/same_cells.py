"""Checks that another commit reports the same about a recorded run, by comparing the matrix.json of both cell by cell.

Run it as ``python tests/bench/same_cells.py COMMIT [--database FILE]``. Both commits write matrix.json from one database with their own
code. Every key of the older one must be present and equal, in every cell; keys may be added. With ``--against FILE``, two databases (two
runs of the same cells) are compared by verdict only: status, stage, level, execution and error type.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

PROJECT: Final = Path(__file__).parents[2]
RECORDED: Final = PROJECT / "tests" / "recorded" / "default.duckdb"
_GIT: Final = shutil.which("git") or "git"
_VERDICT: Final = ("status", "stage", "level", "execution")


def matrix_of(source: Path, database: Path, folder: Path) -> dict[str, Any]:
    """matrix.json of a database, written by the code in ``source``."""
    command = (sys.executable, "-m", "hwmatrix", "report", "--database", str(database), "--output-dir", str(folder))
    environment = os.environ | {"PYTHONPATH": str(source / "harness")}
    subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads((folder / "matrix.json").read_text(encoding="utf-8"))
    return found


def key_of(cell: dict[str, Any]) -> str:
    """The key that identifies a cell within its run."""
    return json.dumps([cell["model"], cell["target"], cell["settings"], cell["evidence"]["isolation"]], sort_keys=True)


def differences(before: Any, after: Any, at: str = "") -> list[str]:
    """Where two values differ. Keys that only one of two objects has are reported once, by their path."""
    if isinstance(before, dict) and isinstance(after, dict):
        lost = [f"{at}.{key} is gone" for key in before.keys() - after.keys()]
        return lost + [each for key in before.keys() & after.keys() for each in differences(before[key], after[key], f"{at}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [each for one, other in zip(before, after, strict=True) for each in differences(one, other, f"{at}[]")]
    return [] if before == after else [f"{at}: {before!r} became {after!r}"]


def verdict_of(cell: dict[str, Any]) -> dict[str, Any]:
    """The fields on which two executions of one cell should agree."""
    return {name: cell[name] for name in _VERDICT} | {"error": (cell["error"] or {}).get("type")}


def compare(before: dict[str, Any], after: dict[str, Any], *, verdicts: bool) -> list[str]:
    """The differences between the cells of two matrix.json."""
    cells = [{key_of(cell): cell for cell in each["cells"]} for each in (before, after)]
    told = [
        f"{key}: only in the {where}"
        for key in cells[0].keys() ^ cells[1].keys()
        for where in (("first" if key in cells[0] else "second"),)
    ]
    for key in cells[0].keys() & cells[1].keys():
        pair = [verdict_of(each[key]) if verdicts else each[key] for each in cells]
        told += [f"{key}{each}" for each in differences(*pair)]
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", help="the commit to compare this tree with")
    parser.add_argument("--database", type=Path, default=RECORDED)
    parser.add_argument("--against", type=Path, help="another database: compare verdicts, with this tree's code")
    given = parser.parse_args()
    if (given.commit is None) is (given.against is None):
        parser.error("name a commit, or --against a database")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        folders = [place / name for name in ("before", "after")]
        for folder in folders:
            folder.mkdir()
        other, database = PROJECT, given.database.absolute()
        if given.commit is not None:
            other = place / "other"
            subprocess.run([_GIT, "-C", str(PROJECT), "worktree", "add", "--quiet", "--detach", str(other), given.commit], check=True)
        try:
            before = matrix_of(other, database, folders[0])
            after = matrix_of(PROJECT, database if given.against is None else given.against.absolute(), folders[1])
        finally:
            if given.commit is not None:
                subprocess.run([_GIT, "-C", str(PROJECT), "worktree", "remove", "--force", str(other)], check=True)
    told = compare(before, after, verdicts=given.against is not None)
    sys.stdout.writelines(f"{line}\n" for line in told[:50])
    sys.stdout.write(f"{len(before['cells'])} cells before, {len(after['cells'])} after: {len(told) or 'no'} differences\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
