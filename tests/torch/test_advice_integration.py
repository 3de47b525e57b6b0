"""Models and hardware on this very machine: the real detector, sizes from torch's meta device, and the published measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hwmatrix.classifier.classifier import HardwareAwareModelClassifier, Sources
from hwmatrix.matrix.load import load
from hwmatrix.records import Backend

if TYPE_CHECKING:
    from hwmatrix.classifier.answers import ModelAnswer

pytestmark = pytest.mark.torch
transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]
DEFAULT = ROOT / "tests" / "recorded" / "default.duckdb"
PERFORMANCE = ROOT / "tests" / "recorded" / "performance.duckdb"
NEVER_SEEN = Backend.CUDA, Backend.ROCM, Backend.MPS


def classifier(cache: Path, database: Path | None) -> HardwareAwareModelClassifier:
    sources = Sources(matrix=ROOT / "matrix.yaml", database=database, cache=cache)
    return HardwareAwareModelClassifier(hardware_cache_path=cache / "hardware.json", model_db_path=cache / "models.sqlite", sources=sources)


def measured(answer: ModelAnswer) -> set[str]:
    return {name for name, entry in answer["hardware_profile"].items() if entry["basis"] == "measured" and entry["nearness"] == "model"}


def test_what_was_published_decides_and_the_rest_is_expected(tmp_path: Path) -> None:
    answer = classifier(tmp_path, PERFORMANCE).classify_model("bert-base-uncased")
    assert measured(answer) == {"cpu", "openvino", "onnxruntime"}
    openvino = answer["hardware_profile"]["openvino"]
    assert (openvino["level"], round(openvino["speed_up"], 1)) == ("High", 2.4)
    assert openvino["memory_usage"] == {"peak": 1465, "basis": "measured", "dtype": "float32"}
    assert all(answer["hardware_profile"][hardware]["basis"] == "prior" for hardware in NEVER_SEEN)
    assert answer["hardware_profile"]["cpu"]["available"] is True
    assert answer["hardware_profile"]["cpu"]["available_memory_mb"] > 0
    assert (tmp_path / "models.sqlite").is_file()


@pytest.mark.long
def test_every_model_of_matrix_yaml_has_an_answer(tmp_path: Path) -> None:
    asked = classifier(tmp_path, DEFAULT)
    for name in load(ROOT / "matrix.yaml").spec.models:
        answer = asked.classify_model(name)
        assert json.loads(json.dumps(answer)) == answer
        assert answer["family"] is not None
        assert answer["recommended_template"] == f"hf_{answer['family']}_template.py"
        assert (ROOT / "harness/hwmatrix/generate/templates/tests" / f"{answer['recommended_template']}.j2").is_file()
        if answer["recommended_hardware"] is not None:
            entry = answer["hardware_profile"][answer["recommended_hardware"]]
            assert entry["available"]
            assert entry["compatible"] is not False
            assert entry["fits"] is not False


def test_a_model_that_no_machine_here_can_hold_is_not_recommended(tmp_path: Path) -> None:
    answer = classifier(tmp_path, DEFAULT).classify_model("mixtral")
    assert answer["hardware_profile"]["cpu"]["compatible"] is True
    needed = answer["hardware_profile"]["cpu"]["memory_usage"]["peak"]
    assert needed > 170_000
    if answer["hardware_profile"]["cpu"]["available_memory_mb"] < needed:
        assert answer["hardware_profile"]["cpu"]["fits"] is False
        assert answer["recommended_hardware"] != "cpu"


def test_a_checkpoint_of_ones_own(tmp_path: Path) -> None:
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=100)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "mine")
    answer = classifier(tmp_path, DEFAULT).classify_model(str(tmp_path / "mine"))
    assert (answer["family"], answer["classification"]["architecture"]) == ("embedding", "bert")
    assert answer["hardware_profile"]["openvino"]["basis"] == "measured"
    assert answer["hardware_profile"]["openvino"]["nearness"] == "architecture"
    assert answer["resource_requirements"]["min_memory_mb"] is not None
    assert answer["resource_requirements"]["min_memory_mb"] > 0


def test_models_for_a_task_on_this_machine(tmp_path: Path) -> None:
    found = classifier(tmp_path, PERFORMANCE).recommend_model_for_task("text-generation", ["cpu"])
    names = [each["model_name"] for each in found["recommendations"]]
    assert set(names[:2]) == {"gpt2", "llama"}  # those that were measured
    assert {each["nearness"] for each in found["recommendations"][:2]} == {"model"}


def test_a_pool_on_this_machine(tmp_path: Path) -> None:
    asked = classifier(tmp_path, PERFORMANCE)
    config = asked.get_optimal_resource_pool_config(["bert-base-uncased", "gpt2", "vit-base-patch16-224"])
    assert config["resource_requirements"]["max_memory_mb"] > 500
    assert config["hardware_recommendations"]["preferred_hardware"] in {backend.value for backend in Backend}
    assert config["hardware_recommendations"]["torch_device"]
