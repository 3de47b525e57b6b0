"""Damages files of every format at random, and counts what became of them: refused, read as whole, or anything else, which is a fault.

    python tests/bench/damaged.py --times 1000

Prints a line for each format, and each fault with the seed that repeats it.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "unit"), str(ROOT / "tests" / "faults")]

from damages import REFUSED, UNCHANGED, cached, case, formats  # noqa: E402 - it lies beside, in no package


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--formats", nargs="+")
    arguments = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory(prefix="damaged-") as name:
        made = formats(Path(name)) | cached(Path(name))
        for title, format_ in made.items():
            if arguments.formats and title not in arguments.formats:
                continue
            counted: collections.Counter[str] = collections.Counter()
            for number in range(arguments.times):
                outcome = case(format_, Path(name), f"{arguments.seed} {title} {number}")
                if outcome not in {REFUSED, UNCHANGED}:
                    tell(f"{title}, case {number}: {outcome[-1500:]}")
                    outcome = "fault"
                counted[outcome] += 1
            faults += counted["fault"]
            tell(f"{title}: {dict(counted)}")
    return 1 if faults else 0


def tell(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
