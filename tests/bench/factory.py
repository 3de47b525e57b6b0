"""Builds every model type of the installed transformers, and reports which work.

Each type is built, saved, loaded and run once in a separate forked child, with the limits of a run's bundle; nothing is kept. The output
says what is worse or better than in the pinned list of this version of transformers. If a type got worse, the exit code is 1. `--write`
updates the list instead. `--part 7/20` builds every twentieth of the types that passed. `--failed FILE` retries the types that failed in an
earlier result (`--json FILE`).
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

from type_parts import part_of, requested_part

from hwmatrix.errors import CellFailure
from hwmatrix.models.factory import pins as pins_module
from hwmatrix.models.factory.pins import (
    PinnedList,
    PinnedType,
    better,
    parse,
    pinned,
    pinned_versions,
    short,
    worse,
    written,
)
from hwmatrix.models.factory.rules import overrides, rules
from hwmatrix.models.types import UNKNOWN, ModelType, TypeList, compare, listing
from hwmatrix.records import Family, Limits, ModelPlan, Size
from hwmatrix.runner.endings import describe
from hwmatrix.runner.forked import run_forked

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER = Path(pins_module.__file__).parent / "pinned"
LIMITS = Limits(timeout_s=120.0, memory_mb=4096)


def main() -> int:
    """Build, print, compare with the pinned list, and store the result if requested."""
    arguments = _arguments()
    found = listing()
    if not found.installed or found.version == UNKNOWN:
        raise SystemExit(f"nothing can be built: {found.note}")
    sys.stdout.write(f"{found.note}\n" if found.note else "")
    pins = _pins(arguments, found.version)
    _check(arguments, found, pins)
    part = _part(arguments, pins)
    types = [kind for kind in found.types if _wanted(kind, arguments) and (part is None or kind.name in part)]
    begin = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, initializer=_warm) as pool:
        results = []
        for result in pool.imap(_attempt, types):
            results.append(result)
            _tell(result, arguments)
    _summary(results, time.perf_counter() - begin)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if arguments.write:
        _write(results, found, pins, Path(arguments.against or _FOLDER / f"{found.version}.yaml"))
        return 0
    return _compare(results, found, pins)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--family", nargs="*", default=[], choices=[family.value for family in Family])
    parser.add_argument("--failed", help="only what this result has as failed")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json")
    parser.add_argument("--verbose", action="store_true", help="tracebacks too")
    parser.add_argument("--write", action="store_true", help="put the result into the pinned list")
    parser.add_argument("--part", metavar="K/N", help="only the K-th of N parts of the types that passed; 0/N is the first")
    parser.add_argument("--against", metavar="FILE", help="another pinned list, to compare with or to write")
    return parser.parse_args()


def _pins(arguments: argparse.Namespace, version: str) -> PinnedList | None:
    """The pinned list to compare with; None if this version has none yet."""
    if not arguments.against:
        return pinned(version)
    file = Path(arguments.against)
    return parse(file.read_text(encoding="utf-8"), where=file.name)


def _check(arguments: argparse.Namespace, found: TypeList, pins: PinnedList | None) -> None:
    """Reject invalid arguments before anything is built."""
    unknown = set(arguments.types) - found.by_name.keys()
    if unknown:
        raise SystemExit(f"transformers has no such type: {', '.join(sorted(unknown))}")
    some = bool(arguments.types or arguments.family or arguments.failed or arguments.part)
    if arguments.write and some and pins is None:
        raise SystemExit(f"transformers {found.version} has no pinned list yet: write it of all types first")
    if arguments.part and pins is None:
        raise SystemExit(f"transformers {found.version} has no pinned list: nox -s types -- --write makes it")


def _part(arguments: argparse.Namespace, pins: PinnedList | None) -> set[str] | None:
    """The types of the requested part; None: all types."""
    if not arguments.part or pins is None:
        return None
    try:
        number, parts = requested_part({"--part": arguments.part}, "--part", day=0)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    chosen = part_of(pins.passing, number, parts)
    sys.stdout.write(f"part {number}/{parts} of transformers {pins.version}: {' '.join(chosen)}\n")
    return set(chosen)


def _compare(results: list[dict[str, Any]], found: TypeList, pins: PinnedList | None) -> int:
    """Print what has changed since the list was written. Return 1 if a type got worse."""
    if pins is None:
        sys.stdout.write(f"transformers {found.version} has no pinned list; there are: {', '.join(pinned_versions()) or 'none'}\n")
        return 0
    now = {result["type"]: _pin(result) for result in results}
    lost = {name: said for name, entry in now.items() if name in pins.types and (said := worse(pins.types[name], entry))}
    won = {name: said for name, entry in now.items() if (said := better(pins.types.get(name), entry))}
    for title, told in (("WORSE", lost), ("better", won)):
        for name, said in told.items():
            sys.stdout.write(f"{title} than in the pinned list of {pins.version}: {name}: {said}\n")
    for difference in compare(pins, found.types):
        sys.stdout.write(f"{difference}\n")
    return 1 if lost else 0


def _write(results: list[dict[str, Any]], found: TypeList, pins: PinnedList | None, file: Path) -> None:
    """Update the list with the results, and remove types that transformers no longer has."""
    types = {name: entry for name, entry in (pins.types if pins else {}).items() if name in found.by_name}
    types |= {result["type"]: _pin(result) for result in results}
    made = PinnedList(version=found.version, types=types)
    file.write_text(written(made), encoding="utf-8")
    sys.stdout.write(f"wrote {file.name}: {len(made.passing)} of {len(types)} types pass\n")


def _pin(result: dict[str, Any]) -> PinnedType:
    """Convert a result to an entry of the pinned list."""
    kept = {"class": result["class"], "family": result["family"]}
    if result["ok"]:
        return PinnedType(**kept, status="pass", inputs=tuple(result["modalities"]["given"]))
    return PinnedType(**kept, status=result["error_type"], message=short(result["message"]))


def _wanted(kind: ModelType, arguments: argparse.Namespace) -> bool:
    if arguments.failed:
        before = {result["type"] for result in json.loads(Path(arguments.failed).read_text(encoding="utf-8")) if not result["ok"]}
        if kind.name not in before:
            return False
    if arguments.types:
        return kind.name in arguments.types
    return not arguments.family or kind.family.value in arguments.family


def _warm() -> None:
    """Import the frameworks once, because each type's child is forked from this process."""
    import torch

    torch.set_num_threads(1)
    for name in ("transformers.modeling_utils", "transformers.models.auto.modeling_auto", "hwmatrix.models.reference"):
        importlib.import_module(name)
    for read in (rules, overrides):
        read()  # read once: somebody may be editing them


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
    from hwmatrix.models.reference import fill

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
