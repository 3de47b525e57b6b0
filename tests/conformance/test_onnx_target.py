"""What every target that executes a bundle's ONNX exports must do. The model's own code does not run in its cells.

The real runner makes the exports on this machine, and the faults are inserted into their graphs. The real runner executes the cells in real
forked children, on this machine or, for browsers, in the target's own image.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from fault_runs import Case, Order, make_plan, rows, run, write_order
from where import IN_IMAGES, Where, marks, where

from hwmatrix.models.onnx_export import ONNX_DIR
from hwmatrix.records import Backend, Dtype, Isolation, Plan, Stage
from hwmatrix.records.backends import OnnxUse, descriptor_of, names
from hwmatrix.records.bundle_index import INDEX, read_index

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

MADE = (Case(name="good"), Case(name="uses lgamma", fault="lgamma"))
"""Models that are built and exported. All other cases use a changed copy of the good one's exports."""
CASES = (
    *MADE,
    Case(name="is given no time", timeout_s=0.02),  # less than any runtime needs
    Case(name="never ends", timeout_s=6),
    Case(name="dies by a signal"),
    Case(name="wants too much memory", memory_mb=2048),
    Case(name="lacks a kernel"),
    Case(name="uses Det"),
    Case(name="is exported wrong"),
    Case(name="has lost its exports"),
    Case(name="has damaged exports"),
    Case(name="good again"),
)
IN_BROWSERS = (
    Case(name="loses its page"),
    Case(name="good after that"),
    Case(name="loses the GPU process"),
    Case(name="loses the browser"),
)
VICTIMS: Final = {"dies by a signal": "cell", "loses its page": "page", "loses the GPU process": "gpu", "loses the browser": "browser"}
CELL_ENDS: Final = {"dies by a signal": "segmentation_fault"}
BROWSER_ENDS: Final = CELL_ENDS | {"loses its page": "page_crashed", "loses the browser": "browser_lost"}
ENDS: Final = {
    Backend.WEBGPU: BROWSER_ENDS | {"loses the GPU process": "webgpu_device_lost"},
    Backend.WEBNN: BROWSER_ENDS | {"loses the GPU process": "webnn_context_lost"},
}
"""The error type if a process that works for a cell dies. Targets that are not listed have only the cell's own process."""
HARDWARE: Final[dict[Backend, dict[str, Any]]] = {Backend.WEBGPU: {"adapter": "hardware"}, Backend.WEBNN: {"device": "gpu"}}
"""The options that request real hardware."""
OUT_OF_MEMORY: Final = {Backend.WEBGPU: "webgpu_out_of_memory", Backend.WEBNN: "webgpu_out_of_memory"}
FORWARD: Final = {Stage.PREPARE.value, Stage.RUN.value}


def variants() -> dict[str, Callable[[Path], None] | None]:
    """The change to the good model's exports, by the name of the case; None: no change."""
    import fault_graphs as graphs

    busy = graphs.amended(graphs.computes_for_minutes)
    return {
        "is given no time": None,
        "never ends": graphs.amended(graphs.never_ends),
        "dies by a signal": graphs.amended(graphs.never_ends),
        "wants too much memory": graphs.amended(graphs.wants_too_much),
        "lacks a kernel": graphs.amended(graphs.lacks_a_kernel),
        "uses Det": graphs.amended(graphs.uses_det),
        "is exported wrong": graphs.amended(graphs.adds_a_half),
        "has lost its exports": graphs.lost,
        "has damaged exports": graphs.damaged,
        "loses its page": busy,
        "good after that": None,
        "loses the GPU process": busy,
        "loses the browser": busy,
        "good again": None,
    }


ONNX = [each for each in sorted(names()) if descriptor_of(each).onnx is not OnnxUse.NONE]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Order:
    """Bundles with their exports and the variants, made once for all targets."""
    missing = [module for module in ("torch", "transformers", "onnx", "onnxscript") if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"exports cannot be made here, not installed: {', '.join(missing)}")
    import fault_graphs

    plan, cache = make_plan(MADE, backend=Backend.ONNXRUNTIME), shared_cache / "bundles"
    order = write_order(tmp_path_factory.mktemp("bundles") / "made", plan)
    told = [event for event in run("bundles", dataclasses.replace(order, cache=cache), armed=False) if event["event"] == "bundle"]
    assert [event["message"] for event in told if not event["ok"]] == []
    for entry in read_index(order.plan.parent / "bundles" / INDEX).values():  # into a cache of its own, since variants are added to it
        for part in (Path(str(entry.key)), Path(ONNX_DIR, str(entry.key))):
            shutil.copytree(cache / part, order.cache / part, ignore=shutil.ignore_patterns(".*"))
    fault_graphs.add_variants(order.plan.parent / "bundles", order.cache, "good", variants())
    return order


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=marks(each)) for each in ONNX],
)
def backend(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(backend) / "run"


@pytest.fixture(scope="module")
def place(backend: str, folder: Path) -> Where:
    return where(backend, folder)


def plan_of(backend: str, place: Where, cases: tuple[Case, ...]) -> Plan:
    """The cases in the target's first precision."""
    plan = make_plan(cases, backend=backend, isolation=Isolation.CONTAINER if backend in IN_IMAGES else Isolation.NONE)
    target = dataclasses.replace(
        plan.targets[0], name=place.name, execution=place.target.execution, image=place.target.image, options=place.target.options
    )
    settings = dataclasses.replace(plan.cells[0].settings, dtype=place.target.dtypes[0])
    cells = tuple(dataclasses.replace(cell, target=place.name, settings=settings) for cell in plan.cells)
    return dataclasses.replace(plan, targets=(target,), cells=cells)


def write_order_beside(folder: Path, plan: Plan, made: Order) -> Order:
    """Write a plan's order next to the existing bundles."""
    order = write_order(folder, plan)
    shutil.copytree(made.plan.parent / "bundles", folder / "bundles", dirs_exist_ok=True)
    return dataclasses.replace(order, cache=made.cache)


@pytest.fixture(scope="module")
def plan(backend: str, place: Where) -> Plan:
    return plan_of(backend, place, (*CASES[:-1], *(IN_BROWSERS if backend in IN_IMAGES else ()), CASES[-1]))


@pytest.fixture(scope="module")
def order(plan: Plan, folder: Path, made: Order) -> Order:
    return write_order_beside(folder, plan, made)


@pytest.fixture(scope="module")
def shard(place: Where, order: Order) -> Path:
    """The shard of one run over all cases."""
    events = place.run(order, victims=VICTIMS)
    (path,) = order.shards.glob("*.duckdb")
    assert events[-1] == {"event": "sealed", "shard": path.name}
    return path


@pytest.fixture(scope="module")
def cells(shard: Path) -> dict[str, dict[str, Any]]:
    return {row["cell_key"]: row for row in rows(shard, "SELECT * FROM cells WHERE role = 'model'")}


def verdict(cell: dict[str, Any]) -> tuple[str, str, str | None]:
    return cell["status"], cell["stage"], cell["error_type"]


def test_all_cells_finish_and_leave_nothing_behind(cells: dict[str, Any], plan: Plan, place: Where, order: Order) -> None:
    assert list(cells) == [cell.key for cell in plan.cells]
    assert place.left(order) == []


def test_the_device_is_named(shard: Path, backend: str) -> None:
    (found,) = rows(shard, "SELECT available, name, reason FROM detections WHERE hardware_type = ?", backend)
    assert found["available"], found["reason"]
    assert found["name"]


def test_the_canaries_end_as_expected(shard: Path) -> None:
    found = rows(shard, "SELECT role, status FROM cells WHERE role <> 'model' ORDER BY role")
    assert [(row["role"], row["status"]) for row in found] == [("canary_good", "pass"), ("canary_wrong", "mismatch")]
    assert rows(shard, "SELECT canary_ok, canary_detail FROM shards") == [{"canary_ok": True, "canary_detail": None}]


def test_a_good_model_passes_on_the_target_with_parity_and_samples(cells: dict[str, Any], shard: Path, plan: Plan) -> None:
    cell = cells["good"]
    assert verdict(cell) == ("pass", "measure", None), cell["message"]
    assert cell["on_target"] == 1.0
    assert cell["placement_detail"]
    assert "onnx" in cell["method"].lower()
    assert cell["relative_error"] <= plan.tolerances[Dtype(cell["dtype"])].relative_error
    outputs = rows(shard, "SELECT name, shape FROM outputs WHERE cell_id = ? ORDER BY name", cell["cell_id"])
    assert [(output["name"], output["shape"]) for output in outputs] == [("last_hidden_state", [1, 16, 16]), ("pooler_output", [1, 16])]
    (counted,) = rows(shard, "SELECT count(*) AS n, min(wall_ns) AS least FROM samples WHERE cell_id = ?", cell["cell_id"])
    assert counted["n"] >= 3
    assert counted["least"] > 0


def test_a_repeated_cell_gives_the_same_outputs(cells: dict[str, Any], shard: Path) -> None:
    """Both have exactly the same error against the reference for each output, whatever ran before."""

    def distances(name: str) -> list[dict[str, Any]]:
        cell_id = cells[name]["cell_id"]
        return rows(shard, "SELECT name, relative_error, max_error, cosine FROM outputs WHERE cell_id = ? ORDER BY name", cell_id)

    assert verdict(cells["good again"]) == ("pass", "measure", None)
    assert distances("good") == distances("good again")


def test_a_cell_that_takes_too_long_is_killed_and_affects_no_other(cells: dict[str, Any]) -> None:
    cell = cells["is given no time"]
    assert (cell["status"], cell["error_type"]) == ("timeout", "timeout")
    assert cell["wall_ms"] < 5000


def test_a_model_that_never_ends_is_killed_by_our_own_clock(cells: dict[str, Any]) -> None:
    """The thread of the runtime or the page is blocked, so waiting for its answer would take forever."""
    cell = cells["never ends"]
    assert (cell["status"], cell["error_type"], cell["signal"]) == ("timeout", "timeout", 9)
    assert cell["stage"] in FORWARD
    assert cell["load_ms"] > 0  # earlier measurements are kept
    assert 6000 <= cell["wall_ms"] < 8000


def test_a_process_that_ends_while_the_model_runs_is_a_crash_of_only_that_cell(cells: dict[str, Any], backend: str) -> None:
    wanted = ENDS.get(backend, CELL_ENDS)
    assert {name: (cells[name]["status"], cells[name]["error_type"]) for name in wanted} == {
        name: ("crash", error_type) for name, error_type in wanted.items()
    }
    assert {cells[name]["stage"] for name in wanted} <= FORWARD
    assert {name: cells[name]["signal"] for name in wanted if cells[name]["signal"]} == {"dies by a signal": 11}
    assert {cells[name]["status"] for name in cells if name.startswith("good")} == {"pass"}


def test_a_tensor_beyond_the_memory_is_out_of_memory(cells: dict[str, Any], backend: str) -> None:
    cell = cells["wants too much memory"]
    assert (cell["status"], cell["error_type"]) == ("oom", OUT_OF_MEMORY.get(backend, "memory_pressure")), cell["message"]
    assert cell["stage"] in FORWARD


def test_an_operator_that_onnx_lacks_is_unsupported_and_named(cells: dict[str, Any]) -> None:
    cell = cells["uses lgamma"]
    assert verdict(cell) == ("unsupported", "prepare", "unsupported_operator"), cell["message"]
    assert len(cell["needs"]) == 1
    assert "lgamma" in cell["needs"][0]
    assert cell["needs"][0] in cell["message"]


def test_an_operator_that_the_runtime_lacks_is_unsupported_and_named(cells: dict[str, Any]) -> None:
    cell = cells["lacks a kernel"]
    assert verdict(cell) == ("unsupported", "prepare", "unsupported_operator"), cell["message"]
    assert cell["needs"] == ["ImageDecoder"]


def test_an_operator_that_runs_on_the_cpu_is_in_the_placement(cells: dict[str, Any], backend: str) -> None:
    cell = cells["uses Det"]
    assert verdict(cell) == ("pass", "measure", None), cell["message"]
    if backend == Backend.ONNXRUNTIME:  # whose device is the CPU
        assert cell["on_target"] == 1.0
    else:
        assert 0.5 < cell["on_target"] < 1.0
        assert "CPU" in cell["placement_detail"]
        assert "Det" in cell["placement_detail"]


def test_a_wrong_graph_is_distinguished_from_a_wrong_target(cells: dict[str, Any]) -> None:
    """A second run keeps all values and compares them with a reference runtime, which gives the same wrong numbers."""
    cell = cells["is exported wrong"]
    assert verdict(cell) == ("mismatch", "compare", "mismatch"), cell["message"]
    assert cell["origin"] == "graph", cell["diverges_detail"]
    assert cell["diverges_error"] == pytest.approx(cell["relative_error"], rel=0.1)
    assert "last_hidden_state" in cell["diverges_detail"]
    assert "ONNX Runtime's CPU provider" in cell["diverges_against"]
    assert {name for name, other in cells.items() if other["origin"]} == {"is exported wrong"}


@pytest.mark.parametrize(("name", "error_type"), [("has lost its exports", "onnx_missing"), ("has damaged exports", "bundle_broken")])
def test_incomplete_exports_are_never_used(cells: dict[str, Any], name: str, error_type: str) -> None:
    assert verdict(cells[name]) == ("infra_error", "load", error_type)


@pytest.mark.skipif(Path("/dev/dri").exists(), reason="a GPU may be here")
def test_software_instead_of_requested_hardware_is_a_fallback(
    backend: str, place: Where, made: Order, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Browsers may return an adapter or a context that computes on the CPU, and report that only if asked."""
    if backend not in HARDWARE:
        pytest.skip(f"no other hardware can be requested from {backend}")
    plan = plan_of(backend, place, (CASES[0],))
    target = dataclasses.replace(plan.targets[0], options={**place.target.options, **HARDWARE[backend]})
    order = write_order_beside(tmp_path_factory.mktemp("hardware") / "run", dataclasses.replace(plan, targets=(target,)), made)
    place.run(order)
    (path,) = order.shards.glob("*.duckdb")
    (cell,) = rows(path, "SELECT * FROM cells WHERE role = 'model'")
    assert (cell["status"], cell["error_type"], cell["on_target"]) == ("fallback", "fallback", 0.0), cell["message"]
    assert rows(path, "SELECT canary_ok FROM shards") == [{"canary_ok": None}]  # the canaries prove nothing
