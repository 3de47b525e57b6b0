"""Fits the memory formula to measured peaks, and writes calibration.yaml, sizes.yaml, the table from which a unit test recomputes the fit,
and the tables of docs/requirements.md.

``nox -s calibrate`` runs ``memory_runs.py``, which measures, and then this.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Final

import memory_report
import torch
import transformers
import yaml
from memory_fit import MeasuredPeak, calibrate

from hwmatrix.knowledge.calibration import Calibration, Features, features_of
from hwmatrix.knowledge.evidence import Evidence, read_evidence, with_peaks
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.models.sizes import model_size
from hwmatrix.records import Backend, Dtype, Size, to_json
from hwmatrix.store.reading import reading, records

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "harness" / "hwmatrix"
RECORDED: Final = ROOT / "tests" / "unit" / "recorded" / "memory.csv"
SETTINGS: Final = ("model", "held_out", "backend", "dtype", "batch", "sequence_length")
FEATURES: Final = tuple(field.name for field in dataclasses.fields(Features))
PEAKS: Final = ("load_peak_mb", "peak_mb")
LENGTHS: Final = (32, 128, 512, 1024)


def main() -> int:
    """Read the database, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", type=Path, default=ROOT / ".hwmatrix" / "memory" / "matrix.duckdb")
    parser.add_argument(
        "--publish",
        type=Path,
        help="the folder of published results, for what is read from the database (hwmatrix publish takes that itself)",
    )
    arguments = parser.parse_args()
    unseen = set(yaml.safe_load((ROOT / "tests" / "bench" / "memory.yaml").read_text(encoding="utf-8"))["models"])
    measured = with_peaks(read_evidence(arguments.database))
    found = [_row(cell, unseen) for cell in measured if cell.size is Size.FULL and cell.peak_mb is not None]
    found.sort(key=lambda pair: _order(pair[0]))
    _write_table([row for row, _ in found])
    date, machine = _origin(arguments.database)
    evidence = arguments.publish.absolute().relative_to(ROOT).as_posix() if arguments.publish else str(arguments.database)
    rows = read_table(RECORDED)  # fitted to what the table holds, so that whoever reads the table gets the same
    told = calibration_of(rows, date=date, machine=machine, evidence=evidence)
    _write_yaml(PACKAGE / "advice" / "calibration.yaml", _CALIBRATION_HEAD, json.loads(to_json(told)))
    _write_yaml(PACKAGE / "models" / "sizes.yaml", _SIZES_HEAD, _sizes())
    cells = [
        memory_report.ReportedCell(measured=row, estimate_mb=told.backends[row.backend].coefficients.peak(row.features), run_id=run_id)
        for row, (_, run_id) in zip(rows, found, strict=True)
    ]
    memory_report.write_page(ROOT / "docs" / "requirements.md", told, cells)
    if arguments.publish:
        with reading(arguments.database) as connection:
            unmeasured = [row for row in records(connection, "memory_unmeasured") if row["size"] == Size.FULL]
        memory_report.publish(arguments.publish, told, cells, unmeasured)
    sys.stdout.write("\n".join(memory_report.errors_table(told)) + "\n")
    return 0


def _order(row: MeasuredPeak) -> tuple[Any, ...]:
    return row.backend, row.held_out, row.model, row.dtype, row.batch, row.sequence_length


def calibration_of(rows: list[MeasuredPeak], *, date: str, machine: str, evidence: str) -> Calibration:
    """One calibration per backend."""
    backends = {
        backend: calibrate([row for row in rows if row.backend is backend]) for backend in dict.fromkeys(row.backend for row in rows)
    }
    return Calibration(version=1, date=date, machine=machine, evidence=evidence, backends=backends)


def read_table(path: Path) -> list[MeasuredPeak]:
    """The recorded cells. Lines that start with # are comments."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [
        MeasuredPeak(
            model=row["model"],
            held_out=row["held_out"] == "yes",
            backend=Backend(row["backend"]),
            dtype=Dtype(row["dtype"]),
            batch=int(row["batch"]),
            sequence_length=int(row["sequence_length"]),
            features=Features(**{name: float(row[name]) for name in FEATURES}),
            **{name: float(row[name]) for name in PEAKS},
        )
        for row in csv.DictReader(lines)
    ]


def _row(cell: Evidence, unseen: set[str]) -> tuple[MeasuredPeak, str]:
    """A measured cell as input of the fit, and the run that measured it."""
    if cell.model_plan is None or cell.peak_mb is None or cell.load_peak_mb is None:
        raise SystemExit(f"run {cell.run_id} does not say what {cell.model} is, or lacks one of its peaks")
    plan = dataclasses.replace(cell.model_plan, batch=cell.batch, sequence_length=cell.sequence_length)
    row = MeasuredPeak(
        model=cell.model,
        held_out=cell.model in unseen,
        backend=cell.backend,
        dtype=cell.dtype,
        batch=cell.batch,
        sequence_length=cell.sequence_length,
        features=features_of(model_size(plan, cell.dtype), cell.dtype),
        load_peak_mb=cell.load_peak_mb,
        peak_mb=cell.peak_mb,
    )
    return row, cell.run_id


def _write_table(rows: list[MeasuredPeak]) -> None:
    RECORDED.parent.mkdir(exist_ok=True)
    with RECORDED.open("w", encoding="utf-8", newline="") as file:
        file.write(
            "# Measured peaks (until ready, and in all) and what the memory formula is given of a cell, in MiB; held_out: no fit saw it.\n"
        )
        file.write("# Written by tests/bench/requirements.py from the database of the evidence that calibration.yaml names.\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*SETTINGS, *FEATURES, *PEAKS])
        for row in rows:
            settings = [row.model, "yes" if row.held_out else "no", row.backend, row.dtype, row.batch, row.sequence_length]
            features = [f"{getattr(row.features, name):.2f}" for name in FEATURES]
            writer.writerow([*settings, *features, *(f"{getattr(row, name):.1f}" for name in PEAKS)])


def _origin(database: Path) -> tuple[str, str]:
    """When and on which machine the cells were measured."""
    with reading(database) as connection:
        first = connection.execute("SELECT min(started_at) FROM cells").fetchone()
        machine = connection.execute(
            "SELECT name, features->>'$.cores', features->>'$.architecture' FROM detections WHERE hardware_type = 'cpu' LIMIT 1"
        ).fetchone()
    if first is None or machine is None:
        raise SystemExit(f"{database} holds no cell")
    return f"{first[0]:%Y-%m-%d}", f"{machine[0]}, {machine[1]} cores, {machine[2]}"


def _sizes() -> dict[str, Any]:
    """The sizes of the full-size models of matrix.yaml, for hosts without torch."""
    loaded = load(ROOT / "matrix.yaml")
    longest = yaml.safe_load((ROOT / "tests" / "bench" / "memory.yaml").read_text(encoding="utf-8"))["longest"]
    listed = []
    for name in loaded.spec.models:
        plan = model_plan(name, loaded.spec, Size.FULL)
        if plan.architecture not in transformers.CONFIG_MAPPING:
            continue  # a pipeline, which has no size of its own
        lengths = sorted({min(length, longest.get(name, length)) for length in (*LENGTHS, plan.sequence_length)})
        sizes = {length: _size_at(plan, length) for length in lengths}
        known = {length: size for length, size in sizes.items() if size is not None}
        first = next(iter(known.values()))
        passes = _distinct(
            [{"sequence_length": length} | {field: getattr(size, field) for field in _PASS} for length, size in known.items()]
        )
        listed.append(
            {
                "model": name,
                "hub_id": plan.hub_id,
                "architecture": plan.architecture,
                "model_class": plan.model_class,
                "config": plan.config,
                "parameters": first.parameters,
                "stored_bytes": first.stored_bytes,
                "tied_bytes": first.tied_bytes,
                "passes": passes,
            }
        )
    versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
    return {"version": 1, "versions": versions, "sizes": listed}


_PASS: Final = ("input_bytes", "activation_bytes", "output_bytes", "largest_output_bytes")


def _size_at(plan: Any, length: int) -> Any:
    """The size with one sample of this length; None if the model does not support this length."""
    try:
        return model_size(dataclasses.replace(plan, batch=1, sequence_length=length))
    except Exception as error:
        if getattr(error, "error_type", "").startswith("sequence_too_"):
            return None
        raise


def _distinct(passes: list[dict[str, int]]) -> list[dict[str, int]]:
    """Only the first pass if all are equal, as for a model without text; else all."""
    return passes[:1] if len({tuple(entry[field] for field in _PASS) for entry in passes}) == 1 else passes


_CALIBRATION_HEAD: Final = """\
# The memory formula of each backend (knowledge/calibration.py), fitted to measured peaks. Written by `nox -s calibrate`; a unit test
# recomputes it from tests/unit/recorded/memory.csv. Memory in MiB, errors as shares.
"""
_SIZES_HEAD: Final = """\
# Sizes of the full-size models of matrix.yaml, for machines without torch: bytes of one sample in float32, from the meta device.
# Written by `nox -s calibrate`; see models/sizes.py for the meaning of each number.
"""


def _write_yaml(path: Path, head: str, content: dict[str, Any]) -> None:
    path.write_text(head + yaml.safe_dump(content, sort_keys=False, width=140, default_flow_style=None), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
