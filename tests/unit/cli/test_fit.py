"""``hwmatrix fit`` through ``main``: its output, and the arguments that it refuses."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import signal
import sys
from pathlib import Path

import jsonschema
import pytest
from factory_advice import evidence, fast
from factory_calibration import fixed
from factory_rows import Database, steady
from rich.console import Console

from hwmatrix.cli import fit as fitting
from hwmatrix.cli import main
from hwmatrix.cli.tables import show_measured
from hwmatrix.knowledge import requirements
from hwmatrix.knowledge.fit_document import json_schema
from hwmatrix.knowledge.measured_choice import Bounds, choice_data, choices
from hwmatrix.records import Backend, Detection, Dtype, Family, ModelPlan, Size, to_json

RECORDED = Path(__file__).parents[2] / "recorded" / "performance.duckdb"
HOSTILE = "\x1b]0;title\x07\x1b[31m[bold]red[/bold] <script>"


class FakeDetector:
    """A machine with 2,000 MiB of free memory and only a CPU."""

    def detect(self) -> dict[str, Detection]:
        absent = Detection(hardware_type="", available=False, name=None, features={}, reason=HOSTILE, detected_at="now")
        found = {kind.value: dataclasses.replace(absent, hardware_type=kind.value) for kind in Backend}
        cpu = dataclasses.replace(absent, hardware_type="cpu", available=True, reason=None, features={"memory_left_mb": 2000})
        return found | {"cpu": cpu}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fitting, "HardwareDetector", FakeDetector)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "torch", None)
    made = fixed()
    monkeypatch.setattr(requirements, "calibration", lambda: made)
    monkeypatch.chdir(tmp_path)


def hwmatrix(*argv: str) -> int:
    before = signal.getsignal(signal.SIGTERM)
    try:
        return main.main(list(argv))
    finally:
        signal.signal(signal.SIGTERM, before)


def ask(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert hwmatrix("fit", *argv) == 0
    return capsys.readouterr().out


def row(told: str, hardware: str) -> str:
    return next(line for line in told.splitlines() if line.strip().startswith(f"{hardware} "))


def test_measured_peaks_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    told = ask(capsys, "bert", "--hw", "cpu", "openvino", "--memory", "1000", "--database", str(RECORDED))
    assert "bert: batch 1, 128 tokens" in told
    assert "109,514,298 parameters" in told
    assert row(told, "cpu").split()[1:] == ["✅", "fits", "float32", "892", "1,000", "1", "measured"]
    assert "❌ does not fit" in row(told, "openvino")
    assert "its measured peak is 1,464 MiB, 464 more than available" in told
    assert "measured on cpu in run 20261120T073313Z-6565c5, cell bert/full/cpu/float32/b1-s128-t1" in told


def test_the_reports_of_the_folder_are_the_default(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "estimated" in row(ask(capsys, "bert", "--hw", "cpu"), "cpu")
    (tmp_path / "reports" / "latest").mkdir(parents=True)
    shutil.copy(RECORDED, tmp_path / "reports" / "latest" / "matrix.duckdb")
    assert "measured" in row(ask(capsys, "bert", "--hw", "cpu"), "cpu")


def test_an_extrapolated_answer_has_exit_code_0_and_is_not_yes(capsys: pytest.CaptureFixture[str]) -> None:
    told = ask(capsys, "bert", "--hw", "cpu", "--batch", "4", "--memory", "1000")
    assert "❔ extrapolated" in row(told, "cpu")
    assert "not certain: by the formula it would not fit" in told
    assert "times the largest (calibrated from" in told
    assert re.search(r"--batch 1: fits, with \d{3} to \d{3} MiB \(estimated\)", told)


def test_the_default_is_the_available_and_the_usual_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    told = ask(capsys, "bert")
    assert [row(told, hardware).split()[2] for hardware in ("cuda", "rocm", "mps", "cpu")] == ["unknown", "unknown", "unknown", "fits"]
    assert "2,000" in row(told, "cpu")
    assert "Give its memory with --memory" in told
    assert "\x1b" not in told
    assert "\x07" not in told


def test_json_follows_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(ask(capsys, "gpt2", "--hw", "cpu", "cuda", "--memory", "900", "--format", "json"))
    jsonschema.Draft202012Validator(json_schema()).validate(document)
    assert (document["schema"], document["model"], document["size"]) == ("hwmatrix/fit/1", "gpt2", "full")
    assert [fit["memory_kind"] for fit in document["hardware"]] == ["host", "device"]
    assert document["database"] is None


def in_precisions(path: Path) -> str:
    """A database with bert in full size: cpu in two precisions on one machine, and cuda on another."""
    plan = ModelPlan(
        name="bert", size=Size.FULL, family=Family.EMBEDDING, architecture="bert", model_class="BertForMaskedLM", sequence_length=128
    )
    with Database(path) as database:
        database.run(plan=json.dumps({"models": [json.loads(to_json(plan))]}))
        database.shard("s-cpu", "cpu")
        database.shard("s-cuda", "cuda", host="beef")
        for target, dtype, ms, mb, error in (
            ("cpu", "float32", 100.0, 900.0, 1e-7),
            ("cpu", "bfloat16", 40.0, 700.0, 0.018),
            ("cuda", "float16", 4.0, 300.0, 0.002),
        ):
            facts = {"dtype": dtype, "size": "full", "sequence_length": 128, "cell_key": f"bert/{target}/{dtype}"}
            peaks = {"peak_mb": mb} | ({"device_peak_mb": mb} if target == "cuda" else {})
            database.cell(database.plan("bert", target, **facts), f"s-{target}", wall=steady(ms), relative_error=error, **peaks)
    return str(path)


def test_limits_are_answered_with_the_measured_precision(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    database = in_precisions(tmp_path / "m.duckdb")
    limits = ("--max-loss", "0.02", "--max-latency", "50")
    told = ask(capsys, "bert", "--hw", "cpu", "--memory", "800", *limits, "--database", database)
    assert row(told, "cpu").split()[1:7] == ["✅", "fits", "bfloat16", "700", "800", "1"]
    assert "container, machine f00d, 1 thread" in told
    rows = [line.split() for line in told.splitlines() if line.split()[1:2] == ["cpu"]]
    assert next(row for row in rows if row[0] == "best")[:4] == ["best", "cpu", "bfloat16", "40.0"]
    assert next(row for row in rows if row[0] == "no")[:4] == ["no", "cpu", "float32", "100"]
    assert "no, more than 50 ms (1): cpu float32" in told
    assert "best: the fastest within the limits" in told


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_breaks_no_word(width: int) -> None:
    facts = {"samples": 15, "converged": False, "own_speed_up": 1.9, "relative_error": 0.03, "peak_mb": 2000.0}
    records = [evidence(run_id="run-000001"), fast("bert", "onnxruntime", 1.9, dtype=Dtype.INT8_DYNAMIC, run_id="run-000002", **facts)]
    shown = io.StringIO()
    show_measured([choice_data(each) for each in choices(records, Bounds())], Console(width=width, file=shown))
    assert {"onnxruntime", "int8_dynamic", "float32"} <= {*shown.getvalue().split()}


def test_an_estimated_batch_is_not_shown_as_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    database = in_precisions(tmp_path / "m.duckdb")
    assert row(ask(capsys, "bert", "--hw", "cpu", "--memory", "2000", "--database", database), "cpu").split()[6] == "1"
    assert row(ask(capsys, "bert", "--hw", "cpu"), "cpu").split()[6].startswith("≈")


def test_machines_have_a_choice_each_in_the_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    database = in_precisions(tmp_path / "m.duckdb")
    document = json.loads(ask(capsys, "bert", "--max-loss", "0.001", "--database", database, "--format", "json"))
    jsonschema.Draft202012Validator(json_schema()).validate(document)
    assert (document["max_loss"], document["max_latency_ms"]) == (0.001, None)
    best = {choice["host"]: choice["best"] for choice in document["measured"]}
    assert best["beef"] is None
    assert (best["f00d"]["target"], best["f00d"]["dtype"], best["f00d"]["loss"]) == ("cpu", "float32", 0)
    assert next(choice for choice in document["measured"] if choice["host"] == "beef")["cells"][0]["against"] == ["a loss above 0.001"]
    usual = json.loads(ask(capsys, "bert", "--hw", "cpu", "--database", database, "--format", "json"))
    assert usual["hardware"][0]["need"]["dtype"] == "float32"


def test_a_measured_precision_that_fits_is_proposed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = ask(capsys, "bert", "--hw", "cpu", "--memory", "800", "--database", in_precisions(tmp_path / "m.duckdb"))
    assert "❌ does not fit" in row(told, "cpu")
    assert "--dtype bfloat16: fits, with 700 MiB (measured)" in told


def test_limits_without_a_measured_cell_say_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = ask(capsys, "bert", "--hw", "cpu", "--batch", "2", "--max-loss", "0.1", "--database", in_precisions(tmp_path / "m.duckdb"))
    assert "no measured cell of it in full size with batch 2 and 128 tokens: loss and latency are not known" in told


def test_hostile_text_in_the_database_stays_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = ModelPlan(name="m", size=Size.FULL, family=Family.VISION, architecture=HOSTILE, model_class=HOSTILE)
    with Database(tmp_path / "m.duckdb") as database:
        database.run(HOSTILE, plan=json.dumps({"models": [json.loads(to_json(plan))]}))
        database.shard("s", HOSTILE, HOSTILE)
        database.cell(database.plan("m", HOSTILE, HOSTILE, size="full", cell_key=HOSTILE, backend="cpu"), "s")
    told = ask(capsys, "m", "--hw", "cpu", "--database", str(tmp_path / "m.duckdb"))
    assert "its measured peak is 350 MiB" in told
    assert "[bold]red[/bold] <script>" in told
    assert "\x1b" not in told


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (("brt",), 2, "did you mean bert"),
        (("bert", "--hw", "cpuu"), 2, "did you mean 'cpu'?"),
        (("bert", "--hw"), 2, "no value is given"),
        (("bert", "--memory", "0"), 2, "--memory: 0 is not a valid amount of memory"),
        (("bert", "--memory", "-1", "--batch", "0"), 2, "--batch: 0 is not a valid number of samples"),
        (("bert", "--memory", "much"), 2, "--memory"),
        (("bert", "--max-loss", "-0.1"), 2, "--max-loss: -0.1 is not a valid loss"),
        (("bert", "--max-latency", "0"), 2, "--max-latency: 0 is not a valid latency"),
        (("bert", "--dtype", "float33"), 2, "float33"),
        (("bert", "--dtype", "a8w8", "--hw", "cuda"), 2, "it has float32, float16, bfloat16"),
        (("bert", "--database", "nowhere.duckdb"), 7, "there is no such file"),
        ((), 2, "MODEL"),
    ],
)
def test_invalid_arguments_are_refused(argv: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("fit", *argv) == code
    assert told in capsys.readouterr().err
