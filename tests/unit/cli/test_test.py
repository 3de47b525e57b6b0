"""``hwmatrix test`` through ``main``: the order of attempts, the output, the stored files. Only the executor is fake."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import duckdb
import factory_plans as make
import fake_types
import jsonschema
import pytest
from fake_executor import FakeExecutor

from hwmatrix.app import execution
from hwmatrix.app.trial_document import json_schema
from hwmatrix.basics.clock import utc_now
from hwmatrix.cli import main
from hwmatrix.cli import test as testing
from hwmatrix.hardware.detector import machine_identity
from hwmatrix.records import CellPlan, Isolation, Plan, Status, cell_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hwmatrix.store.shard import ShardWriter

pytestmark = pytest.mark.usefixtures("project")
MATRIX = """\
version: 1
sizes:
  tiny: {batch: 2}
  full: {}
tolerances:
  float32: {relative_error: 1.0e-3, reason: rounding}
  float16: {relative_error: 1.0e-2, reason: rounding}
  a16w8: {relative_error: 1.0e-1, reason: rounding}
targets:
  cpu: {backend: cpu, image: cpu, dtypes: [float32, float16]}
  openvino: {backend: openvino, image: openvino}
  cuda: {backend: cuda, image: cuda, base: torch-cuda}
  qnn: {backend: qnn, image: qnn, base: python, execution: emulated, dtypes: [float16, float32], more_dtypes: [a16w8]}
models:
  bert: {family: embedding, architecture: bert, class: BertModel, hub_id: google-bert/bert-base-uncased}
  vit: {family: vision, architecture: vit, class: ViTModel}
  huge: {family: text_generation, architecture: gpt2, class: GPT2LMHeadModel, tiny: {unbuildable: too large for this world}}
suites:
  default: {models: all}
"""
NO_GPU = "there is no GPU here"
OUT_OF_MEMORY = "Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"


@dataclasses.dataclass
class ScriptedExecutor(FakeExecutor):
    """Cells end as scripted for their target: one status after the other, then ``pass``."""

    script: dict[str, list[Status]] = dataclasses.field(default_factory=dict)
    fits: dict[str, int] = dataclasses.field(default_factory=dict)
    """The largest batch that fits into a target's memory."""
    messages: dict[Status, str] = dataclasses.field(default_factory=dict)

    def _run_cell(self, shard: ShardWriter, plan: Plan, cell: CellPlan, _on_line: Callable[[str], None]) -> None:
        batch, waiting = cell.settings.batch, self.script.get(cell.target, [])
        status = Status.OOM if batch > self.fits.get(cell.target, batch) else waiting.pop(0) if waiting else Status.PASS
        changes = {} if status is Status.PASS else make.failure(status)
        if status is Status.MISMATCH:
            changes |= {"on_target": 1.0, "placement_detail": "all of it"}
        if "error" in changes:
            message = self.messages.get(status, OUT_OF_MEMORY if status is Status.OOM else f"{status.value} on {cell.target}")
            kind = {Status.OOM: "memory_pressure"}.get(status, "unmatched")
            changes["error"] = dataclasses.replace(changes["error"], type=kind, message=message)
        result = make.result(cell, started_at=utc_now(), **changes)
        shard.add_cell(result, command=cell_command(plan.model_of(cell), cell, plan))
        self.ran.append(cell.key)


@pytest.fixture(autouse=True)
def executor(monkeypatch: pytest.MonkeyPatch) -> ScriptedExecutor:
    scripted = ScriptedExecutor(missing={"cuda": NO_GPU})
    monkeypatch.setattr(testing, "choose", lambda _isolation, _workshop: scripted)
    monkeypatch.setattr(execution, "choose", lambda _isolation, _workshop: scripted)
    return scripted


@pytest.fixture
def tested(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run the command, and return its JSON, validated against the schema."""

    def run(*argv: str, expect: int = 0) -> dict[str, Any]:
        code = main.main(["test", "--format", "json", *argv])
        printed = capsys.readouterr()
        assert code == expect, printed.err
        document: dict[str, Any] = json.loads(printed.out)
        jsonschema.validate(document, json_schema())
        return document

    return run


def attempts(trial: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(attempt["hardware"], attempt["batch"], attempt["status"]) for attempt in trial["attempts"]]


# ── the order of attempts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_on_available_hardware(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    document = tested("--model", "bert", "--device", "openvino")
    (trial,) = document["trials"]
    assert (trial["expected_hardware"], trial["actual_hardware"], trial["fell_back"]) == ("openvino", "openvino", False)
    assert (trial["status"], trial["batch"], trial["dtype"], trial["target"]) == ("pass", 2, "float32", "openvino")
    assert trial["p50_ms"] == pytest.approx(1.00002, rel=1e-3)
    assert trial["sample_ms"] == trial["p50_ms"] / 2
    assert trial["cost"] == {"expected_ms": None, "actual_ms": None, "factor": None, "note": "as expected"}
    assert executor.ran == ["bert/tiny/openvino/float32/b2-s16-t1"]


@pytest.mark.parametrize("name", ["gemma3", "type:bert"])
def test_a_type_of_transformers(
    tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fake_types.install(monkeypatch, tmp_path)
    (trial,) = tested("--model", name, "--device", "openvino", "--batch-size", "4")["trials"]
    assert (trial["status"], trial["batch"]) == ("pass", 4)
    assert executor.ran == [f"{name}/tiny/openvino/float32/b4-s16-t1"]


def test_the_settings_of_an_attempt(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    asked = ("--dtype", "float16", "--sequence-length", "32", "--threads", "1")
    (trial,) = tested("--model", "bert", "--device", "qnn", *asked)["trials"]
    assert (trial["dtype"], trial["sequence_length"], trial["threads"], trial["status"]) == ("float16", 32, 1, "pass")
    assert executor.ran == ["bert/tiny/qnn/float16/b2-s32-t1"]
    assert f" --dtypes float16{' '.join(('', *asked[2:]))} " in trial["command"]
    (trial,) = tested("--model", "bert", "--device", "qnn", "--batch-size", "3", *asked)["trials"]
    assert f" --device qnn {' '.join(asked)} --batch-size 3 " in trial["command"]


def test_only_hardware_that_has_the_precision_is_tried(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    (trial,) = tested("--model", "bert", "--dtype", "a16w8")["trials"]
    assert attempts(trial) == [("qnn", 2, "pass")]  # without a precision, it is not in the order of text at all
    assert executor.ran == ["bert/tiny/qnn/a16w8/b2-s16-t1"]
    trials = tested("--model", "bert", "--dtype", "a16w8", "--all-hardware")["trials"]
    assert [trial["target"] for trial in trials] == ["qnn"]
    executor.script = {"qnn": [Status.UNSUPPORTED]}
    (trial,) = tested("--model", "bert", "--device", "qnn", "--dtype", "float16")["trials"]
    assert attempts(trial) == [("qnn", 2, "unsupported"), ("cpu", 2, "pass")]


def test_a_search_in_another_precision(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    tested("--model", "bert", "--device", "qnn", "--dtype", "a16w8", "--largest-batch", "--max-batch", "2")
    assert executor.ran == ["bert/tiny/qnn/a16w8/b1-s16-t1", "bert/tiny/qnn/a16w8/b2-s16-t1"]


def test_missing_hardware_is_replaced_by_the_next_in_order(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    (trial,) = tested("--model", "vit", "--device", "cuda")["trials"]
    assert attempts(trial) == [
        ("cuda", 2, "unavailable"),
        ("rocm", 2, "unavailable"),
        ("mps", 2, "unavailable"),
        ("openvino", 2, "pass"),
    ]
    assert [attempt["reason"] for attempt in trial["attempts"][:2]] == [NO_GPU, "matrix.yaml has no target for it"]
    assert (trial["expected_hardware"], trial["actual_hardware"], trial["fell_back"]) == ("cuda", "openvino", True)
    assert trial["cost"]["note"] == "not measured on the expected hardware"
    assert len(executor.ran) == 1


def test_the_order_is_that_of_the_models_kind(tested: Callable[..., dict[str, Any]]) -> None:
    document = tested("--model", "bert", "--device", "cuda")
    assert [hardware for hardware, _, _ in attempts(document["trials"][0])] == ["cuda", "rocm", "mps", "cpu"]
    assert document["order_stands_on"] == "the design documents' priority of text"


def test_the_batch_halves_until_it_fits(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    executor.fits = {"openvino": 3}
    (trial,) = tested("--model", "bert", "--device", "openvino", "--batch-size", "12")["trials"]
    assert attempts(trial) == [("openvino", 12, "oom"), ("openvino", 6, "oom"), ("openvino", 3, "pass")]
    assert (trial["batch"], trial["actual_batch"], trial["fell_back"]) == (12, 3, True)
    assert trial["attempts"][0]["error_type"] == "memory_pressure"
    assert trial["command"] == "hwmatrix test --model bert --size tiny --device openvino --batch-size 3 --isolation container --no-fallback"
    assert trial["lost_ms"] == pytest.approx(261.0)
    assert "Use a smaller batch or a shorter sequence." in trial["recommendations"]


def test_a_model_that_never_fits_goes_to_the_cpu_with_its_full_batch(
    tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor
) -> None:
    executor.fits = {"openvino": 0}
    (trial,) = tested("--model", "bert", "--device", "openvino")["trials"]
    assert attempts(trial) == [("openvino", 2, "oom"), ("openvino", 1, "oom"), ("cpu", 2, "pass")]


def test_a_reference_that_does_not_fit_gets_a_smaller_batch(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    executor.script = {"cpu": [Status.FACTORY_ERROR]}
    executor.messages = {Status.FACTORY_ERROR: f"BertModel fails on its inputs: RuntimeError: {OUT_OF_MEMORY}"}
    (trial,) = tested("--model", "bert", "--device", "cpu", "--batch-size", "8")["trials"]
    assert attempts(trial) == [("cpu", 8, "factory_error"), ("cpu", 4, "pass")]


@pytest.mark.parametrize("status", [Status.CRASH, Status.TIMEOUT])
def test_a_crash_is_retried(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor, status: Status) -> None:
    executor.script = {"openvino": [status, status]}
    (trial,) = tested("--model", "bert", "--device", "openvino")["trials"]
    assert attempts(trial) == [("openvino", 2, status.value)] * 2 + [("cpu", 2, "pass")]
    assert [attempt["retry"] for attempt in trial["attempts"]] == [0, 1, 0]
    executor.script = {"openvino": [status, status]}
    (trial,) = tested("--model", "bert", "--device", "openvino", "--retries", "2")["trials"]
    assert (trial["actual_hardware"], len(trial["attempts"])) == ("openvino", 3)


@pytest.mark.parametrize("status", [Status.ERROR, Status.UNSUPPORTED])
def test_a_model_that_fails_on_special_hardware_falls_back_to_the_cpu(
    tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor, status: Status
) -> None:
    executor.script = {"openvino": [status]}
    (trial,) = tested("--model", "vit", "--device", "openvino")["trials"]
    assert attempts(trial) == [("openvino", 2, status.value), ("cpu", 2, "pass")]  # not qnn, which comes before it


def test_wrong_numbers_are_the_result(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    executor.script = {"openvino": [Status.MISMATCH]}
    (trial,) = tested("--model", "bert", "--device", "openvino")["trials"]
    assert attempts(trial) == [("openvino", 2, "mismatch")]
    assert (trial["actual_hardware"], trial["status"], trial["p50_ms"]) == ("openvino", "mismatch", None)


def test_a_model_that_fails_everywhere_is_a_result(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    executor.script = {"openvino": [Status.ERROR], "cpu": [Status.ERROR]}
    (trial,) = tested("--model", "bert", "--device", "openvino")["trials"]
    assert (trial["actual_hardware"], trial["actual_batch"], trial["status"], trial["sample_ms"]) == (None, None, "error", None)


def test_a_model_that_cannot_be_built_is_a_result(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    (trial,) = tested("--model", "huge", "--device", "cpu")["trials"]
    assert attempts(trial) == [("cpu", 2, "factory_error")]
    assert trial["attempts"][0]["reason"] == "too large for this world"
    assert executor.ran == []


def test_without_fallback_there_is_one_attempt(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    for status in (Status.OOM, Status.CRASH, Status.ERROR):
        executor.script = {"openvino": [status]}
        (trial,) = tested("--model", "bert", "--device", "openvino", "--no-fallback")["trials"]
        assert attempts(trial) == [("openvino", 2, status.value)]
    main_code = main.main(["test", "--model", "bert", "--device", "cuda", "--no-fallback"])
    assert main_code == 6


# ── which hardware ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_hardware_is_tested_separately(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    executor.script = {"openvino": [Status.ERROR]}
    executor.fits = {"qnn": 1}
    trials = tested("--model", "bert", "--all-hardware")["trials"]
    assert [attempts(trial) for trial in trials] == [
        [("cpu", 2, "pass")],
        [("openvino", 2, "error")],
        [("cuda", 2, "unavailable")],
        [("qnn", 2, "oom"), ("qnn", 1, "pass")],
    ]
    assert [job.work for job in executor.jobs].count("bundles") == 2  # one run for all first attempts, one for the smaller batch
    emulated = trials[-1]
    assert (emulated["execution"], emulated["actual_hardware"], emulated["actual_batch"]) == ("emulated", "qnn", 1)
    assert (emulated["p50_ms"], emulated["sample_ms"], emulated["cost"]["actual_ms"]) == (None, None, None)  # not the speed of any hardware


def test_auto_takes_the_first_available_hardware_as_the_expected_one(tested: Callable[..., dict[str, Any]]) -> None:
    (trial,) = tested("--model", "vit")["trials"]
    assert attempts(trial)[-1] == ("openvino", 2, "pass")
    assert (trial["expected_hardware"], trial["fell_back"]) == ("openvino", False)


def test_a_target_of_matrix_yaml_means_its_hardware(
    tested: Callable[..., dict[str, Any]], project: Path, executor: ScriptedExecutor
) -> None:
    text = MATRIX.replace("targets:\n", "targets:\n  half: {backend: cpu, image: cpu, dtypes: [float16]}\n")
    (project / "matrix.yaml").write_text(text, encoding="utf-8")
    (trial,) = tested("--model", "bert", "--device", "half")["trials"]
    assert (trial["actual_hardware"], trial["target"], trial["dtype"]) == ("cpu", "half", "float16")
    assert executor.ran == ["bert/tiny/half/float16/b2-s16-t1"]


def test_models_can_be_named_by_their_hub_names(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    for name in ("bert", "google-bert/bert-base-uncased", "bert-base-uncased", "BERT"):
        assert tested("--model", name, "--device", "cpu")["model"] == "bert"
    assert len(executor.ran) == 4


# ── recorded measurements ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def on_record(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database in reports/latest with a run of this machine, in which OpenVINO took half a millisecond per sample."""
    monkeypatch.setattr(make, "identity", _identity_of_this_machine(make.identity))
    assert main.main(["matrix", "--models", "bert", "--targets", "openvino", "cpu"]) == 0
    assert (project / "reports/latest/matrix.duckdb").exists()


def _identity_of_this_machine(made: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **changes: made(*arguments, host=machine_identity(), **changes)


@pytest.mark.usefixtures("on_record")
def test_measured_hardware_comes_first(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    document = tested("--model", "bert")
    assert document["order_stands_on"].startswith("measured on this machine: ")
    assert attempts(document["trials"][0])[0][0] in {"cpu", "openvino"}  # not cuda, which is only expected to be best
    executor.isolation = Isolation.NONE
    elsewhere = tested("--model", "bert")
    assert elsewhere["order_stands_on"] == "the design documents' priority of text"  # times measured in containers do not apply here


@pytest.mark.usefixtures("on_record")
def test_the_cost_of_a_fallback_is_measured(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    executor.script = {"openvino": [Status.ERROR]}
    (trial,) = tested("--model", "bert", "--device", "openvino")["trials"]
    cost = trial["cost"]
    assert cost["expected_ms"] == pytest.approx(0.5, rel=0.1)
    assert cost["actual_ms"] == trial["sample_ms"]
    assert cost["factor"] == pytest.approx(cost["actual_ms"] / cost["expected_ms"])
    assert "expected: run " in cost["note"]


def test_a_file_that_is_not_a_database_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "broken.duckdb").write_text("no database", encoding="utf-8")
    assert main.main(["test", "--model", "bert", "--database", "broken.duckdb"]) == 7
    assert "broken.duckdb" in capsys.readouterr().err


# ── output and stored files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table(executor: ScriptedExecutor, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    executor.fits = {"openvino": 1}
    assert main.main(["test", "--model", "bert", "--device", "openvino"]) == 0
    printed = capsys.readouterr()
    assert "│ openvino │ openvino │ pass   │ float32 │ 1 (asked: 2) │" in printed.out
    assert f"openvino, batch 2: oom: {OUT_OF_MEMORY}" in printed.out
    assert "  - Use a smaller batch or a shorter sequence." in printed.out
    assert "repeat: hwmatrix matrix --models bert --size tiny --targets openvino --dtypes float32 --isolation container" in printed.out
    assert "repeat: hwmatrix test --model bert --size tiny --device openvino --batch-size 1" in printed.out


def test_nothing_is_kept_without_save(project: Path, tested: Callable[..., dict[str, Any]]) -> None:
    document = tested("--model", "bert", "--device", "cpu")
    assert document["database"] is None
    assert not (project / "reports").exists()
    assert list((project / "cache" / "tests").iterdir()) == []


def test_with_save_everything_is_kept(project: Path, tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    executor.fits = {"openvino": 1}
    document = tested("--model", "bert", "--device", "openvino", "--save")
    kept = project / "reports" / "tests" / "bert"
    assert document["database"] == str(kept / "matrix.duckdb")
    assert {path.name for path in kept.iterdir()} >= {
        "test.json",
        "matrix.md",
        "matrix.json",
        "errors.md",
        "summary.md",
        "matrix.duckdb",
        "runs",
    }
    assert json.loads((kept / "test.json").read_text(encoding="utf-8")) == document
    with duckdb.connect(str(kept / "matrix.duckdb"), read_only=True) as connection:
        rows = connection.execute("SELECT batch, status FROM matrix ORDER BY batch DESC").fetchall()
    assert rows == [(2, "oom"), (1, "pass")]
    again = tested("--model", "bert", "--device", "cuda", "--save")
    assert set(again["runs"]).isdisjoint(document["runs"])
    with duckdb.connect(str(kept / "matrix.duckdb"), read_only=True) as connection:
        found = connection.execute("SELECT target, status FROM matrix WHERE run_id = ? ORDER BY target", again["runs"]).fetchall()
    assert found == [("cpu", "pass"), ("cuda", "unavailable")]  # skipped attempts are recorded too


def test_another_output_folder(project: Path, tested: Callable[..., dict[str, Any]]) -> None:
    tested("--model", "bert", "--device", "cpu", "--save", "--output-dir", "elsewhere")
    assert (project / "elsewhere" / "test.json").exists()


# ── refused arguments ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--model", "brt"), "did you mean 'bert'"),
        (("--model", "bert", "--device", "gpu"), "'gpu' is not a hardware name"),
        (("--model", "bert", "--device", "cpu", "--all-hardware"), "contradict each other"),
        (("--model", "bert", "--output-dir", "x"), "nothing is kept without --save"),
        (("--model", "bert", "--batch-size", "0"), "--batch-size"),
        (("--model", "bert", "--retries", "-1"), "--retries"),
        (("--device", "cpu"), "--model"),
        (("--model", "./nowhere"), "nowhere"),
        (("--model", "bert", "--dtype", "int9"), "--dtype"),
        (("--model", "bert", "--dtype", "int4"), "matrix.yaml lists no int4 for any target"),
        (("--model", "bert", "--device", "cpu", "--dtype", "a16w8"), "matrix.yaml lists no a16w8 for cpu"),
        (("--model", "vit", "--sequence-length", "32"), "none of these models takes text: vit"),
        (("--model", "bert", "--threads", "4096"), "on more threads than there are cores"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(
    argv: tuple[str, ...], message: str, executor: ScriptedExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["test", *argv]) == 2
    assert message in capsys.readouterr().err
    assert executor.jobs == []


def test_if_nothing_can_run_the_error_says_so(executor: ScriptedExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.missing = dict.fromkeys(("cpu", "openvino", "cuda", "qnn"), "it is not here")
    assert main.main(["test", "--model", "bert"]) == 6
    assert "nothing could run here" in capsys.readouterr().err
    assert main.main(["test", "--model", "bert", "--all-hardware", "--save"]) == 6


def test_a_target_whose_image_cannot_be_built_is_skipped(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    executor.broken_images = frozenset({"openvino"})
    (trial,) = tested("--model", "bert", "--device", "openvino")["trials"]
    assert attempts(trial) == [("openvino", 2, "infra_error"), ("openvino", 2, "infra_error"), ("cpu", 2, "pass")]


def test_if_only_images_fail_that_is_the_error(executor: ScriptedExecutor) -> None:
    executor.broken_images = frozenset({"openvino"})
    assert main.main(["test", "--model", "bert", "--device", "openvino", "--no-fallback"]) == 4


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["test", "--help"]) == 0
    assert "hwmatrix test --model vit --device cuda --batch-size 64" in capsys.readouterr().out


# ── the largest batch ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_largest_batch_is_found_and_every_try_is_a_cell(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    executor.fits["cpu"] = 5
    (trial,) = tested("--model", "bert", "--device", "cpu", "--largest-batch")["trials"]
    tries = [("cpu", 1, "pass"), ("cpu", 2, "pass"), ("cpu", 4, "pass"), ("cpu", 8, "oom"), ("cpu", 6, "oom"), ("cpu", 5, "pass")]
    assert attempts(trial) == tries
    assert executor.ran == [f"bert/tiny/cpu/float32/b{batch}-s16-t1" for _, batch, _ in tries]
    found = trial["largest_batch"]
    assert (found["passed"]["batch"], found["failed"]["batch"], found["failed"]["status"]) == (5, 6, "oom")
    assert found["failed"]["reason"] == OUT_OF_MEMORY
    assert "--batch-size 6" in found["failed"]["command"]
    assert (found["complete"], found["tries"], found["most_batch"], found["memory_mb"]) == (True, 6, 4096, 4096)
    assert found["elapsed_s"] > 0
    assert (trial["status"], trial["batch"], trial["actual_batch"], trial["fell_back"]) == ("pass", 5, 5, False)


def test_the_limits_of_a_search(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    (trial,) = tested("--model", "bert", "--device", "cpu", "--largest-batch", "--max-batch", "3", "--memory", "777")["trials"]
    found = trial["largest_batch"]
    assert (found["passed"]["batch"], found["failed"], found["complete"], found["memory_mb"]) == (3, None, True, 777)
    assert "--memory 777" in found["passed"]["command"]
    executor.fits["cpu"] = 40
    (cut,) = tested("--model", "bert", "--device", "cpu", "--largest-batch", "--max-tries", "8")["trials"]
    found = cut["largest_batch"]
    assert (found["passed"]["batch"], found["failed"]["batch"], found["complete"], found["tries"]) == (32, 48, False, 8)


def test_the_reason_may_be_another_than_memory(tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor) -> None:
    executor.script["cpu"] = [Status.PASS, Status.PASS, Status.CRASH, Status.PASS]
    (trial,) = tested("--model", "bert", "--device", "cpu", "--largest-batch")["trials"]
    assert attempts(trial) == [("cpu", 1, "pass"), ("cpu", 2, "pass"), ("cpu", 4, "crash"), ("cpu", 3, "pass")]
    assert trial["largest_batch"]["failed"]["status"] == "crash"


def test_a_model_that_fails_with_a_batch_of_one_has_no_largest_batch(
    tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor
) -> None:
    executor.script["cpu"] = [Status.ERROR]
    (trial,) = tested("--model", "bert", "--device", "cpu", "--largest-batch")["trials"]
    assert (trial["status"], trial["largest_batch"]["passed"], trial["largest_batch"]["failed"]["batch"]) == ("error", None, 1)


def test_every_hardware_has_a_search_of_its_own_and_absent_ones_say_so(
    tested: Callable[..., dict[str, Any]], executor: ScriptedExecutor
) -> None:
    executor.fits |= {"cpu": 2, "openvino": 1}
    trials = tested("--model", "bert", "--all-hardware", "--largest-batch", "--max-batch", "4")["trials"]
    found = {trial["expected_hardware"]: trial["largest_batch"] for trial in trials}
    assert {name: each["passed"] and each["passed"]["batch"] for name, each in found.items()} == {
        "cpu": 2,
        "openvino": 1,
        "cuda": None,
        "qnn": 4,
    }
    assert (found["cuda"]["tries"], found["cuda"]["failed"], found["cuda"]["complete"]) == (0, None, False)


def test_without_a_device_the_first_that_is_here_is_searched(tested: Callable[..., dict[str, Any]]) -> None:
    (trial,) = tested("--model", "bert", "--largest-batch", "--max-batch", "1")["trials"]
    assert attempts(trial) == [("cpu", 1, "pass")]


def test_a_search_that_cannot_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["test", "--model", "bert", "--device", "cuda", "--largest-batch"]) == 6
    assert NO_GPU in capsys.readouterr().err


def test_a_search_is_printed_with_its_tries_and_its_result(executor: ScriptedExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.fits["cpu"] = 2
    assert main.main(["test", "--model", "bert", "--device", "cpu", "--largest-batch", "--memory", "1500"]) == 0
    printed = capsys.readouterr().out
    assert f"cpu float32: batch 2 passes, batch 3 does not: oom: {OUT_OF_MEMORY} (within 1,500 MiB; 4 tries in " in printed
    assert "repeat batch 3: hwmatrix test --model bert --size tiny --device cpu --memory 1500 --batch-size 3" in printed


def test_every_try_is_kept_as_a_row(executor: ScriptedExecutor, tmp_path: Path) -> None:
    executor.fits["cpu"] = 2
    assert (
        main.main(["test", "--model", "bert", "--device", "cpu", "--largest-batch", "--save", "--output-dir", str(tmp_path / "kept")]) == 0
    )
    with duckdb.connect(str(tmp_path / "kept" / "matrix.duckdb"), read_only=True) as connection:
        rows = connection.execute("SELECT batch, status FROM results ORDER BY batch").fetchall()
    assert rows == [(1, "pass"), (2, "pass"), (3, "oom"), (4, "oom")]
    plans = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "kept" / "runs").glob("*/plan.json")]
    assert [plan["timing"] for plan in plans] == [False] * 4  # it asks only what works


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--largest-batch", "--batch-size", "4"], "--batch-size: the batch is what --largest-batch searches for"),
        (["--max-batch", "4"], "--max-batch: it needs --largest-batch"),
        (["--max-tries", "4"], "--max-tries: it needs --largest-batch"),
    ],
)
def test_options_of_a_search_belong_together(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["test", "--model", "bert", *argv]) == 2
    assert told in capsys.readouterr().err
