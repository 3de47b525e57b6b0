from __future__ import annotations

import dataclasses
import json

import factory_plans as make
import pytest

from hwmatrix.errors import StoreError
from hwmatrix.records import (
    PLAN_SCHEMA,
    Adaptation,
    Axes,
    CellResult,
    Change,
    Detection,
    Dtype,
    Family,
    Isolation,
    Plan,
    Size,
    Stage,
    Status,
    cell_command,
    from_json,
    plan_from_json,
    to_json,
)

VENV = make.plan(isolation=Isolation.VENV)


def test_a_plan_round_trips() -> None:
    plan = make.plan()
    text = to_json(plan, indent=1)
    assert plan_from_json(text, where="plan.json") == plan
    assert json.loads(text)["schema"] == PLAN_SCHEMA


@pytest.mark.parametrize("status", list(Status))
def test_a_result_round_trips(status: Status) -> None:
    changes = {} if status is Status.PASS else make.failure(status, signal=11)
    result = make.result(make.cell_plan(), **changes)
    assert from_json(CellResult, to_json(result), where="a pipe") == result


def test_a_detection_round_trips() -> None:
    found = Detection(hardware_type="cpu", available=True, name="x", features={"cores": 2, "a": ["b"]}, reason=None, detected_at="now")
    assert from_json(Detection, to_json(found), where="a pipe") == found


def test_another_plan_version_is_refused_with_advice() -> None:
    data = json.loads(to_json(make.plan())) | {"schema": "hwmatrix/plan/2"}
    with pytest.raises(StoreError, match=r"plan version 'hwmatrix/plan/2', this hwmatrix reads 'hwmatrix/plan/1'") as caught:
        plan_from_json(json.dumps(data), where="old/plan.json")
    assert "hwmatrix plan" in (caught.value.advice or "")
    assert str(caught.value).startswith("old/plan.json: ")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"plan"', "null", "\0"])
def test_a_file_that_is_not_a_plan_is_refused(text: str) -> None:
    with pytest.raises(StoreError, match=r"^p: "):
        plan_from_json(text, where="p")


@pytest.mark.parametrize("at", [(), ("measure",), ("targets", 0), ("models", 1), ("cells", 0), ("cells", 0, "limits")])
def test_an_unknown_key_is_refused_at_every_level(at: tuple[str | int, ...]) -> None:
    data = json.loads(to_json(make.plan()))
    place = data
    for part in at:
        place = place[part]
    place["surprise"] = 1
    with pytest.raises(StoreError, match="surprise"):
        from_json(Plan, json.dumps(data), where="plan.json")


@pytest.mark.parametrize(
    ("key", "value"), [("isolation", "chroot"), ("cells", "none"), ("measure", {"min_s": "soon"}), ("targets", [{"name": "cpu"}])]
)
def test_an_invalid_value_is_refused_and_named(key: str, value: object) -> None:
    data = json.loads(to_json(make.plan())) | {key: value}
    with pytest.raises(StoreError, match=f"plan.json: not a valid Plan: .* at {key}"):
        from_json(Plan, json.dumps(data), where="plan.json")


def test_a_missing_key_is_refused() -> None:
    data = json.loads(to_json(make.plan()))
    del data["cells"]
    with pytest.raises(StoreError, match="at cells"):
        from_json(Plan, json.dumps(data), where="plan.json")


def test_cells_find_their_model_and_target() -> None:
    plan = make.plan()
    cell = make.cell_plan("gpt2")
    assert plan.model_of(cell).name == "gpt2"
    assert plan.target("openvino").name == "openvino"
    assert plan.cell(plan.cells[1].key) == plan.cells[1]
    for other in (
        dataclasses.replace(cell, size=Size.FULL),
        dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, batch=8)),
    ):
        with pytest.raises(KeyError):
            plan.model_of(other)


def test_lookup_tables_are_not_part_of_the_plan() -> None:
    plan = make.plan()
    text = to_json(plan)
    plan.model_of(make.cell_plan("gpt2"))
    plan.target("cpu")
    assert to_json(plan) == text
    assert plan == make.plan()
    assert dataclasses.replace(plan, models=plan.models[:1]).models == plan.models[:1]
    with pytest.raises(KeyError):
        dataclasses.replace(plan, models=plan.models[:1]).model_of(make.cell_plan("gpt2"))


def test_a_plan_without_the_field_timing_is_timed() -> None:
    data = json.loads(to_json(make.plan()))
    del data["timing"], data["types_of"], data["measure_of"]
    again = plan_from_json(json.dumps(data), where="plan.json")
    assert (again.timing, again.types_of, again.measure_of) == (True, None, None)


def test_the_command_repeats_the_cell() -> None:
    model = make.model_plan(selector="my models/bert; rm")
    assert cell_command(model, make.cell_plan(), VENV) == (
        "nox -s matrix -- --models 'my models/bert; rm' --size tiny --targets cpu --dtypes float32 --isolation venv"
    )


def test_the_command_of_a_retry_names_no_precision() -> None:
    model, cell = make.model_plan(), make.cell_plan(adaptation=Adaptation(of="failed", model="bert", change=Change(dtype=Dtype.BFLOAT16)))
    assert "--dtypes" not in cell_command(model, cell, VENV)


def test_the_command_uses_the_suite_s_measure() -> None:
    model, cell = make.model_plan(matrix_line=7), make.cell_plan()
    quick = dataclasses.replace(VENV, measure_of="quick")
    alone = cell_command(model, cell, VENV)
    assert cell_command(model, cell, quick) == f"{alone} --suite quick --timing"
    assert cell_command(model, cell, dataclasses.replace(quick, timing=False)) == f"{alone} --no-timing"
    folder = make.model_plan(weights="/models/mine", matrix_line=None)  # it is in no suite
    assert "--suite" not in cell_command(folder, cell, quick)


def test_the_command_repeats_the_requested_batch() -> None:
    model = make.model_plan(batch=8, batch_asked=True)
    cell = make.cell_plan(settings=dataclasses.replace(make.SETTINGS, batch=8))
    assert cell_command(model, cell, VENV) == (
        "hwmatrix test --model bert --size tiny --device cpu --batch-size 8 --isolation venv --no-fallback"
    )


def test_the_command_repeats_what_was_varied() -> None:
    varied = dataclasses.replace(VENV, axes=Axes(batch=(1, 8), threads=(1, 2)))
    cell = make.cell_plan(settings=dataclasses.replace(make.SETTINGS, batch=8))
    assert " --batch 8 --threads 1 --isolation" in cell_command(make.model_plan(batch=8), cell, varied)
    half = Adaptation(of="bert/tiny/cpu/float32/b8-s16-t1", model="bert", change=Change(batch=4))
    retry = dataclasses.replace(cell, settings=dataclasses.replace(make.SETTINGS, batch=4), adaptation=half)
    assert " --batch 8 --threads 1 --isolation" in cell_command(make.model_plan(batch=4), retry, varied), "of the cell that failed"
    longer = dataclasses.replace(VENV, axes=Axes(sequence_length=(16, 128)))
    assert " --sequence-length 16 --isolation" in cell_command(make.model_plan(), make.cell_plan(), longer)
    without_text = make.model_plan(family=Family.VISION)
    assert "--sequence-length" not in cell_command(without_text, make.cell_plan(), longer), "the command would be refused"


def test_stages_are_in_order() -> None:
    assert [stage.value for stage in Stage] == ["build", "load", "prepare", "run", "prefill", "decode", "compare", "measure"]
