"""Plans, results and shards for tests: real record types and shard files, but nothing is executed."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import duckdb

from hwmatrix.basics.files import sha256_of, write_atomically
from hwmatrix.records import (
    Backend,
    CellPlan,
    CellResult,
    Divergence,
    Dtype,
    ErrorRecord,
    Execution,
    Family,
    Isolation,
    Limits,
    MeasureRule,
    ModelPlan,
    Origin,
    OutputRecord,
    Parity,
    Plan,
    Role,
    Settings,
    Severity,
    Size,
    Stage,
    Status,
    TargetPlan,
    Tolerance,
    cell_command,
    to_json,
)
from hwmatrix.store.shard import ShardIdentity, ShardWriter
from hwmatrix.store.sidecar import sidecar_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIMITS = Limits(timeout_s=30.0, memory_mb=512)
SETTINGS = Settings(dtype=Dtype.FLOAT32, batch=1, sequence_length=16, threads=1)
PARITY = Parity(relative_error=1e-6, max_error=2e-6, cosine=1.0, top1=1.0)


def model_plan(name: str = "bert", **changes: Any) -> ModelPlan:
    """A tiny recipe."""
    plan = ModelPlan(
        name=name,
        selector=name,
        size=Size.TINY,
        family=Family.EMBEDDING,
        architecture=name,
        model_class="BertForMaskedLM",
        hub_id=f"owner/{name}",
        config={"hidden_size": 32, "rope": {"theta": 1e4}},
        matrix_line=7,
    )
    return dataclasses.replace(plan, **changes)


def target_plan(name: str = "cpu", **changes: Any) -> TargetPlan:
    """A target of the backend of the same name."""
    plan = TargetPlan(name=name, backend=Backend(name), execution=Execution.HARDWARE, image=name)
    return dataclasses.replace(plan, **changes)


def cell_plan(model: str = "bert", target: str = "cpu", **changes: Any) -> CellPlan:
    """A tiny cell."""
    plan = CellPlan(key=f"{model}/tiny/{target}", model=model, size=Size.TINY, target=target, settings=SETTINGS, limits=LIMITS)
    return dataclasses.replace(plan, **changes)


def plan(models: Sequence[str] = ("bert", "gpt2"), targets: Sequence[str] = ("cpu", "openvino"), **changes: Any) -> Plan:
    """Every model on every target."""
    made = Plan(
        run_id="20260102T030405Z-abc123",
        created_at="2026-01-02T03:04:05.000000",
        command="hwmatrix matrix",
        hwmatrix_version="0.1.0",
        matrix_sha256="ab" * 32,
        commit=None,
        isolation=Isolation.CONTAINER,
        measure=MeasureRule(),
        tolerances={Dtype.FLOAT32: Tolerance(relative_error=1e-3, reason="a test")},
        targets=tuple(target_plan(name) for name in targets),
        models=tuple(model_plan(name) for name in models),
        cells=tuple(cell_plan(model, target) for model in models for target in targets),
    )
    return dataclasses.replace(made, **changes)


DIVERGENCE = Divergence(
    origin=Origin.STEP,
    at="node_7",
    operator="TopK",
    relative_error=0.5,
    inputs_error=1e-3,
    against="the same graph elsewhere",
    detail="a test",
)


def result(cell: CellPlan, **changes: Any) -> CellResult:
    """The result of a cell that passed, with all measurements."""
    made = CellResult(
        key=cell.key,
        role=changes.pop("role", Role.MODEL if cell.adaptation is None else Role.ADAPTED),
        model=cell.model if cell.adaptation is None else cell.adaptation.model,
        size=cell.size,
        target=cell.target,
        settings=cell.settings,
        family=Family.EMBEDDING,
        architecture=cell.model,
        hub_id=f"owner/{cell.model}",
        status=Status.PASS,
        stage=Stage.MEASURE,
        execution=Execution.HARDWARE,
        started_at="2026-01-02T03:04:06.000000",
        wall_ms=130.5,
        bundle="cd" * 32,
        method="torch eager",
        on_target=1.0,
        placement_detail="parameters and outputs on cpu",
        **dataclasses.asdict(PARITY),
        load_ms=64.0,
        prepare_ms=1.5,
        first_ms=3.0,
        converged=True,
        baseline_mb=300.0,
        load_peak_mb=320.0,
        peak_mb=350.0,
        delta_mb=50.0,
        uss_mb=40.0,
        memory_detail="of a test",
        outputs=(
            OutputRecord(name="logits", shape=(1, 16, 256), dtype="float32", parity=PARITY),
            OutputRecord(name="extra", shape=(1,), dtype="int64", parity=None),
        ),
        stages={Stage.LOAD: 64.0, Stage.PREPARE: 1.5, Stage.RUN: 4.0, Stage.COMPARE: 0.5, Stage.MEASURE: 60.0},
        samples_wall_ns=tuple(range(1_000_000, 1_000_040)),
        samples_cpu_ns=tuple(range(999_000, 999_040)),
        warmup_samples=12,
        yardstick="a fixed computation",
        yardstick_ms=0.25,
        parameters=30_000,
        inputs=("image", "text"),
        text_path=False,
        **DIVERGENCE.columns(),
        exit_code=0,
        adaptation=cell.adaptation,
    )
    return dataclasses.replace(made, **changes)


def failure(status: Status, stage: Stage = Stage.RUN, **changes: Any) -> dict[str, Any]:
    """The fields in which a failed cell differs from a passed one: its status, its error, and no measurements."""
    error = ErrorRecord(type="unmatched", severity=Severity.ERROR, message="a test", needs=("op",))
    parity, memory = (
        ("relative_error", "max_error", "cosine", "top1"),
        ("baseline_mb", "load_peak_mb", "peak_mb", "delta_mb", "uss_mb", "memory_detail"),
    )
    unmeasured = dict.fromkeys(("on_target", "placement_detail", *parity, "first_ms", "converged", *memory, "warmup_samples"))
    empty = {"outputs": (), "samples_wall_ns": (), "samples_cpu_ns": (), "status": status, "stage": stage, "error": error}
    return unmeasured | empty | changes


def identity(target: str = "cpu", shard_id: str = "0123456789ab", **changes: Any) -> ShardIdentity:
    """The identity of a shard's writer."""
    made = ShardIdentity(
        shard_id=shard_id,
        target=target,
        image=f"hwmatrix/{target}:0.1.0",
        image_digest="sha256:" + "0" * 64,
        host="f00d",
        interpreter="CPython 3.11",
        versions={"torch": "2.13.0"},
        packages={"numpy": "2.0", "torch": "2.13.0"},
        warm_up_ms=2900.0,
    )
    return dataclasses.replace(made, **changes)


def run_folder(parent: Path, made: Plan) -> Path:
    """A run's folder with its plan and no shards yet."""
    folder = parent / made.run_id
    (folder / "shards").mkdir(parents=True)
    (folder / "plan.json").write_text(to_json(made), encoding="utf-8")
    return folder


def write_shard(
    shards: Path,
    made: Plan,
    target: str = "cpu",
    shard_id: str = "0123456789ab",
    *,
    results: Sequence[CellResult] | None = None,
    canary_ok: bool | None = True,
) -> Path:
    """Write a complete shard with these results; by default every cell of the target passed."""
    cells = [cell for cell in made.cells if cell.target == target]
    by_key = {cell.key: cell for cell in cells}
    with ShardWriter(shards, made, identity(target, shard_id)) as shard:
        shard.set_canaries(ok=canary_ok, detail=None)
        for each in results if results is not None else [result(cell) for cell in cells]:
            cell = by_key[each.key]
            shard.add_cell(each, command=cell_command(made.model_of(cell), cell, made))
        return shard.seal()


def rewrite(shard: Path, *statements: str) -> None:
    """Change the content of a complete shard and update its sidecar, like an attacker who wants it to be merged."""
    with duckdb.connect(str(shard)) as connection:
        for statement in statements:
            connection.execute(statement)
    sidecar = json.loads(sidecar_path(shard).read_text(encoding="utf-8"))
    write_atomically(sidecar_path(shard), json.dumps(sidecar | {"sha256": sha256_of(shard)}))
