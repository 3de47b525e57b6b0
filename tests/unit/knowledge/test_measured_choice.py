"""The best measured cell under limits: of the same settings on one machine, never by the speed of an emulator, never by what is missing."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from factory_advice import evidence, failed
from hypothesis import given
from hypothesis import strategies as st

from hwmatrix.knowledge.measured_choice import Bounds, best_on, choices, of_model
from hwmatrix.records import Backend, Dtype, Execution, Level, Size, Status

if TYPE_CHECKING:
    from hwmatrix.knowledge.evidence import Evidence
    from hwmatrix.knowledge.measured_choice import ChoiceEntry


def cell(hardware: str, dtype: Dtype = Dtype.FLOAT32, *, ms: float | None = 10.0, mb: float | None = 500.0, **changes: Any) -> Evidence:
    """A cell that passed, with an interval of 1 % around its latency."""
    around = {} if ms is None else {"ci_low_ms": ms * 0.995, "ci_high_ms": ms * 1.005}
    measured = {"relative_error": 1e-7, "peak_mb": mb, "p50_ms": ms, "dtype": dtype}
    return evidence("bert", hardware, **measured | around | changes)


CELLS = (
    cell("cpu", ms=10.0, mb=500.0),
    cell("cpu", Dtype.BFLOAT16, ms=4.0, mb=400.0, relative_error=0.018),
    cell("openvino", ms=5.0, mb=900.0),
    cell("openvino", Dtype.BFLOAT16, ms=3.0, mb=700.0, relative_error=0.016),
    cell("onnxruntime", ms=8.0, mb=300.0),
)


def chosen(found: tuple[ChoiceEntry, ...]) -> list[tuple[str, str] | None]:
    return [None if (best := each.best) is None else (best.target, best.name) for each in found]


@pytest.mark.parametrize(
    ("limits", "best"),
    [
        ({}, ("openvino", "bfloat16")),
        ({"memory_mb": 600}, ("cpu", "bfloat16")),
        ({"loss": 0.017}, ("openvino", "bfloat16")),
        ({"loss": 0.0}, ("openvino", "float32")),  # the order of sums is no loss
        ({"loss": 0.0, "memory_mb": 600}, ("onnxruntime", "float32")),
        ({"memory_mb": 350, "loss": 0.1, "latency_ms": 9.0}, ("onnxruntime", "float32")),
        ({"memory_mb": 350, "latency_ms": 5.0}, None),
    ],
)
def test_the_best_is_the_fastest_within_all_limits(limits: dict[str, float], best: tuple[str, str] | None) -> None:
    assert chosen(choices(CELLS, Bounds(**limits))) == [best]


def test_the_reasons_name_every_limit_that_a_cell_exceeds() -> None:
    (found,) = choices(CELLS, Bounds(memory_mb=350, loss=0.01, latency_ms=3.5))
    assert {(each.target, each.name): each.against for each in found.cells} == {
        ("openvino", "bfloat16"): ("more than 350 MiB", "a loss above 0.01"),
        ("cpu", "bfloat16"): ("more than 3.5 ms", "more than 350 MiB", "a loss above 0.01"),
        ("openvino", "float32"): ("more than 3.5 ms", "more than 350 MiB"),
        ("onnxruntime", "float32"): ("more than 3.5 ms",),
        ("cpu", "float32"): ("more than 3.5 ms", "more than 350 MiB"),
    }


def test_of_cells_that_cannot_be_told_apart_the_one_with_least_loss_then_least_memory_is_best() -> None:
    alike = (cell("openvino", ms=5.0, mb=900.0), cell("onnxruntime", ms=5.01, mb=300.0), cell("cpu", ms=6.0, mb=100.0))
    assert chosen(choices(alike, Bounds())) == [("onnxruntime", "float32")]
    rounded = cell("openvino", Dtype.INT8, ms=4.99, mb=100.0, relative_error=0.02)
    assert chosen(choices((*alike, rounded), Bounds())) == [("onnxruntime", "float32")]


def test_for_a_model_that_generates_only_what_generates_right_is_best() -> None:
    passes = (cell("openvino", Dtype.A8W8, ms=1.0), cell("openvino", Dtype.INT8, ms=2.0), cell("openvino", ms=4.0), cell("cpu", ms=9.0))
    generating = (
        cell("openvino", Dtype.INT8, ms=20.0, new_tokens=32, status=Status.MISMATCH, level=Level.NONE, processor="another"),
        cell("openvino", ms=90.0, new_tokens=32, tokens_s=11.0),
        cell("cpu", ms=50.0, new_tokens=32, size=Size.TINY),
    )
    found = choices((*passes, *generating), Bounds())
    assert [(each.new_tokens, each.size) for each in found] == [(32, Size.FULL), (32, Size.TINY), (0, Size.FULL)]
    assert chosen(found) == [("openvino", "float32"), ("cpu", "float32"), ("openvino", "float32")]
    assert {(each.target, each.name): each.against for each in found[-1].cells} == {
        ("openvino", "float32"): (),
        ("openvino", "a8w8"): ("generating was not tried",),
        ("openvino", "int8"): ("generating ends as mismatch on another",),
        ("cpu", "float32"): ("generating was not tried",),
    }
    assert "that generates right" in found[-1].rule


def test_a_choice_says_which_instructions_this_machine_lacks() -> None:
    measured = cell("openvino", instructions="amx_int8 avx2 avx512f")
    assert choices((measured,), Bounds(), instructions_here=["avx2"])[0].lacking == ("amx_int8", "avx512f")
    assert choices((measured,), Bounds(), instructions_here=["amx_int8", "avx2", "avx512f"])[0].lacking == ()
    assert choices((measured,), Bounds())[0].lacking == ()


RECORDS = st.lists(
    st.builds(
        cell,
        st.sampled_from(["cpu", "openvino", "onnxruntime"]),
        st.sampled_from([Dtype.FLOAT32, Dtype.INT8]),
        ms=st.sampled_from([1.0, 1.001, 2.0, 4.0]),
        mb=st.sampled_from([100.0, 200.0]),
        relative_error=st.sampled_from([0.0, 0.02]),
        new_tokens=st.sampled_from([0, 32]),
        size=st.sampled_from(list(Size)),
        run_id=st.sampled_from(["a", "b"]),
    ),
    min_size=1,
    max_size=8,
)


@given(records=RECORDS, loss=st.sampled_from([None, 0.01]), memory=st.sampled_from([None, 150]))
def test_what_is_called_best_follows_the_printed_rule(records: list[Evidence], loss: float | None, memory: int | None) -> None:
    bounds = Bounds(loss=loss, memory_mb=memory)
    for choice in choices(records, bounds):
        assert ("within the limits" in choice.rule) is bool(bounds)
        possible = [each for each in choice.cells if not each.against]
        if choice.best is None:
            assert not possible
            continue
        assert choice.best in possible
        assert memory is None or (choice.best.memory_mb or 0) <= memory
        assert loss is None or (choice.best.loss or 0) <= loss
        fastest = min(each.p50_ms or 0 for each in possible)
        alike = [each for each in possible if (each.p50_ms or 0) * 0.995 <= fastest * 1.005]
        assert choice.best in alike
        assert ((choice.best.loss, choice.best.memory_mb)) == min((each.loss, each.memory_mb) for each in alike)


def test_machines_isolations_and_settings_are_never_mixed() -> None:
    other = (
        cell("openvino", ms=1.0, host="beef"),
        cell("openvino", ms=1.0, batch=8),
        cell("openvino", ms=1.0, sequence_length=512),
        cell("openvino", ms=1.0, threads=2),
        cell("openvino", ms=1.0, isolation=None),
        cell("openvino", ms=1.0, size=Size.TINY),
    )
    found = choices((cell("cpu"), *other), Bounds())
    assert chosen(found) == [("cpu", "float32"), *[("openvino", "float32")] * len(other)]
    assert all(len(each.cells) == 1 for each in found)


def test_an_emulator_is_listed_and_never_chosen() -> None:
    emulated = cell("qnn", Dtype.A8W8, ms=0.1, mb=1.0, relative_error=0.02, execution=Execution.EMULATED)
    (found,) = choices((emulated, cell("cpu")), Bounds())
    assert chosen((found,)) == [("cpu", "float32")]
    assert found.cells[-1].against == ("emulated: no speed",)
    (alone,) = choices((emulated,), Bounds())
    assert alone.best is None


def test_what_was_not_measured_is_named_and_not_zero() -> None:
    (found,) = choices(
        (
            cell("cpu", Dtype.BFLOAT16, ms=1.0, mb=None, relative_error=None),
            cell("openvino", ms=None, mb=1.0),
            cell("cuda", ms=1.0, mb=100.0),  # of the process: the device's memory was not measured
            cell("onnxruntime"),
        ),
        Bounds(memory_mb=1000, loss=0.5),
    )
    assert chosen((found,)) == [("onnxruntime", "float32")]
    assert {each.target: each.against for each in found.cells if each.against} == {
        "cpu": ("memory not measured", "loss not measured"),
        "openvino": ("latency not measured",),
        "cuda": ("memory not measured",),
    }


def test_cells_that_failed_are_no_candidates() -> None:
    assert choices((failed("bert", "cpu"),), Bounds()) == ()


def test_the_runtime_s_own_choice_of_precision_counts_and_rounded_weights_are_a_loss() -> None:
    (found,) = choices(
        (
            cell("openvino", Dtype.DEFAULT, ms=1.0, precision=Dtype.BFLOAT16, relative_error=0.004),
            cell("onnxruntime", Dtype.DEFAULT, ms=2.0, precision=Dtype.FLOAT32),
            cell("cpu", Dtype.A16W8, ms=3.0, precision=Dtype.FLOAT32, relative_error=0.003),
        ),
        Bounds(),
    )
    assert [(each.name, each.loss) for each in found.cells] == [
        ("default (bfloat16)", 0.004),
        ("default (float32)", 0.0),
        ("a16w8", 0.003),
    ]


def test_the_newest_of_several_executions_counts() -> None:
    found = choices((cell("cpu", ms=9.0), cell("cpu", ms=1.0, run_id="older")), Bounds())
    assert [each.p50_ms for each in found[0].cells] == [9.0]


def test_the_best_on_one_kind_of_hardware() -> None:
    found = choices(CELLS, Bounds(loss=0.001))
    best = best_on(found, Backend.CPU)
    assert best is not None
    assert best.dtype is Dtype.FLOAT32
    assert best_on(found, Backend.QNN) is None


def test_only_the_model_itself_counts() -> None:
    other = dataclasses.replace(cell("cpu"), model="roberta")
    assert of_model((cell("cpu"), other), None, "bert") == [cell("cpu")]
