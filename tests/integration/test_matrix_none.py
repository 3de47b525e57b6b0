"""The main job without isolation, in a separate process: models of matrix.yaml, and users' checkpoints."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import duckdb
import jsonschema
import psutil
import pytest
from fault_runs import PROJECT, briefly_timed, environment, untrained
from matrix_command import Command, document, executions, left_behind, matrix, statuses

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

TARGETS = ["cpu", *(["openvino"] if importlib.util.find_spec("openvino") else [])]
MANY = ("bert", "vit", "gpt2", "roberta")
NONE = ("--isolation", "none", "--dtypes", "float32")
SAVE = """
import pathlib, sys, torch, transformers
torch.manual_seed(1)
config = transformers.BertConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
                                 max_position_embeddings=64)
model = transformers.BertForSequenceClassification(config)
folder = pathlib.Path(sys.argv[1])
model.save_pretrained(folder / "safetensors")
model.config.save_pretrained(folder / "pickle")
torch.save(model.state_dict(), folder / "pickle" / "pytorch_model.bin")
"""


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> dict[str, str]:
    """Environment variables for a cache that the tests of this file share."""
    return {"HWMATRIX_CACHE": str(shared_cache), "HF_HUB_OFFLINE": "0"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same checkpoint twice: with safetensors, and with a pickle."""
    folder = tmp_path_factory.mktemp("saved")
    subprocess.run([sys.executable, "-c", SAVE, str(folder)], env=environment(armed=False), check=True, capture_output=True)
    return folder


def hwmatrix(*arguments: str, environment: dict[str, str]) -> str:
    """Run another command than ``matrix``, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "hwmatrix", *arguments],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "harness"), **environment},
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_model_of_matrix_yaml_end_to_end(tmp_path: Path, cache: dict[str, str]) -> None:
    said = matrix("--models", "bert", "--targets", *TARGETS, *NONE, "--output-dir", str(tmp_path), environment=cache, expect=0)
    assert statuses(tmp_path) == {("bert", target): "pass" for target in TARGETS}, said
    found = document(tmp_path)
    jsonschema.validate(found, json.loads((PROJECT / "docs/schemas/matrix-report.schema.json").read_text(encoding="utf-8")))
    for cell in found["cells"]:
        assert cell["placement"]["on_target"] == 1.0
        assert cell["latency"]["samples"] >= 30
        assert (cell["evidence"]["isolation"], cell["evidence"]["image_digest"]) == ("none", None)
    assert left_behind(tmp_path) == []


@pytest.mark.long
def test_every_combination_of_varied_settings_is_a_cell(tmp_path: Path, cache: dict[str, str]) -> None:
    (tmp_path / "matrix.yaml").write_text(untrained(), encoding="utf-8")
    where = ("--matrix", str(tmp_path / "matrix.yaml"), "--output-dir", str(tmp_path))
    varied = ("--batch", "1", "2", "--sequence-length", "16", "24", "--no-timing", "--no-generation")
    matrix("--models", "gpt2", "--targets", "cpu", *NONE, *varied, *where, environment=cache, expect=0)
    cells = document(tmp_path)["cells"]
    found = {(cell["settings"]["batch"], cell["settings"]["sequence_length"]): cell["outputs"][0]["shape"][:2] for cell in cells}
    assert found == {(batch, length): [batch, length] for batch in (1, 2) for length in (16, 24)}
    assert {cell["status"] for cell in cells} == {"pass"}
    assert all(
        f" --batch {cell['settings']['batch']} --sequence-length {cell['settings']['sequence_length']} " in cell["evidence"]["command"]
        for cell in cells
    )


def test_bundles_that_were_made_elsewhere_are_used_and_none_is_made(tmp_path: Path, cache: dict[str, str]) -> None:
    """The three steps of a workflow: plan, make the bundles once, run a target with them."""
    there = tmp_path / "there"
    hwmatrix("plan", "--models", "bert", "--targets", *TARGETS, *NONE, "--no-timing", "--output-dir", str(there), environment=cache)
    plan = there / "plan.json"
    archive = tmp_path / "bundles.tar"
    said = hwmatrix("bundles", str(plan), str(archive), "--output-dir", str(tmp_path / "made"), environment=cache)
    assert "3 to build or find" in said
    assert "with 3 bundles" in said
    elsewhere = cache | {"HWMATRIX_CACHE": str(tmp_path / "cache")}
    options = ("--targets", *TARGETS, "--output-dir", str(tmp_path / "here"))
    said = hwmatrix("run", str(plan), *options, "--bundles", str(archive), environment=elsewhere)
    assert "to build or find" not in said
    (run,) = (tmp_path / "here").glob("runs/*")
    hwmatrix("merge", str(run), "--database", str(tmp_path / "matrix.duckdb"), environment=elsewhere)
    with duckdb.connect(str(tmp_path / "matrix.duckdb"), read_only=True) as connection:
        found = connection.execute("SELECT target, status, bundle FROM results ORDER BY target").fetchall()
    assert [(target, status) for target, status, _ in found] == [(target, "pass") for target in TARGETS]
    (digest,) = {digest for _, _, digest in found}
    assert digest in {each["digest"] for each in json.loads((run / "bundles" / "bundles.json").read_bytes())["bundles"]}


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_ends_its_runner_and_resumes_the_rest(tmp_path: Path, cache: dict[str, str], how: signal.Signals) -> None:
    (tmp_path / "matrix.yaml").write_text(briefly_timed(untrained()), encoding="utf-8")
    matrix_file = ("--matrix", str(tmp_path / "matrix.yaml"))
    arguments = ("--models", *MANY, "--targets", "cpu", *NONE, "--no-generation", *matrix_file, "--output-dir", str(tmp_path))
    with Command(*arguments, environment=cache) as command:
        command.wait_for("[1/4]")
        runners = psutil.Process(command.process.pid).children(recursive=True)
        assert runners
        command.process.send_signal(how)
        assert command.end(timeout_s=60) == (130 if how is signal.SIGINT else -how)
        _, alive = psutil.wait_procs(runners, timeout=10)
        assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []  # a zombie process has ended
    matrix("--resume", *matrix_file, "--output-dir", str(tmp_path), environment=cache, expect=0)
    assert list(statuses(tmp_path).values()) == ["pass"] * len(MANY)
    assert executions(tmp_path) == dict.fromkeys(executions(tmp_path), 1)  # finished cells have not been run again
    assert left_behind(tmp_path) == []


@pytest.fixture(scope="module")
def checkpoints(saved: Path, cache: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints, one of which contains code, and with the output of one run over both."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in ("my-bert", "native"):
        shutil.copytree(saved / "safetensors", folder / name)
    config = json.loads((folder / "native" / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoModel": "modeling_foreign.ForeignModel"}
    (folder / "native" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "native" / "modeling_foreign.py").write_text(f"open({str(folder / 'executed')!r}, 'w')\n", encoding="utf-8")
    models = (str(folder / "my-bert"), str(folder / "native"))
    untimed = ("--no-timing", "--output-dir", str(folder / "out"))
    matrix("--models", *models, "--targets", "cpu", *NONE, *untimed, environment=cache, expect=0)
    return folder


@pytest.mark.long
def test_the_users_own_checkpoint(checkpoints: Path) -> None:
    output = checkpoints / "out"
    assert statuses(output)["my-bert", "cpu"] == "pass"
    (cell,) = (cell for cell in document(output)["cells"] if cell["model"] == "my-bert")
    assert cell["architecture"] == "bert"
    assert [(entry["name"], entry["shape"]) for entry in cell["outputs"]] == [("logits", [1, 2])]
    assert str(checkpoints / "my-bert") in cell["evidence"]["command"]


@pytest.mark.parametrize("kind", ["remote code", "pickle"])
def test_remote_code_is_refused_before_anything_runs(tmp_path: Path, cache: dict[str, str], saved: Path, kind: str) -> None:
    folder = shutil.copytree(saved / ("safetensors" if kind == "remote code" else "pickle"), tmp_path / "foreign")
    if kind == "remote code":
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["model_type"], config["architectures"] = "foreign", ["ForeignModel"]
        config["auto_map"] = {"AutoConfig": "modeling_foreign.ForeignConfig", "AutoModel": "modeling_foreign.ForeignModel"}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / "modeling_foreign.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n", encoding="utf-8")
    output = tmp_path / "out"
    said = matrix("--models", str(folder), "--targets", "cpu", *NONE, "--output-dir", str(output), environment=cache, expect=2)
    assert ("remote_code_refused" if kind == "remote code" else "pickle_refused") in said
    assert str(folder) in said
    assert not (tmp_path / "executed").exists()
    assert not output.exists()


@pytest.mark.long
def test_remote_code_that_is_not_needed_is_not_run(checkpoints: Path) -> None:
    """A class of transformers loads the checkpoint, although the checkpoint contains code."""
    assert statuses(checkpoints / "out") == {("my-bert", "cpu"): "pass", ("native", "cpu"): "pass"}
    assert not (checkpoints / "executed").exists()


def test_an_unreachable_hub_id_is_reported_quickly(tmp_path: Path, cache: dict[str, str]) -> None:
    begin = time.monotonic()
    wanted = ("--models", "hwmatrix-no-such-owner/no-such-model", "--targets", "cpu")
    said = matrix(*wanted, *NONE, "--output-dir", str(tmp_path / "out"), environment=cache, expect=2)
    assert time.monotonic() - begin < 30
    assert "hwmatrix-no-such-owner/no-such-model" in said
    assert "hub_" in said
    assert "Traceback" not in said


def test_all_mistakes_in_the_arguments_are_reported_together(tmp_path: Path, cache: dict[str, str]) -> None:
    said = matrix("--models", "brt", "vti", "--targets", "cpu", *NONE, "--output-dir", str(tmp_path / "o"), environment=cache, expect=2)
    assert "'bert'" in said
    assert "'vit'" in said
