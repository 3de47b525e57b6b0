"""What every target that generates text with a bundle's exported ONNX graphs must do, in the place where its cells really run.

The faults are inserted into the description of the graphs: it says which output of a step is which part of the next step's cache.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from fault_runs import Order, rows, run, untrained, write_order
from where import IN_IMAGES, Where, marks, where

import hwmatrix
from hwmatrix.basics.clock import utc_now
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import RunFacts, Selection, make_plan
from hwmatrix.models.onnx_export import ONNX_DIR
from hwmatrix.records import Backend, Isolation, Plan
from hwmatrix.records.backends import descriptor_of, names
from hwmatrix.records.bundle_index import INDEX, read_index

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

MODEL: Final = "gpt2"
EXPORT: Final = "generation"
GENERATING: Final = [each for each in sorted(names()) if descriptor_of(each).generation_export == EXPORT]
PLACES: Final = {Backend.WEBGPU: "tensors of the cache: 4 of 4 in gpu-buffer", Backend.WEBNN: "tensors of the cache: 4 of 4 in cpu"}
"""What the placement says of the cache, where the device may have its own memory."""


def variants() -> dict[str, Callable[[Path], None]]:
    """The change to the good model's exports, by the name of the model."""
    import fault_graphs as graphs

    def other(own: str) -> str:
        layer, _, kind = own.rpartition(".")
        return own if not layer else f"{layer}.keys" if kind == "values" else f"{layer}.values"

    return {
        "swaps keys and values": graphs.described_otherwise(EXPORT, lambda outputs: {name: other(own) for name, own in outputs.items()}),
        "keeps the first cache": graphs.described_otherwise(
            EXPORT, lambda outputs: {name: own for name, own in outputs.items() if own == "logits"}
        ),
    }


def plan_of(target: str) -> Plan:
    """The cell of matrix.yaml that generates, with random weights."""
    facts = RunFacts(
        run_id="generating",
        created_at=utc_now(),
        command="a test",
        hwmatrix_version=hwmatrix.__version__,
        commit=None,
        isolation=Isolation.NONE,
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "matrix.yaml"
        file.write_text(untrained(), encoding="utf-8")
        plan = make_plan(load(file), Selection(models=(MODEL,), targets=(target,)), facts)
    return dataclasses.replace(plan, adapt=None, cells=tuple(cell for cell in plan.cells if cell.settings.new_tokens))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Order:
    """The bundle with its graphs and the variants, made once for all targets."""
    missing = [module for module in ("torch", "transformers", "onnx", "onnxscript") if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"exports cannot be made here, not installed: {', '.join(missing)}")
    import fault_graphs

    order = write_order(tmp_path_factory.mktemp("generating") / "made", plan_of("onnxruntime"))
    cache = shared_cache / "bundles"
    told = [event for event in run("bundles", dataclasses.replace(order, cache=cache), armed=False) if event["event"] == "bundle"]
    assert [event["message"] for event in told if not event["ok"]] == []
    for entry in read_index(order.plan.parent / "bundles" / INDEX).values():  # into a cache of its own, since variants are added to it
        for part in (Path(str(entry.key)), Path(ONNX_DIR, str(entry.key))):
            shutil.copytree(cache / part, order.cache / part, ignore=shutil.ignore_patterns(".*"))
    fault_graphs.add_variants(order.plan.parent / "bundles", order.cache, MODEL, dict(variants()))
    return order


@pytest.fixture(scope="module", params=[pytest.param(each, marks=marks(each, long=each in IN_IMAGES)) for each in GENERATING])
def backend(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def cells(backend: str, made: Order, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The cells of one target, by model."""
    folder = tmp_path_factory.mktemp(backend) / "run"
    place: Where = where(backend, folder)  # type: ignore[arg-type] # of this package
    plan = plan_of("onnxruntime")
    (model,) = plan.models
    (cell,) = plan.cells
    models = (MODEL, *variants())
    target = dataclasses.replace(plan.targets[0], name=place.name, backend=backend, image=place.target.image, options=place.target.options)
    plan = dataclasses.replace(
        plan,
        targets=(target,),
        models=tuple(dataclasses.replace(model, name=name) for name in models),
        cells=tuple(dataclasses.replace(cell, key=name, model=name, target=place.name) for name in models),
    )
    order = write_order(folder, plan)
    shutil.copytree(made.plan.parent / "bundles", folder / "bundles", dirs_exist_ok=True)
    place.run(dataclasses.replace(order, cache=made.cache))
    (shard,) = order.shards.glob("*.duckdb")
    return {cell["cell_key"]: cell for cell in rows(shard, "SELECT * FROM cells WHERE role = 'model'")}


def test_every_step_agrees_and_is_timed(cells: dict[str, dict[str, Any]]) -> None:
    cell = cells[MODEL]
    assert (cell["status"], cell["error_type"]) == ("pass", None), cell["message"]
    assert cell["relative_error"] <= 1e-5
    assert cell["cache_error"] <= 1e-5
    assert len(cell["itl_ms"]) == cell["new_tokens"] - 1
    assert min(cell["ttft_ms"], cell["tpot_ms"], *cell["itl_ms"]) > 0


def test_the_placement_says_where_the_cache_is(cells: dict[str, dict[str, Any]], backend: str) -> None:
    cell = cells[MODEL]
    assert cell["cache_mb"] > 0
    assert PLACES.get(backend, "") in cell["placement_detail"]


def test_a_wrong_cache_is_found_at_the_first_step_that_uses_it(cells: dict[str, dict[str, Any]]) -> None:
    cell = cells["swaps keys and values"]
    assert (cell["status"], cell["error_type"]) == ("mismatch", "cache_mismatch"), cell["message"]
    assert (cell["failing_prompt"], cell["failing_component"], cell["failing_step"]) == ("traced", "decode", 1)


def test_a_cache_that_is_never_replaced_is_no_pass(cells: dict[str, dict[str, Any]]) -> None:
    cell = cells["keeps the first cache"]
    assert cell["status"] in {"mismatch", "error"}, cell["message"]
    assert (cell["failing_prompt"], cell["failing_component"], cell["failing_step"]) == ("traced", "decode", 1)
