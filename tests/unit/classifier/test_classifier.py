"""Models and hardware together, with all real parts except the machine. torch is hidden, so sizes come from the table."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from factory_advice import detections
from factory_rows import Database, steady, unmeasured

import hwmatrix
from hwmatrix.classifier import classifier as integration
from hwmatrix.classifier.answers import template_for
from hwmatrix.classifier.classifier import HardwareAwareModelClassifier, Sources, get_hardware_aware_model_classification
from hwmatrix.errors import ConfigError, StoreError
from hwmatrix.records import Backend, Family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.records import Detection

ROOT = Path(__file__).parents[3]
ANSWER_KEYS = {
    *("model_name", "family", "subfamily", "confidence", "hardware_profile", "recommended_hardware", "recommended_template"),
    *("resource_requirements", "torch_device", "classification", "basis", "nearness", "reasons", "expected", "evidence"),
}
REQUIREMENT_KEYS = {"min_memory_mb", "recommended_memory_mb", "cpu_cores", "disk_space_mb", "batch_size"}


class Machine:
    """A detector with the answers that a test chooses."""

    def __init__(self, *here: str, torch_device: str = "cpu", **memory: int | None) -> None:
        self.found = detections(*here, **memory)
        self.torch_device = torch_device
        self.asked: list[Sequence[str] | None] = []

    def detect(self) -> Mapping[str, Detection]:
        return self.found

    def get_torch_device_with_priority(self, priority_list: Sequence[str] | None = None, preferred_index: int = 0) -> str:
        self.asked.append(priority_list)
        return f"{self.torch_device}:{preferred_index}" if self.torch_device == "cuda" else self.torch_device


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the project's matrix.yaml and nothing else."""
    shutil.copy(ROOT / "matrix.yaml", tmp_path / "matrix.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "torch", None)
    return tmp_path


@pytest.fixture
def database(project: Path) -> Path:
    """Measurements in full size: bert and vit are fast on openvino, vit is wrong on onnxruntime, gpt2 ran only on the cpu."""
    path = project / "reports" / "latest" / "matrix.duckdb"
    path.parent.mkdir(parents=True)
    bert = {"family": "embedding", "architecture": "bert", "hub_id": "google-bert/bert-base-uncased", "size": "full"}
    vit = {"family": "vision", "architecture": "vit", "hub_id": "google/vit-base-patch16-224", "size": "full"}
    gpt2 = {"family": "text_generation", "architecture": "gpt2", "hub_id": "openai-community/gpt2", "size": "full"}
    with Database(path) as filled:
        filled.run()
        for target in ("cpu", "openvino", "onnxruntime"):
            filled.shard(f"s-{target}", target)
        for name, facts in (("bert", bert), ("vit", vit), ("gpt2", gpt2)):
            filled.cell(filled.plan(name, "cpu", **facts), "s-cpu", wall=steady(100.0))
        filled.cell(filled.plan("bert", "openvino", **bert), "s-openvino", wall=steady(50.0))
        filled.cell(filled.plan("vit", "openvino", **vit), "s-openvino", wall=steady(25.0))
        filled.cell(filled.plan("vit", "onnxruntime", **vit), "s-onnxruntime", **unmeasured("mismatch"))
        tiny = filled.plan("vit", "cpu", family="vision", architecture="vit", cell_key="tiny")  # the same model, without its hub id
        filled.cell(tiny, "s-cpu", wall=steady(1.0))
        elsewhere = filled.plan("/somebody's/vit", "cpu", family="vision", architecture="vit", size="full")
        filled.cell(elsewhere, "s-cpu", wall=steady(100.0))  # by its path, so it cannot be recommended
    return path


def classifier(*here: str, model_db_path: Path | None = None, force_refresh: bool = False, **machine: Any) -> HardwareAwareModelClassifier:
    sources = Sources(detector=Machine(*here, **machine))
    return HardwareAwareModelClassifier(model_db_path=model_db_path, force_refresh=force_refresh, sources=sources)


def texts(reasons: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(f"{reason['basis']}: {reason['text']}" for reason in reasons)


def test_the_documented_signatures() -> None:
    made = inspect.signature(HardwareAwareModelClassifier)
    positional = [name for name, each in made.parameters.items() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert positional == ["hardware_cache_path", "model_db_path", "force_refresh"]
    asked = list(inspect.signature(HardwareAwareModelClassifier.classify_model).parameters)
    assert asked == ["self", "model_name", "model_class", "tasks", "methods", "hw_compat_override"]
    assert list(inspect.signature(get_hardware_aware_model_classification).parameters) == ["model_name", "model_class", "tasks"]
    assert hwmatrix.HardwareAwareModelClassifier is HardwareAwareModelClassifier
    assert hwmatrix.get_hardware_aware_model_classification is get_hardware_aware_model_classification


def test_no_file_is_read_before_the_first_question(project: Path) -> None:
    before = sorted(project.rglob("*"))
    HardwareAwareModelClassifier(hardware_cache_path=project / "no" / "hardware.json", model_db_path=project / "no" / "models.sqlite")
    assert sorted(project.rglob("*")) == before


@pytest.mark.usefixtures("database")
def test_an_answer_has_every_key_and_is_json() -> None:
    answer = classifier("openvino").classify_model("bert-base-uncased")
    assert answer.keys() == ANSWER_KEYS
    assert answer["resource_requirements"].keys() > REQUIREMENT_KEYS
    assert answer["hardware_profile"].keys() == {backend.value for backend in Backend}
    assert json.loads(json.dumps(answer)) == answer
    assert (answer["model_name"], answer["family"], answer["subfamily"]) == ("bert-base-uncased", "embedding", "masked_lm")
    assert answer["recommended_template"] == "hf_embedding_template.py"
    assert answer["confidence"] > 0.9


@pytest.mark.usefixtures("database")
def test_measurements_come_first_and_say_so() -> None:
    answer = classifier("openvino", "cuda", torch_device="cuda").classify_model("bert-base-uncased")
    assert (answer["recommended_hardware"], answer["torch_device"]) == ("openvino", "cpu")
    assert answer["basis"]["recommended_hardware"] == "measured"
    assert answer["nearness"] == "model"
    assert "2 times as fast as cpu" in texts(answer["reasons"])
    assert "cuda is here, and usually comes before openvino for such models; it was not measured" in texts(answer["reasons"])
    needs = answer["resource_requirements"]
    assert needs["hardware"] == "openvino"
    assert needs["basis"] in {"estimated", "extrapolated"}
    assert needs["min_memory_mb"] is not None
    assert needs["recommended_memory_mb"] is not None
    assert 0 < needs["min_memory_mb"] <= needs["recommended_memory_mb"]


def test_without_measurements_answers_come_from_requirements_then_priors() -> None:
    machine = Machine("cuda", torch_device="cuda")
    answer = HardwareAwareModelClassifier(sources=Sources(detector=machine)).classify_model("vit-base-patch16-224")
    assert (answer["recommended_hardware"], answer["torch_device"]) == ("cuda", "cuda:0")
    assert machine.asked == [["cuda", "cpu"]]
    assert answer["basis"]["recommended_hardware"] in {"estimated", "extrapolated"}
    assert answer["nearness"] is None
    assert "not measured; expected High" in texts(answer["reasons"])
    assert [(each["recommended_hardware"], each["resource_requirements"]["min_memory_mb"]) for each in answer["expected"]] == [
        ("openvino", 4000)
    ]


def test_a_pytorch_build_that_cannot_use_the_hardware_is_reported() -> None:
    answer = classifier("cuda", torch_device="cpu").classify_model("bert-base-uncased")
    assert (answer["recommended_hardware"], answer["torch_device"]) == ("cuda", "cpu")
    assert "detected: the PyTorch installed here cannot use cuda" in texts(answer["reasons"])


@pytest.mark.usefixtures("database")
def test_compatible_and_available_are_independent() -> None:
    profile = classifier("onnxruntime").classify_model("vit")["hardware_profile"]
    sides = {name: (entry["compatible"], entry["available"], entry["installed"]) for name, entry in profile.items()}
    assert sides["cpu"] == (True, True, True)
    assert sides["openvino"] == (True, True, False)
    assert sides["onnxruntime"] == (False, True, True)
    assert sides["qnn"] == (None, True, False)
    assert sides["cuda"] == (True, False, False)
    assert profile["onnxruntime"]["basis"] == "measured"
    assert profile["cuda"]["unavailable_because"] == "no cuda in this test"
    assert profile["cpu"]["memory_usage"]["peak"] > 100


def test_an_unknown_name_has_low_confidence() -> None:
    answer = classifier("cuda").classify_model("somebody/thing-one")
    assert (answer["family"], answer["confidence"], answer["recommended_template"]) == (None, 0.0, None)
    assert (answer["recommended_hardware"], answer["basis"]["recommended_hardware"]) == ("cpu", "none")
    needs = answer["resource_requirements"]
    assert {key: needs[key] for key in REQUIREMENT_KEYS} == dict.fromkeys(REQUIREMENT_KEYS)  # type: ignore[literal-required]
    assert needs["basis"] == "none"
    assert "it is only a name" in needs["note"]


def test_a_known_word_in_a_name_has_the_confidence_of_names() -> None:
    by_name = classifier().classify_model("somebody/cool-bert-large")
    by_class = classifier().classify_model("somebody/thing-one", model_class="ViTForImageClassification")
    by_task = classifier().classify_model("somebody/thing-one", tasks=["automatic-speech-recognition"])
    assert (by_name["family"], by_class["family"], by_task["family"]) == ("embedding", "vision", "audio")
    assert 0 < by_name["confidence"] < by_class["confidence"]
    assert (by_name["basis"]["family"], by_class["basis"]["family"]) == (by_name["classification"]["evidence"], "class")


def test_the_documents_requirements_are_used_if_nothing_else_is_known(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "matrix.yaml").unlink()
    for asking in ("classifier.classifier", "knowledge.names"):
        monkeypatch.setattr(f"hwmatrix.{asking}.shipped_model", lambda _: None)
    answer = classifier().classify_model("bert-base-uncased")
    needs = answer["resource_requirements"]
    assert (needs["min_memory_mb"], needs["recommended_memory_mb"], needs["basis"]) == (4000, 8000, "prior")
    assert "Hardware-Model Integration Guide, Hardware and Model Integration Enhancement Summary" in needs["note"]
    assert len(answer["expected"]) == 2


@pytest.mark.parametrize("name", ["", "a b!", "../nowhere", "./nowhere", "a/b/c", "bert\n", "x" * 500])
def test_invalid_model_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        classifier().classify_model(name)
    assert caught.value.problems[0].hint


def test_an_override_decides(project: Path) -> None:
    own = {"cuda": {"compatible": True, "memory_usage": {"peak": 2000}}, "mps": {"compatible": False}, "openvino": {"compatible": True}}
    answer = classifier("cuda", "mps").classify_model("my-custom-model", hw_compat_override=own)
    assert (answer["recommended_hardware"], answer["basis"]["recommended_hardware"]) == ("cuda", "override")
    assert answer["hardware_profile"]["mps"]["compatible"] is False
    assert answer["hardware_profile"]["cuda"]["memory_usage"] == {"peak": 2000, "basis": "override", "dtype": None}
    assert (answer["resource_requirements"]["min_memory_mb"], answer["resource_requirements"]["basis"]) == (2000, "override")
    too_large = {"cuda": {"compatible": True, "memory_usage": {"peak": 99_000}}}
    refused = classifier("cuda").classify_model("my-custom-model", hw_compat_override=too_large)
    assert refused["recommended_hardware"] == "cpu"
    assert "override: cuda is too small: the model needs 99000 MiB, 24000 MiB are left" in texts(refused["reasons"])
    with pytest.raises(ConfigError, match="cudda"):
        classifier().classify_model("my-custom-model", hw_compat_override={"cudda": {"compatible": True}})
    assert not (project / "reports").exists()


def test_the_family_in_matrix_yaml_outranks_a_guess(project: Path) -> None:
    text = (
        (project / "matrix.yaml")
        .read_text(encoding="utf-8")
        .replace("family: embedding\n    architecture: bert", "family: audio\n    architecture: bert")
    )
    (project / "matrix.yaml").write_text(text, encoding="utf-8")
    answer = classifier().classify_model("bert")
    assert (answer["family"], answer["subfamily"], answer["confidence"]) == ("audio", None, 1.0)
    assert "matrix.yaml says audio" in str(answer["classification"]["source"])
    assert classifier().classify_model("bert", model_class="BertForMaskedLM")["family"] == "embedding"


def test_a_changed_matrix_yaml_is_reread(project: Path) -> None:
    asked = classifier()
    assert asked.classify_model("bert")["family"] == "embedding"
    text = (project / "matrix.yaml").read_text(encoding="utf-8")
    (project / "matrix.yaml").write_text(text.replace("  bert:\n    family: embedding", "  bert:\n    family: vision"), encoding="utf-8")
    assert asked.classify_model("bert")["family"] == "vision"


def test_new_measurements_are_reread(project: Path, database: Path) -> None:
    kept = database.rename(project / "later.duckdb")
    asked = classifier("openvino")
    assert asked.classify_model("bert")["nearness"] is None
    kept.rename(database)
    assert asked.classify_model("bert")["nearness"] == "model"


@pytest.mark.usefixtures("database")
def test_models_for_a_task_start_with_measured_ones() -> None:
    found = classifier("openvino").recommend_model_for_task("text-generation")
    assert found.keys() == {"task", "hardware_constraints", "recommendations", "not_recommended", "evidence"}
    assert (found["task"], found["hardware_constraints"]) == ("text-generation", None)
    first = found["recommendations"][0]
    assert {"model_name", "family", "subfamily", "recommended_hardware", "resource_requirements", "confidence"} < first.keys()
    assert (first["model_name"], first["recommended_hardware"], first["nearness"]) == ("gpt2", "cpu", "model")
    assert {each["family"] for each in found["recommendations"]} == {"text_generation"}
    assert {each["subfamily"] for each in found["recommendations"]} == {"causal_lm"}
    (mixtral,) = found["not_recommended"]
    assert mixtral["model_name"] == "mixtral"
    assert "cpu is too small: the model needs" in texts(mixtral["reasons"])
    assert json.loads(json.dumps(found)) == found


@pytest.mark.usefixtures("database")
def test_constraints_apply_whether_the_hardware_is_here_or_not() -> None:
    found = classifier("openvino").recommend_model_for_task("image-classification", ["cuda", "openvino"])
    assert found["hardware_constraints"] == ["cuda", "openvino"]
    assert [(each["model_name"], each["recommended_hardware"], each["available"]) for each in found["recommendations"][:2]] == [
        ("vit", "openvino", True),
        ("swin", "openvino", True),
    ]
    elsewhere = classifier("openvino").recommend_model_for_task("image-classification", ["cuda"])["recommendations"]
    assert {(each["recommended_hardware"], each["available"]) for each in elsewhere} == {("cuda", False)}
    assert "detected: cuda is not here: no cuda in this test" in texts(elsewhere[0]["reasons"])


@pytest.mark.usefixtures("database")
def test_models_made_for_a_task_come_before_those_that_need_another_head() -> None:
    found = classifier().recommend_model_for_task("image-classification")["recommendations"]
    fits = [each["fit"] for each in found]
    assert fits == sorted(fits, key=lambda fit: fit != "made for it")
    assert {"vit", "swin"} == {each["model_name"] for each in found if each["fit"] == "made for it"}


@pytest.mark.usefixtures("database")
def test_a_model_that_failed_there_is_not_recommended_there() -> None:
    found = classifier("onnxruntime").recommend_model_for_task("image-classification", ["onnxruntime"])
    refused = {each["model_name"]: texts(each["reasons"]) for each in found["not_recommended"]}
    assert "measured: onnxruntime: measured: mismatch" in refused["vit"]
    assert "vit" not in {each["model_name"] for each in found["recommendations"]}


def test_models_that_only_the_database_has_can_be_recommended(project: Path, database: Path) -> None:
    (project / "matrix.yaml").unlink()
    found = classifier("openvino").recommend_model_for_task("image-classification")
    assert [(each["model_name"], each["recommended_hardware"]) for each in found["recommendations"]] == [
        ("google/vit-base-patch16-224", "openvino")
    ]
    database.unlink()


def test_the_models_of_the_package_are_known_in_every_folder(project: Path) -> None:
    """In a folder without a matrix.yaml and a database."""
    (project / "matrix.yaml").unlink()
    found = classifier("cpu").recommend_model_for_task("text-generation")
    assert found["recommendations"][0]["model_name"] == "openai-community/gpt2"
    assert found["recommendations"][0]["resource_requirements"]["recommended_memory_mb"] > 0
    for name in ("bert", "bert-base-uncased", "google-bert/BERT_base-uncased"):
        answer = classifier("cpu").classify_model(name)
        assert (answer["family"], answer["subfamily"], answer["classification"]["architecture"]) == ("embedding", "masked_lm", "bert")
        assert answer["basis"]["resource_requirements"] == "estimated"
    assert classifier("cpu").classify_model("facebook/wav2vec2-base")["resource_requirements"]["min_memory_mb"] > 0
    needs = classifier("cpu").get_optimal_resource_pool_config(["bert-base-uncased", "t5-small"])["resource_requirements"]
    assert (needs["models_of_unknown_size"], needs["max_memory_mb"] > 0) == ([], True)
    assert classifier("cpu").classify_model("bert-of-somebody-else")["resource_requirements"]["min_memory_mb"] is None


def test_unknown_tasks_and_hardware_suggest_the_closest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'text-generation'"):
        classifier().recommend_model_for_task("text-generaton")
    with pytest.raises(ConfigError, match="did you mean 'cuda'"):
        classifier().recommend_model_for_task("text-generation", ["cudaa"])
    with pytest.raises(ConfigError, match="did you mean 'openvino'"):
        classifier().get_compatible_models_for_hardware(["bert"], "openvin")


@pytest.mark.usefixtures("database")
def test_the_configuration_of_a_pool() -> None:
    found = classifier("openvino").get_optimal_resource_pool_config(["bert-base-uncased", "vit-base-patch16-224", "bert-base-uncased"])
    assert found["resource_pool_config"].keys() == {"low_memory_mode", "recommended_timeout_mins"}
    assert found["resource_pool_config"] == {"low_memory_mode": False, "recommended_timeout_mins": 30}
    assert found["resource_requirements"]["max_memory_mb"] > 0
    assert found["hardware_recommendations"]["preferred_hardware"] == "openvino"
    assert found["hardware_recommendations"]["torch_device"] == "cpu"
    assert list(found["hardware_recommendations"]["by_model"]) == ["bert-base-uncased", "vit-base-patch16-224"]
    assert json.loads(json.dumps(found)) == found
    small = classifier("openvino", memory_mb=2_000).get_optimal_resource_pool_config(["bert-base-uncased", "gpt2"])
    assert small["resource_pool_config"]["low_memory_mode"] is True


@pytest.mark.usefixtures("database")
def test_the_models_that_work_on_a_hardware() -> None:
    models = ["bert-base-uncased", "gpt2", "t5-small", "facebook/wav2vec2-base", "llava-hf/llava-1.5-7b-hf", "vit", "unheard-of"]
    asked = classifier()
    assert asked.get_compatible_models_for_hardware(models, "mps") == [models[0], models[1], models[2], models[3], models[5]]
    assert asked.get_compatible_models_for_hardware(models, "cuda") == models[:6]
    assert asked.get_compatible_models_for_hardware(models, "onnxruntime") == []
    why = asked.explain_compatibility(models, "onnxruntime")
    assert (why["vit"]["compatible"], why["vit"]["basis"], why["vit"]["nearness"]) == (False, "measured", "model")
    assert (why["gpt2"]["compatible"], why["gpt2"]["basis"]) == (None, "none")


@pytest.mark.parametrize("ask", ["get_optimal_resource_pool_config", "get_compatible_models_for_hardware", "recommend_model_for_task"])
def test_a_string_is_not_accepted_as_a_list(ask: str) -> None:
    """It would otherwise be treated as a list of letters."""
    more = {"get_compatible_models_for_hardware": ("cpu",)}.get(ask, ())
    arguments = ("fill-mask", "cuda") if ask == "recommend_model_for_task" else ("bert", *more)
    with pytest.raises(ConfigError, match="not a list"):
        getattr(classifier(), ask)(*arguments)
    with pytest.raises(ConfigError, match="the list is empty"):
        classifier().get_optimal_resource_pool_config([])
    with pytest.raises(ConfigError, match="7 is not a string"):
        classifier().get_optimal_resource_pool_config(["bert", 7])  # type: ignore[list-item]


def test_classifications_are_cached(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project / "models.sqlite"
    first = classifier(model_db_path=path).classify_model("bert-base-uncased")
    asked = []
    real = integration.classify

    def counted(*names: Any, **facts: Any) -> Any:
        asked.append(names)
        return real(*names, **facts)

    monkeypatch.setattr(integration, "classify", counted)
    again = classifier(model_db_path=path).classify_model("bert-base-uncased")
    assert (asked, again) == ([], first)
    assert classifier(model_db_path=path, force_refresh=True).classify_model("bert-base-uncased") == first
    assert len(asked) == 1


def test_another_database_is_refused_as_a_cache(database: Path) -> None:
    with pytest.raises(StoreError, match="not a cache of classifications"):
        classifier(model_db_path=database).classify_model("bert")


def test_a_database_that_cannot_be_read_is_an_error(project: Path) -> None:
    sources = Sources(database=project / "none.duckdb", detector=Machine())
    with pytest.raises(StoreError, match="there is no such file"):
        HardwareAwareModelClassifier(sources=sources).classify_model("bert")


def test_every_family_has_a_template_name() -> None:
    assert [template_for(family) for family in Family] == [f"hf_{family.value}_template.py" for family in Family]
    assert template_for(None) is None
