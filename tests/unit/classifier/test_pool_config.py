"""The configuration of a pool: one hardware for all models if possible, and settings if they do not all fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factory_advice import detections, evidence, failed, fast, profiles, subject

from hwmatrix.classifier.pool_config import pool_config
from hwmatrix.classifier.task_models import Candidate
from hwmatrix.knowledge.profiles import parse_overrides
from hwmatrix.records import Family

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmatrix.classifier.answers import PoolAnswer
    from hwmatrix.knowledge.evidence import Evidence

MEASURED = [evidence("bert", "cpu"), evidence("vit", "cpu", family=Family.VISION), fast("bert", "openvino", 2.4)]


def member(name: str, family: Family, records: Iterable[Evidence], *here: str, host_mb: int | None = 16_000, **changes: Any) -> Candidate:
    asked = subject(name, family)
    return Candidate(subject=asked, profiles=profiles(asked, records, detections(*here, memory_mb=host_mb), **changes))


def configured(records: Iterable[Evidence], *here: str, **changes: Any) -> PoolAnswer:
    known = list(records)
    members = [member("bert", Family.EMBEDDING, known, *here, **changes), member("vit", Family.VISION, known, *here, **changes)]
    return pool_config(members, lambda hardware: f"device of {hardware.value}")


def texts(answer: PoolAnswer) -> str:
    return "\n".join(f"{reason['basis']}: {reason['text']}" for reason in answer["reasons"])


def test_the_best_hardware_for_all_models_is_preferred() -> None:
    records = [*MEASURED, fast("vit", "openvino", 2.0, family=Family.VISION)]
    found = configured(records, "openvino")
    assert found["hardware_recommendations"] == {
        "preferred_hardware": "openvino",
        "torch_device": "device of openvino",
        "by_model": {"bert": "openvino", "vit": "openvino"},
    }
    assert found["resource_pool_config"] == {"low_memory_mode": False, "recommended_timeout_mins": 30}
    assert found["resource_requirements"] == {
        "max_memory_mb": 1_250,
        "total_memory_mb": 2_500,
        "budget_mb": 12_800,
        "models_of_unknown_size": [],
    }
    assert found["basis"] == "measured"
    assert "estimated: memory: together they need up to 2500 MiB, 12800 MiB may be used" in texts(found)


def test_hardware_on_which_one_model_fails_is_not_preferred() -> None:
    found = configured([*MEASURED, failed("vit", "openvino", family=Family.VISION)], "openvino")
    assert found["hardware_recommendations"]["preferred_hardware"] == "cpu"
    assert found["hardware_recommendations"]["by_model"] == {"bert": "openvino", "vit": "cpu"}


@pytest.mark.parametrize(
    ("host_mb", "low", "minutes"), [(16_000, False, 30), (6_250, False, 30), (6_000, False, 10), (3_125, False, 10), (3_000, True, 2)]
)
def test_less_free_memory_means_a_shorter_timeout(host_mb: int, low: bool, minutes: int) -> None:  # noqa: FBT001
    found = configured(MEASURED, host_mb=host_mb)
    assert found["resource_pool_config"] == {"low_memory_mode": low, "recommended_timeout_mins": minutes}


def test_a_model_that_is_too_large_alone_is_reported() -> None:
    found = configured(MEASURED, host_mb=900)
    assert found["resource_pool_config"]["low_memory_mode"] is True
    assert "0 of 2 models work there and fit by themselves" in texts(found)
    assert "bert on cpu: it needs 1000 MiB, but only 900 MiB are free" in texts(found)
    assert found["hardware_recommendations"]["by_model"] == {"bert": None, "vit": None}


def test_hardware_that_fits_all_together_comes_before_hardware_that_fits_each_alone() -> None:
    found = configured(MEASURED, "cuda", memory_mb=18_000, host_mb=90_000)
    assert found["hardware_recommendations"]["by_model"] == {"bert": "cuda", "vit": "cuda"}
    assert found["hardware_recommendations"]["preferred_hardware"] == "cpu"


def test_unknown_values_are_none_and_named() -> None:
    found = configured(MEASURED, memory_mb=None)
    assert found["resource_requirements"]["max_memory_mb"] is None
    assert found["resource_requirements"]["total_memory_mb"] is None
    assert found["resource_requirements"]["models_of_unknown_size"] == ["bert", "vit"]
    assert "none: memory: it is not known what the models need" in texts(found)
    assert configured(MEASURED, host_mb=None)["resource_requirements"]["budget_mb"] is None


def test_an_unknown_size_is_left_out_of_the_sum_and_reported() -> None:
    members = [member("bert", Family.EMBEDDING, MEASURED), member("vit", Family.VISION, MEASURED, memory_mb=None)]
    found = pool_config(members, lambda hardware: hardware.value)
    assert (found["resource_requirements"]["total_memory_mb"], found["resource_requirements"]["models_of_unknown_size"]) == (1_250, ["vit"])
    assert "(without vit, whose needs are not known)" in texts(found)


def test_the_caller_s_profile_counts() -> None:
    overrides = parse_overrides({"cpu": {"compatible": True, "memory_usage": {"peak": 12_000}}})
    found = pool_config([member("bert", Family.EMBEDDING, MEASURED, overrides=overrides)], lambda hardware: hardware.value)
    assert found["resource_requirements"]["max_memory_mb"] == 12_000
    assert found["basis"] == "override"


def test_the_basis_is_the_weakest_of_all_models() -> None:
    found = configured([evidence("bert", "cpu")])
    assert found["basis"] == "prior"
