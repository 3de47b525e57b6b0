"""Profiles: the callers' overrides, and the independent answers compatible and available."""

from __future__ import annotations

import math
from typing import Any

import pytest
from factory_advice import detections, failed, profiles, subject

from hwmatrix.errors import ConfigError
from hwmatrix.knowledge.profiles import OVERRIDE, MemoryUsage, Override, availability_of, parse_overrides
from hwmatrix.records import Backend

DOCUMENTED = {
    "cuda": {"compatible": True, "memory_usage": {"peak": 2000}},
    "mps": {"compatible": False},
    "openvino": {"compatible": True},
    "webnn": {"compatible": False},
}


def test_the_documented_form_is_read() -> None:
    assert parse_overrides(DOCUMENTED) == {
        Backend.CUDA: Override(compatible=True, memory_usage=MemoryUsage(peak=2000)),
        Backend.MPS: Override(compatible=False),
        Backend.OPENVINO: Override(compatible=True),
        Backend.WEBNN: Override(compatible=False),
    }
    assert parse_overrides(None) == parse_overrides({}) == {}


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (["cuda"], "hardware profile: Input should be a valid dictionary, it is ['cuda']"),
        ({"cudda": {"compatible": True}}, "hardware profile.cudda.[key]: Input should be 'cpu', "),
        ({7: {"compatible": True}}, "it is 7"),
        ({"cuda": True}, "hardware profile.cuda: "),
        ({"cuda": {}}, "hardware profile.cuda.compatible: Field required"),
        ({"cuda": {"compatible": "yes"}}, "hardware profile.cuda.compatible: Input should be a valid boolean, it is 'yes'"),
        ({"cuda": {"compatible": 1}}, "it is 1"),
        ({"cuda": {"compatible": True, "memory": 1}}, "hardware profile.cuda.memory: Unexpected keyword argument"),
        ({"cuda": {"compatible": True, "memory_usage": 5}}, "hardware profile.cuda.memory_usage: "),
        ({"cuda": {"compatible": True, "memory_usage": {}}}, "hardware profile.cuda.memory_usage.peak: Field required"),
        ({"cuda": {"compatible": True, "memory_usage": {"peak": 1, "peek": 2}}}, "hardware profile.cuda.memory_usage.peek: Unexpected"),
        *(
            ({"cuda": {"compatible": True, "memory_usage": {"peak": peak}}}, "hardware profile.cuda.memory_usage.peak: ")
            for peak in (-1, 0, "2000", None, math.inf, math.nan, True)
        ),
        ({"cuda": {"compatible": False, "memory_usage": {"peak": 2000}}}, "compatible is False, and memory_usage says what it needs"),
    ],
)
def test_mistakes_are_reported_with_their_place_and_a_fix(profile: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_overrides(profile)
    assert said in str(caught.value)
    assert all(problem.where.startswith("hardware profile") and problem.hint for problem in caught.value.problems)


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_overrides({"cudda": {"compatible": 1}, "cpu": {"memory_usage": {"peak": -1}}})
    assert len(caught.value.problems) == 4


def test_compatible_and_available_are_separate_answers() -> None:
    found = profiles(subject(), [failed("bert", "openvino")], detections("openvino"))
    cuda, openvino = found[Backend.CUDA].as_dict(), found[Backend.OPENVINO].as_dict()
    assert (cuda["compatible"], cuda["available"], cuda["unavailable_because"]) == (True, False, "no cuda in this test")
    assert (openvino["compatible"], openvino["available"], openvino["unavailable_because"]) == (False, True, None)
    assert (cuda["basis"], openvino["basis"], openvino["nearness"], openvino["level"]) == ("prior", "measured", "model", "none")
    assert openvino["memory_usage"] == {"peak": 1000, "basis": "estimated", "dtype": "float32"}
    assert (openvino["available_memory_mb"], openvino["fits"], cuda["available_memory_mb"], cuda["fits"]) == (16_000, True, None, None)
    assert len(openvino["expected"]) == 3


def test_unknown_values_are_none_and_never_0() -> None:
    found = profiles(subject(), machine=detections(memory_mb=None), memory_mb=None)[Backend.CPU].as_dict()
    assert found["memory_usage"] == {"peak": None, "basis": "none", "dtype": None}
    assert (found["available_memory_mb"], found["fits"], found["speed_up"]) == (None, None, None)


def test_an_override_decides_and_names_contradicting_evidence() -> None:
    overrides = parse_overrides({"openvino": {"compatible": True, "memory_usage": {"peak": 20_000}}, "cuda": {"compatible": False}})
    found = profiles(subject(), [failed("bert", "openvino")], detections("openvino"), overrides=overrides)
    openvino, cuda = found[Backend.OPENVINO].as_dict(), found[Backend.CUDA].as_dict()
    assert (openvino["compatible"], openvino["basis"], openvino["level"], openvino["nearness"]) == (True, OVERRIDE, None, None)
    assert openvino["memory_usage"] == {"peak": 20_000, "basis": OVERRIDE, "dtype": None}
    assert openvino["fits"] is False
    assert openvino["reason"].startswith("the caller's profile says that it works there; without it: measured: error")
    assert cuda["reason"].startswith("the caller's profile says that it does not work there; without it: not measured")
    agreeing = profiles(subject(), overrides=parse_overrides({"cuda": {"compatible": True}}))[Backend.CUDA]
    assert agreeing.reason() == "the caller's profile says that it works there"
    assert agreeing.peak_mb == 1000


def test_memory_is_that_of_the_best_gpu_or_the_free_host_memory() -> None:
    here = detections("cuda", "openvino", memory_mb=5_000, gpu_mb=24_000)
    left = {hardware: availability_of(hardware, here).memory_mb for hardware in (Backend.CUDA, Backend.CPU, Backend.OPENVINO)}
    assert left == {Backend.CUDA: 24_000, Backend.CPU: 5_000, Backend.OPENVINO: 5_000}
    here["cuda"].features["gpus"] = [{"memory_mb": 8_000, "free_mb": None}]
    assert availability_of(Backend.CUDA, here).memory_mb == 8_000
    here["cuda"].features["gpus"] = [{"memory_mb": None}]
    assert availability_of(Backend.CUDA, here).memory_mb is None


def test_a_detector_without_results() -> None:
    assert availability_of(Backend.CPU, {}).available
    assert availability_of(Backend.CUDA, {}).reason == "it was not detected"
