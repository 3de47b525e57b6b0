"""Answers in an empty folder, which are based only on the measurements in the package, and ``hwmatrix evidence``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import hwmatrix
from hwmatrix.cli import main
from hwmatrix.knowledge import on_record
from hwmatrix.records import Basis

pytestmark = pytest.mark.published_evidence
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, without torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "torch", None)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main.main([*words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def names_the_snapshot(evidence: Any) -> None:
    """Check that the output names the place with its dates and versions."""
    (place,) = evidence
    assert place["place"] == "snapshot"
    assert place["first"] <= place["last"]
    assert {"torch", "transformers", "openvino", "onnxruntime"} <= place["versions"].keys()


def test_classify_answers_from_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    (answer,) = told(capsys, "classify", "--model", "openai/clip-vit-base-patch32")
    openvino = answer["hardware_profile"]["openvino"]
    assert (openvino["basis"], openvino["nearness"]) == ("measured", "model")
    assert 1.2 < openvino["speed_up"] < 1.7  # in full size; the tiny one is 12 times as fast
    assert openvino["memory_usage"]["dtype"] == answer["resource_requirements"]["dtype"]  # of the recommended cell
    assert f", {openvino['memory_usage']['dtype']}, " in answer["reasons"][0]["text"]
    assert answer["classification"]["size_tier"] == "medium"
    names_the_snapshot(answer["evidence"])


def test_a_task_a_pool_and_a_model_that_only_the_sweep_has() -> None:
    classifier = hwmatrix.HardwareAwareModelClassifier()
    found = classifier.recommend_model_for_task("text-generation", ["cpu"])
    assert found["recommendations"][0]["basis"] == "measured"
    names_the_snapshot(found["evidence"])
    names_the_snapshot(classifier.get_optimal_resource_pool_config(["bert-base-uncased", "gpt2"])["evidence"])
    assert classifier.explain_compatibility(["bert-base-uncased"], "cpu")["bert-base-uncased"]["basis"] == "measured"


def test_fit_devices_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    fit = told(capsys, "fit", "gpt2", "--hw", "cpu", "--memory", "100000")
    assert fit["hardware"][0]["need"]["basis"] == "measured"
    assert (fit["size"], fit["batch"], fit["sequence_length"]) == ("full", 1, 128)
    names_the_snapshot(fit["evidence"])
    table = told(capsys, "devices", "--hardware-compatibility")
    assert any(row["hardware"]["openvino"]["basis"] == "measured" for row in table["rows"])
    names_the_snapshot(table["evidence"])
    assert main.main(["errors", "--matrix"]) == 0
    printed = capsys.readouterr().out
    assert "Nothing was measured" not in printed
    assert "measured: " in printed
    assert main.main(["errors", "--matrix", "--format", "json"]) == 0
    names_the_snapshot(json.loads(capsys.readouterr().out)["evidence"])


@pytest.mark.parametrize("name", ["gpt2", "bert-base-uncased", "google-t5/t5-small"])
def test_requirements_are_known_by_the_model_s_name_alone(name: str) -> None:
    needs = hwmatrix.estimate_for_name(name, "cpu")
    assert needs.basis is Basis.MEASURED
    assert (needs.batch, needs.sequence_length) == (1, 128)
    assert needs.parameters > 50_000_000


def test_the_example_of_requirements_md() -> None:
    needs = hwmatrix.estimate_for_name("gpt2", "cpu", batch=4, sequence_length=256)
    assert (needs.batch, needs.sequence_length) == (4, 256)
    assert 500 < needs.min_memory_mb <= needs.recommended_memory_mb


def test_the_command_names_the_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    names_the_snapshot(told(capsys, "evidence"))
    assert main.main(["evidence"]) == 0
    assert "cells, executed 20" in capsys.readouterr().out


def test_the_command_writes_and_checks_the_snapshot(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = empty / "results", empty / "own.json.gz"
    words = ("evidence", "--published", str(folder), "--file", str(file))
    assert main.main([*words, "--write"]) == 2  # there are no published results
    (folder / "speed").mkdir(parents=True)
    shutil.copyfile(ROOT / "tests" / "recorded" / "performance.duckdb", folder / "speed" / "matrix.duckdb")
    assert main.main([*words, "--write"]) == 0
    assert file.stat().st_size < on_record.SNAPSHOT.stat().st_size
    assert main.main([*words, "--check"]) == 0
    shutil.copytree(folder / "speed", folder / "again")
    capsys.readouterr()
    assert main.main([*words, "--check"]) == 8
    assert "--write" in capsys.readouterr().err
