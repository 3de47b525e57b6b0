"""``hwmatrix errors`` through ``main``, on a fake machine. The hardware test starts no processes here; tests/torch runs the real one."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from factory_advice import detections
from factory_rows import Database, steady, unmeasured

from hwmatrix.app.schemas import REPORTS
from hwmatrix.classifier import classifier as integration
from hwmatrix.cli import main
from hwmatrix.pool.pool import ResourcePool
from hwmatrix.records import Dtype, Execution, Status
from hwmatrix.reporter import reporter, stack
from hwmatrix.reporter.document import json_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hwmatrix.records import Detection

ROOT = Path(__file__).parents[3]


class Detector:
    """A machine with a CPU and OpenVINO."""

    def __init__(self, *_: object, **__: object) -> None:
        """Accept a detector's arguments."""

    def detect(self) -> Mapping[str, Detection]:
        return detections("cpu", "openvino", memory_mb=64_000)

    def get_torch_device_with_priority(self, priority_list: Sequence[str] | None = None, preferred_index: int = 0) -> str:
        assert priority_list is not None
        return f"cpu:{preferred_index}"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copy(ROOT / "matrix.yaml", tmp_path / "matrix.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in (reporter, integration):
        monkeypatch.setattr(module, "HardwareDetector", Detector)
    monkeypatch.setattr(reporter, "get_global_resource_pool", ResourcePool)
    monkeypatch.setattr(stack, "run_test", lambda: pytest.fail("nothing may be executed without --test-hardware"))
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def database(project: Path) -> Path:
    """A database in reports/latest with one model that passes and one that gives wrong numbers."""
    path = project / "reports" / "latest" / "matrix.duckdb"
    path.parent.mkdir(parents=True)
    with Database(path) as filled:
        filled.run()
        filled.shard("s-cpu", "cpu")
        filled.shard("s-qnn", "qnn")
        filled.cell(filled.plan("bert", "cpu"), "s-cpu", wall=steady(10.0))
        wrong = {"message": "relative L2 error 3.61 of logits exceeds 0.05", "error_type": "mismatch", "severity": "error"}
        filled.cell(filled.plan("vit", "qnn"), "s-qnn", **unmeasured("mismatch") | wrong)
    return path


def errors(*argv: str) -> int:
    return main.main(["errors", *argv])


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    """The command's JSON, validated against its schema."""
    assert errors(*argv, "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    jsonschema.validate(told, json_schema(), cls=jsonschema.Draft202012Validator)
    return told


def types(told: Any) -> set[str]:
    return {entry["error_type"] for entry in told["errors"]}


def test_without_an_option_everything_is_collected_and_nothing_executed(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = document(capsys)
    assert told["collected"] == ["components", "hardware_detection", "resource_pool", "database"]
    assert "mismatch" in types(told)
    assert (told["stack"], told["matrix"]) == (None, None)
    again = document(capsys, "--collect-all", "--database", str(database))
    assert [entry["message"] for entry in again["errors"]] == [entry["message"] for entry in told["errors"]]


def test_the_markdown_report(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert errors() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# ")
    assert printed.endswith("\n")
    assert "## Error: `mismatch` on qnn" in printed
    assert str(database.relative_to(Path.cwd())) in printed


def test_without_a_database_everything_else_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    told = document(capsys)
    assert told["collected"] == ["components", "hardware_detection", "resource_pool"]
    assert {entry["component"] for entry in told["errors"]} >= {"hardware_detection"}


@pytest.mark.usefixtures("database")
def test_a_single_model_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    told = document(capsys, "--check-model", "nonsense-xyz")
    assert told["collected"] == ["model nonsense-xyz"]
    assert types(told) == {"family_unknown", "no_compatible_hardware", "size_unknown"}
    assert document(capsys, "--check-model", "bert-base-uncased")["errors"] == []


def test_several_models_and_everything_else(capsys: pytest.CaptureFixture[str]) -> None:
    told = document(capsys, "--collect-all", "--check-model", "llava", "--check-model", "nonsense-xyz")
    assert set(told["collected"]) == {"components", "hardware_detection", "resource_pool", "model llava", "model nonsense-xyz"}
    assert {"hardware_incompatible", "family_unknown"} <= types(told)


@pytest.mark.usefixtures("database")
def test_the_matrix_alone_is_a_separate_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors("--matrix") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# Models against hardware\n")
    assert "measured: 1 " in printed
    assert "expected: " in printed
    assert "rror: `" not in printed


@pytest.mark.usefixtures("database")
def test_the_matrix_is_a_part_of_a_combined_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors("--matrix", "--check-model", "nonsense-xyz") == 0
    printed = capsys.readouterr().out
    assert printed.count("odels against hardware") == 1
    assert "`family_unknown`" in printed
    told = document(capsys, "--matrix")
    assert told["matrix"]
    assert told["errors"] == []


def test_the_hardware_test_runs_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    passed = stack.StackResult(
        hardware="cpu", status=Status.PASS, execution=Execution.HARDWARE, dtype=Dtype.FLOAT32, wall_ms=12.3, message=None
    )
    monkeypatch.setattr(stack, "run_test", lambda: ((passed,), ()))
    found = document(capsys, "--test-hardware")
    assert found["collected"] == ["hardware_stack"]
    assert [(entry["hardware"], entry["status"]) for entry in found["stack"]] == [("cpu", "pass")]


@pytest.mark.usefixtures("database")
def test_the_report_can_be_written_to_a_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert errors("--collect-all", "--format", "json", "--output", "new/errors.json") == 0
    assert capsys.readouterr().out == "wrote new/errors.json\n"
    jsonschema.validate(json.loads((project / "new" / "errors.json").read_text(encoding="utf-8")), json_schema())
    assert [path.name for path in (project / "new").iterdir()] == ["errors.json"]


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--check-model", "a/b/c d"], 2, "a/b/c d"),
        (["--check-model", ""], 2, ""),
        (["--format", "yaml"], 2, "yaml"),
        (["--matrices"], 2, "--matrices"),
        (["--database", "missing.duckdb"], 7, "missing.duckdb"),
        (["--matrix", "--database", "missing.duckdb"], 7, "missing.duckdb"),
        (["--check-model", "bert", "--database", "matrix.yaml"], 7, "matrix.yaml"),
        (["--check-model", "bert", "--output", "matrix.yaml/errors.md"], 7, "matrix.yaml/errors.md"),
    ],
)
def test_failures_have_their_exit_codes(argv: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert errors(*argv) == code
    printed = capsys.readouterr()
    assert said in " ".join(printed.err.split())
    assert printed.out == ""


def test_the_schema_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["schema", "hardware-errors"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == REPORTS["hardware-errors"]()
    assert printed == json.loads((ROOT / "docs" / "schemas" / "hardware-errors-report.schema.json").read_text(encoding="utf-8"))


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors("--help") == 0
    printed = capsys.readouterr().out
    for option in ("--collect-all", "--matrix", "--test-hardware", "--check-model", "--format", "--output", "--database"):
        assert option in printed
