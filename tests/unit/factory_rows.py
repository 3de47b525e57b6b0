"""Rows for tests of reports: an invented merged database, whose cells have exactly the facts that a test needs."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import duckdb

from hwmatrix.store.cell_columns import SCHEMA_VERSION, schema, sql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

BEGIN = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC).replace(tzinfo=None)
HOST = "f00d"
RUN = "run-1"


def steady(p50_ms: float, *, count: int = 101, spread: float = 0.01) -> tuple[int, ...]:
    """Wall times in nanoseconds with the median ``p50_ms``, evenly spread around it by a share of it."""
    middle = (count - 1) / 2
    return tuple(round(p50_ms * 1e6 * (1 + spread * (n - middle) / max(middle, 1))) for n in range(count))


@functools.cache
def _empty() -> bytes:
    """An empty database with the tables and views of hwmatrix.store, created once per process because that is slow."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.duckdb"
        with duckdb.connect(str(path), config={"default_block_size": "16384"}) as connection:
            connection.execute("BEGIN")
            connection.execute(schema())
            connection.execute(sql("views.sql"))
            connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", [SCHEMA_VERSION])
            connection.execute("COMMIT")
        return path.read_bytes()


@dataclasses.dataclass
class Database:
    """Fills a database. Use it as a context manager, and read ``path`` afterwards."""

    path: Path
    connection: duckdb.DuckDBPyConnection = dataclasses.field(init=False)
    positions: int = 0

    def __enter__(self) -> Self:
        self.path.write_bytes(_empty())
        self.connection = duckdb.connect(str(self.path))
        self.connection.execute("BEGIN")  # write all rows to the disk at once
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.connection.execute("COMMIT")
        self.connection.close()

    def insert(self, table: str, row: dict[str, Any]) -> None:
        """Insert one row; omitted columns are NULL."""
        columns, marks = ", ".join(row), ", ".join("?" * len(row))
        self.connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values()))  # noqa: S608

    def run(self, run_id: str = RUN, **changes: Any) -> None:
        row = {
            "run_id": run_id,
            "created_at": BEGIN,
            "command": "hwmatrix matrix --suite smoke",
            "hwmatrix_version": "0.1.0",
            "matrix_sha256": "ab" * 32,
            "commit_id": "0123456789abcdef0123",
            "isolation": "container",
            "plan": "{}",
        }
        self.insert("runs", row | changes)

    def shard(self, shard_id: str, target: str, run_id: str = RUN, **changes: Any) -> None:
        row = {
            "shard_id": shard_id,
            "run_id": run_id,
            "target": target,
            "isolation": "container",
            "image": f"hwmatrix/{target}:0.1.0",
            "image_digest": "sha256:" + "c0ffee" * 10 + "0000",
            "started_at": BEGIN,
            "finished_at": BEGIN + dt.timedelta(minutes=1),
            "host": HOST,
            "interpreter": "CPython 3.11.2",
            "versions": json.dumps({"torch": "2.13.0", "transformers": "5.23.0"}),
            "packages": json.dumps({"torch": "2.13.0"}),
            "canary_ok": True,
            "canary_detail": "canary-good passed; canary-wrong mismatched",
        }
        self.insert("shards", row | changes)

    def detection(self, shard_id: str, hardware_type: str = "cpu", **changes: Any) -> None:
        row = {
            "shard_id": shard_id,
            "hardware_type": hardware_type,
            "available": True,
            "name": "Example CPU @ 2.00GHz",
            "features": json.dumps({"cores": 2, "avx2": True, "flags": ["a", "b"]}),
            "reason": None,
            "detected_at": BEGIN,
        }
        self.insert("detections", row | changes)

    def plan(self, model: str, target: str, run_id: str = RUN, **changes: Any) -> dict[str, Any]:
        """Plan a cell, and return its row for :meth:`cell`."""
        row = {
            "run_id": run_id,
            "cell_key": f"{model}/{target}",
            "model": model,
            "size": "tiny",
            "target": target,
            "family": "embedding",
            "architecture": model.split("-", maxsplit=1)[0],
            "hub_id": None,
            "dtype": "float32",
            "batch": 1,
            "sequence_length": 16,
            "threads": 1,
            "execution": "hardware",
            "backend": target,
            "position": self.positions,
        } | changes
        self.positions += 1
        self.insert("planned", row)
        return row

    def cell(self, planned: dict[str, Any], shard_id: str, *, wall: Sequence[int] = (), busy: float = 1.0, **changes: Any) -> str:
        """Add the execution of a planned cell: a pass wholly on its target, except for ``changes``.

        ``wall`` are its samples in nanoseconds; ``busy`` is the share of CPU time in them.
        """
        copied = {
            name: planned[name] for name in planned if name not in {"backend", "position", "unavailable", "unbuildable", "matrix_line"}
        }
        cell_id = changes.get("cell_id", f"{planned['run_id']}:{planned['cell_key']}:{shard_id}")
        row = copied | {
            "cell_id": cell_id,
            "shard_id": shard_id,
            "role": "model",
            "status": "pass",
            "stage": "measure",
            "on_target": 1.0,
            "placement_detail": "parameters and outputs on the device",
            "relative_error": 1e-7,
            "max_error": 2e-6,
            "cosine": 1.0,
            "load_ms": 12.5,
            "prepare_ms": 1.0,
            "first_ms": 5.0,
            "peak_mb": 350.0,
            "delta_mb": 20.0,
            "parameters": 270_000,
            "started_at": BEGIN + dt.timedelta(seconds=self.positions),
            "wall_ms": 300.0,
            "command": f"hwmatrix matrix --models {planned['model']} --targets {planned['target']}",
        }
        self.insert("cells", row | changes)
        self.insert("outputs", {"cell_id": cell_id, "name": "logits", "shape": [1, 16, 512], "dtype": "float32"})
        if wall:
            samples = [(cell_id, n, value, round(value * busy)) for n, value in enumerate(wall)]
            self.connection.execute(
                "INSERT INTO samples SELECT ?, unnest(?), unnest(?), unnest(?)",
                [cell_id, *([sample[column] for sample in samples] for column in (1, 2, 3))],
            )
        return cell_id


FAILURES: dict[str, dict[str, Any]] = {
    "mismatch": {"stage": "compare", "error_type": "mismatch", "severity": "error", "message": "logits: relative error 0.3, allowed 0.001"},
    "fallback": {"stage": "run", "error_type": "fallback", "severity": "warning", "message": "ran on CPU", "on_target": 0.0},
    "unsupported": {
        "stage": "prepare",
        "error_type": "unsupported_operator",
        "severity": "error",
        "message": "OpenVINO has no conversion for aten::special_bessel_j0",
        "needs": ["aten::special_bessel_j0"],
    },
    "error": {"stage": "run", "message": "something nobody has seen", "traceback": "Traceback:\n  boom"},
    "oom": {"stage": "load", "error_type": "memory_pressure", "severity": "error", "message": "DefaultCPUAllocator: can't allocate memory"},
    "timeout": {"stage": "prepare", "error_type": "timeout", "severity": "error", "message": "killed after 120 s"},
    "crash": {"stage": "run", "error_type": "segmentation_fault", "severity": "critical", "message": "killed by SIGSEGV"},
    "unavailable": {"stage": "build", "error_type": "target_unavailable", "severity": "info", "message": "no such device"},
    "factory_error": {"stage": "build", "error_type": "no_inputs", "severity": "error", "message": "no inputs for bbox"},
    "infra_error": {
        "stage": "build",
        "error_type": "bundle_broken",
        "severity": "critical",
        "message": "model.safetensors: wrong checksum",
    },
}
"""The changes for each status other than ``pass``."""


def unmeasured(status: str) -> dict[str, Any]:
    """The changes for a failed cell: its status, its error, and no measurements."""
    nothing = dict.fromkeys(("on_target", "placement_detail", "relative_error", "max_error", "cosine", "first_ms", "peak_mb", "delta_mb"))
    return nothing | {"status": status} | FAILURES[status]


def example(path: Path) -> Path:
    """A run with every status and level: a copy of :func:`_example`, which is created once per process."""
    path.write_bytes(_example())
    return path


@functools.cache
def _example() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return _filled(Path(folder) / "example.duckdb").read_bytes()


def _filled(path: Path) -> Path:
    """A run with every status and level, two targets in containers, an unavailable one, and a rejected shard."""
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.shard("s-ov", "openvino", versions=json.dumps({"openvino": "2026.4.1", "torch": "2.13.0"}))
        database.detection("s-cpu")
        database.detection("s-ov")
        database.detection("s-ov", "cuda", available=False, name=None, features="{}", reason="no NVIDIA driver")
        for model, family, cpu_ms, ov_ms in (
            ("bert", "embedding", 3.2, 1.7),
            ("gpt2", "text_generation", 5.1, 9.7),
            ("vit", "vision", 7.25, 7.26),
        ):
            database.cell(database.plan(model, "cpu", family=family), "s-cpu", wall=steady(cpu_ms))
            changes = {"peak_mb": 500.0, "delta_mb": 64.5, "prepare_ms": 812.0}
            database.cell(
                database.plan(model, "openvino", family=family), "s-ov", wall=steady(ov_ms), busy=0.9 if model == "vit" else 1.0, **changes
            )
            database.plan(model, "gpu", family=family, backend="openvino", unavailable="OpenVINO lists no device GPU here")
        for status in FAILURES:
            model = f"model-{status}".replace("_", "-")
            database.cell(database.plan(model, "cpu", family="audio"), "s-cpu", wall=steady(2.0))
            database.cell(database.plan(model, "openvino", family="audio"), "s-ov", **unmeasured(status))
        database.plan("late", "cpu", family="video")
        database.plan("mixtral", "cpu", family="text_generation", size="full", unbuildable="47 B parameters need 187 GB in float32")
        database.insert("rejected", {"run_id": RUN, "file": "gpu.duckdb", "reason": "its SHA-256 is not the one", "rejected_at": BEGIN})
    return path
