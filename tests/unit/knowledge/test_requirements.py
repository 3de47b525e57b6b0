"""A model's requirements: measured, estimated by the formula, or extrapolated, and labeled as such. No framework is imported."""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import Database

from hwmatrix.errors import ConfigError, FactoryError, StoreError
from hwmatrix.knowledge import requirements
from hwmatrix.knowledge.calibration import calibration, features_of
from hwmatrix.knowledge.evidence import named, read_evidence, same_model, with_peaks
from hwmatrix.knowledge.requirements import RequirementsError, estimate_for, estimate_for_name, known_size, requirements_for
from hwmatrix.models.listed_sizes import listed_sizes
from hwmatrix.models.sizes import ModelSize
from hwmatrix.records import Backend, Basis, Classification, Detection, Dtype, Family, ModelPlan, Requirements, Size, to_json

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20
PLAN = ModelPlan(
    name="bert",
    size=Size.FULL,
    family=Family.EMBEDDING,
    architecture="bert",
    model_class="BertForMaskedLM",
    hub_id="google-bert/bert-base-uncased",
    sequence_length=128,
)
KNOWN = Classification(
    model_name="bert",
    architecture="bert",
    model_class=None,
    family=Family.EMBEDDING,
    subfamily=None,
    structure=None,
    confidence=0.9,
    evidence="name",
    source="the name",
)


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without frameworks, so that sizes come from the table."""
    monkeypatch.setitem(sys.modules, "torch", None)


def ask(hardware: str = "cpu", *, plan: ModelPlan | None = PLAN, name: str = "bert", **given: Any) -> Requirements:
    return requirements_for(plan, model_name=name, classification=KNOWN, hardware=hardware, **({"available_mb": 8000} | given))


def size(**changes: Any) -> ModelSize:
    """A model of 400 MiB, with 10 MiB of activations."""
    made = ModelSize(
        parameters=100_000_000,
        stored_bytes=400 * MIB,
        stored_dtype="float32",
        tied_bytes=0,
        weight_bytes=400 * MIB,
        dtypes={"float32": 400 * MIB},
        input_bytes=0,
        activation_bytes=10 * MIB,
        output_bytes=MIB,
        largest_output_bytes=MIB,
        method="forward",
    )
    return dataclasses.replace(made, **changes)


def on_record(path: Path, *, plan: ModelPlan = PLAN, peak_mb: float | None = 777.0, target: str = "cpu", **changes: Any) -> Path:
    """A database with one measured cell of a model."""
    with Database(path) as database:
        document = json.dumps({"models": [json.loads(to_json(plan))]})
        database.run(plan=document)
        database.shard("s", target)
        settings = {"size": plan.size.value, "batch": plan.batch, "sequence_length": plan.sequence_length, "hub_id": plan.hub_id}
        planned = database.plan(
            plan.name, target, **(settings | {name: changes.pop(name) for name in ("dtype", "batch") if name in changes})
        )
        database.cell(planned, "s", peak_mb=peak_mb, **changes)
    return path


def test_a_measured_cell_is_answered_with_its_peak(tmp_path: Path) -> None:
    found = ask(database=on_record(tmp_path / "m.duckdb"))
    assert (found.basis, found.min_memory_mb) == (Basis.MEASURED, 777)
    assert found.recommended_memory_mb > 777
    assert "measured on cpu in run run-1" in found.note
    assert found.parameters == 109_514_298


@pytest.mark.parametrize(
    "change",
    [{"dtype": "bfloat16"}, {"batch": 2}, {"plan": dataclasses.replace(PLAN, config={"num_hidden_layers": 3})}, {"status": "fallback"}],
    ids=["dtype", "batch", "config", "status"],
)
def test_a_different_cell_is_not_used(tmp_path: Path, change: dict[str, Any]) -> None:
    assert ask(database=on_record(tmp_path / "m.duckdb", **change)).basis is Basis.ESTIMATED


def test_the_newest_peak_counts(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        for run, peak in (("run-1", 700.0), ("run-2", 800.0)):
            database.run(run, plan=json.dumps({"models": [json.loads(to_json(PLAN))]}))
            database.shard(f"s-{run}", "cpu", run)
            planned = database.plan("bert", "cpu", run, size="full", sequence_length=128)
            database.cell(planned, f"s-{run}", peak_mb=peak)
    assert ask(database=path).min_memory_mb == 800


def test_without_a_measurement_the_formula_is_used_within_its_range() -> None:
    found = ask()
    expected = calibration().backends[Backend.CPU].coefficients.peak(features_of(known_size(PLAN, Dtype.FLOAT32)[0], Dtype.FLOAT32))
    assert found.basis is Basis.ESTIMATED
    assert expected <= found.min_memory_mb < expected + 1
    margin = calibration().backends[Backend.CPU].margin
    assert found.recommended_memory_mb == pytest.approx(expected * (1 + margin), abs=1)
    assert "nine in ten such estimates were within" in found.note
    assert "torch is not installed" in found.note


def test_outside_its_range_the_distance_is_stated() -> None:
    (mixtral,) = [listed for listed in listed_sizes() if listed.model == "mixtral"]
    plan = dataclasses.replace(PLAN, architecture="mixtral", model_class=mixtral.model_class, config=mixtral.config)
    found = ask(plan=plan)
    assert found.basis is Basis.EXTRAPOLATED
    assert "times the largest (calibrated from" in found.note
    assert "it does not fit here" in found.note
    assert found.batch_size == 1
    assert found.recommended_memory_mb >= 1.5 * found.min_memory_mb - 2


@pytest.mark.parametrize(("hardware", "kind"), [("cuda", "device"), ("rocm", "device"), ("webgpu", "host"), ("qnn", "host")])
def test_hardware_without_any_measurement_is_labeled(hardware: str, kind: str) -> None:
    found = ask(hardware, dtype=Dtype.FLOAT16)
    assert found.basis is Basis.EXTRAPOLATED
    assert f"no measurement on {hardware} is on record" in found.note
    assert found.memory_kind == kind


def test_half_the_precision_needs_half_the_weights_of_a_device() -> None:
    full, half = (ask("cuda", dtype=dtype).min_memory_mb for dtype in (Dtype.FLOAT32, Dtype.FLOAT16))
    assert half == pytest.approx(full / 2, rel=0.01)


def test_a_device_is_answered_with_the_device_s_measured_peak(tmp_path: Path) -> None:
    path = on_record(tmp_path / "m.duckdb", target="cuda", peak_mb=5000.0, device_peak_mb=512.3)
    found = ask("cuda", database=path)
    assert (found.basis, found.min_memory_mb, found.memory_kind) == (Basis.MEASURED, 513, "device")


def test_a_device_is_not_answered_with_the_host_s_peak(tmp_path: Path) -> None:
    path = on_record(tmp_path / "m.duckdb", target="cuda", peak_mb=5000.0, device_peak_mb=None)
    assert ask("cuda", database=path).basis is Basis.EXTRAPOLATED


def test_the_batch_is_the_largest_power_of_two_that_fits() -> None:
    found = [ask(available_mb=free).batch_size for free in (900, 1200, 2000, 4000, 16_000)]
    assert found == sorted(found)
    assert all(batch & (batch - 1) == 0 for batch in found)
    largest = found[-1]
    assert largest > 8
    assert ask(batch=largest).min_memory_mb <= 16_000 < ask(batch=2 * largest).min_memory_mb


def test_a_batch_outside_the_calibration_is_labeled() -> None:
    assert "is beyond the calibrated range" in ask(available_mb=1_000_000).note


def test_a_measurement_corrects_the_batch(tmp_path: Path) -> None:
    estimated = ask().min_memory_mb
    path = on_record(tmp_path / "m.duckdb", peak_mb=4.0 * estimated)
    assert ask(database=path, available_mb=8000).batch_size < ask(available_mb=8000).batch_size


def test_a_model_that_does_not_fit_is_reported() -> None:
    found = ask(available_mb=100)
    assert found.batch_size == 1
    assert "it does not fit here: a batch of 1 takes" in found.note


def test_larger_inputs_need_more_memory() -> None:
    base = ask().min_memory_mb
    assert ask(batch=4).min_memory_mb > base
    assert ask(sequence_length=512).min_memory_mb > base
    assert ask("openvino").min_memory_mb > base


def test_disk_space_includes_the_graph_if_one_is_executed() -> None:
    assert ask().disk_space_mb == 418
    assert ask("onnxruntime").disk_space_mb == ask("openvino").disk_space_mb == 836


def test_cores_depend_on_the_parameters() -> None:
    assert [requirements._cores(count) for count in (10**6, 10**8, 10**9, 2 * 10**9, 10**11)] == [1, 2, 4, 8, 16]


def test_a_name_alone_means_the_model_in_the_database(tmp_path: Path) -> None:
    path = on_record(tmp_path / "m.duckdb")
    for name in ("bert", "google-bert/bert-base-uncased", "BERT_base_uncased"):
        assert ask(plan=None, name=name, database=path).basis is Basis.MEASURED
    assert ask(plan=None, name="bert", database=path, batch=2).basis is Basis.ESTIMATED


def test_an_unknown_name_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(RequirementsError, match="it is only a name") as caught:
        ask(plan=None, name="some/other", database=on_record(tmp_path / "m.duckdb"))
    assert "matrix.yaml" in caught.value.advice
    assert "embedding" in caught.value.message


def test_a_model_that_the_table_lacks_needs_torch() -> None:
    with pytest.raises(RequirementsError, match="Install torch") as caught:
        ask(plan=dataclasses.replace(PLAN, config={"num_hidden_layers": 1}))
    assert isinstance(caught.value.__cause__, FactoryError)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hardware": "gpu"}, "'gpu' is not a hardware name (did you mean 'webgpu'?"),
        ({"hardware": ""}, "'' is not a hardware name"),
        ({"batch": 0}, "batch: 0 is not a valid number of samples (give 1 or more)"),
        ({"sequence_length": -1}, "sequence_length: -1 is not a valid number of tokens"),
    ],
)
def test_bad_arguments_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ask(**given)
    assert told in str(caught.value)


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        ask("gpu", batch=0, sequence_length=0)
    assert len(caught.value.problems) == 3


def test_a_file_that_is_not_a_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.duckdb").write_bytes(b"not a database")
    for name in ("broken.duckdb", "missing.duckdb"):
        with pytest.raises(StoreError, match=name):
            ask(database=tmp_path / name)


def test_a_name_of_matrix_yaml_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(importlib.resources.files("hwmatrix").joinpath("..", ".."))  # type: ignore[arg-type]
    found = estimate_for_name("bert-base-uncased", "cpu", available_mb=8000)
    assert (found.model_name, found.parameters, found.sequence_length) == ("bert-base-uncased", 109_514_298, 128)
    with pytest.raises(RequirementsError):
        estimate_for_name("nobody/knows-this", "cpu", available_mb=8000, cache=tmp_path)


def test_the_formula_uses_the_stated_terms() -> None:
    fitted = calibration().backends[Backend.CPU]
    inside = estimate_for(size(), Backend.CPU, Dtype.FLOAT32)
    assert (inside.basis, inside.margin) == (Basis.ESTIMATED, fitted.margin)
    outside = estimate_for(size(stored_bytes=10**12), Backend.CPU, Dtype.FLOAT32)
    assert outside.basis is Basis.EXTRAPOLATED
    assert outside.margin >= 0.5
    guessed = estimate_for(size(method="formula", note="the forward pass needs values"), Backend.CPU, Dtype.FLOAT32)
    assert "activations from the model's dimensions: the forward pass needs values" in guessed.note
    compared = estimate_for(size(output_bytes=30 * MIB, largest_output_bytes=30 * MIB), Backend.CPU, Dtype.FLOAT32)
    assert "MiB of it are for the comparison with the reference" in compared.note
    assert "comparison" not in inside.note
    device = estimate_for(size(), Backend.CUDA, Dtype.FLOAT32)
    assert device.peak_mb == 410


def test_the_table_is_interpolated_between_its_lengths_and_in_proportion_to_the_batch() -> None:
    def at(length: int, batch: int = 1, dtype: Dtype = Dtype.FLOAT32) -> ModelSize:
        return known_size(dataclasses.replace(PLAN, sequence_length=length, batch=batch), dtype)[0]

    short, middle, long = (at(length) for length in (128, 320, 512))
    assert middle.activation_bytes == pytest.approx((short.activation_bytes + long.activation_bytes) / 2, rel=0.01)
    assert at(128, batch=4).output_bytes == 4 * short.output_bytes
    assert at(16).activation_bytes < at(32).activation_bytes
    assert at(128, dtype=Dtype.A8W8).weight_bytes == short.weight_bytes // 4
    assert short.method == "table"


def test_the_table_is_only_for_recipes_and_for_missing_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(FactoryError):
        known_size(dataclasses.replace(PLAN, weights=str(tmp_path)), Dtype.FLOAT32)

    def broken(*_: object, **__: object) -> ModelSize:
        raise FactoryError("no", error_type="bad_config")

    monkeypatch.setattr(requirements, "model_size", broken)
    with pytest.raises(FactoryError, match="no"):
        known_size(PLAN, Dtype.FLOAT32)


def test_recorded_memory_is_found_by_model(tmp_path: Path) -> None:
    (cell,) = with_peaks(read_evidence(on_record(tmp_path / "m.duckdb")))
    assert cell.model_plan == PLAN
    assert named("nothing", (cell,)) == ()
    assert same_model(dataclasses.replace(PLAN, batch=7, name="other"), cell.model_plan)
    assert not same_model(dataclasses.replace(PLAN, weights="/a/folder"), cell.model_plan)
    assert not same_model(PLAN, None)


def test_a_cell_without_a_peak_is_not_recorded_memory(tmp_path: Path) -> None:
    assert with_peaks(read_evidence(on_record(tmp_path / "m.duckdb", peak_mb=None))) == ()


def test_a_run_without_its_plan_is_no_evidence_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu")
        database.cell(database.plan("bert", "cpu", size="full", sequence_length=128), "s")
    assert with_peaks(read_evidence(path))[0].model_plan is None
    assert ask(database=path).basis is Basis.ESTIMATED


def detection(features: dict[str, Any], *, available: bool = True) -> Detection:
    return Detection(hardware_type="any", available=available, name=None, features=features, reason=None, detected_at="2026-01-01")


@pytest.mark.parametrize(
    ("backend", "features", "expected"),
    [
        (Backend.CPU, {"memory_left_mb": 4000}, 4000),
        (Backend.CPU, {}, None),
        (Backend.OPENVINO, {"available_memory_mb": 9000, "memory_left_mb": 700}, 700),
        (Backend.CUDA, {"gpus": [{"memory_mb": 8000, "free_mb": 7000}, {"memory_mb": 6000, "free_mb": None}]}, 7000),
        (Backend.ROCM, {"gpus": [{"memory_mb": 8000, "free_mb": 500}]}, 500),
        (Backend.CUDA, {"gpus": [{"memory_mb": None, "free_mb": None}]}, None),
        (Backend.CUDA, {}, None),
    ],
)
def test_available_memory_is_the_free_memory_within_the_limit(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, features: dict[str, Any], expected: int | None
) -> None:
    monkeypatch.setattr(requirements, "detect", lambda _: detection(features))
    assert requirements.available_memory_mb(backend) == expected


def test_without_apple_s_gpu_nothing_is_available_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "detect", lambda _: detection({"available_memory_mb": 9000}, available=False))
    assert requirements.available_memory_mb(Backend.MPS) is None
    assert "there is no mps here" in ask("mps", available_mb=None).note
