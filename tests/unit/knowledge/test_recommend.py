"""The recommended hardware, the precedence of the evidence, and the given reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from factory_advice import detections, evidence, failed, fast, profiles, subject

from hwmatrix.knowledge.measured_choice import Bounds, choices, of_model
from hwmatrix.knowledge.profiles import parse_overrides
from hwmatrix.knowledge.recommend import choose
from hwmatrix.records import Backend, Dtype, Execution, Family, Level, Size, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hwmatrix.knowledge.compatibility import Subject
    from hwmatrix.knowledge.evidence import Evidence
    from hwmatrix.knowledge.recommend import Choice

BERT, VIT = subject("bert"), subject("vit", Family.VISION)
CPU = evidence("bert", "cpu", speed_up=1.0)


TABLE = (
    evidence("bert", "cpu", p50_ms=389.0, peak_mb=793.0),
    evidence("bert", "cpu", dtype=Dtype.BFLOAT16, p50_ms=90.6, peak_mb=968.0, relative_error=0.018),
    evidence("bert", "openvino", p50_ms=317.0, peak_mb=1326.0),
    evidence("bert", "openvino", dtype=Dtype.DEFAULT, p50_ms=67.2, peak_mb=1131.0, relative_error=0.016),
    evidence("bert", "onnxruntime", p50_ms=339.0, peak_mb=701.0),
)
"""Measured on one machine; in float32 no target differs from cpu."""


def chosen(asked: Subject, records: Iterable[Evidence], *here: str, only: tuple[Backend, ...] = (), **changes: Any) -> Choice:
    absent_too, bounds, records = changes.pop("absent_too", False), changes.pop("bounds", None), tuple(records)
    machine = detections(*here, memory_mb=changes.pop("host_mb", 16_000))
    found = profiles(asked, records, machine, **changes)
    measured = choices(of_model(records, asked.plan, asked.model_name), bounds or Bounds())
    return choose(asked.classification, found, only, measured=measured, limits=bounds is not None, absent_too=absent_too)


def texts(choice: Choice) -> str:
    return "\n".join(f"{reason.basis}: {reason.text}" for reason in choice.reasons)


def test_the_fastest_measured_hardware_comes_first() -> None:
    records = [CPU, fast("bert", "openvino", 2.4), fast("bert", "onnxruntime", 1.9)]
    found = chosen(BERT, records, "openvino", "onnxruntime")
    assert (found.hardware, found.basis) == (Backend.OPENVINO, "measured")
    assert texts(found).startswith("measured: openvino: measured: pass")
    assert "estimated: memory: the model needs 1000 MiB, 16000 MiB are left" in texts(found)
    assert found.order[:2] == (Backend.OPENVINO, Backend.ONNXRUNTIME)
    assert chosen(BERT, records).hardware is Backend.OPENVINO, "hwmatrix matrix brings it"


@pytest.mark.parametrize(
    ("bounds", "hardware"),
    [
        (None, Backend.OPENVINO),
        (Bounds(memory_mb=1200, loss=0.02, latency_ms=100), Backend.OPENVINO),
        (Bounds(memory_mb=1000, latency_ms=100), Backend.CPU),
        (Bounds(memory_mb=750), Backend.ONNXRUNTIME),
        (Bounds(loss=0.01, latency_ms=100), None),
    ],
)
def test_the_recommendation_is_the_best_of_the_table_within_the_limits(bounds: Bounds | None, hardware: Backend | None) -> None:
    (table,) = choices(TABLE, bounds or Bounds())
    found = chosen(BERT, TABLE, "openvino", "onnxruntime", bounds=bounds)
    assert found.hardware == hardware == (table.best.hardware if table.best else None)
    assert hardware is None or found.order[0] is hardware


def test_times_of_different_machines_are_not_compared() -> None:
    elsewhere = evidence("bert", "cuda", p50_ms=500.0, host="beef", device_peak_mb=257.0)
    assert chosen(BERT, [*TABLE, elsewhere], "openvino", "cuda").hardware is Backend.CUDA, "the priority order decides"
    assert chosen(BERT, [*TABLE, elsewhere], "openvino", "cuda", bounds=Bounds(latency_ms=100)).hardware is Backend.OPENVINO


def test_what_is_not_installed_is_recommended_only_if_it_was_measured() -> None:
    found = chosen(VIT, [evidence("vit", "cpu", family=Family.VISION)])
    assert found.hardware is Backend.CPU
    assert "openvino is not installed and was not measured: hwmatrix matrix brings it" in texts(found)


def test_hardware_slower_than_the_cpu_comes_after_it() -> None:
    found = chosen(BERT, [CPU, fast("bert", "openvino", 0.5)], "openvino")
    assert (found.hardware, found.basis) == (Backend.CPU, "measured")
    assert found.order.index(Backend.OPENVINO) > found.order.index(Backend.CPU)


@pytest.mark.parametrize("execution", [Execution.SOFTWARE, Execution.EMULATED])
def test_software_and_emulation_come_after_the_cpu_even_if_faster(execution: Execution) -> None:
    record = fast("vit", "qnn", 50.0, family=Family.VISION, execution=execution)
    assert chosen(VIT, [record], "qnn").hardware is Backend.CPU


def test_a_measurement_on_the_cpu_does_not_rule_out_untried_hardware() -> None:
    found = chosen(BERT, [CPU], "cuda")
    assert (found.hardware, found.basis) == (Backend.CUDA, "estimated")
    assert "not measured; expected High" in texts(found)


def test_measured_speedups_come_before_expectations_with_that_reason() -> None:
    found = chosen(BERT, [CPU, fast("bert", "openvino", 2.4)], "cuda", "openvino")
    assert found.hardware is Backend.OPENVINO
    assert "cuda is here, and usually comes before openvino for such models; it was not measured" in texts(found)


def test_the_model_comes_before_its_architecture_and_tiny_speeds_do_not_count() -> None:
    asked = subject("my-bert", architecture="bert")
    other = fast("bert", "cuda", 9.0)
    itself = fast("my-bert", "openvino", 1.5, architecture="bert")
    tiny = fast("my-bert", "onnxruntime", 20.0, architecture="bert", size=Size.TINY)
    found = chosen(asked, [other, itself, tiny], "cuda", "openvino", "onnxruntime")
    assert found.order[:2] == (Backend.OPENVINO, Backend.CUDA)
    assert found.order.index(Backend.ONNXRUNTIME) > found.order.index(Backend.CPU)


@pytest.mark.parametrize("only", [None, (Backend.OPENVINO,)])
def test_a_fast_tiny_model_is_no_recommendation(only: tuple[Backend, ...] | None) -> None:
    gpt2 = subject("gpt2", Family.TEXT_GENERATION)
    of_gpt2: dict[str, Any] = {"architecture": "gpt2", "family": Family.TEXT_GENERATION}
    tiny = fast("gpt2", "openvino", 9.6, size=Size.TINY, **of_gpt2)
    found = chosen(gpt2, [evidence("gpt2", "cpu", size=Size.TINY, **of_gpt2), tiny], "openvino", only=only or ())
    assert found.hardware is (Backend.OPENVINO if only else Backend.CPU)
    assert "9.6" not in texts(found)
    assert only is None or "says nothing about speed" in texts(found)
    full = fast("gpt2", "openvino", 2.4, **of_gpt2)
    faster = chosen(gpt2, [tiny, full], "openvino")
    assert faster.hardware is Backend.OPENVINO
    assert "2.4 times as fast" in texts(faster)


def test_without_measurements_the_priority_of_the_kind_of_model_decides() -> None:
    found = chosen(VIT, [], "openvino", "webgpu")
    assert (found.hardware, found.basis) == (Backend.OPENVINO, "estimated")
    assert "detected: cuda is not here: no cuda in this test" in texts(found)
    unknown = chosen(VIT, [], "openvino", memory_mb=None)
    assert (unknown.hardware, unknown.basis) == (Backend.OPENVINO, "prior")
    assert "none: memory: its size is not known" in texts(unknown)


def test_hardware_on_which_it_failed_is_not_recommended() -> None:
    found = chosen(VIT, [failed("vit", "openvino", family=Family.VISION)], "openvino")
    assert found.hardware is Backend.CPU
    assert Backend.OPENVINO not in found.order


def test_hardware_with_too_little_memory_is_not_recommended_with_that_reason() -> None:
    found = chosen(BERT, [CPU], "cuda", memory_mb=30_000, host_mb=64_000)
    assert found.hardware is Backend.CPU
    assert "estimated: cuda is too small: the model needs 30000 MiB, 24000 MiB are left" in texts(found)
    nowhere = chosen(BERT, [CPU], "cuda", memory_mb=30_000, host_mb=8_000)
    assert (nowhere.hardware, nowhere.basis) == (None, "none")
    assert texts(nowhere).startswith("none: no hardware can be recommended here")
    assert "cpu is too small" in texts(nowhere)


def test_a_model_that_works_nowhere_here_has_no_recommendation() -> None:
    found = chosen(BERT, [failed("bert", "cpu", Status.CRASH)])
    assert found.hardware is None
    assert "measured: cpu: measured: crash" in texts(found)


def test_a_model_of_unknown_kind_gets_only_the_cpu() -> None:
    found = chosen(subject("thing", None), [], "cuda", memory_mb=None)
    assert (found.hardware, found.basis) == (Backend.CPU, "none")
    assert "the model's family is not known" in texts(found)


def test_only_the_requested_hardware_is_considered() -> None:
    found = chosen(BERT, [CPU, fast("bert", "openvino", 2.4)], "openvino", only=(Backend.CUDA, Backend.CPU))
    assert found.hardware is Backend.CPU
    none = chosen(BERT, [CPU], only=(Backend.CUDA,))
    assert none.hardware is None
    assert "among those asked for" in texts(none)
    assert chosen(BERT, [CPU], only=(Backend.CUDA,), absent_too=True).hardware is Backend.CUDA


def test_an_override_comes_before_the_cpu() -> None:
    asked = subject("bert")
    overrides = parse_overrides({"openvino": {"compatible": True}, "cpu": {"compatible": True}})
    found = chosen(asked, [], "openvino", overrides=overrides)
    assert (found.hardware, found.basis) == (Backend.OPENVINO, "override")
    refused = chosen(
        asked, [CPU, fast("bert", "openvino", 2.4)], "openvino", overrides=parse_overrides({"openvino": {"compatible": False}})
    )
    assert refused.hardware is Backend.CPU


def test_hardware_without_a_cpu_comparison_keeps_its_priority() -> None:
    found = chosen(BERT, [evidence("bert", "cuda", level=Level.MEDIUM)], "cuda")
    assert (found.hardware, found.basis) == (Backend.CUDA, "measured")


def test_the_same_question_has_the_same_answer() -> None:
    records = [CPU, fast("bert", "openvino", 2.4), fast("bert", "onnxruntime", 2.4)]
    answers = {chosen(BERT, order, "openvino", "onnxruntime") for order in (records, records[::-1])}
    assert len(answers) == 1
