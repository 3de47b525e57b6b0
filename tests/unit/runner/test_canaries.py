"""In which precision the canaries run, and what their results say about a shard."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest

from hwmatrix.models.canary import canary_plans
from hwmatrix.records import Backend, CellPlan, Dtype, Role, Settings, Status, Tolerance
from hwmatrix.runner import parent
from hwmatrix.runner.keeper import Keeper
from hwmatrix.runner.parent import ShardOrder

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCES = {dtype: Tolerance(relative_error=0.1, reason="a test") for dtype in (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.INT4)}
GOOD, WRONG = (plan.name for plan in canary_plans())
RIGHT = {GOOD: Status.PASS, WRONG: Status.MISMATCH}


def ran(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dtypes: list[Dtype], ends: dict[Dtype, dict[str, Status]]
) -> tuple[bool | None, str | None, list[str]]:
    """What the canaries of a shard with cells in these precisions say, and the precisions in which they ran."""
    plan = dataclasses.replace(make.plan(models=("bert",), targets=("cpu",)), tolerances=TOLERANCES)
    target = dataclasses.replace(plan.targets[0], backend=Backend.WEBGPU.value)
    settings = [Settings(dtype=dtype, batch=1, sequence_length=16, threads=1) for dtype in dtypes]
    cells = tuple(dataclasses.replace(plan.cells[0], settings=each) for each in settings)
    order = ShardOrder(
        plan=plan, target=target, cells=cells, bundles={}, cache=folder, out=folder, host="test", image=None, image_digest=None
    )
    tried: list[str] = []

    def run(_cells: object, cell: CellPlan, model: Any, *, canaries_failed: str | None) -> Any:
        assert canaries_failed is None
        tried.append(f"{model.role.value} {cell.settings.dtype.value}")
        status = ends[cell.settings.dtype][cell.model]
        error = None if status in RIGHT.values() else SimpleNamespace(message=f"{cell.settings.dtype.value} is not there")
        return SimpleNamespace(model=cell.model, status=status, role=model.role, error=error)

    monkeypatch.setattr(parent._Cells, "run", run)
    ok, detail = parent._Cells(order, shard=None, keeper=Keeper(None)).run_canaries()  # type: ignore[arg-type]
    return ok, detail, tried


def both(dtype: Dtype) -> list[str]:
    return [f"{Role.CANARY_GOOD.value} {dtype.value}", f"{Role.CANARY_WRONG.value} {dtype.value}"]


@pytest.mark.parametrize(
    ("cells", "chosen"),
    [
        ([Dtype.FLOAT16, Dtype.FLOAT32], Dtype.FLOAT16),
        ([Dtype.INT4, Dtype.FLOAT16], Dtype.FLOAT16),  # the kernels of int4 may be wrong on this processor
        ([Dtype.INT4], Dtype.FLOAT32),  # the target's own first
    ],
)
def test_they_run_in_the_first_floating_point_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: list[Dtype], chosen: Dtype
) -> None:
    reduced = [f"{Role.CANARY_WRONG.value} {dtype.value}" for dtype in cells if dtype is Dtype.INT4]
    assert ran(tmp_path, monkeypatch, cells, {chosen: RIGHT, Dtype.INT4: RIGHT}) == (True, None, [*both(chosen), *reduced])


def test_a_precision_that_the_device_refuses_says_nothing_about_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {GOOD: Status.UNSUPPORTED}
    first = both(Dtype.FLOAT16)[:1]
    then = ran(tmp_path, monkeypatch, [Dtype.FLOAT16, Dtype.FLOAT32], {Dtype.FLOAT16: refused, Dtype.FLOAT32: RIGHT})
    assert then == (True, None, [*first, *both(Dtype.FLOAT32)])
    alone = ran(tmp_path, monkeypatch, [Dtype.FLOAT16], {Dtype.FLOAT16: refused, Dtype.FLOAT32: RIGHT})
    assert alone == (True, None, [*first, *both(Dtype.FLOAT32)])  # the target's own first


def test_a_target_that_refuses_all_of_them_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {dtype: {GOOD: Status.UNSUPPORTED} for dtype in (Dtype.FLOAT16, Dtype.FLOAT32)}
    ok, detail, _ = ran(tmp_path, monkeypatch, [Dtype.FLOAT16], refused)
    assert (ok, detail) == (False, f"{GOOD} is unsupported, not pass: float32 is not there")


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        ({GOOD: Status.PASS, WRONG: Status.PASS}, (False, f"{WRONG} is pass, not mismatch")),
        ({GOOD: Status.MISMATCH, WRONG: Status.MISMATCH}, (False, f"{GOOD} is mismatch, not pass")),
        ({GOOD: Status.UNAVAILABLE}, (None, "float32 is not there")),
        ({GOOD: Status.PASS, WRONG: Status.FALLBACK}, (None, "float32 is not there")),
    ],
)
def test_what_they_end_in_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: dict[str, Status], wanted: tuple[bool | None, str]
) -> None:
    ok, detail, _ = ran(tmp_path, monkeypatch, [Dtype.FLOAT32], {Dtype.FLOAT32: ends})
    assert (ok, detail) == wanted
