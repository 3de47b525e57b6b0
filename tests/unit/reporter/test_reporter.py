"""The reporter with real parts, except for the machine and the hardware test (tests/torch runs it)."""

from __future__ import annotations

import datetime as dt
import inspect
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from factory_advice import detections
from factory_rows import Database, steady, unmeasured

import hwmatrix
from hwmatrix.classifier.classifier import Sources
from hwmatrix.errors import ConfigError, StoreError
from hwmatrix.faults.error_records import KEYS
from hwmatrix.pool.errors import ModelStartError
from hwmatrix.pool.pool import ResourcePool
from hwmatrix.records import Dtype, Execution, Severity, Status
from hwmatrix.reporter import stack
from hwmatrix.reporter.document import ERROR_REPORT_SCHEMA, json_schema
from hwmatrix.reporter.reporter import HardwareCompatibilityReporter
from hwmatrix.reporter.stack import StackResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.records import Detection

ROOT = Path(__file__).parents[3]
NOW = dt.datetime(2026, 11, 20, 8, 15, tzinfo=dt.UTC)


class Machine:
    """A detector with the answers that a test chooses."""

    def __init__(self, *here: str, **memory: int | None) -> None:
        self.found = detections(*here, **memory)

    def detect(self) -> Mapping[str, Detection]:
        return self.found

    def get_torch_device_with_priority(self, priority_list: Sequence[str] | None = None, preferred_index: int = 0) -> str:
        assert priority_list is not None
        return f"cpu:{preferred_index}"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(ROOT / "matrix.yaml", tmp_path / "matrix.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "torch", None)
    return tmp_path


@pytest.fixture
def database(project: Path) -> Path:
    """A database with two models without a driver, one with wrong numbers, one that passes, and a rejected shard."""
    path = project / "other.duckdb"
    with Database(path) as filled:
        filled.run()
        filled.shard("s-cpu", "cpu")
        filled.shard("s-qnn", "qnn")
        filled.cell(filled.plan("bert", "cpu"), "s-cpu", wall=steady(10.0))
        driver = {"message": "no NVIDIA driver is loaded here (there is no /proc/driver/nvidia)", "error_type": None, "severity": None}
        filled.shard("s-cuda", "cuda")
        for model in ("bert", "vit"):
            filled.cell(filled.plan(model, "cuda"), "s-cuda", **unmeasured("unavailable") | driver)
        wrong = {"message": "relative L2 error 3.61 of logits exceeds 0.05", "error_type": "mismatch", "severity": "error"}
        filled.cell(filled.plan("vit", "qnn"), "s-qnn", **unmeasured("mismatch") | wrong)
        filled.insert(
            "rejected", {"file": "x.duckdb", "run_id": None, "reason": "it has no sidecar", "rejected_at": NOW.replace(tzinfo=None)}
        )
    return path


def reporter(machine: Machine | None = None, **changes: Any) -> HardwareCompatibilityReporter:
    plain: dict[str, Any] = {"pool": ResourcePool(), "clock": lambda: NOW}
    return HardwareCompatibilityReporter(**plain | {"sources": Sources(detector=machine or Machine("cpu"))} | changes)


def kinds(made: HardwareCompatibilityReporter) -> list[tuple[str, str | None]]:
    return [(error.error_type, error.hardware_type) for error in made.errors]


def test_the_public_name_and_its_methods() -> None:
    assert hwmatrix.HardwareCompatibilityReporter is HardwareCompatibilityReporter
    for name, arguments in {
        "check_components": [],
        "collect_hardware_detection_errors": [],
        "collect_resource_pool_errors": [],
        "collect_model_integration_errors": ["model"],
        "test_full_hardware_stack": [],
        "generate_report": ["format"],
        "generate_compatibility_matrix": [],
        "save_to_file": ["report", "path"],
    }.items():
        assert list(inspect.signature(getattr(HardwareCompatibilityReporter, name)).parameters)[1:] == arguments
    assert inspect.signature(HardwareCompatibilityReporter.generate_report).parameters["format"].default == "markdown"


def test_nothing_is_collected_at_first() -> None:
    made = reporter()
    assert made.errors == ()
    assert "Collected: nothing yet." in made.generate_report()
    document = json.loads(made.generate_report(format="json"))
    assert document["counts"] == {"critical": 0, "error": 0, "warning": 0, "info": 0}
    assert (document["components"], document["stack"], document["matrix"]) == (None, None, None)


def test_unavailable_hardware_has_its_reason() -> None:
    machine = Machine("cpu")
    (cuda,) = (found for hardware, found in machine.found.items() if hardware == "cuda")
    records = reporter(machine).collect_hardware_detection_errors()
    assert {record["hardware_type"] for record in records} == machine.found.keys() - {"cpu"}
    (told,) = (record for record in records if record["hardware_type"] == "cuda")
    assert tuple(told) == KEYS
    assert told["message"] == cuda.reason
    assert told["component"] == "hardware_detection"
    assert told["severity"] == "info"
    assert told["recommendations"]


def test_a_failing_detector_is_an_error_record_and_not_an_exception() -> None:
    class Broken(Machine):
        def detect(self) -> Mapping[str, Detection]:
            raise OSError("the driver is gone")

    (record,) = reporter(Broken()).collect_hardware_detection_errors()
    assert (record["error_type"], record["severity"]) == ("component_broken", "error")
    assert "OSError: the driver is gone" in record["message"]


def test_failed_starts_and_fallbacks_of_the_pool() -> None:
    pool = ResourcePool(detector=Machine("cpu"))

    def constructor() -> object:
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(ModelStartError):
        pool.get_model("vision", "broken", constructor, {"device": "cpu"})
    pool.get_model("vision", "fine", lambda device: object(), {"device": "cuda"})  # noqa: ARG005 - a constructor may want it
    made = reporter(pool=pool)
    records = {record["model_name"]: record for record in made.collect_resource_pool_errors()}
    assert records["broken"]["component"] == "resource_pool"
    assert "device-side assert triggered" in records["broken"]["message"]
    assert records["broken"]["traceback"]
    fell = records["fine"]
    assert (fell["error_type"], fell["severity"], fell["hardware_type"]) == ("fallback", "warning", "cuda")
    assert "fine ran on cpu; cuda was expected" in fell["message"]


def test_an_unknown_model() -> None:
    made = reporter()
    made.collect_model_integration_errors("nonsense-xyz")
    assert kinds(made) == [("family_unknown", None), ("no_compatible_hardware", None), ("size_unknown", None)]
    assert all(error.model_name == "nonsense-xyz" for error in made.errors)


def test_a_model_that_works_here_has_no_errors() -> None:
    made = reporter(Machine("cpu", memory_mb=64_000))
    assert made.collect_model_integration_errors("bert-base-uncased") == []


def test_a_model_that_does_not_fit_here() -> None:
    made = reporter(Machine("cpu", memory_mb=100))
    made.collect_model_integration_errors("bert-base-uncased")
    assert ("memory_insufficient", "cpu") in kinds(made)
    assert ("no_compatible_hardware", None) in kinds(made)
    (needs,) = (error for error in made.errors if error.error_type == "memory_insufficient")
    assert "and 100 MiB are left" in needs.message


def test_hardware_on_which_a_model_is_not_expected_to_work() -> None:
    made = reporter(Machine("cpu", "openvino", memory_mb=64_000))
    made.collect_model_integration_errors("llava")
    (error,) = (error for error in made.errors if error.error_type == "hardware_incompatible")
    assert error.hardware_type == "openvino"
    assert error.message.startswith("llava is not expected to work on openvino: ")
    assert error.severity is Severity.INFO


@pytest.mark.parametrize("name", ["", "a/b/c/d", "bert\nx"])
def test_an_invalid_model_name(name: str) -> None:
    with pytest.raises(ConfigError):
        reporter().collect_model_integration_errors(name)


def test_errors_in_a_database(database: Path) -> None:
    made = reporter(database=database)
    records = made.collect_database_errors()
    assert kinds(made) == [("shard_rejected", None), ("mismatch", "qnn"), ("gpu_no_driver", "cuda"), ("gpu_no_driver", "cuda")]
    assert [error.model_name for error in made.errors] == [None, "vit", "bert", "vit"]
    assert {record["component"] for record in records} == {"merge", "build", "compare"}
    rejected = made.errors[0]
    assert (rejected.message, rejected.timestamp) == ("x.duckdb: it has no sidecar", "2026-11-20T08:15:00Z")


def test_without_a_database_there_are_no_recorded_errors() -> None:
    made = reporter()
    assert made.collect_database_errors() == []
    assert json.loads(made.generate_report("json"))["collected"] == []


def test_a_given_database_must_be_valid(project: Path) -> None:
    (project / "text.duckdb").write_text("no database", encoding="utf-8")
    for name in ("missing.duckdb", "text.duckdb"):
        made = reporter(database=project / name)
        with pytest.raises(StoreError):
            made.collect_database_errors()
        with pytest.raises(StoreError):
            made.generate_compatibility_matrix()


def test_collecting_again_replaces_records_and_add_adds_them() -> None:
    made = reporter()
    made.collect_model_integration_errors("nonsense-xyz")
    made.collect_model_integration_errors("nonsense-xyz")
    assert len(made.errors) == 3
    record = made.errors[0].to_dict()
    for _ in range(2):
        made.add({**record, "component": "elsewhere"})
    made.add(made.errors[0])
    document = json.loads(made.generate_report("json"))
    assert {entry["component"]: entry["occurrences"] for entry in document["errors"] if entry["error_type"] == "family_unknown"} == {
        "model_integration": 1 + (made.errors[0].component == "model_integration"),
        "elsewhere": 2 + (made.errors[0].component == "elsewhere"),
    }
    with pytest.raises(ConfigError, match="it has no 'severity'"):
        made.add({"message": "half a record"})


def test_the_stack_s_results_are_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = StackResult(hardware="cpu", status=Status.PASS, execution=Execution.HARDWARE, dtype=Dtype.FLOAT32, wall_ms=12.3, message=None)
    crashed = StackResult(
        hardware="qnn", status=Status.CRASH, execution=Execution.EMULATED, dtype=Dtype.FLOAT16, wall_ms=9.0, message="SIGSEGV"
    )
    monkeypatch.setattr(stack, "run_test", lambda: ((passed, crashed), ()))
    made = reporter()
    results = made.test_full_hardware_stack()
    assert [(each["hardware"], each["status"]) for each in results] == [("cpu", "pass"), ("qnn", "crash")]
    text = made.generate_report()
    assert "## Hardware stack" in text
    assert "| qnn | crash: SIGSEGV | emulated | float16 | 9 |" in text
    assert json.loads(made.generate_report("json"))["stack"] == results


def test_everything_in_one_report_that_matches_its_schema(database: Path) -> None:
    made = reporter(database=database)
    made.collect_all(["bert", "nonsense-xyz"])
    made.generate_compatibility_matrix()
    document = json.loads(made.generate_report("json"))
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.validate(document, json_schema(), cls=jsonschema.Draft202012Validator)
    assert document["schema"] == ERROR_REPORT_SCHEMA == "hwmatrix/error-report/1"
    assert document["generated_at"] == "2026-11-20T08:15:00Z"
    assert document["collected"][:4] == ["components", "hardware_detection", "resource_pool", "database"]
    assert sum(document["counts"].values()) == len(document["errors"])
    ranks = [list(Severity).index(Severity(entry["severity"])) for entry in document["errors"]]
    assert ranks == sorted(ranks)
    assert all(entry["recommendations"] for entry in document["errors"])
    broken = document | {"counts": {"fatal": 1}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, json_schema(), cls=jsonschema.Draft202012Validator)


def test_the_same_facts_give_the_same_bytes(database: Path) -> None:
    def texts() -> tuple[str, str, str]:
        made = reporter(database=database)
        made.collect_database_errors()
        made.collect_model_integration_errors("nonsense-xyz")
        return made.generate_compatibility_matrix(), made.generate_report(), made.generate_report("json")

    assert texts() == texts()


def test_markdown_has_every_type_once_with_its_advice(database: Path) -> None:
    made = reporter(database=database)
    made.collect_database_errors()
    text = made.generate_report()
    assert "**4 records**, by severity: 1 critical, 1 error, 0 warning, 2 info." in text
    assert text.count("## Info: `gpu_no_driver` on cuda (2)") == 1
    assert "model `bert`, `vit`" in text
    assert text.index("shard_rejected") < text.index("`mismatch`") < text.index("`gpu_no_driver`")
    assert "- Run on a machine with an NVIDIA GPU and its driver" in text


def test_hostile_text_breaks_nothing() -> None:
    made = reporter()
    evil = "```\n</details>\n# a heading\n<script>alert(1)</script> | @somebody https://example.org `x`"
    record = made.collect_model_integration_errors("nonsense-xyz")[0]
    made.add({**record, "message": evil, "model_name": "a|b`c", "component": "x | y", "traceback": evil})
    text = made.generate_report()
    lines = text.splitlines()
    assert "````text" in lines, "the fence must be longer than any run of backticks in it"
    inside = False
    for line in lines:
        if line.startswith("````"):
            inside = not inside
        elif not inside:
            assert "<script>" not in line
            assert not line.startswith("# a heading")
    assert "<code>a&#124;b&#96;c</code>" in text
    assert "x &#124; y" in text


def test_the_matrix_has_measurements_first_and_labeled_priors(database: Path) -> None:
    text = reporter(database=database).generate_compatibility_matrix()
    assert text.startswith("# Models against hardware\n")
    header = next(line for line in text.splitlines() if line.startswith("| Models"))
    assert header == "| Models | cpu | openvino | onnxruntime | cuda | rocm | mps | webgpu | webnn | qnn | inductor | executorch |"
    rows = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in text.splitlines() if line.startswith("| ")
    }
    assert any(cell.startswith("measured: 1 High") for cell in rows["**embedding**"])
    assert rows["**audio**"][3].startswith("expected: ")
    assert all(
        cell == "" or cell.startswith(("measured: ", "expected: "))
        for name, cells in rows.items()
        if name.startswith("**")
        for cell in cells
    )
    assert len({len(cells) for cells in rows.values()}) == 1


def test_without_measurements_the_matrix_says_so() -> None:
    text = reporter().generate_compatibility_matrix()
    assert "Nothing was measured yet: run models" in text
    assert "measured:" not in text
    assert "expected: " in text


@pytest.mark.parametrize("word", ["html", "", "JSON"])
def test_an_unknown_format(word: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written as '.*' \(markdown or json\)"):
        reporter().generate_report(format=word)


def test_a_report_is_written_completely_or_not_at_all(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reporter()
    path = made.save_to_file("the first", project / "new" / "report.md")
    assert path.read_text(encoding="utf-8") == "the first"

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        with pytest.raises(StoreError, match="No space left on device"):
            made.save_to_file("the second", path)
    assert path.read_text(encoding="utf-8") == "the first"
    assert [each.name for each in path.parent.iterdir()] == ["report.md"]
    with pytest.raises(StoreError):
        made.save_to_file("x", project / "matrix.yaml" / "report.md")
