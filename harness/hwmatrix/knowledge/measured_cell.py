"""One executed cell from a database, with everything that is needed to reproduce it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, NothingSelectedError, Problem
from hwmatrix.faults.belonging import PRECISION_LOSS
from hwmatrix.records import Dtype, Family, Limits, ModelPlan, Settings, Size, Status, TargetPlan, Tolerance, plan_from_json
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from pathlib import Path

TRIED_AND_FAILED: Final = frozenset(
    {Status.MISMATCH, Status.FALLBACK, Status.UNSUPPORTED, Status.ERROR, Status.OOM, Status.TIMEOUT, Status.CRASH, Status.FACTORY_ERROR}
)
"""Statuses that can be reproduced: the model was tried, and the model, the runtime or the hardware made it fail."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredCell:
    """A cell, its plan, and its result.

    ``output`` is the worst output, None if nothing was compared; ``versions`` are those of the target's packages,
    ``reference_versions`` those of the packages that built the model; ``again`` is the command that repeats the cell with hwmatrix.
    ``allowed_error`` is the relative L2 error from the reference that its verdict allowed: matrix.yaml's if it allowed another one from
    its own rounded weights in float32. ``precision`` is the requested one, with what the runtime chose in parentheses:
    ``default (bfloat16)``. ``preparation`` is None if the cell ended before it was prepared, or in a database that lacks it.
    ``failing_prompt`` is where the generation of text fails first. ``also_failing`` names the other cells of the same model on the same
    target that failed as well.
    """

    model: ModelPlan
    target: TargetPlan
    settings: Settings
    precision: str
    limits: Limits
    tolerance: Tolerance
    status: Status
    stage: str
    error_type: str | None
    message: str | None
    method: str | None
    preparation: tuple[str, ...] | None
    placement: str | None
    output: str | None
    relative_error: float | None
    kernel_error: float | None
    allowed_error: float
    bundle: str | None
    isolation: str
    image: str | None
    versions: dict[str, str]
    reference_versions: dict[str, str]
    run_id: str
    started_at: str
    hwmatrix_version: str
    again: str
    also_failing: tuple[str, ...]
    failing_prompt: str | None = None

    @property
    def failed(self) -> bool:
        """Whether there is a failure to show."""
        return self.status in TRIED_AND_FAILED

    @property
    def kernels_alone(self) -> bool:
        """Whether it fails only in comparison with its own rounded weights in float32: its error from the reference is allowed."""
        close = self.relative_error is not None and self.relative_error <= self.tolerance.relative_error
        return self.kernel_error is not None and self.status is Status.MISMATCH and self.error_type != PRECISION_LOSS and close


def find_cell(
    database: Path,
    model: str,
    target: str,
    *,
    dtype: Dtype | None = None,
    size: Size | None = None,
    generation: bool | None = None,
    passing: bool = False,
) -> MeasuredCell:
    """The newest failing cell of a model (its name or its hub id) on a target; with ``passing``, also a passing one.

    If a run has several, it is the first in the order of matrix.yaml, and one that generates text comes after those that do not.
    ``generation`` selects the ones or the others.

    Raises:
        ConfigError: the database has no such model or target, or the two were never executed together, with the reason on record.
        NothingSelectedError: it was executed and does not fail.
        StoreError: the database cannot be read.
    """
    with reading(database) as connection:
        rows = records(connection, "reproduce_cells", {"model": model, "target": target})
        known = connection.execute("SELECT DISTINCT model, target FROM planned").fetchall()
    rows = [row for row in rows if generation is None or bool(row["new_tokens"]) is generation]
    wanted = [row for row in rows if (dtype is None or row["dtype"] == dtype) and (size is None or row["size"] == size)]
    wanted.sort(key=lambda row: bool(row["new_tokens"]))
    failing = sorted(filter(_has_failed, wanted), key=lambda row: row["error_type"] == PRECISION_LOSS)
    working = [row for row in wanted if row["status"] == Status.PASS]
    if failing or (passing and working):
        return _cell((failing or working)[0], failing, database)
    if working:
        row = working[0]
        message = (
            f"{row['model']} on {row['target']} ({row['dtype']}, {row['size']}) passes in run {row['run_id']}: there is no failure to show"
        )
        raise NothingSelectedError(message, advice="To write the script anyway, add --force.")
    raise _unknown(model, target, database, rows=rows, wanted=wanted, known=known)


def _has_failed(row: dict[str, Any]) -> bool:
    return Status(row["status"]) in TRIED_AND_FAILED and row["error_type"] != "unbuildable"


def _unknown(
    model: str, target: str, database: Path, *, rows: list[dict[str, Any]], wanted: list[dict[str, Any]], known: list[tuple[str, str]]
) -> ConfigError:
    """Why there is no such cell, and how to get one."""
    where = f"--reproduce {model} {target}"
    measure = f"measure it: hwmatrix matrix --models {model} --targets {target}"
    if wanted:
        row = wanted[0]
        hint = "there is nothing to run" if row["error_type"] == "unbuildable" else measure
        return ConfigError([Problem(where=where, what=f"it was not executed ({row['status']}): {row['message']}", hint=hint)])
    if rows:
        found = ", ".join(sorted({_settings(row) for row in rows}))
        return ConfigError([Problem(where=where, what=f"{database} has it in other settings only", hint=f"there are: {found}")])
    models, targets = ({pair[index] for pair in known} for index in (0, 1))
    problems = [
        Problem(where=where, what=f"{database} has no {kind} {name!r}", hint=f"{near_miss(name, names)}; or {measure}")
        for kind, name, names in (("target", target, targets), ("model", model, models))
        if name not in names
    ]
    return ConfigError(problems or [Problem(where=where, what=f"{database} has no result for this combination", hint=measure)])


def _judged_in(requested: Dtype, reported: str | None) -> Dtype:
    """The precision whose tolerance applied. A cell that failed before its runtime chose one has none: float32 stands for it."""
    if requested is not Dtype.DEFAULT:
        return requested
    return Dtype(reported) if reported is not None else Dtype.FLOAT32


def _cell(row: dict[str, Any], failing: list[dict[str, Any]], database: Path) -> MeasuredCell:
    plan = plan_from_json(row["plan"], where=f"{database}, run {row['run_id']}")
    settings = Settings(
        dtype=Dtype(row["dtype"]),
        batch=row["batch"],
        sequence_length=row["sequence_length"],
        threads=row["threads"],
        new_tokens=row["new_tokens"],
    )
    cell = next(cell for cell in plan.cells if cell.key == row["cell_key"])
    model = plan.model_of(cell)
    packages = json.loads(row["reference_packages"] or "{}")
    libraries = ("torch", "transformers", *(["diffusers"] if model.family is Family.DIFFUSION else []))
    others = [f"{_settings(other)}: {other['status']}" for other in failing if other["cell_key"] != row["cell_key"]]
    tolerance = plan.tolerances[_judged_in(settings.dtype, row["precision"])]
    return MeasuredCell(
        model=model,
        target=plan.target(row["target"]),
        settings=settings,
        precision=f"{settings.dtype} ({row['precision']})"
        if settings.dtype is Dtype.DEFAULT and row["precision"]
        else settings.dtype.value,
        limits=cell.limits,
        tolerance=tolerance,
        status=Status(row["status"]),
        stage=row["stage"],
        error_type=row["error_type"],
        message=row["message"],
        method=row["method"],
        preparation=row["preparation"] and tuple(row["preparation"]),
        placement=row["placement_detail"],
        output=row["output"],
        relative_error=row["relative_error"],
        kernel_error=row["kernel_error"],
        allowed_error=tolerance.relative_error if row["allowed_error"] is None or row["kernel_error"] is not None else row["allowed_error"],
        bundle=row["bundle"],
        isolation=row["isolation"],
        image=row["image_digest"],
        versions=json.loads(row["versions"] or "{}"),
        reference_versions={name: packages[name] for name in libraries if name in packages},
        run_id=row["run_id"],
        started_at=row["started_at"].isoformat(sep=" ", timespec="seconds"),
        hwmatrix_version=row["hwmatrix_version"],
        again=row["command"],
        also_failing=tuple(dict.fromkeys(others)),
        failing_prompt=row["failing_prompt"],
    )


def _settings(row: dict[str, Any]) -> str:
    """The options of the command that select a cell, in words."""
    return f"{row['dtype']} in {row['size']}{', generation' if row['new_tokens'] else ''}"
