"""A trained model on every target, in all precisions of matrix.yaml: its task's metric, and the noise floor of a reduced precision."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from fault_runs import PROJECT, Order, rows, run, write_order
from where import Where, marks, where

import hwmatrix
from hwmatrix.basics.clock import utc_now
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import RunFacts, Selection, make_plan
from hwmatrix.records import Backend, Isolation, Plan
from hwmatrix.records.backends import descriptor_of, names

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

MODEL = "vit"  # it learns its task within seconds


def plan_of(targets: tuple[str, ...]) -> Plan:
    """The cells of matrix.yaml, without timing."""
    facts = RunFacts(
        run_id="trained",
        created_at=utc_now(),
        command="a test",
        hwmatrix_version=hwmatrix.__version__,
        commit=None,
        isolation=Isolation.NONE,
    )
    return make_plan(load(PROJECT / "matrix.yaml"), Selection(models=(MODEL,), targets=targets, timing=False), facts)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Order:
    """The bundles with their ONNX exports, made once for all targets."""
    missing = [module for module in ("torch", "transformers", "onnx", "onnxscript") if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"exports cannot be made here, not installed: {', '.join(missing)}")
    plan = plan_of(("cpu", "onnxruntime"))
    order = write_order(tmp_path_factory.mktemp("trained") / "made", plan, cache=shared_cache / "bundles")
    told = [event for event in run("bundles", order, armed=False) if event["event"] == "bundle"]
    assert [event["message"] for event in told if not event["ok"]] == []
    return order


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=marks(each, long=each not in {Backend.CPU, Backend.OPENVINO})) for each in sorted(names())],
)
def backend(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def cells(backend: str, made: Order, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The cells of one target."""
    folder = tmp_path_factory.mktemp(backend) / "run"
    place: Where = where(backend, folder)  # type: ignore[arg-type] # of this package
    listed = next(name for name, target in load(PROJECT / "matrix.yaml").spec.targets.items() if target.backend == backend)
    plan = plan_of((listed,))
    target = dataclasses.replace(plan.targets[0], name=place.name, options=place.target.options)
    plan = dataclasses.replace(
        plan, targets=(target,), cells=tuple(dataclasses.replace(cell, target=place.name) for cell in plan.cells), adapt=None
    )
    order = write_order(folder, plan)
    shutil.copytree(made.plan.parent / "bundles", folder / "bundles", dirs_exist_ok=True)
    place.run(dataclasses.replace(order, cache=made.cache))
    (shard,) = order.shards.glob("*.duckdb")
    found = rows(shard, "SELECT * FROM cells WHERE role = 'model' ORDER BY cell_key")
    assert len(found) == len(plan.cells)
    return found


def test_it_does_its_task_on_held_out_inputs(cells: list[dict[str, Any]], backend: str) -> None:
    for cell in cells:
        assert (cell["status"], cell["error_type"]) == ("pass", None), f"{cell['dtype']}: {cell['message']}"
        assert cell["quality_metric"] == "accuracy"
        assert cell["quality_inputs"] == descriptor_of(backend).held_out
        assert cell["quality_reference"] >= 0.9
        assert cell["quality_low"] <= cell["quality"] <= cell["quality_high"]
        assert cell["quality_reference"] <= cell["quality_high"]
        assert cell["quality_agreement"] >= 0.9


def test_a_reduced_precision_is_judged_by_its_noise_floor(cells: list[dict[str, Any]]) -> None:
    for cell in cells:
        if (cell["precision"] or cell["dtype"]) == "float32":
            assert cell["relative_error"] <= 1e-4
            assert cell["excess"] is None
        else:
            assert cell["loss"] > 2**-13, cell["dtype"]
            assert 0 < cell["excess"] <= 16
