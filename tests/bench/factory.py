"""Builds every model type of the installed transformers, and says which work: `python tests/bench/factory.py [--family F ...] [TYPE ...]`.

Each type is built, saved, loaded and run once in a forked child of its own, within limits, as a run's bundle is; nothing is kept.
`--write` puts the result into the pinned list of this version of transformers. `--failed FILE` tries again what a result of before
(`--json FILE`) has as failed.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwmatrix.errors import CellFailure
from hwmatrix.models.types import ModelType, model_types
from hwmatrix.records import Family, Limits, ModelPlan, Size
from hwmatrix.runner.endings import describe
from hwmatrix.runner.forked import run_forked

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = Limits(timeout_s=120.0, memory_mb=4096)


def main() -> int:
    """Build, print, and keep the result if asked to."""
    arguments = _arguments()
    types = [kind for kind in model_types() if _wanted(kind, arguments)]
    unknown = set(arguments.types) - {kind.name for kind in model_types()}
    if unknown:
        raise SystemExit(f"transformers has no such type: {', '.join(sorted(unknown))}")
    begin = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, initializer=_warm) as pool:
        results = []
        for result in pool.imap(_attempt, types):
            results.append(result)
            _tell(result, arguments)
    _summary(results, time.perf_counter() - begin)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--family", nargs="*", default=[], choices=[family.value for family in Family])
    parser.add_argument("--failed", help="only what this result has as failed")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json")
    parser.add_argument("--verbose", action="store_true", help="tracebacks too")
    return parser.parse_args()


def _wanted(kind: ModelType, arguments: argparse.Namespace) -> bool:
    if arguments.failed:
        before = {result["type"] for result in json.loads(Path(arguments.failed).read_text(encoding="utf-8")) if not result["ok"]}
        if kind.name not in before:
            return False
    if arguments.types:
        return kind.name in arguments.types
    return not arguments.family or kind.family.value in arguments.family


def _warm() -> None:
    """Import the frameworks once: every type's child is forked from here."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    for name in ("transformers.modeling_utils", "transformers.models.auto.modeling_auto", "hwmatrix.models.reference"):
        importlib.import_module(name)


def _attempt(kind: ModelType) -> dict[str, Any]:
    plan = ModelPlan(
        name=kind.name, size=Size.TINY, family=kind.family, architecture=kind.name, model_class=kind.model_class, weights="factory"
    )
    begin = time.perf_counter()
    end = run_forked(functools.partial(_fill, plan), limits=LIMITS)
    told: dict[str, Any] = {"ok": False, "error_type": "died", "message": describe(end, LIMITS), "traceback": end.log}
    if end.messages:
        told = end.messages[-1]
    return {"type": kind.name, "family": kind.family.value, "class": kind.model_class, "seconds": time.perf_counter() - begin, **told}


def _fill(plan: ModelPlan, send: Callable[[dict[str, Any]], None]) -> None:
    from hwmatrix.models.reference import fill  # noqa: PLC0415 - in the child

    with tempfile.TemporaryDirectory() as folder:
        try:
            made = fill(plan, Path(folder))
        except CellFailure as failure:
            send({"ok": False, "error_type": failure.error_type, "message": str(failure), "traceback": traceback.format_exc()})
            return
    given = {item["name"]: item["shape"] for item in made["inputs"]}
    level, kinds = made["factory"]["level"], made["modalities"]
    send({"ok": True, "parameters": made["parameters"], "inputs": given, "level": level, "modalities": kinds})


def _tell(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    name = f"{result['type']} ({result['class']})"
    if result["ok"]:
        note = ", TEXT PATH ONLY" if result["modalities"]["text_path_only"] else ""
        given = "+".join(result["modalities"]["given"])
        sys.stdout.write(f"ok    {name} {result['parameters'] / 1e6:.2f} M, {result['level']}, {given}{note}, {result['seconds']:.1f} s\n")
    else:
        sys.stdout.write(f"FAIL  {name} {result['error_type']}: {' '.join(result['message'].split())[:400]}\n")
        if arguments.verbose:
            sys.stdout.write(f"{result['traceback']}\n")
    sys.stdout.flush()


def _summary(results: list[dict[str, Any]], seconds: float) -> None:
    for family in Family:
        of = [result for result in results if result["family"] == family.value]
        good = [result for result in of if result["ok"]]
        text = sum(result["modalities"]["text_path_only"] for result in good)
        if of:
            sys.stdout.write(f"{family.value}: {len(good)} of {len(of)}" + (f", {text} text path only" if text else "") + "\n")
    good = [result for result in results if result["ok"]]
    sys.stdout.write(
        f"all: {len(good)} of {len(results)} in {seconds:.0f} s; {sum(r['parameters'] for r in good) / 1e6:.0f} M parameters\n"
    )
    for kind, count in collections.Counter(result["error_type"] for result in results if not result["ok"]).most_common():
        sys.stdout.write(f"  {count} {kind}\n")


if __name__ == "__main__":
    sys.exit(main())
