"""Infrastructure failures, such as an image that cannot be built or a container that dies. Never recorded as failures of a model."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from hwmatrix.basics.clock import utc_now
from hwmatrix.errors import EngineError, HwmatrixError, StoreError
from hwmatrix.faults.catalogue import severity_of
from hwmatrix.hardware.detector import machine_identity
from hwmatrix.records import CellPlan, CellResult, ErrorRecord, Plan, Role, Stage, Status, cell_command
from hwmatrix.store.shard import ShardIdentity, ShardWriter

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.host.executors import Ended


def failure(target: str, what: str, ended: Ended) -> HwmatrixError:
    """Return the error for a job that failed: a store error of the runner, or else an engine error."""
    last = "\n".join(ended.output.strip().splitlines()[-15:])
    if ended.code == StoreError.exit_code:
        return StoreError(f"{target}: {what}: {last}", advice="Free disk space, then continue with --resume: finished cells are kept.")
    how = "the kernel killed it for memory" if ended.oom_killed else f"exit code {ended.code}"
    advice = "Continue with --resume: finished cells are kept."
    return EngineError(f"{target}: {what} ({how})\n{last}".rstrip(), advice=advice)


def record(
    shards: Path,
    plan: Plan,
    target: str,
    cells: tuple[CellPlan, ...],
    *,
    error_type: str,
    message: str,
    status: Status = Status.INFRA_ERROR,
) -> Path:
    """Write a shard with the same failure for each cell: an infrastructure error, or an unavailable target."""
    identity = ShardIdentity(
        shard_id=uuid.uuid4().hex[:12],
        target=target,
        image=None,
        image_digest=None,
        host=machine_identity(),
        interpreter="none: nothing was executed",
        versions={},
        packages={},
        warm_up_ms=None,
    )
    severity = severity_of(error_type, plan.target(target).backend)
    error = ErrorRecord(type=error_type, severity=severity, message=message)
    with ShardWriter(shards, plan, identity) as shard:
        for cell in cells:
            model = plan.model_of(cell)
            result = CellResult(
                key=cell.key,
                role=model.role if cell.adaptation is None else Role.ADAPTED,
                model=model.name if cell.adaptation is None else cell.adaptation.model,
                size=cell.size,
                target=target,
                settings=cell.settings,
                family=model.family,
                architecture=model.architecture,
                hub_id=model.hub_id,
                status=status,
                stage=Stage.BUILD,
                execution=plan.target(target).execution,
                started_at=utc_now(),
                wall_ms=0.0,
                error=error,
                adaptation=cell.adaptation,
            )
            command = cell_command(model, cell, plan)
            shard.add_cell(result, command=command)
        return shard.seal()
