"""Whether a model works on some hardware: the nearest evidence decides, and is named."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from factory_advice import evidence, failed, fast, subject
from hypothesis import given
from hypothesis import strategies as st

from hwmatrix.knowledge.compatibility import LEVELS, Tally, compatibility_of, tally
from hwmatrix.knowledge.evidence import Nearness
from hwmatrix.records import Backend, Basis, Dtype, Execution, Family, Level, Size, Status

if TYPE_CHECKING:
    from hwmatrix.knowledge.evidence import Evidence

OPENVINO, WEBGPU, QNN = Backend.OPENVINO, Backend.WEBGPU, Backend.QNN


def test_an_execution_of_the_model_itself_decides() -> None:
    records = [fast("bert", "openvino", 2.4), failed("roberta", "openvino"), failed("bert", "webgpu"), evidence("bert", "cpu")]
    found = compatibility_of(subject("bert"), OPENVINO, records)
    assert (found.compatible, found.level, found.basis, found.nearness) == (True, Level.HIGH, Basis.MEASURED, Nearness.MODEL)
    assert found.speed_up == 2.4
    assert found.reason == "measured: pass (full, float32, batch 1, run run-1), 2.4 times as fast as cpu in float32, on unknown processor"
    assert {prior.expectation.value for prior in found.expected} == {"Medium", "High", "REAL"}


@pytest.mark.parametrize(
    ("status", "level"),
    [
        (Status.FALLBACK, Level.LOW),
        *((status, Level.NONE) for status in (Status.MISMATCH, Status.UNSUPPORTED, Status.ERROR, Status.OOM, Status.TIMEOUT, Status.CRASH)),
    ],
)
def test_a_model_that_failed_there_does_not_work_there(status: Status, level: Level) -> None:
    """A fallback ran elsewhere, so it does not prove that the model works on the requested hardware."""
    found = compatibility_of(subject("bert"), WEBGPU, [failed("bert", "webgpu", status, level=level)])
    assert (found.compatible, found.level, found.basis) == (False, level, Basis.MEASURED)
    assert found.reason == f"measured: {status.value} (full, float32, batch 1, run run-1): it broke"


def test_the_full_size_outranks_the_tiny_one() -> None:
    records = [evidence("bert", "openvino", size=Size.TINY), failed("bert", "openvino", Status.OOM)]
    assert compatibility_of(subject("bert"), OPENVINO, records).compatible is False
    assert compatibility_of(subject("bert"), OPENVINO, records[:1]).size is Size.TINY


def test_the_usual_precision_answers_if_it_works_even_if_another_is_faster() -> None:
    slow, quick = fast("bert", "openvino", 1.4), fast("bert", "openvino", 4.2, dtype=Dtype.DEFAULT)
    found = compatibility_of(subject("bert"), OPENVINO, [quick, slow])
    assert (found.speed_up, found.precisions) == (1.4, (Dtype.DEFAULT, Dtype.FLOAT32))
    assert "float32" in found.reason
    found = compatibility_of(subject("bert"), OPENVINO, [quick, failed("bert", "openvino", Status.OOM)])
    assert (found.compatible, found.speed_up) == (True, 4.2)
    assert found.reason.endswith("other precisions fail (float32: oom)")


def test_one_working_precision_is_enough_and_the_others_are_reported() -> None:
    records = [
        failed("bert", "qnn", Status.MISMATCH, dtype=Dtype.A8W8),
        evidence("bert", "qnn", dtype=Dtype.FLOAT16, execution=Execution.EMULATED, level=Level.MEDIUM, speed_up=9.0, speed_differs=True),
    ]
    found = compatibility_of(subject("bert"), QNN, records)
    assert (found.compatible, found.level, found.execution, found.speed_up) == (True, Level.MEDIUM, Execution.EMULATED, None)
    assert "), emulated: its speed is not meaningful" in found.reason
    assert found.reason.endswith("other precisions fail (a8w8: mismatch)")


@pytest.mark.parametrize("speed", [{"speed_up": 1.01, "speed_differs": False}, {"speed_up": None}])
def test_a_speed_that_does_not_differ_from_the_cpu_s_is_none(speed: dict[str, float]) -> None:
    found = compatibility_of(subject("bert"), OPENVINO, [evidence("bert", "openvino", **speed)])
    assert found.speed_up is None
    assert "times as fast" not in found.reason


def test_a_model_that_generates_works_where_it_generates_right() -> None:
    right = evidence("whisper", "openvino")
    wrong = failed("whisper", "openvino", Status.MISMATCH, new_tokens=32)
    found = compatibility_of(subject("whisper", generates=True), OPENVINO, [right, wrong])
    assert (found.compatible, found.level, found.precisions) == (False, Level.NONE, ())
    assert found.reason.endswith("; one forward pass: right (full, float32)")
    untried = compatibility_of(subject("whisper", generates=True), OPENVINO, [right])
    assert untried.reason.endswith("generating was not tried there")
    assert tally([right, wrong]) == Tally(levels={Level.NONE: 1})


CELLS = st.builds(
    evidence,
    st.just("gpt2"),
    st.just("openvino"),
    size=st.sampled_from(list(Size)),
    dtype=st.sampled_from([Dtype.FLOAT32, Dtype.INT8]),
    new_tokens=st.sampled_from([0, 32]),
    status=st.sampled_from([Status.PASS, Status.MISMATCH]),
).map(lambda record: dataclasses.replace(record, level=Level.HIGH if record.status is Status.PASS else Level.NONE))


@given(
    records=st.lists(CELLS, min_size=1, max_size=8), size=st.sampled_from(list(Size)), dtype=st.sampled_from([Dtype.FLOAT32, Dtype.INT8])
)
def test_a_generation_that_fails_never_improves_an_answer(records: list[Evidence], size: Size, dtype: Dtype) -> None:
    before = compatibility_of(subject("gpt2"), OPENVINO, records)
    more = failed("gpt2", "openvino", Status.MISMATCH, size=size, dtype=dtype, new_tokens=32)
    after = compatibility_of(subject("gpt2"), OPENVINO, [*records, more])
    assert after.order >= before.order
    assert not (after.compatible and not before.compatible)
    assert LEVELS.index(tally([*records, more]).level) >= LEVELS.index(tally(records).level)


def test_cells_that_were_not_executed_do_not_count() -> None:
    absent = failed("bert", "cuda", Status.UNAVAILABLE, level=None)
    found = compatibility_of(subject("bert"), Backend.CUDA, [absent])
    assert (found.compatible, found.basis, found.nearness) == (True, Basis.PRIOR, None)


def test_evidence_from_another_model_of_the_architecture_is_labeled() -> None:
    records = [fast("bert", "openvino", 2.4), failed("roberta", "openvino")]
    found = compatibility_of(subject("my-bert", architecture="bert"), OPENVINO, records)
    assert (found.compatible, found.nearness, found.speed_up) == (True, Nearness.ARCHITECTURE, 2.4)
    assert found.reason == "measured, but not this model: 1 of 1 other models of the architecture work there (bert: 1 High)"


def test_the_family_s_majority_decides_regardless_of_speed() -> None:
    records = [fast("bert", "openvino", 2.4), fast("roberta", "openvino", 0.5), failed("albert", "openvino")]
    found = compatibility_of(subject("electra"), OPENVINO, records)
    assert (found.compatible, found.nearness, found.speed_up) == (True, Nearness.FAMILY, None)
    assert found.level is Level.NONE  # the lowest of equally frequent levels
    assert "2 of 3 other models of the family work there (albert, bert, roberta: 1 High, 1 Medium, 1 none)" in found.reason
    half = compatibility_of(subject("electra"), OPENVINO, records[1:])
    assert half.compatible is None
    assert compatibility_of(subject("electra"), OPENVINO, records[2:]).compatible is False


def test_many_models_are_counted_instead_of_listed() -> None:
    records = [evidence(f"m{number}", "openvino") for number in range(9)]
    assert "(9 models: 9 High)" in compatibility_of(subject("electra"), OPENVINO, records).reason


def test_a_model_counts_once_with_its_best_level() -> None:
    records = [
        failed("bert", "qnn", dtype=Dtype.A8W8),
        evidence("bert", "qnn"),
        evidence("gpt2", "qnn", size=Size.TINY),
        failed("gpt2", "qnn"),
    ]
    assert tally(records) == Tally(levels={Level.HIGH: 1, Level.NONE: 1})


def test_sizes_of_a_model_with_and_without_a_hub_id_count_once() -> None:
    records = [evidence("albert", "cpu", hub_id="albert/albert-base-v2"), evidence("albert", "cpu", size=Size.TINY)]
    assert tally(records) == Tally(levels={Level.HIGH: 1})


@pytest.mark.parametrize(
    ("family", "hardware", "compatible", "level"),
    [
        (Family.EMBEDDING, Backend.CUDA, True, Level.HIGH),
        (Family.AUDIO, Backend.ROCM, True, Level.LOW),  # Medium, Low, REAL: the lowest level
        (Family.AUDIO, Backend.WEBGPU, False, Level.NONE),
        (Family.TEXT_GENERATION, Backend.WEBGPU, None, None),  # Low, none and REAL contradict each other
        (Family.MULTIMODAL, Backend.OPENVINO, False, Level.NONE),
        (Family.VIDEO, Backend.CUDA, True, None),
        (Family.VISION, Backend.CPU, True, None),
    ],
)
def test_without_measurements_the_priors_answer(family: Family, hardware: Backend, compatible: bool | None, level: Level | None) -> None:  # noqa: FBT001
    found = compatibility_of(subject("new", family), hardware, [])
    assert (found.compatible, found.level, found.basis, found.nearness) == (compatible, level, Basis.PRIOR, None)
    assert found.reason.startswith("not measured; ")
    assert all(str(prior) in found.reason for prior in found.expected)


def test_contradicting_priors_are_reported() -> None:
    assert "the design documents contradict each other" in compatibility_of(subject("new", Family.TEXT_GENERATION), WEBGPU, []).reason


@pytest.mark.parametrize(("family", "hardware"), [(Family.VISION, QNN), (None, Backend.CUDA)])
def test_without_evidence_the_answer_is_unknown(family: Family | None, hardware: Backend) -> None:
    found = compatibility_of(subject("new", family), hardware, [evidence("bert", "cuda")])
    assert (found.compatible, found.level, found.basis, found.expected) == (None, None, Basis.NONE, ())
    assert "only a run can show it" in found.reason
