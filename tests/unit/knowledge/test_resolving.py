from __future__ import annotations

import logging
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from pool_machines import detection

from hwmatrix.errors import ConfigError, FactoryError, StoreError
from hwmatrix.knowledge.resolving import Level, resolve_device, torch_absences
from hwmatrix.records import Classification, Detection, Family

if TYPE_CHECKING:
    from collections.abc import Callable

ALL = ("cpu", "cuda", "rocm", "mps", "openvino", "qnn", "webgpu", "webnn", "onnxruntime", "inductor", "executorch")


def here(*hardware: str) -> Callable[[], dict[str, Detection]]:
    return lambda: {name: detection(name, reason=None if name in {"cpu", *hardware} else f"no {name}") for name in ALL}


def classified(family: Family) -> Callable[[str], Classification]:
    return lambda name: Classification(
        model_name=name,
        architecture=None,
        model_class=None,
        family=family,
        subfamily=None,
        structure=None,
        confidence=1.0,
        evidence="class",
        source="a test",
    )


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_arguments: object) -> Any:
        raise error

    return fail


@pytest.fixture
def pytorch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A fake PyTorch that finds the given devices."""

    def install(*, cuda: str | None = None, hip: str | None = None, mps: bool = False) -> None:
        torch = types.ModuleType("torch")
        torch.__version__ = "2.13"
        torch.cuda = types.SimpleNamespace(is_available=lambda: bool(cuda or hip))
        torch.version = types.SimpleNamespace(cuda=cuda, hip=hip)
        torch.backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: mps))
        monkeypatch.setitem(sys.modules, "torch", torch)

    return install


def test_with_all_parts_the_first_available_hardware_of_the_family_s_order() -> None:
    vision = classified(Family.VISION)
    found = resolve_device("vit", detect=here("openvino", "mps"), classify=vision)
    assert (found.hardware, found.torch_device, found.level) == ("mps", "mps", Level.FULL)
    assert found.passed_over == {"cuda": "no cuda", "rocm": "no rocm"}
    assert resolve_device("vit", detect=here("openvino"), classify=vision).torch_device is None
    assert resolve_device("vit", detect=here("rocm"), classify=vision).torch_device == "cuda"
    assert resolve_device("vit", detect=here(), classify=vision).hardware == "cpu"


def test_a_preference_is_used_if_it_is_available() -> None:
    text = classified(Family.TEXT_GENERATION)
    assert resolve_device("gpt2", "openvino", detect=here("openvino", "cuda"), classify=text).hardware == "openvino"
    assert resolve_device("gpt2", "webgpu", detect=here("webnn", "cuda"), classify=text).hardware == "webnn"
    assert resolve_device("gpt2", "auto", detect=here("openvino", "cuda"), classify=text).hardware == "cuda"
    with pytest.raises(ConfigError, match="'gpu' is not a hardware name"):
        resolve_device("gpt2", "gpu", detect=here(), classify=text)


@pytest.mark.parametrize("error", [ImportError("no such module"), OSError("cannot be read"), StoreError("broken")])
def test_without_detection_pytorch_is_queried(error: Exception, pytorch: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    pytorch(cuda="13.0")
    found = resolve_device("vit", detect=failing(error), classify=classified(Family.VISION))
    assert (found.hardware, found.level) == ("cuda", Level.BASIC_DETECTION)
    assert found.missing == (f"detection: {type(error).__name__}: {error}",)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"detection: {type(error).__name__}: {error}" in record.message
    assert "basic_detection" in record.message


@pytest.mark.parametrize(("built", "expected"), [({"cuda": "13.0"}, "cuda"), ({"hip": "7.2"}, "rocm"), ({"mps": True}, "mps"), ({}, "cpu")])
def test_the_answers_of_pytorch(built: dict[str, Any], expected: str, pytorch: Callable[..., None]) -> None:
    pytorch(**built)
    reasons = torch_absences()
    assert set(reasons) == set(ALL)
    assert {name for name, reason in reasons.items() if reason is None} == {"cpu", expected}
    assert reasons["openvino"] == "not checked: detection is missing"
    assert resolve_device("vit", "openvino", detect=failing(ImportError()), classify=classified(Family.VISION)).hardware == "cpu"


def test_without_detection_and_pytorch_the_cpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    reasons = torch_absences()
    assert {name for name, reason in reasons.items() if reason is None} == {"cpu"}
    assert str(reasons["cuda"]).startswith("PyTorch cannot be imported")


def test_without_the_classifier_the_name_is_used() -> None:
    error = FactoryError("unknown", error_type="family_unknown")
    found = resolve_device("openai/whisper-tiny", detect=here("openvino", "mps"), classify=failing(error))
    assert (found.hardware, found.level) == ("openvino", Level.NAME_HEURISTIC)  # only the order for speech has OpenVINO before MPS
    assert found.classification is not None
    assert found.classification.family is Family.AUDIO


def test_a_name_that_says_nothing_gives_the_order_of_an_unknown_model() -> None:
    found = resolve_device("./my-bert", detect=here("mps"))  # a folder that does not exist
    assert (found.hardware, found.level, found.classification) == ("mps", Level.NAME_HEURISTIC, None)


def test_without_both_the_unchecked_preference_or_the_cpu_is_used(caplog: pytest.LogCaptureFixture) -> None:
    parts = {"detect": failing(ImportError("detection")), "classify": failing(ImportError("classifier"))}
    asked = resolve_device("bert", "cuda", **parts)
    assert (asked.hardware, asked.torch_device, asked.level) == ("cuda", "cuda", Level.PREFERENCE)
    assert len(asked.missing) == 2
    for nothing in (None, "auto"):
        found = resolve_device("bert", nothing, **parts)
        assert (found.hardware, found.level, found.classification) == ("cpu", Level.DEFAULT, None)
    assert len(caplog.records) == 3  # one for each query
    assert all("detection: " in record.message and "classification: " in record.message for record in caplog.records)
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["preference", "default", "default"]


def test_a_bug_in_a_part_does_not_count_as_a_missing_part() -> None:
    with pytest.raises(ZeroDivisionError):
        resolve_device("bert", detect=failing(ZeroDivisionError()), classify=classified(Family.EMBEDDING))


def test_a_kind_that_detection_leaves_out_is_reported() -> None:
    found = resolve_device("bert", "cuda", detect=lambda: {"cpu": detection("cpu")}, classify=classified(Family.EMBEDDING))
    assert found.hardware == "cpu"
    assert found.passed_over["cuda"] == "it was not detected"
