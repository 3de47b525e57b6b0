"""What `nox -s calibrate` runs and writes: valid matrices, separate held-out models, correct tables."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from memory_fit import MeasuredPeak

from hwmatrix.knowledge.calibration import Features, calibration
from hwmatrix.matrix.spec import SPEC_ADAPTER
from hwmatrix.records import Backend, Dtype, Size

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "tests" / "bench"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


RUNS, REPORT = module("memory_runs"), module("memory_report")
LISTED: dict[str, Any] = yaml.safe_load((BENCH / "memory.yaml").read_text(encoding="utf-8"))
MATRIX: dict[str, Any] = yaml.safe_load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
MATRICES: dict[str, dict[str, Any]] = dict(RUNS.matrices(LISTED, MATRIX))


@pytest.mark.parametrize("name", MATRICES)
def test_every_matrix_is_valid_and_says_batch_and_length_itself(name: str) -> None:
    spec = SPEC_ADAPTER.validate_python(MATRICES[name])
    run = next(run for run in LISTED["runs"] if run["name"] == name.rpartition("-")[0])
    assert set(spec.targets) == set(run["targets"])
    for model in spec.models.values():
        full = model.variant(Size.FULL)
        assert full.batch == run["batch"]
        assert full.sequence_length is not None
        assert full.sequence_length <= run["sequence_length"]


def test_every_group_is_run_and_holds_models_that_exist() -> None:
    used = {group for run in LISTED["runs"] for group in run["groups"]}
    assert used == set(LISTED["groups"])
    named = {model for group in LISTED["groups"].values() for model in group}
    assert named == set(LISTED["models"]) | (named & set(MATRIX["models"]))


def test_held_out_models_are_not_in_matrix_yaml() -> None:
    assert set(LISTED["models"]) & set(MATRIX["models"]) == set()
    for name, models in LISTED["groups"].items():
        assert all((model in LISTED["models"]) == name.startswith("unseen") for model in models)


def test_finished_matrices_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def pretend(command: list[str], **_: object) -> None:
        output = Path(command[command.index("--output-dir") + 1])
        matrix = Path(command[command.index("--matrix") + 1])
        SPEC_ADAPTER.validate_python(yaml.safe_load(matrix.read_text(encoding="utf-8")))
        (output / "matrix.json").write_text("{}")
        ran.append(command)

    monkeypatch.setattr(RUNS.subprocess, "run", pretend)
    name, content = next(iter(MATRICES.items()))
    for _ in range(2):
        RUNS._run(name, content, tmp_path, tmp_path / "work")
    assert len(ran) == 1
    assert list(tmp_path.glob(".memory-*")) == []


def test_bundles_of_a_failed_run_are_removed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        (tmp_path / "work" / "cache" / "bundles").mkdir(parents=True)
        raise RUNS.subprocess.CalledProcessError(5, "hwmatrix")

    monkeypatch.setattr(RUNS.subprocess, "run", fail)
    name, content = next(iter(MATRICES.items()))
    with pytest.raises(RUNS.subprocess.CalledProcessError):
        RUNS._run(name, content, tmp_path, tmp_path / "work")
    assert not (tmp_path / "work" / "cache" / "bundles").exists()
    assert list(tmp_path.glob(".memory-*")) == []


def cell(estimate_mb: float, *, held_out: bool = False) -> Any:
    features = Features(stored=1, weights=1, tied=0, activations=1, comparison=1, copied=0)
    measured = MeasuredPeak(
        model="bert",
        backend=Backend.CPU,
        dtype=Dtype.FLOAT32,
        batch=2,
        sequence_length=64,
        features=features,
        load_peak_mb=500.0,
        peak_mb=1000.0,
        held_out=held_out,
    )
    return REPORT.ReportedCell(measured=measured, estimate_mb=estimate_mb, run_id="run-1")


def test_reports_contain_every_cell_with_its_error(tmp_path: Path) -> None:
    lacking = [
        {"model": "switch", "target": "cpu", "dtype": "float32", "batch": 1, "sequence_length": 64, "status": "oom", "error_type": None}
    ]
    REPORT.publish(tmp_path / "new", calibration(), [cell(900.0), cell(1500.0, held_out=True)], lacking)
    text = (tmp_path / "new" / "memory.md").read_text(encoding="utf-8")
    assert "| `bert` | cpu | float32 | 2 | 64 | 1,000 | 900 | -10.0% |" in text
    assert "| `bert` (held out) | cpu | float32 | 2 | 64 | 1,000 | 1,500 | +50.0% |" in text
    assert "| `switch` | cpu | float32 | 1 | 64 | oom |  |" in text
    told = json.loads((tmp_path / "new" / "memory.json").read_text(encoding="utf-8"))
    assert [found["error"] for found in told["cells"]] == [-0.1, 0.5]
    assert told["cells"][0]["run_id"] == "run-1"
    assert told["unmeasured"] == lacking


def test_the_tables_are_written_between_the_page_s_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{REPORT.BEGIN}\nold\n{REPORT.END}\n\nafter\n", encoding="utf-8")
    for _ in range(2):
        REPORT.write_page(page, calibration(), [cell(900.0), cell(1500.0)])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert text.count("+50.0%") == 1
    assert "-10.0%" not in text  # within 25 %
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(SystemExit, match="lacks the line"):
        REPORT.write_page(page, calibration(), [])


def test_the_published_page_has_the_errors_of_the_calibration() -> None:
    text = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    for line in (*REPORT.errors_table(calibration()), *REPORT.coefficients_table(calibration())):
        assert line in text
