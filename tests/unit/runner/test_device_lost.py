"""A device that stops working in the middle of a run: what ran before it counts, and what comes after it is no verdict about a model."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import pytest

from hwmatrix.models.canary import canary_plans
from hwmatrix.records import Dtype, Role, Stage, Status, Tolerance
from hwmatrix.records.bundle_index import BundleEntry
from hwmatrix.runner import parent
from hwmatrix.runner.keeper import Keeper
from hwmatrix.runner.parent import ShardOrder
from hwmatrix.store.shard import ShardWriter

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.records import CellPlan, CellResult, ModelPlan

MODELS = ("m0", "m1", "m2", "m3", "m4")
WRONG = next(plan.name for plan in canary_plans() if plan.role is Role.CANARY_WRONG)
GONE = "CUDA error: the launch timed out and was terminated"


class Machine:
    """Runs cells as a machine would whose device is lost during the cell of a model; some models fail by their own fault."""

    def __init__(self, *, failing: dict[str, Status], lost_in: str | None) -> None:
        self._failing = failing
        self._lost_in = lost_in
        self._is_lost = False
        self.ran: list[str] = []
        self.blind: tuple[Dtype, ...] = ()
        """The precisions in which it takes the wrong canary for right."""
        self.blind_to_generation = False

    def run(self, _order: ShardOrder, cell: CellPlan, _model: ModelPlan, **_: Any) -> CellPlan:
        self.ran.append(cell.model)
        self._is_lost = self._is_lost or cell.model == self._lost_in
        return cell

    def result_of(self, end: CellPlan, *, model: ModelPlan, **_: Any) -> CellResult:
        blind = end.settings.dtype in self.blind or (self.blind_to_generation and end.settings.new_tokens)
        wrong = Status.MISMATCH if model.role is Role.CANARY_WRONG and not blind else Status.PASS
        status = self._failing.get(model.name, wrong)
        message = "its own fault"
        if self._is_lost:
            status, message = Status.ERROR, GONE
        result = make.result(end, role=model.role)
        if status is Status.PASS:
            return result
        failure = make.failure(status, Stage.RUN if status is not Status.MISMATCH else Stage.COMPARE)
        return dataclasses.replace(result, **failure | {"error": dataclasses.replace(failure["error"], message=message)})


def rows(  # noqa: PLR0917 - a machine and its cells
    folder: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    backend: str = "cuda",
    reduced: tuple[str, ...] = (),
    new_tokens: int = 0,
) -> dict[str, tuple[str, str, str]]:
    """The status, the type of the error and its message of each cell in the shard.

    Cells of ``reduced`` models are in int8 or, with ``new_tokens``, generate.
    """
    plan = make.plan(models=MODELS, targets=(backend,), timing=False)
    changes: dict[str, Any] = {"new_tokens": new_tokens} if new_tokens else {"dtype": Dtype.INT8}
    in_int8 = [dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, **changes)) for cell in plan.cells]
    cells_of = [each if each.model in reduced else cell for cell, each in zip(plan.cells, in_int8, strict=True)]
    tolerances = plan.tolerances | {Dtype.INT8: Tolerance(relative_error=0.5, reason="a test")}
    plan = dataclasses.replace(plan, cells=tuple(cells_of), tolerances=tolerances)
    models = (*plan.models, *canary_plans())
    asked = [{"model": each.name, "size": each.size, "batch": each.batch, "sequence_length": each.sequence_length} for each in models]
    order = ShardOrder(
        plan=plan,
        target=plan.targets[0],
        cells=plan.cells,
        bundles={model.key: BundleEntry(**each, key="ab" * 32) for model, each in zip(models, asked, strict=True)},
        cache=folder,
        out=folder,
        host="test",
        image=None,
        image_digest=None,
    )
    monkeypatch.setattr(parent, "_run", machine.run)
    monkeypatch.setattr(parent, "result_of", machine.result_of)
    with ShardWriter(folder, plan, make.identity(backend)) as shard:
        cells = parent._Cells(order, shard, Keeper(None))
        ok, detail = cells.run_canaries()
        shard.set_canaries(ok=ok, detail=detail)
        assert (ok, detail) == (True, None)
        cells.run_all(None, canaries_failed=None)
        path = shard.seal()
    with duckdb.connect(str(path), read_only=True) as database:
        found = database.execute(
            "SELECT model, status, coalesce(error_type, ''), coalesce(message, '') FROM cells WHERE role = 'model' ORDER BY model"
        ).fetchall()
    return {model: (status, kind, message) for model, status, kind, message in found}


def test_what_comes_after_it_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(failing={"m0": Status.ERROR}, lost_in="m2")
    found = rows(tmp_path, machine, monkeypatch)
    assert [found[model][:2] for model in MODELS] == [
        ("error", "unmatched"),
        ("pass", ""),
        *[("infra_error", "device_lost")] * 3,
    ]
    good = next(plan.name for plan in canary_plans() if plan.role is Role.CANARY_GOOD)
    assert machine.ran == [good, WRONG, "m0", good, "m1", "m2", good]  # m0 fails on a device that works; after m2 nothing runs
    lost = f"after m2/tiny/cuda, {good} is error, not pass: {GONE}"
    assert found["m2"][2] == f"the device was lost: {lost}; the cell itself ended as error: {GONE}"
    assert found["m4"][2] == f"not run, because the device is lost: {lost}"


@pytest.mark.parametrize("status", [Status.MISMATCH, Status.UNSUPPORTED])
def test_a_verdict_that_needs_a_working_device_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    machine = Machine(failing={"m0": status}, lost_in=None)
    assert rows(tmp_path, machine, monkeypatch)["m0"][0] == status.value
    assert machine.ran[2:] == list(MODELS)


@pytest.mark.parametrize("blind", [(), (Dtype.INT8,)])
def test_a_reduced_precision_in_which_the_wrong_model_passes_has_no_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blind: tuple[Dtype, ...]
) -> None:
    machine = Machine(failing={}, lost_in=None)
    machine.blind = blind
    found = rows(tmp_path, machine, monkeypatch, "openvino", reduced=("m1", "m3"))
    reduced = {("infra_error", "canary_failed") if blind else ("pass", "")}
    assert {found[model][:2] for model in ("m1", "m3")} == reduced
    assert {found[model][:2] for model in ("m0", "m2", "m4")} == {("pass", "")}


@pytest.mark.parametrize("blind", [False, True])
def test_if_wrong_logits_pass_no_generation_has_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, blind: bool) -> None:
    machine = Machine(failing={}, lost_in=None)
    machine.blind_to_generation = blind
    found = rows(tmp_path, machine, monkeypatch, "openvino", reduced=("m1", "m3"), new_tokens=4)
    assert {found[model][:2] for model in ("m1", "m3")} == {("infra_error", "canary_failed") if blind else ("pass", "")}
    assert {found[model][:2] for model in ("m0", "m2", "m4")} == {("pass", "")}


@pytest.mark.parametrize("backend", ["cpu", "onnxruntime", "webgpu"])
def test_what_cannot_be_lost_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    machine = Machine(failing={"m0": Status.CRASH, "m3": Status.TIMEOUT}, lost_in=None)
    found = rows(tmp_path, machine, monkeypatch, backend)
    assert (found["m0"][0], found["m3"][0]) == ("crash", "timeout")
    assert machine.ran[2:] == list(MODELS)
