"""The public names, arguments and keys. Programs depend on them, so none may be removed or moved."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from factory_advice import detections

import hwmatrix
from hwmatrix.classifier.classifier import Sources
from hwmatrix.records import Backend, Family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.records import Detection

ROOT = Path(__file__).parents[3]
CLASSIFIER, REPORTER, DETECTOR, POOL = "HardwareAwareModelClassifier", "HardwareCompatibilityReporter", "HardwareDetector", "ResourcePool"
SIGNATURES: dict[str, list[str]] = {
    "classify_model": ["model_name", "model_class", "tasks", "methods"],
    "get_hardware_aware_model_classification": ["model_name", "model_class", "tasks"],
    CLASSIFIER: ["hardware_cache_path", "model_db_path", "force_refresh"],
    f"{CLASSIFIER}.classify_model": ["model_name", "model_class", "tasks", "methods", "hw_compat_override"],
    f"{CLASSIFIER}.recommend_model_for_task": ["task", "hardware_constraints"],
    f"{CLASSIFIER}.get_optimal_resource_pool_config": ["models"],
    f"{CLASSIFIER}.get_compatible_models_for_hardware": ["models", "hardware"],
    "get_global_resource_pool": [],
    f"{POOL}.get_model": ["family", "name", "constructor", "hardware_preferences"],
    "detect_available_hardware": [],
    "get_cuda_details": [],
    "get_torch_device_with_priority": ["priority_list", "preferred_index"],
    DETECTOR: [],
    f"{DETECTOR}.get_cuda_details": [],
    f"{DETECTOR}.get_torch_device_with_priority": ["priority_list", "preferred_index"],
    REPORTER: [],
    f"{REPORTER}.check_components": [],
    f"{REPORTER}.collect_hardware_detection_errors": [],
    f"{REPORTER}.collect_resource_pool_errors": [],
    f"{REPORTER}.collect_model_integration_errors": ["model"],
    f"{REPORTER}.test_full_hardware_stack": [],
    f"{REPORTER}.generate_report": ["format"],
    f"{REPORTER}.generate_compatibility_matrix": [],
    f"{REPORTER}.save_to_file": ["report", "path"],
}
NEEDED = {"model_name", "family", "name", "task", "models", "hardware", "model", "report", "path"}
"""The required arguments; all others are optional."""
HARDWARE = ("cpu", "cuda", "rocm", "mps", "openvino", "webnn", "webgpu", "qnn")
NEEDS = {"min_memory_mb", "recommended_memory_mb", "cpu_cores", "disk_space_mb", "batch_size"}


class Machine:
    """A detector with the given hardware. PyTorch can use the first entry of a list that is available."""

    def __init__(self, *here: str) -> None:
        self.found = detections(*here)

    def detect(self) -> Mapping[str, Detection]:
        return self.found

    def get_torch_device_with_priority(self, priority_list: Sequence[str] | None = None, preferred_index: int = 0) -> str:
        first = next((name for name in priority_list or () if self.found[name].available), "cpu")
        return f"cuda:{preferred_index}" if first == "cuda" else first


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with our matrix.yaml, without torch, so that sizes come from the table."""
    shutil.copy(ROOT / "matrix.yaml", tmp_path / "matrix.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "torch", None)
    return tmp_path


def public(path: str) -> Any:
    found: Any = hwmatrix
    for name in path.split("."):
        found = getattr(found, name)
    return found


def classifier(*here: str) -> Any:
    return hwmatrix.HardwareAwareModelClassifier(sources=Sources(detector=Machine(*here)))


@pytest.mark.parametrize("path", SIGNATURES)
def test_arguments_keep_their_names_and_positions(path: str) -> None:
    given = [each for each in inspect.signature(public(path)).parameters.values() if each.name != "self"]
    positional = [each for each in given if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    documented = SIGNATURES[path]
    assert [each.name for each in positional][: len(documented)] == documented
    required = [each.name for each in given if each.default is inspect.Parameter.empty]
    assert required == [name for name in documented if name in NEEDED]


@pytest.mark.parametrize("name", HARDWARE)
def test_each_kind_of_hardware_is_a_constant(name: str) -> None:
    assert getattr(hwmatrix, name.upper()) == name
    assert name in set(Backend)


def test_hardware_is_detected_without_arguments() -> None:
    found = hwmatrix.detect_available_hardware()
    assert set(HARDWARE) <= found["hardware"].keys()
    assert found["hardware"][hwmatrix.CPU] is True
    assert isinstance(found["torch_device"], str)
    detector = hwmatrix.HardwareDetector()
    assert detector.get_torch_device_with_priority(priority_list=["cpu"], preferred_index=1) == "cpu"
    assert detector.get_cuda_details()["device_count"] == len(detector.get_cuda_details()["devices"])


def test_a_classification_has_its_documented_keys() -> None:
    plain = hwmatrix.classify_model(model_name="gpt2", model_class="GPT2LMHeadModel", tasks=["text-generation"], methods=["generate"])
    assert (plain["family"], plain["subfamily"]) == ("text_generation", "causal_lm")
    answer = classifier("cuda").classify_model(
        model_name="bert-base-uncased", model_class="BertModel", tasks=["fill-mask", "feature-extraction"], methods=["forward"]
    )
    keys = {"model_name", "family", "subfamily", "confidence", "hardware_profile", "recommended_hardware", "recommended_template"}
    assert answer.keys() >= keys | {"resource_requirements", "torch_device"}
    assert answer["resource_requirements"].keys() >= NEEDS
    assert answer["hardware_profile"].keys() >= set(HARDWARE)


def test_a_caller_s_profile_counts_for_an_unknown_model() -> None:
    own = {"cuda": {"compatible": True, "memory_usage": {"peak": 2000}}, "mps": {"compatible": False}, "openvino": {"compatible": True}}
    answer = classifier("cuda", "mps", "openvino").classify_model(model_name="my-custom-model", hw_compat_override=own)
    profile = answer["hardware_profile"]
    assert {name: profile[name]["compatible"] for name in own} == {"cuda": True, "mps": False, "openvino": True}
    assert profile["cuda"]["memory_usage"]["peak"] == 2000
    assert (answer["recommended_hardware"], answer["torch_device"]) == ("cuda", "cuda:0")


def test_recommendations_for_a_task_have_their_documented_keys() -> None:
    answer = classifier("cuda").recommend_model_for_task(task="text-generation", hardware_constraints=["cuda", "mps"])
    assert (answer["task"], answer["hardware_constraints"]) == ("text-generation", ["cuda", "mps"])
    assert answer["recommendations"]
    for model in answer["recommendations"]:
        assert model.keys() >= {"model_name", "family", "subfamily", "recommended_hardware", "resource_requirements", "confidence"}
        assert model["recommended_hardware"] in {"cuda", "mps"}
        assert model["resource_requirements"].keys() >= NEEDS


def test_the_configuration_of_a_pool_has_its_documented_keys() -> None:
    answer = classifier().get_optimal_resource_pool_config(["bert-base-uncased", "t5-small", "gpt2", "clip-vit-base-patch32"])
    assert answer["resource_pool_config"].keys() >= {"low_memory_mode", "recommended_timeout_mins"}
    assert answer["resource_requirements"]["max_memory_mb"] > 0
    assert answer["hardware_recommendations"].keys() >= {"preferred_hardware", "torch_device"}
    assert json.loads(json.dumps(answer)) == answer


def test_the_models_that_work_somewhere_keep_their_order() -> None:
    asked = ["gpt2", "bert-base-uncased", "t5-small", "facebook/wav2vec2-base", "llava-hf/llava-1.5-7b-hf"]
    found = classifier().get_compatible_models_for_hardware(asked, "cuda")
    assert found == [name for name in asked if name in found]
    assert "bert-base-uncased" in found


def test_a_pool_shares_a_model_across_all_kinds_of_preferences() -> None:
    pool = hwmatrix.get_global_resource_pool()
    assert pool is hwmatrix.get_global_resource_pool()
    made: list[object] = []

    def construct() -> object:
        made.append(type("Model", (), {})())
        return made[-1]

    try:
        by_device = pool.get_model("embedding", "interface", constructor=construct, hardware_preferences={"device": "cpu"})
        by_list = {"priority_list": [hwmatrix.CPU], "preferred_index": 0}
        assert pool.get_model("embedding", "interface", constructor=construct, hardware_preferences=by_list) is by_device
        assert pool.get_model("embedding", "interface") is by_device
        assert made == [by_device]
    finally:
        pool.release("embedding", "interface")


def test_a_report_can_be_written_in_both_formats(folder: Path) -> None:
    reporter = hwmatrix.HardwareCompatibilityReporter(sources=Sources(detector=Machine()))
    reporter.check_components()
    reporter.collect_hardware_detection_errors()
    reporter.collect_resource_pool_errors()
    reporter.collect_model_integration_errors("bert-base-uncased")
    markdown, document = reporter.generate_report(format="markdown"), reporter.generate_report(format="json")
    assert markdown.startswith("# ")
    severities = {error["severity"] for error in json.loads(document)["errors"]}
    assert severities <= {"critical", "error", "warning", "info"}
    keys = {"hardware_type", "error_type", "severity", "message", "component", "timestamp", "model_name", "recommendations", "traceback"}
    assert all(error.keys() >= keys for error in json.loads(document)["errors"])
    table = [line for line in reporter.generate_compatibility_matrix().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {table[0].count("|")}
    assert len(table) >= 2 + len(Family), "a header, a separator, and a row for every family"
    reporter.save_to_file(markdown, "hardware_report.md")
    assert (folder / "hardware_report.md").read_text(encoding="utf-8") == markdown
