"""``hwmatrix test`` without isolation, in a separate process: real models, real out-of-memory errors, real retries."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import duckdb
import jsonschema
import pytest
from fault_runs import PROJECT, briefly_timed, untrained

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

BATCH = 2048
SMALL_MB = 224
"""A cell's memory limit. Comparing the outputs of a batch of 2048 takes about twice that."""


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> dict[str, str]:
    """Environment variables for a cache that the tests of this file share."""
    return {"HWMATRIX_CACHE": str(shared_cache), "HF_HUB_OFFLINE": "1"}


def outcome_of(*argv: str, cache: dict[str, str], cwd: Path, expect: int = 0) -> dict[str, Any]:
    """Run the command, and return its JSON."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "harness"), **cache}
    command = [sys.executable, "-m", "hwmatrix", "test", "--isolation", "none", "--format", "json", *argv]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    schema = json.loads((PROJECT / "docs/schemas/test-report.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    return document


def with_memory(folder: Path, memory_mb: int) -> Path:
    """A folder with a matrix.yaml that has another memory limit for tiny models, which are neither trained nor timed for long."""
    text = briefly_timed(untrained(), seconds=0.2)
    small = text.replace("timeout_s: 120, memory_mb: 4096}", f"timeout_s: 120, memory_mb: {memory_mb}}}")
    assert f"memory_mb: {memory_mb}}}" in small
    (folder / "matrix.yaml").write_text(small, encoding="utf-8")
    return folder


@pytest.mark.long
def test_the_batch_halves_until_the_model_fits(tmp_path: Path, cache: dict[str, str]) -> None:
    asked = ("--model", "bert-base-uncased", "--device", "cpu", "--batch-size", str(BATCH))
    (whole,) = outcome_of(*asked, "--no-fallback", cache=cache, cwd=with_memory(tmp_path, 4096))["trials"]
    assert (whole["status"], whole["actual_batch"], whole["fell_back"]) == ("pass", BATCH, False)

    document = outcome_of(*asked, "--save", "--output-dir", "out", cache=cache, cwd=with_memory(tmp_path, SMALL_MB))
    (trial,) = document["trials"]
    batches = [attempt["batch"] for attempt in trial["attempts"]]
    assert batches == [BATCH >> step for step in range(len(batches))]
    assert len(batches) >= 2
    first, *_, last = trial["attempts"]
    assert (first["status"], first["error_type"]) == ("oom", "memory_pressure")
    assert {attempt["status"] for attempt in trial["attempts"][1:-1]} <= {"oom", "factory_error"}
    assert (last["status"], trial["actual_hardware"], trial["actual_batch"]) == ("pass", "cpu", batches[-1])
    assert trial["sample_ms"] == trial["p50_ms"] / batches[-1] > 0
    assert trial["lost_ms"] > 0
    with duckdb.connect(str(tmp_path / "out" / "matrix.duckdb"), read_only=True) as connection:
        rows = connection.execute("SELECT batch, status, command FROM matrix ORDER BY batch DESC").fetchall()
    assert [(batch, status) for batch, status, _ in rows] == [(each["batch"], each["status"]) for each in trial["attempts"]]
    assert all(f"--batch-size {batch} " in command for batch, _, command in rows)


def test_missing_hardware_is_replaced_and_the_measured_cost_reported(tmp_path: Path, cache: dict[str, str]) -> None:
    folder = with_memory(tmp_path, 4096)
    first = outcome_of("--model", "vit", "--device", "mps" if sys.platform != "darwin" else "rocm", cache=cache, cwd=folder)
    (trial,) = first["trials"]
    assert trial["fell_back"]
    assert trial["attempts"][0]["status"] == "unavailable"
    assert trial["status"] == "pass"
    assert trial["actual_hardware"] in {"openvino", "cpu", "cuda", "rocm"}
    assert (trial["cost"]["expected_ms"], trial["cost"]["factor"]) == (None, None)
    assert trial["cost"]["actual_ms"] == trial["sample_ms"]
    assert not (folder / "reports").exists()


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs openvino")
def test_a_model_that_fails_on_openvino_falls_back_to_the_cpu(tmp_path: Path, cache: dict[str, str]) -> None:
    """The memory suffices for too few of OpenVINO's threads, so it fails, but it suffices for PyTorch on the CPU with the whole batch."""
    folder = with_memory(tmp_path, 4096)
    record = ("--save", "--output-dir", "out")
    outcome_of("--model", "bert", "--device", "openvino", *record, cache=cache, cwd=folder)
    narrow = ("--model", "bert", "--device", "openvino", "--retries", "0", "--database", "out/matrix.duckdb")
    (trial,) = outcome_of(*narrow, cache=cache, cwd=with_memory(tmp_path, 48))["trials"]
    failed, *_, last = trial["attempts"]
    assert failed["hardware"] == "openvino"
    assert failed["status"] in {"oom", "error", "crash"}, failed
    assert (last["hardware"], last["batch"], last["status"]) == ("cpu", 1, "pass")
    assert trial["cost"]["expected_ms"] > 0
    assert trial["cost"]["factor"] == trial["cost"]["actual_ms"] / trial["cost"]["expected_ms"]
