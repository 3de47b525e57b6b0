"""What every target must do that executes a bundle's ONNX exports: the model's own code is not there to misbehave in its cells.

Exports are made by the real runner where bundles are made, cells are run by it in real forked children.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from fault_runs import PROJECT, Case, Order, make_plan, rows, run, still_running, write_order

from hwmatrix.hardware.detector import detect
from hwmatrix.matrix.load import load
from hwmatrix.records import Backend, CellPlan, Dtype, Plan, to_json
from hwmatrix.targets.table import NEEDS_ONNX, REQUIRES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

CASES = (
    Case(name="good"),
    Case(name="is given no time"),
    Case(name="uses lgamma", fault="lgamma"),
    Case(name="has lost its exports"),
    Case(name="has damaged exports"),
    Case(name="good again"),
)


@pytest.fixture(scope="module", params=sorted(NEEDS_ONNX))
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen = Backend(request.param)
    needed = ("torch", "transformers", "onnxscript", *REQUIRES[chosen])  # the first three make the exports
    missing = [module for module in needed if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    if not (found := detect(chosen)).available:
        pytest.skip(f"not here: {found.reason}")
    return chosen


def plan_of(backend: Backend) -> Plan:
    """All cases in the target's first precision. Each model has weights of its own, but for the good ones."""
    plan = make_plan(CASES, backend=backend)
    models = tuple(dataclasses.replace(model, seed=0 if model.name.startswith("good") else seed) for seed, model in enumerate(plan.models))
    dtype = load(PROJECT / "matrix.yaml").spec.targets[plan.targets[0].name].dtypes[0]
    cells = tuple(dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, dtype=dtype)) for cell in plan.cells)
    return dataclasses.replace(plan, models=models, cells=cells)


@pytest.fixture(scope="module")
def plan(backend: Backend) -> Plan:
    return plan_of(backend)


@pytest.fixture(scope="module")
def order(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Order:
    """Bundles with their exports, of which some are harmed afterwards."""
    laid = write_order(tmp_path_factory.mktemp(plan.targets[0].name) / "run", plan)
    told = [event for event in run("bundles", laid, armed=False) if event["event"] == "bundle"]
    assert [event["message"] for event in told if not event["ok"]] == []
    for export in exports_of("has lost its exports", laid):
        (export / "manifest.json").unlink()
    for export in exports_of("has damaged exports", laid):
        (export / "model.onnx").write_bytes(b"not a graph")
    hurried = tuple(_hurried(cell) if cell.model == "is given no time" else cell for cell in plan.cells)
    laid.plan.write_text(to_json(dataclasses.replace(plan, cells=hurried)), encoding="utf-8")
    return laid


def _hurried(cell: CellPlan) -> CellPlan:
    """Less time than any runtime needs; bundles are made within the same limits, so that this is done after them."""
    return dataclasses.replace(cell, limits=dataclasses.replace(cell.limits, timeout_s=0.02))


def exports_of(name: str, order: Order) -> list[Path]:
    """The folders of a model's exports."""
    from hwmatrix.runner.bundles import INDEX, read_index  # noqa: PLC0415 - of the runner's package, in an image only

    index = read_index(order.plan.parent / "bundles" / INDEX)
    (key,) = [entry.key for (model, _), entry in index.items() if model == name]
    assert key is not None
    return sorted(folder for folder in (order.cache / "onnx" / key).iterdir() if folder.is_dir())


@pytest.fixture(scope="module")
def shard(plan: Plan, order: Order) -> Path:
    events = run("run", order, "--target", plan.targets[0].name, "--host", "test", armed=False)
    (path,) = order.shards.glob("*.duckdb")
    assert events[-1] == {"event": "sealed", "shard": path.name}
    return path


@pytest.fixture(scope="module")
def cells(shard: Path) -> dict[str, dict[str, Any]]:
    return {row["cell_key"]: row for row in rows(shard, "SELECT * FROM cells WHERE role = 'model'")}


def verdict(cell: dict[str, Any]) -> tuple[str, str, str | None]:
    return cell["status"], cell["stage"], cell["error_type"]


def test_all_cells_finish_and_nothing_stays_behind(cells: dict[str, Any], order: Order) -> None:
    assert list(cells) == [case.name for case in CASES]
    assert still_running(order) == []


def test_the_device_is_named(shard: Path, backend: Backend) -> None:
    (found,) = rows(shard, "SELECT available, name, reason FROM detections WHERE hardware_type = ?", backend.value)
    assert found["available"], found["reason"]
    assert found["name"]


def test_the_canaries_end_as_they_must(shard: Path) -> None:
    found = rows(shard, "SELECT role, status FROM cells WHERE role <> 'model' ORDER BY role")
    assert [(row["role"], row["status"]) for row in found] == [("canary_good", "pass"), ("canary_wrong", "mismatch")]
    assert rows(shard, "SELECT canary_ok, canary_detail FROM shards") == [{"canary_ok": True, "canary_detail": None}]


def test_a_good_model_passes_on_the_target_with_parity_and_samples(cells: dict[str, Any], shard: Path, plan: Plan) -> None:
    cell = cells["good"]
    assert verdict(cell) == ("pass", "measure", None), cell["message"]
    assert cell["on_target"] > 0
    assert cell["placement_detail"]
    assert "onnx" in cell["method"].lower()
    assert cell["relative_error"] <= plan.tolerances[Dtype(cell["dtype"])].relative_error
    outputs = rows(shard, "SELECT name, shape FROM outputs WHERE cell_id = ? ORDER BY name", cell["cell_id"])
    assert [(output["name"], output["shape"]) for output in outputs] == [("last_hidden_state", [1, 16, 16]), ("pooler_output", [1, 16])]
    (counted,) = rows(shard, "SELECT count(*) AS n, min(wall_ns) AS least FROM samples WHERE cell_id = ?", cell["cell_id"])
    assert counted["n"] >= 3
    assert counted["least"] > 0


def test_a_repeated_cell_gives_the_same_outputs(cells: dict[str, Any], shard: Path) -> None:
    """As far as the reference can tell them apart: to the last bit of each output's error."""

    def distances(name: str) -> list[dict[str, Any]]:
        cell_id = cells[name]["cell_id"]
        return rows(shard, "SELECT name, relative_error, max_error, cosine FROM outputs WHERE cell_id = ? ORDER BY name", cell_id)

    assert verdict(cells["good again"]) == ("pass", "measure", None)
    assert distances("good") == distances("good again")


def test_a_cell_that_takes_too_long_is_ended_and_harms_no_other(cells: dict[str, Any]) -> None:
    cell = cells["is given no time"]
    assert (cell["status"], cell["error_type"]) == ("timeout", "timeout")
    assert cell["wall_ms"] < 5000


def test_an_operator_that_onnx_lacks_is_unsupported_and_named(cells: dict[str, Any]) -> None:
    cell = cells["uses lgamma"]
    assert (cell["status"], cell["error_type"]) == ("unsupported", "unsupported_operator"), cell["message"]
    assert len(cell["needs"]) == 1
    assert "lgamma" in cell["needs"][0]
    assert cell["needs"][0] in cell["message"]


@pytest.mark.parametrize(("name", "error_type"), [("has lost its exports", "onnx_missing"), ("has damaged exports", "bundle_broken")])
def test_exports_that_are_not_whole_are_never_used(cells: dict[str, Any], name: str, error_type: str) -> None:
    assert verdict(cells[name]) == ("infra_error", "load", error_type)
