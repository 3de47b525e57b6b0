"""A cell's result as a row of the table ``cells``."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hwmatrix.records import CellResult, Divergence


def cell_row(result: CellResult, cell_id: str, shard_id: str, run_id: str, command: str) -> dict[str, Any]:
    """The columns of a result that are known; all others are NULL."""
    row: dict[str, Any] = {
        "cell_id": cell_id,
        "shard_id": shard_id,
        "run_id": run_id,
        "cell_key": result.key,
        "role": result.role.value,
        "model": result.model,
        "size": result.size.value,
        "target": result.target,
        "family": result.family.value,
        "architecture": result.architecture,
        "hub_id": result.hub_id,
        "dtype": result.settings.dtype.value,
        "batch": result.settings.batch,
        "sequence_length": result.settings.sequence_length,
        "threads": result.settings.threads,
        "status": result.status.value,
        "stage": result.stage.value,
        "execution": result.execution.value,
        "bundle": result.bundle,
        "method": result.method,
        "inputs": list(result.inputs) if result.inputs is not None else None,
        "text_path": result.text_path,
        "load_ms": result.load_ms,
        "prepare_ms": result.prepare_ms,
        "first_ms": result.first_ms,
        "warmup_samples": result.warmup_samples,
        "yardstick": result.yardstick,
        "yardstick_ms": result.yardstick_ms,
        "converged": result.converged,
        "parameters": result.parameters,
        "device_processes": result.device_processes,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "started_at": result.started_at,
        "wall_ms": result.wall_ms,
        "command": command,
    }
    if result.adaptation:
        row |= {"adapted_from": result.adaptation.of, "adaptation": json.dumps(result.adaptation.change.data)}
    if result.placement:
        row |= {"on_target": result.placement.on_target, "placement_detail": result.placement.detail}
    if result.parity:
        row |= dataclasses.asdict(result.parity)
    if result.memory:
        row |= dataclasses.asdict(result.memory)
    if result.divergence:
        row |= _divergence(result.divergence)
    if result.error:
        row |= {
            "error_type": result.error.type,
            "severity": result.error.severity.value,
            "message": result.error.message,
            "traceback": result.error.traceback,
            "needs": list(result.error.needs),
        }
    return row


def _divergence(found: Divergence) -> dict[str, Any]:
    return {
        "origin": found.origin.value,
        "diverges_at": found.at,
        "diverges_operator": found.operator,
        "diverges_error": found.relative_error,
        "diverges_given": found.inputs_error,
        "diverges_against": found.against,
        "diverges_detail": found.detail,
    }
