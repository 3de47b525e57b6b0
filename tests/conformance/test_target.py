"""What every target must do, tested on every installed backend, with real models in real forked children.

Targets that execute ONNX exports never run a model's own code in a cell, so models with faulty code cannot test them. They are tested by
test_onnx_target.py.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from fault_runs import Case, Order, environment, make_plan, rows, run, still_running, write_order
from where import marks

from hwmatrix.hardware.detector import detect
from hwmatrix.records import Backend, Stage
from hwmatrix.records.backends import OnnxUse, descriptor_of, names

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

CASES = (
    Case(name="good"),
    Case(name="crashes while it is loaded", fault="segfault", place="init"),
    Case(name="crashes", fault="segfault"),
    Case(name="leaves with 0", fault="exit0"),
    Case(name="leaves with 3", fault="exit3"),
    Case(name="allocates while it is loaded", fault="allocate", place="init", memory_mb=1024),
    Case(name="allocates", fault="allocate", memory_mb=1536),
    Case(name="loops", fault="loop", timeout_s=5),
    Case(name="sleeps", fault="sleep", timeout_s=5),
    Case(name="prints", fault="print"),
    Case(name="leaves a process", fault="stray"),
    Case(name="raises", fault="raise"),
    Case(name="gives NaN", fault="nan"),
    Case(name="gives wrong numbers", fault="wrong"),
    Case(name="lacks an output", fault="missing"),
    Case(name="uses lgamma", fault="lgamma"),
    Case(name="good again"),
)
FAILS_TO_BUILD = {
    "good": ("pass", "measure", None),
    "crashes": ("factory_error", "build", "factory_failed"),
    "allocates": ("factory_error", "build", "bundle_unfinished"),
    "raises": ("factory_error", "build", "reference_failed"),
    "gives NaN": ("factory_error", "build", "reference_not_finite"),
}
"""The expected status, stage and error type of models whose faults occur while their bundles are built."""
HALF_BUILT = [Case(name=case.name, fault=case.fault, memory_mb=1536) for case in CASES if case.name in FAILS_TO_BUILD]
FORWARD = {Stage.PREPARE.value, Stage.RUN.value}
"""The stages that execute a model's forward pass: prepare if the target exports it, else run."""


class Shard:
    """The finished shard of one target's run over all cases."""

    def __init__(self, path: Path, events: list[dict[str, Any]]) -> None:
        self.path = path
        self.events = events
        self.cells = {row["cell_key"]: row for row in rows(path, "SELECT * FROM cells")}
        self.canaries = {row["role"]: row for row in self.cells.values() if row["role"] != "model"}

    def verdict(self, name: str) -> tuple[str, str, str | None]:
        """Status, stage and error type of a cell."""
        cell = self.cells[name]
        return cell["status"], cell["stage"], cell["error_type"]


BACKENDS = [each for each in names() if descriptor_of(each).onnx is OnnxUse.NONE]


@pytest.fixture(scope="module", params=[pytest.param(each, marks=marks(each, long=each == Backend.OPENVINO)) for each in BACKENDS])
def backend(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    missing = [module for module in descriptor_of(chosen).requires if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    if not (found := detect(chosen)).available:
        pytest.skip(f"not here: {found.reason}")
    return chosen


@pytest.fixture(scope="module")
def order(backend: str, tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Order:
    """The bundles of all cases, built with all faults disabled."""
    plan = make_plan(CASES, backend=backend)
    laid = write_order(tmp_path_factory.mktemp(backend) / "run", plan, cache=shared_cache / "bundles")
    told = [event for event in run("bundles", laid, armed=False) if event["event"] == "bundle"]
    assert [event["message"] for event in told if not event["ok"]] == []
    assert len(told) == len(CASES) + 2
    return laid


@pytest.fixture(scope="module")
def shard(backend: str, order: Order) -> Shard:
    """One run of the real runner over all cases, with the faults enabled."""
    target = make_plan(CASES, backend=backend).targets[0].name
    events = run("run", order, "--target", target, "--host", "test", armed=True)
    (path,) = order.shards.glob("*.duckdb")
    return Shard(path, events)


def test_all_cells_of_the_shard_finish_and_leave_nothing_behind(shard: Shard, order: Order) -> None:
    assert [cell["cell_key"] for cell in rows(shard.path, "SELECT cell_key FROM cells WHERE role = 'model'")] == [
        case.name for case in CASES
    ]
    assert shard.events[-1] == {"event": "sealed", "shard": shard.path.name}
    assert sorted(path.name for path in order.shards.iterdir()) == [shard.path.name, f"{shard.path.name}.json"]


def test_the_device_is_named(backend: str, shard: Shard) -> None:
    (found,) = rows(shard.path, "SELECT available, name, reason FROM detections WHERE hardware_type = ?", backend)
    assert found["available"], found["reason"]
    assert found["name"]
    code = (
        "from fault_runs import make_plan\nfrom hwmatrix.targets.protocol import target_class\n"
        f"backend = {str(backend)!r}\nplan = make_plan((), backend=backend)\n"
        "from hwmatrix.records import Dtype, Settings\nsettings = Settings(dtype=Dtype.FLOAT32, batch=1, sequence_length=1, threads=1)\n"
        "print('device:', target_class(backend)(settings=settings, options=plan.targets[0].options).check())"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(armed=False), capture_output=True, text=True, check=True)
    assert done.stdout.strip().partition("device: ")[2]


def test_the_canaries_end_as_expected(shard: Shard) -> None:
    assert {role: cell["status"] for role, cell in shard.canaries.items()} == {"canary_good": "pass", "canary_wrong": "mismatch"}
    assert rows(shard.path, "SELECT canary_ok, canary_detail FROM shards") == [{"canary_ok": True, "canary_detail": None}]


def test_a_good_model_passes_on_the_target_with_parity_and_samples(backend: str, shard: Shard) -> None:
    cell = shard.cells["good"]
    assert shard.verdict("good") == ("pass", "measure", None), cell["message"]
    assert cell["on_target"] == 1.0 or (backend == Backend.EXECUTORCH and cell["on_target"] > 0)  # XNNPACK has no embedding
    assert cell["placement_detail"]
    assert cell["relative_error"] <= 1e-4
    assert cell["cosine"] > 0.9999
    assert min(cell["load_ms"], cell["prepare_ms"], cell["first_ms"], cell["peak_mb"]) > 0
    outputs = rows(shard.path, "SELECT name, shape FROM outputs WHERE cell_id = ? ORDER BY name", cell["cell_id"])
    assert [(output["name"], output["shape"]) for output in outputs] == [("last_hidden_state", [1, 16, 16]), ("pooler_output", [1, 16])]
    (counted,) = rows(shard.path, "SELECT count(*) AS n, min(wall_ns) AS least FROM samples WHERE cell_id = ?", cell["cell_id"])
    assert counted["n"] >= 6
    assert counted["least"] > 0


def test_a_repeated_cell_gives_the_same_outputs(shard: Shard) -> None:
    """Both have exactly the same error against the reference, for each output."""

    def distances(name: str) -> list[dict[str, Any]]:
        cell_id = shard.cells[name]["cell_id"]
        return rows(shard.path, "SELECT name, relative_error, max_error, cosine FROM outputs WHERE cell_id = ? ORDER BY name", cell_id)

    assert shard.verdict("good again") == ("pass", "measure", None)
    assert distances("good") == distances("good again")


@pytest.mark.parametrize(
    ("name", "error_type"), [("gives wrong numbers", "mismatch"), ("gives NaN", "non_finite_output"), ("lacks an output", "missing_output")]
)
def test_wrong_outputs_are_a_mismatch(shard: Shard, name: str, error_type: str) -> None:
    assert shard.verdict(name) == ("mismatch", "compare", error_type)
    cell_id = shard.cells[name]["cell_id"]
    assert rows(shard.path, "SELECT count(*) AS n FROM samples WHERE cell_id = ?", cell_id) == [{"n": 0}]


def test_wrong_numbers_are_reported_with_the_output_and_the_error(shard: Shard) -> None:
    cell = shard.cells["gives wrong numbers"]
    assert cell["relative_error"] > 0.1
    assert "pooler_output" in cell["message"]
    assert "NaN" in shard.cells["gives NaN"]["message"]
    assert "pooler_output" in shard.cells["lacks an output"]["message"]


@pytest.mark.parametrize(
    ("name", "status", "error_type", "end"),  # end: exit code, signal
    [
        ("crashes", "crash", "segmentation_fault", (None, 11)),
        ("leaves with 0", "crash", "process_exit", (0, None)),
        ("leaves with 3", "crash", "process_exit", (3, None)),
        ("prints", "crash", "process_exit", (4, None)),
        ("loops", "timeout", "timeout", (None, 9)),
        ("sleeps", "timeout", "timeout", (None, 9)),
        ("allocates", "oom", "memory_pressure", (0, None)),
    ],
)
def test_a_forward_pass_that_ends_the_process_gets_the_right_status(
    shard: Shard, name: str, status: str, error_type: str, end: tuple[int | None, int | None]
) -> None:
    cell = shard.cells[name]
    assert (cell["status"], cell["error_type"]) == (status, error_type), cell["message"]
    assert (cell["exit_code"], cell["signal"]) == end
    assert cell["stage"] == shard.cells["raises"]["stage"]  # the stage in which this target executes the forward pass
    assert cell["stage"] in FORWARD
    assert cell["load_ms"] > 0  # earlier measurements are kept


@pytest.mark.parametrize(
    ("name", "status", "error_type"),
    [
        ("crashes while it is loaded", "crash", "segmentation_fault"),
        ("allocates while it is loaded", "oom", "memory_pressure"),
    ],
)
def test_a_process_that_ends_while_loading_ends_in_stage_load(shard: Shard, name: str, status: str, error_type: str) -> None:
    assert shard.verdict(name) == (status, "load", error_type)
    assert shard.cells[name]["load_ms"] is None


def test_a_timeout_takes_no_longer_than_its_limit(shard: Shard) -> None:
    assert 5000 <= shard.cells["loops"]["wall_ms"] < 7000
    assert 5000 <= shard.cells["sleeps"]["wall_ms"] < 7000


def test_an_exception_is_an_error_with_its_traceback(shard: Shard) -> None:
    cell = shard.cells["raises"]
    assert cell["status"] == "error"
    assert cell["stage"] in FORWARD
    assert "this model raises on purpose" in cell["message"]
    assert "Traceback" in cell["traceback"]


def test_the_end_of_a_model_s_output_is_kept(shard: Shard) -> None:
    log = shard.cells["prints"]["traceback"]
    assert log.endswith("the last words")
    assert len(log) <= 8192


def test_a_process_that_a_model_leaves_behind_is_killed(shard: Shard, order: Order) -> None:
    assert shard.verdict("leaves a process") == ("pass", "measure", None)
    assert still_running(order) == []


def test_an_operator_without_a_conversion_is_unsupported_and_named(shard: Shard) -> None:
    """On targets that use PyTorch's own kernels the model passes, because they have every operator of the reference."""
    cell = shard.cells["uses lgamma"]
    if cell["method"] is not None and cell["method"].startswith("torch"):
        assert shard.verdict("uses lgamma") == ("pass", "measure", None)
    else:
        assert shard.verdict("uses lgamma") == ("unsupported", "prepare", "unsupported_operator")
        assert len(cell["needs"]) == 1
        assert "lgamma" in cell["needs"][0].lower()
        assert cell["needs"][0] in cell["message"]


@pytest.fixture(scope="module")
def half_built(tmp_path_factory: pytest.TempPathFactory) -> Order:
    """Bundles of which most cannot be built, because the faults are enabled: made once for all targets."""
    laid = write_order(tmp_path_factory.mktemp("half-built") / "run", make_plan(HALF_BUILT, backend=Backend.CPU))
    run("bundles", laid, armed=True)
    return laid


@pytest.mark.parametrize(
    "backend", [each if each == Backend.CPU else pytest.param(each, marks=pytest.mark.long) for each in BACKENDS], indirect=True
)
def test_a_model_that_fails_while_its_bundle_is_built_is_a_factory_error(backend: str, half_built: Order, tmp_path: Path) -> None:
    """Such a failure never counts against the target."""
    plan = make_plan(HALF_BUILT, backend=backend)
    laid = write_order(tmp_path / "run", plan, cache=half_built.cache)
    shutil.copytree(half_built.plan.parent / "bundles", tmp_path / "run" / "bundles", dirs_exist_ok=True)
    run("run", laid, "--target", plan.targets[0].name, "--host", "test", armed=False)
    (path,) = laid.shards.glob("*.duckdb")
    found = {cell["cell_key"]: cell for cell in Shard(path, []).cells.values() if cell["role"] == "model"}
    assert {name: (cell["status"], cell["stage"], cell["error_type"]) for name, cell in found.items()} == FAILS_TO_BUILD
    assert "SIGSEGV" in found["crashes"]["message"] or "signal 11" in found["crashes"]["message"]
