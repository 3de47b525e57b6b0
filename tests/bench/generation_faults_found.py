"""Faults of a cache planted in cells that generate: how many are found at the right prompt, step and component.

    export PYTHONPATH=tests/faults:tests/unit:tests/bench
    python tests/bench/generation_faults_found.py             print the table
    python tests/bench/generation_faults_found.py --write     put it into docs/precision-measured.md

The models are those of matrix.yaml with random weights. Each fault is planted in each of them on each target; the clean repeats are the
same cells without a fault. A state that is not reset may make an export fail: then the error must be at that step. It takes a minute.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, Final

from generation_faults import FAULTS, RUNTIMES, bundle_for, ended, random_model
from sections import put

PAGE: Final = Path(__file__).parents[2] / "docs" / "precision-measured.md"
MODELS: Final = ("gpt2", "llama")
CLEAN: Final = 4
"""Repeats of each cell without a fault."""


def is_right(found: dict[str, Any], where: tuple[str, str, int]) -> bool:
    """Whether a cell did not pass, and generation first fails at this prompt, component and step."""
    facts = found["facts"]
    return found["verdict"] != "pass" and (facts["failing_prompt"], facts["failing_component"], facts["failing_step"]) == where


def main() -> None:
    """Plant all faults, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/precision-measured.md")
    lines = ["| target | planted | found at their step | clean repeats | called wrong |", "|---|---:|---:|---:|---:|"]
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as folder:
        for runtime in ("cpu", *RUNTIMES):
            planted = found_there = clean = wrong = 0
            for name in MODELS:
                plan = random_model(name)
                bundle = bundle_for(plan, Path(folder), runtime)
                for _ in range(CLEAN):
                    clean += 1
                    wrong += ended(plan, bundle, runtime)["verdict"] != "pass"
                for fault in FAULTS:
                    with fault.planted(runtime):
                        found = ended(plan, bundle, runtime)
                    planted += 1
                    found_there += is_right(found, fault.first(runtime))
                    if not is_right(found, fault.first(runtime)):
                        print(f"not found: {fault.name} in {name} on {runtime}: {found['verdict']}, {found['facts']}")  # noqa: T201
            lines.append(f"| {runtime} | {planted} | {found_there} | {clean} | {wrong} |")
    table = "\n".join(lines)
    print(table)  # noqa: T201
    if write:
        put(PAGE, "generation-faults", table)


if __name__ == "__main__":
    main()
