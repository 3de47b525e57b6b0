"""``hwmatrix classify`` through ``main``: its tables, its JSON, and the exit codes for invalid arguments."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import Database, steady

from hwmatrix.cli import classify as classifying
from hwmatrix.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project's matrix.yaml with separate caches and without torch, so that sizes come from the table."""
    shutil.copy(ROOT / "matrix.yaml", tmp_path / "matrix.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setitem(sys.modules, "torch", None)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def database(project: Path) -> Path:
    path = project / "reports" / "latest" / "matrix.duckdb"
    path.parent.mkdir(parents=True)
    bert = {"family": "embedding", "architecture": "bert", "hub_id": "google-bert/bert-base-uncased", "size": "full"}
    with Database(path) as filled:
        filled.run()
        filled.shard("s-cpu", "cpu")
        filled.cell(filled.plan("bert", "cpu", **bert), "s-cpu", wall=steady(100.0))
    return path


def hwmatrix(*argv: str) -> int:
    return main.main(list(argv))


def printed_json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert hwmatrix("classify", *argv, "--format", "json") == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert hwmatrix("classify", *argv) == 0
    return capsys.readouterr().out


def test_without_options_the_models_of_matrix_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed_json(capsys)
    assert [row["model"] for row in rows][:2] == ["bert", "roberta"]
    assert {row["model"]: (row["family"], row["subfamily"]) for row in rows}["vit"] == ("vision", "image_classifier")
    assert all(0 < row["confidence"] <= 1 for row in rows)
    assert "image_classifier" in printed(capsys, "--models", "vit")
    assert [row["model"] for row in printed_json(capsys, "--models", "vit", "bert")] == ["bert", "vit"]
    (row,) = printed_json(capsys, "--models", "type:bert")
    assert (row["model"], row["architecture"], row["family"], row["subfamily"]) == ("type:bert", "bert", "embedding", "masked_lm")


@pytest.mark.usefixtures("database")
def test_a_model_with_the_basis_of_every_answer(capsys: pytest.CaptureFixture[str]) -> None:
    (answer,) = printed_json(capsys, "--model", "bert-base-uncased")
    assert (answer["family"], answer["hardware_profile"]["cpu"]["basis"]) == ("embedding", "measured")
    shown = printed(capsys, "--model", "bert-base-uncased")
    for words in (
        "bert-base-uncased: embedding, masked_lm (confidence 0.",
        "recommended template: hf_embedding_template.py",
        "why: [measured] cpu: measured: pass (full, float32, batch 1, run run-1)",
        "expected by the Hardware-Model Integration Guide: cpu, 2000 MiB, recommended 4000 MiB, 2 cores, disk 500 MiB, batches up to 1",
        "the model works",
        "not measured; expected High",
    ):
        assert words in shown
    only = printed(capsys, "--model", "bert-base-uncased", "--hw", "cpu")
    assert "openvino" not in only.split("the model works")[1]
    assert "cuda is not here: " in shown


def test_the_best_measured_cell_under_limits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "precisions.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        for dtype, ms, mb, error in (("float32", 100.0, 900.0, 1e-7), ("bfloat16", 40.0, 700.0, 0.018)):
            facts = {"dtype": dtype, "size": "full", "sequence_length": 128, "hub_id": "google-bert/bert-base-uncased", "cell_key": dtype}
            database.cell(database.plan("bert", "cpu", **facts), "s-cpu", wall=steady(ms), relative_error=error, peak_mb=mb)
    asked = ("--model", "bert-base-uncased", "--hw", "cpu", "--database", str(path))
    (answer,) = printed_json(capsys, *asked, "--memory", "800", "--max-loss", "0.02")
    assert answer["measured"][0]["best"]["dtype"] == answer["hardware_profile"]["cpu"]["memory_usage"]["dtype"] == "bfloat16"
    assert answer["recommended_hardware"] == "cpu"
    (strict,) = printed_json(capsys, *asked, "--memory", "800", "--max-loss", "0.01")
    assert strict["measured"][0]["best"] is None
    assert strict["recommended_hardware"] is None, "nothing is within the limits"
    assert "a loss above 0.01" in " ".join(printed(capsys, *asked, "--max-loss", "0.01").split())
    (other,) = printed_json(capsys, "--model", "bert-base-uncased", "--hw", "cuda", "--database", str(path))
    assert other["measured"] == []


def test_limits_need_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("classify", "--max-loss", "0.1") == 2
    assert "--max-loss: it needs --model" in capsys.readouterr().err
    assert hwmatrix("classify", "--model", "bert", "--max-latency", "-1") == 2
    assert "-1 is not a valid latency" in capsys.readouterr().err


def test_several_models(capsys: pytest.CaptureFixture[str]) -> None:
    answers = printed_json(capsys, "--model", "gpt2", "--model", "vit-base-patch16-224")
    assert [answer["model_name"] for answer in answers] == ["gpt2", "vit-base-patch16-224"]


def test_an_unknown_name_is_not_an_error_and_the_answer_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "--model", "thing-one")
    assert "thing-one: unknown kind of model (confidence 0.00:" in shown
    assert "recommended hardware: cpu (none)" in shown
    assert "recommended template: none" in shown
    assert "needs: not known: the size of thing-one is not known" in shown


def test_a_guess_is_labeled(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = printed_json(capsys, "--model", "bert")[0] | {"confidence": 0.5}
    monkeypatch.setattr(classifying.HardwareAwareModelClassifier, "classify_model", lambda *_: answer)
    assert "this is a guess" in printed(capsys, "--model", "bert")


@pytest.mark.usefixtures("database")
def test_models_for_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, "--task", "image-classification", "--hw", "cuda", "cpu")
    assert (found["task"], found["hardware_constraints"]) == ("image-classification", ["cuda", "cpu"])
    assert {each["recommended_hardware"] for each in found["recommendations"]} <= {"cuda", "cpu"}
    shown = printed(capsys, "--task", "text-generation", "--hw", "cpu")
    assert "models for text-generation on cpu, the best first:" in shown
    assert "gpt2" in shown
    assert "not recommended: mixtral" in shown
    assert "cpu is too small: the model needs" in shown


def test_a_task_that_no_model_here_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("classify", "--task", "text-to-speech") == 3
    assert "no model here suits the task text-to-speech" in capsys.readouterr().err


@pytest.mark.usefixtures("database")
def test_the_models_that_work_on_given_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, "--hw", "cuda", "webgpu")
    assert list(found) == ["cuda", "webgpu"]
    assert (found["cuda"]["bert"]["compatible"], found["cuda"]["bert"]["basis"]) == (True, "prior")
    assert found["webgpu"]["whisper"]["compatible"] is False
    shown = printed(capsys, "--hw", "cpu", "webgpu")
    assert "yes, High" in shown
    assert "measured" in shown
    assert "not known" in shown


@pytest.mark.usefixtures("database")
def test_the_configuration_of_a_pool(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, "--resource-config", "bert-base-uncased", "gpt2")
    assert found["resource_pool_config"].keys() == {"low_memory_mode", "recommended_timeout_mins"}
    shown = printed(capsys, "--resource-config", "bert-base-uncased", "gpt2")
    for words in ("low-memory mode:", "timeout:", "minutes", "hardware: ", "PyTorch device", "together they need up to"):
        assert words in shown


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--task text-generaton", "did you mean 'text-generation'?"),
        ("--task text-generation --hw cudaa", "did you mean 'cuda'?"),
        ("--hw cudaa", "did you mean 'cuda'?"),
        ("--model bert --hw cudaa", "did you mean 'cuda'?"),
        ("--model bert --task text-generation", "--model and --task cannot be combined"),
        ("--resource-config bert --hw cuda", "--hw cannot be used with --resource-config"),
        ("--models bert --hw cuda", "--hw cannot be used with --models"),
        ("--hw", "no value is given"),
        ("--resource-config --format json", "no value is given"),
        ("--model ../nowhere", "../nowhere"),
        ("--model bert!", "bert!"),
        ("--models brt", "did you mean 'bert'?"),
        ("--model bert --matrix none.yaml", "none.yaml"),
    ],
)
def test_invalid_arguments_are_refused(argv: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("classify", *argv.split()) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err


def test_databases_with_other_content_are_refused(project: Path, database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "text").write_text("text")
    assert hwmatrix("classify", "--model", "bert", "--database", "none.duckdb") == 7
    assert hwmatrix("classify", "--model", "bert", "--database", "text") == 7
    assert hwmatrix("classify", "--model", "bert", "--model-db", str(database)) == 7
    assert "not a cache of classifications" in capsys.readouterr().err
    assert hwmatrix("classify", "--model", "bert", "--model-db", "models.sqlite") == 0
    assert (project / "models.sqlite").is_file()


def test_without_a_matrix_yaml_the_models_of_the_package_are_known(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "matrix.yaml").unlink()
    (answer,) = printed_json(capsys, "--model", "bert-base-uncased")
    assert answer["family"] == "embedding"
    assert answer["resource_requirements"]["basis"] == "estimated"
    (answer,) = printed_json(capsys, "--model", "bert-of-somebody")
    assert answer["family"] == "embedding"
    assert answer["resource_requirements"]["basis"] == "none"
    assert {row["model"] for row in printed_json(capsys)} >= {"bert", "llava"}  # those of the packaged matrix.yaml


def test_images_are_queried_by_a_survey(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    row = {
        "target": "cpu",
        "model": "bert",
        "architecture": "bert",
        "family": "embedding",
        "subfamily": "masked_lm",
        "structure": "encoder-only",
        "confidence": 0.98,
        "source": "the architecture bert",
    }

    class Answers:
        def classifications(self) -> list[dict[str, Any]]:
            return [row]

    def survey(request: Any, *_: Any) -> Answers:
        asked.append(request)
        return Answers()

    monkeypatch.setattr(classifying, "survey_images", survey)
    monkeypatch.setattr(classifying, "workshop_of", lambda *_: None)
    assert (
        hwmatrix("classify", "--images", "--models", "bert", "--targets", "cpu", "--isolation", "none", "--output-dir", str(tmp_path)) == 0
    )
    shown = capsys.readouterr().out
    assert "masked_lm" in shown
    assert "0.98" in shown
    (request,) = asked
    assert (request.selection.models, request.selection.targets) == (("bert",), ("cpu",))
    assert (request.isolation, request.output) == ("none", tmp_path)
    assert printed_json(capsys, "--images") == [row]


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("classify", "--help") == 0
    shown = capsys.readouterr().out
    for words in ("--model", "--task", "--hw", "--resource-config", "--database", "hwmatrix classify --task text-generation --hw cuda mps"):
        assert words in shown
