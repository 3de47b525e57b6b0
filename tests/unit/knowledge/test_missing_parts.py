"""Each part of hwmatrix is optional for the others: the replacement for a part whose import fails, and the warning."""

from __future__ import annotations

import importlib
import importlib.machinery
import logging
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DETECTION = ("hwmatrix.hardware",)
CLASSIFIER = ("hwmatrix.models.classify",)
BOTH = (*DETECTION, *CLASSIFIER)
PARTS = ("HardwareAwareModelClassifier", "HardwareCompatibilityReporter", "ResourcePool", "estimate_for_name", "generate_test")


def ours() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "hwmatrix"]


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder and cache, and a fresh import of our modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    kept = {name: sys.modules.pop(name) for name in ours()}
    try:
        yield
    finally:
        for name in ours():
            del sys.modules[name]
        sys.modules.update(kept)


def hwmatrix_without(*modules: str) -> Any:
    """The package without these modules, which cannot be imported."""
    for name in modules:
        sys.modules[name] = None  # type: ignore[assignment] - this is how the import system is told
    return importlib.import_module("hwmatrix")


@pytest.fixture
def pytorch(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A fake PyTorch that can use this many NVIDIA GPUs with 8000 MiB each, of which 6000 are free."""

    def install(gpus: int) -> None:
        torch = types.ModuleType("torch")
        torch.__spec__ = importlib.machinery.ModuleSpec("torch", None)
        torch.__version__ = "2.13"
        torch.nn = types.SimpleNamespace(Module=type("Module", (), {}))
        torch.version = types.SimpleNamespace(cuda="13.0", hip=None, __version__="2.13")
        torch.backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: False))
        torch.cuda = types.SimpleNamespace(
            is_available=lambda: gpus > 0,
            is_initialized=lambda: False,
            device_count=lambda: gpus,
            mem_get_info=lambda _: (6000 * 2**20, 8000 * 2**20),
            get_device_name=lambda _: "a GPU",
            get_device_properties=lambda index: types.SimpleNamespace(uuid=f"gpu-{index}"),
            empty_cache=lambda: None,
        )
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "transformers", None)  # sizes come from the table

    return install


def warning(caplog: pytest.LogCaptureFixture) -> str:
    """The only warning of ours."""
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING and each.name.startswith("hwmatrix")]
    assert len(told) == 1, told
    return told[0]


class Model:
    """A model that is not a PyTorch module."""


def served(package: Any, preferences: dict[str, Any] | None) -> str:
    """The device for which a pool constructs a model."""
    devices: list[str] = []

    def construct(device: str) -> Model:
        devices.append(device)
        return Model()

    settings = importlib.import_module("hwmatrix.pool.settings").PoolSettings(timer=False)  # its thread would import parts at any time
    package.ResourcePool(settings).get_model("embedding", "bert", constructor=construct, hardware_preferences=preferences)
    return devices[-1]


@pytest.mark.parametrize("missing", [DETECTION, CLASSIFIER, BOTH])
def test_the_other_parts_can_be_imported(missing: tuple[str, ...]) -> None:
    package = hwmatrix_without(*missing)
    for name in PARTS:
        assert getattr(package, name)


def test_with_all_parts_nothing_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    answer = hwmatrix_without().HardwareAwareModelClassifier().classify_model("bert-base-uncased")
    assert importlib.import_module("hwmatrix.knowledge.stand_ins").replaced() == ()
    assert not any("cannot be imported" in reason["text"] for reason in answer["reasons"])
    assert not [record for record in caplog.records if "cannot be imported" in record.getMessage()]


@pytest.mark.parametrize(("gpus", "hardware", "device"), [(0, "cpu", "cpu"), (1, "cuda", "cuda:0")])
def test_without_detection_the_classifier_queries_pytorch(
    pytorch: Callable[[int], None], caplog: pytest.LogCaptureFixture, gpus: int, hardware: str, device: str
) -> None:
    pytorch(gpus)
    classifier = hwmatrix_without(*DETECTION).HardwareAwareModelClassifier()
    answer = classifier.classify_model("bert-base-uncased")
    assert (answer["family"], answer["recommended_hardware"], answer["torch_device"]) == ("embedding", hardware, device)
    assert answer["hardware_profile"]["cuda"]["available_memory_mb"] == (6000 if gpus else None)
    assert "PyTorch does not know it" in answer["hardware_profile"]["openvino"]["unavailable_because"]
    classifier.recommend_model_for_task("text-generation")
    classifier.get_optimal_resource_pool_config(["bert-base-uncased", "gpt2"])
    told = warning(caplog)
    assert told.startswith("hardware detection (ModuleNotFoundError: ")
    assert told.endswith("cannot be imported: PyTorch decides which devices it can use")
    assert told in [reason["text"] for reason in answer["reasons"]]


def test_without_detection_and_without_pytorch_only_the_cpu_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    answer = hwmatrix_without(*DETECTION).get_hardware_aware_model_classification("gpt2")
    assert (answer["recommended_hardware"], answer["torch_device"]) == ("cpu", "cpu")
    assert answer["hardware_profile"]["cpu"]["available_memory_mb"] > 0


@pytest.mark.parametrize(
    ("preferences", "device"),
    [
        (None, "cuda:0"),
        ({"device": "cuda"}, "cuda:0"),
        ({"priority_list": ["cuda", "cpu"], "preferred_index": 1}, "cuda:1"),
        ({"device": "openvino"}, "cpu"),
        ({"device": "cpu"}, "cpu"),
    ],
)
def test_without_detection_the_pool_queries_pytorch(
    pytorch: Callable[[int], None], preferences: dict[str, Any] | None, device: str
) -> None:
    pytorch(2)
    assert served(hwmatrix_without(*DETECTION), preferences) == device


def test_the_basic_detector_names_devices_like_the_full_one(pytorch: Callable[[int], None], caplog: pytest.LogCaptureFixture) -> None:
    pytorch(2)
    package = hwmatrix_without(*DETECTION)
    detector = importlib.import_module("hwmatrix.knowledge.stand_ins").hardware_detector()
    caplog.clear()
    assert detector.get_torch_device_with_priority() == "cuda:0"
    assert detector.get_torch_device_with_priority(["mps", "openvino", "cuda", "cpu"], 1) == "cuda:1"
    assert detector.get_torch_device_with_priority(["rocm", "cpu"]) == "cpu"
    assert not caplog.records
    assert detector.get_torch_device_with_priority(["cuda:7"]) == "cuda:0"
    assert warning(caplog) == "there is no cuda device 7, only 2: using device 0"
    errors = importlib.import_module(f"{package.__name__}.errors")
    with pytest.raises(errors.ConfigError, match="'gpu' is not a hardware name"):
        detector.get_torch_device_with_priority(["gpu"])


@pytest.mark.parametrize(
    ("name", "family"), [("somebody/whisper-mine", "audio"), ("bert-base-uncased", "embedding"), ("somebody/something", None)]
)
def test_without_the_classifier_the_name_is_used(caplog: pytest.LogCaptureFixture, name: str, family: str | None) -> None:
    package = hwmatrix_without(*CLASSIFIER)
    answer = package.HardwareAwareModelClassifier().classify_model(name, model_class="Mine", tasks=["fill-mask"], methods=["forward"])
    assert (answer["family"], answer["confidence"]) == (family, 0.0)
    told = warning(caplog)
    assert told.startswith("the model classifier (ModuleNotFoundError: ")
    assert told.endswith("cannot be imported: models are classified by the words of their names")
    assert served(package, {"device": "cpu"}) == "cpu"


@pytest.mark.parametrize(
    ("preferences", "device"),
    [
        (None, "cpu"),
        ({"device": "auto"}, "cpu"),
        ({"device": "cuda"}, "cuda"),
        ({"priority_list": ["openvino", "cpu"]}, "openvino"),
        ({"device": "cpu"}, "cpu"),
    ],
)
def test_without_both_the_requested_hardware_or_the_cpu_is_used(
    pytorch: Callable[[int], None], caplog: pytest.LogCaptureFixture, preferences: dict[str, Any] | None, device: str
) -> None:
    pytorch(1)
    package = hwmatrix_without(*BOTH)
    assert served(package, preferences).partition(":")[0] == device
    answer = package.HardwareAwareModelClassifier().classify_model("bert-base-uncased")
    assert (answer["family"], answer["recommended_hardware"], answer["torch_device"]) == ("embedding", "cpu", "cpu")
    told = warning(caplog)
    assert told.startswith("hardware detection (")
    assert " and the model classifier (" in told
    assert "the requested hardware is used unchecked, else the CPU" in told


def test_the_reporter_lists_a_missing_part() -> None:
    package = hwmatrix_without(*BOTH)
    reporter = package.HardwareCompatibilityReporter()
    (detection,) = reporter.collect_hardware_detection_errors()
    assert (detection["error_type"], detection["component"]) == ("component_broken", "hardware_detection")
    assert "hwmatrix.hardware" in detection["message"]
    broken = [error["message"] for error in reporter.check_components() if error["error_type"] == "component_broken"]
    assert [message.partition(" ")[0] for message in broken] == ["hardware_detection", "model_classification"]
    assert reporter.collect_model_integration_errors("bert-base-uncased") is not None
