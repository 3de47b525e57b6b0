"""Whether a model fits: by measured peaks, else by the calibrated estimate; outside its range neither yes nor no. Imports no framework."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fake_types
import jsonschema
import pytest
from factory_calibration import MARGIN, fixed
from factory_rows import Database
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hwmatrix.errors import ConfigError, StoreError
from hwmatrix.knowledge import requirements
from hwmatrix.knowledge.fit import judge, will_it_fit
from hwmatrix.knowledge.fit_document import FitDocument, HardwareFit, Need, Verdict, as_data, json_schema
from hwmatrix.knowledge.fit_question import FitQuestion
from hwmatrix.records import Backend, Basis, Detection, Dtype, Family, ModelPlan, Size, to_json
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Mapping

RECORDED = Path(__file__).parents[2] / "recorded" / "performance.duckdb"
NAMELESS = ModelPlan(
    name="house-model",
    size=Size.FULL,
    family=Family.EMBEDDING,
    architecture="unheard-of",
    model_class="HouseModel",
    hub_id="house/house-model",
    sequence_length=128,
)
"""A model that is in no table: its requirements are known only from its cells."""


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without frameworks, in a folder without matrix.yaml, so that sizes come from the table."""
    monkeypatch.setitem(sys.modules, "torch", None)
    made = fixed()
    monkeypatch.setattr(requirements, "calibration", lambda: made)
    monkeypatch.chdir(tmp_path)


def machine(left_mb: int | None = 20_000, **gpus: int) -> Mapping[str, Detection]:
    """A machine with the given free memory, and GPUs with theirs, but no other hardware."""

    def found(kind: Backend) -> Detection:
        here = kind in {Backend.CPU, Backend.OPENVINO} or kind.value in gpus
        features: dict[str, Any] = {"memory_left_mb": left_mb} if kind is Backend.CPU else {}
        if kind.value in gpus:
            features = {"gpus": [{"free_mb": gpus[kind.value]}]}
        reason = None if here else f"no {kind.value} in this test"
        return Detection(hardware_type=kind.value, available=here, name=kind.value, features=features, reason=reason, detected_at="now")

    return {kind.value: found(kind) for kind in Backend}


def ask(model: str = "bert", *, here: Mapping[str, Detection] | None = None, database: Path | None = None, **given: Any) -> FitDocument:
    return will_it_fit(FitQuestion(model=model, **given), here or machine(), database=database)


def on(hardware: str = "cpu", model: str = "bert", **given: Any) -> HardwareFit:
    (found,) = ask(model, hardware=(hardware,), **given).hardware
    return found


def recorded(path: Path, peaks: Mapping[int, float], *, plan: ModelPlan = NAMELESS, target: str = "cpu", **changes: Any) -> Path:
    """A database with measured cells of one model, by batch."""
    with Database(path) as database:
        plans = [dataclasses.replace(plan, batch=batch) for batch in peaks]  # as a run's plan has them: one for each batch
        database.run(plan=json.dumps({"models": [json.loads(to_json(each)) for each in plans]}))
        database.shard("s", target)
        for batch, peak in peaks.items():
            settings = {"size": plan.size.value, "sequence_length": plan.sequence_length, "hub_id": plan.hub_id, "batch": batch}
            planned = database.plan(plan.name, target, cell_key=f"{plan.name}/b{batch}", **settings)
            database.cell(planned, "s", peak_mb=peak, **changes)
    return path


def need(basis: Basis, peak: float, low: float | None = None, high: float | None = None) -> Need:
    return Need(batch=1, dtype=Dtype.FLOAT32, peak_mb=peak, low_mb=low, high_mb=high, basis=basis, stands_on="")


@pytest.mark.parametrize(
    ("of", "memory", "weights", "verdict"),
    [
        (need(Basis.MEASURED, 500), 500, 100, Verdict.FITS),
        (need(Basis.MEASURED, 501), 500, 100, Verdict.DOES_NOT_FIT),
        (need(Basis.MEASURED, 500), 500, 900, Verdict.FITS),  # mapped weights need not all be resident, so the measured peak decides
        (need(Basis.ESTIMATED, 450, 400, 500), 500, 100, Verdict.FITS),
        (need(Basis.ESTIMATED, 450, 400, 500), 450, 100, Verdict.UNKNOWN),
        (need(Basis.ESTIMATED, 450, 400, 500), 399, 100, Verdict.DOES_NOT_FIT),
        (need(Basis.EXTRAPOLATED, 1), 500, 100, Verdict.EXTRAPOLATED),
        (need(Basis.EXTRAPOLATED, 9000), 500, 100, Verdict.EXTRAPOLATED),
        (need(Basis.EXTRAPOLATED, 9000), 500, 501, Verdict.DOES_NOT_FIT),
        (None, 500, None, Verdict.UNKNOWN),
        (None, 500, 501, Verdict.DOES_NOT_FIT),
        (need(Basis.MEASURED, 1), None, 1, Verdict.UNKNOWN),
    ],
)
def test_the_verdict(of: Need | None, memory: int | None, weights: float | None, verdict: Verdict) -> None:
    assert judge(of, memory, weights) is verdict


def test_a_measured_peak_decides_and_names_its_source() -> None:
    found = on("cpu", database=RECORDED, memory_mb=892)
    assert found.need is not None
    assert (found.verdict, found.need.basis, round(found.need.peak_mb)) == (Verdict.FITS, Basis.MEASURED, 892)
    assert (found.need.run_id, found.need.cell_key) == ("20261120T073313Z-6565c5", "bert/full/cpu/float32/b1-s128-t1")
    assert found.need.measured_at is not None
    assert on("cpu", database=RECORDED, memory_mb=800).verdict is Verdict.DOES_NOT_FIT


def test_without_a_measurement_the_estimate_answers_with_its_error() -> None:
    found = on("cpu")
    assert found.need is not None
    assert (found.verdict, found.need.basis, found.need.run_id) == (Verdict.FITS, Basis.ESTIMATED, None)
    assert found.need.low_mb == pytest.approx(found.need.peak_mb * (1 - MARGIN))
    assert found.need.high_mb == pytest.approx(found.need.peak_mb * (1 + MARGIN))
    close = on("cpu", memory_mb=round(found.need.peak_mb))
    assert close.verdict is Verdict.UNKNOWN
    assert close.reason.startswith("too close to tell")


def test_an_extrapolated_answer_states_the_distance_and_is_never_yes() -> None:
    found = on("cpu", batch=64, memory_mb=10**6)
    assert found.need is not None
    assert found.verdict is Verdict.EXTRAPOLATED
    assert "not certain: by the formula it would fit" in found.reason
    assert "times the largest (calibrated from" in found.need.stands_on
    assert (found.need.low_mb, found.need.high_mb) == (None, None)
    assert "would not fit" in on("cpu", batch=64, memory_mb=1000).reason


def test_the_weights_alone_can_be_too_large() -> None:
    found = on("cuda", "mixtral", memory_mb=80_000)
    assert found.verdict is Verdict.DOES_NOT_FIT
    assert found.reason.startswith("its weights alone take 178,")
    assert [remedy.change for remedy in found.remedies] == []  # half of it is too large as well
    (half, _) = on("cuda", "mixtral", memory_mb=100_000).remedies
    assert (half.change, half.verdict) == ("--dtype float16", Verdict.EXTRAPOLATED)


def test_a_batch_that_does_not_fit_rules_out_larger_ones(tmp_path: Path) -> None:
    found = on("cpu", database=RECORDED, memory_mb=700, batch=8)
    assert (found.verdict, found.remedies) == (Verdict.DOES_NOT_FIT, ())
    assert found.decided_by is not None
    assert (found.decided_by.batch, found.decided_by.basis) == (1, Basis.MEASURED)
    assert found.reason.startswith("with a batch of 1, its measured peak is 892 MiB, 192 more")
    database = recorded(tmp_path / "m.duckdb", {8: 900.0})
    less = on("cpu", "house-model", database=database, batch=4, memory_mb=1000)
    assert less.decided_by is not None
    assert (less.verdict, less.decided_by.batch) == (Verdict.FITS, 8)


def test_the_largest_batch_and_the_extrapolated_one() -> None:
    found = on("openvino", database=RECORDED, memory_mb=6000)
    assert found.largest is not None
    assert found.largest_extrapolated is not None
    assert (found.largest.batch, found.largest.basis) == (1, Basis.MEASURED)
    assert found.largest_extrapolated.batch > 1
    assert found.largest_extrapolated.peak_mb <= 6000
    assert "corrected by the peak measured at batch 1" in found.largest_extrapolated.stands_on
    assert (on("cpu", memory_mb=100).largest, on("cpu", memory_mb=100).largest_extrapolated) == (None, None)


def test_a_smaller_batch_is_suggested(tmp_path: Path) -> None:
    database = recorded(tmp_path / "m.duckdb", {1: 400.0, 4: 700.0, 16: 2000.0})
    found = on("cpu", "house-model", database=database, batch=16, memory_mb=1000)
    assert (found.verdict, found.largest and found.largest.batch) == (Verdict.DOES_NOT_FIT, 4)
    (remedy,) = found.remedies
    assert (remedy.change, remedy.verdict, remedy.need.peak_mb) == ("--batch 4", Verdict.FITS, 700.0)


def test_a_measured_model_needs_no_table_and_no_torch(tmp_path: Path) -> None:
    database = recorded(tmp_path / "m.duckdb", {1: 400.0})
    document = ask("house/house-model", database=database, hardware=("cpu", "openvino"))
    assert (document.known_from, document.parameters) == ("run run-1 of the database", 270_000)
    cpu, openvino = document.hardware
    assert (cpu.verdict, cpu.weights_mb) == (Verdict.FITS, None)
    assert (openvino.verdict, openvino.need, openvino.largest) == (Verdict.UNKNOWN, None, None)
    assert "not installed" in openvino.reason
    other = on("cpu", "house-model", database=database, batch=2)
    assert (other.verdict, other.need) == (Verdict.UNKNOWN, None)


def test_tiny_models_in_the_database_do_not_count(tmp_path: Path) -> None:
    tiny = dataclasses.replace(NAMELESS, name="bert", hub_id=None, size=Size.TINY, sequence_length=16)
    document = ask("bert", database=recorded(tmp_path / "bert.duckdb", {1: 300.0}, plan=tiny))
    assert (document.size, document.known_from) == (Size.FULL, "the table of sizes that comes with hwmatrix")
    alone = dataclasses.replace(tiny, name="only-tiny")
    document = ask("only-tiny", database=recorded(tmp_path / "tiny.duckdb", {1: 300.0}, plan=alone))
    assert document.size is Size.TINY


def test_unavailable_hardware_has_requirements_but_no_verdict() -> None:
    found = on("cuda")
    assert found.need is not None
    assert (found.verdict, found.memory_mb, found.here, found.remedies) == (Verdict.UNKNOWN, None, False, ())
    assert found.reason.startswith("it is not on this machine: no cuda in this test")
    given = on("cuda", memory_mb=8000)
    assert (given.verdict, given.memory_mb, given.memory_asked, given.here) == (Verdict.EXTRAPOLATED, 8000, True, False)
    there = on("cuda", here=machine(cuda=6000))
    assert (there.memory_mb, there.memory_kind, there.here, there.memory_asked) == (6000, "device", True, False)
    untold = on("cpu", here=machine(None))
    assert (untold.verdict, untold.memory_mb) == (Verdict.UNKNOWN, None)
    assert "its amount of memory is not known" in untold.reason


def test_a_device_is_judged_by_its_own_memory(tmp_path: Path) -> None:
    database = recorded(tmp_path / "m.duckdb", {1: 9000.0}, target="cuda", device_peak_mb=300.0)
    found = on("cuda", "house-model", database=database, memory_mb=400)
    assert found.need is not None
    assert (found.verdict, found.need.peak_mb) == (Verdict.FITS, 300.0)


def test_the_default_hardware() -> None:
    assert [fit.hardware for fit in ask("bert").hardware] == ["cuda", "rocm", "mps", "cpu", "openvino"]
    assert [fit.hardware for fit in ask("vit").hardware] == ["cuda", "rocm", "mps", "openvino", "qnn", "cpu"]
    assert [fit.hardware for fit in ask("bert", dtype=Dtype.A8W8).hardware] == ["openvino"]
    assert [fit.hardware for fit in ask("bert", dtype=Dtype.A16W8).hardware] == ["qnn"]
    assert [fit.hardware for fit in ask("bert", hardware=("cpu", "cuda", "cpu")).hardware] == ["cpu", "cuda"]
    qnn = on("qnn", memory_mb=8000)
    assert qnn.need is not None
    assert qnn.need.dtype is Dtype.FLOAT16


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hardware": ("cpuu",)}, ["'cpuu' is not a hardware name (did you mean 'cpu'?"]),
        ({"memory_mb": 0}, ["--memory: 0 is not a valid amount of memory (give 1 or more)"]),
        ({"memory_mb": -5, "batch": 0, "sequence_length": -1}, ["--memory: -5", "--batch: 0", "--sequence-length: -1"]),
        ({"hardware": ("qnn",), "dtype": Dtype.FLOAT32}, ["qnn does not compute in float32 (it has float16, a16w8, a8w8"]),
        (
            {"hardware": ("cpu", "inductor"), "dtype": Dtype.A8W8},
            ["cpu does not compute in a8w8", "inductor does not compute in a8w8"],
        ),
        ({"model": "brt"}, ["'brt' is only a name", "did you mean bert"]),
        ({"model": ""}, ["it is empty"]),
        ({"model": "<script>alert(1)</script>"}, ["is not a valid model name"]),
        ({"model": "./nowhere"}, ["is not a folder"]),
    ],
)
def test_invalid_questions_are_refused(given: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        ask(**given)
    assert all(part in str(refused.value) for part in told), refused.value


def test_a_type_of_transformers_has_many_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_types.install(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match="MODEL: 'mamba2' is a type of transformers, which has models of many sizes"):
        ask("mamba2")


def test_suggested_names_come_from_the_database_and_are_printable(tmp_path: Path) -> None:
    names = ("house-model", "house-\x1b[31mmodel", "horse-model")
    with Database(tmp_path / "m.duckdb") as database:
        plans = [dataclasses.replace(NAMELESS, name=name, hub_id=None) for name in names[:2]]
        database.run(plan=json.dumps({"models": [json.loads(to_json(plan)) for plan in plans]}))
        database.shard("s", "cpu")
        for name in names:
            database.cell(database.plan(name, "cpu", size="full", sequence_length=128, cell_key=name), "s")
    with pytest.raises(ConfigError) as refused:
        ask("hose-model", database=tmp_path / "m.duckdb")
    assert "did you mean house-model?" in str(refused.value)
    assert "horse-model" not in str(refused.value), "nothing is known of it but its name"
    assert "\x1b" not in str(refused.value)


def test_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "m.duckdb").write_text("no database", encoding="utf-8")
    for database in (tmp_path / "m.duckdb", tmp_path / "missing.duckdb"):
        with pytest.raises(StoreError):
            ask(database=database)


def test_every_backend_has_precisions() -> None:
    assert all(descriptor_of(backend).precisions for backend in Backend)


def test_the_document_follows_its_schema() -> None:
    for document in (ask(database=RECORDED, memory_mb=900, batch=2), ask("mixtral", memory_mb=100_000)):
        data = as_data(document)
        assert next(iter(data)) == "schema"
        jsonschema.Draft202012Validator(json_schema()).validate(json.loads(json.dumps(data)))


@given(st.text("abcdefglmprt0123456789 -_/.", min_size=1, max_size=20).filter(lambda name: not name.startswith((".", "/"))))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("llama 135M")
@example("bert base")
def test_a_suggested_name_is_accepted(name: str) -> None:
    try:
        ask(name)
    except ConfigError as error:
        _, _, rest = error.problems[0].hint.partition("did you mean ")
        for suggestion in filter(None, rest.partition("?")[0].split(", ")):
            assert ask(suggestion).hardware
