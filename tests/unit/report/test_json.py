from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from factory_rows import RUN, Database, example, steady, unmeasured
from factory_sweep import sweep

from hwmatrix.app.schemas import errors_schema, matrix_schema
from hwmatrix.report.json_report import errors_json, matrix_json
from hwmatrix.report.rows import read

if TYPE_CHECKING:
    from pathlib import Path

CELL_KEYS = [
    "model",
    "target",
    "family",
    "architecture",
    "status",
    "stage",
    "level",
    "level_reason",
    "workload",
    "execution",
    "settings",
    "placement",
    "precision",
    "parity",
    "quality",
    "load_ms",
    "prepare_ms",
    "first_ms",
    "latency",
    "generation",
    "compilation",
    "memory",
    "outputs",
    "inputs",
    "text_path",
    "preparation",
    "replaced",
    "divergence",
    "error",
    "evidence",
    "adaptation",
    "attempts",
]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    rows = read(example(tmp_path_factory.mktemp("json") / "matrix.duckdb"))
    return json.loads(matrix_json(rows)), json.loads(errors_json(rows))


def cell(document: dict[str, Any], model: str, target: str) -> dict[str, Any]:
    return next(cell for cell in document["cells"] if (cell["model"], cell["target"]) == (model, target))


def test_both_reports_match_their_schemas(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for document, schema in zip(documents, (matrix_schema(), errors_schema()), strict=True):
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


def test_a_schema_rejects_unknown_keys(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    broken = json.loads(json.dumps(documents[0]))
    broken["cells"][0]["status"] = "splendid"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, matrix_schema())
    broken = json.loads(json.dumps(documents[0]))
    del broken["cells"][0]["evidence"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, matrix_schema())


def test_the_keys_of_matrix_json(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    matrix = documents[0]
    assert list(matrix) == ["schema", "run", "targets", "models", "cells"]
    assert matrix["schema"] == "hwmatrix/matrix/1"
    assert len(matrix["cells"]) == 31
    for entry in matrix["cells"]:
        assert list(entry) == CELL_KEYS
        assert list(entry["evidence"]) == ["run_id", "isolation", "image_digest", "versions", "command", "executed_at", "older_than"]
        assert entry["evidence"]["run_id"] == RUN


def test_a_measured_cell(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    found = cell(documents[0], "bert", "openvino")
    assert (found["status"], found["level"], found["stage"], found["error"]) == ("pass", "High", "measure", None)
    latency = found["latency"]
    assert list(latency) == ["p50_ms", "p90_ms", "p99_ms", "mean_ms", "min_ms", "max_ms", "ci95", "inputs_s", "samples", "contended"]
    assert latency["p50_ms"] == pytest.approx(1.7)
    low, high = latency["ci95"]
    assert low < latency["p50_ms"] < high
    assert latency["samples"] == 101
    assert latency["inputs_s"] == pytest.approx(1000 / 1.7)
    assert latency["contended"] is False
    assert found["memory"] == {"peak_mb": 500.0, "delta_mb": 64.5, "device_peak_mb": None, "run_peak_mb": None, "detail": None}
    assert found["outputs"] == [{"name": "logits", "shape": [1, 16, 512], "dtype": "float32"}]
    assert found["settings"] == {"size": "tiny", "dtype": "float32", "batch": 1, "sequence_length": 16, "threads": 1, "new_tokens": 0}
    assert found["evidence"]["versions"]["openvino"] == "2026.4.1"
    assert found["evidence"]["image_digest"].startswith("sha256:")


def test_values_that_were_not_measured_are_null(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    found = cell(documents[0], "late", "cpu")
    assert found["status"] == "not_run"
    for key in ("stage", "level", "placement", "parity", "load_ms", "prepare_ms", "first_ms", "latency", "memory", "error"):
        assert found[key] is None, key
    assert found["outputs"] == []
    nothing = dict.fromkeys(("isolation", "image_digest", "versions", "command", "executed_at", "older_than"))
    assert found["evidence"] == {"run_id": RUN} | nothing


def test_a_failed_cell_says_why_and_what_to_do(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    error = cell(documents[0], "model-crash", "openvino")["error"]
    assert list(error) == ["type", "severity", "message", "recommendations"]
    assert (error["type"], error["severity"], error["message"]) == ("segmentation_fault", "critical", "killed by SIGSEGV")
    assert error["recommendations"]
    assert cell(documents[0], "model-error", "openvino")["error"]["type"] == "unmatched"


def test_models_targets_and_run(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    matrix = documents[0]
    assert [target["name"] for target in matrix["targets"]] == ["cpu", "openvino", "gpu"]
    cpu, openvino, gpu = matrix["targets"]
    assert (cpu["canary_ok"], cpu["hardware"][0]["name"]) == (True, "Example CPU @ 2.00GHz")
    assert [found["available"] for found in openvino["hardware"]] == [True, False]
    assert (gpu["unavailable"], gpu["image_digest"], gpu["hardware"]) == ("OpenVINO lists no device GPU here", None, [])
    models = {model["name"]: model for model in matrix["models"]}
    assert len(models) == 15
    assert models["bert"]["parameters"] == 270_000
    assert models["mixtral"]["unbuildable"] == "47 B parameters need 187 GB in float32"
    assert matrix["run"]["counts"]["pass"] == 16
    assert sum(matrix["run"]["counts"].values()) == 31
    assert matrix["run"]["created_at"] == "2026-01-02T03:04:05Z"
    assert matrix["run"]["rejected"] == [{"file": "gpu.duckdb", "reason": "its SHA-256 is not the one"}]


def test_the_source_of_weights_and_the_kinds_of_input(tmp_path: Path) -> None:
    rows = read(sweep(tmp_path / "sweep.duckdb", models=14))
    document = json.loads(matrix_json(rows))
    jsonschema.validate(document, matrix_schema(), cls=jsonschema.Draft202012Validator)
    assert {model["weights"] for model in document["models"]} == {"factory"}
    given = {entry["model"]: (entry["inputs"], entry["text_path"]) for entry in document["cells"]}
    assert given["arch-000"] == (["text"], False)
    assert given["arch-003"] == (["image", "text"], False)
    assert given["arch-010"] == (["image", "text"], False)
    assert given["arch-005"] == (None, None)  # not known
    assert given["arch-012"] == (None, None)  # no such model exists


def test_a_plan_without_the_field_weights(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert {model["weights"] for model in documents[0]["models"]} == {None}


def test_errors_json_has_the_groups(tmp_path: Path) -> None:
    rows = read(sweep(tmp_path / "sweep.duckdb", models=40))
    document = json.loads(errors_json(rows))
    jsonschema.validate(document, errors_schema(), cls=jsonschema.Draft202012Validator)
    found = next(group for group in document["groups"] if (group["target"], group["kind"]) == ("openvino", "construct"))
    assert found["blocked_by"] == "models/*/modeling_*.py::get_rope_index: for step in range(int(image_grid_thw.max())):"
    assert (found["scope"], found["stage"]) == ("target", "prepare")
    assert found["message"] == "Could not guard on data-dependent expression <expression>"
    assert found["sites"] == [f"models/arch_0{n:02}/modeling_arch_0{n:02}.py:{100 + n} in get_rope_index" for n in (4, 15, 26, 37)]
    assert found["architectures"] == ["arch_004", "arch_015", "arch_026", "arch_037"]
    assert found["cells"] == 4
    example = found["example"]
    assert example["message"] == f"Could not guard on data-dependent expression Eq(u{int(example['model'][-3:])}, 1)"
    assert document["tracebacks"][example["traceback"]].startswith("Traceback")
    assert example["parameters"] == min(20_000 + 997 * (n * 7 % 101) for n in (4, 15, 26, 37))
    assert example["command"] == f"hwmatrix matrix --models {example['model']} --targets openvino"


def test_errors_json_has_each_traceback_once(tmp_path: Path) -> None:
    path, shared, own = tmp_path / "m.duckdb", "Traceback: " + "shared " * 1000, "Traceback: " + "own " * 1000
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu")
        for name, text in (("a", shared), ("b", shared), ("c", own), ("d", None)):
            database.cell(database.plan(name, "cpu"), "s-cpu", **unmeasured("error") | {"message": name, "traceback": text})
    text = errors_json(read(path))
    assert (text.count(shared), text.count(own)) == (1, 1)
    document = json.loads(text)
    jsonschema.validate(document, errors_schema(), cls=jsonschema.Draft202012Validator)
    found = {error["model_name"]: document["tracebacks"].get(error["traceback"]) for error in document["errors"]}
    assert found == {"a": shared, "b": shared, "c": own, "d": None}
    examples = {group["example"]["model"]: document["tracebacks"].get(group["example"]["traceback"]) for group in document["groups"]}
    assert examples == {name: found[name] for name in examples}
    assert examples
    assert set(document["tracebacks"].values()) == {shared, own}


def test_errors_json(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    errors = documents[1]["errors"]
    assert documents[1]["schema"] == "hwmatrix/errors/2"
    keys = ["hardware_type", "error_type", "severity", "message", "component", "timestamp", "model_name", "recommendations", "traceback"]
    for entry in errors:
        assert list(entry) == keys
        assert entry["recommendations"]
    order = ["critical", "error", "warning", "info"]
    severities = [entry["severity"] for entry in errors]
    assert severities == sorted(severities, key=order.index)
    components = {entry["error_type"]: entry["component"] for entry in errors}
    assert components["shard_rejected"] == "merge"
    assert components["unbuildable"] == "plan"
    assert components["segmentation_fault"] == "run"
    unmatched = next(entry for entry in errors if entry["error_type"] == "unmatched")
    assert documents[1]["tracebacks"][unmatched["traceback"]] == "Traceback:\n  boom"
    assert unmatched["timestamp"].endswith("Z")
    assert "late" not in {entry["model_name"] for entry in errors}  # not run is not an error


def test_failed_canaries_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu", canary_ok=False, canary_detail="canary-wrong passed")
        database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(2.0))
    rows = read(path)
    (found,) = json.loads(matrix_json(rows))["cells"]
    assert (found["status"], found["level"], found["latency"], found["memory"], found["outputs"]) == ("infra_error", None, None, None, [])
    (error,) = json.loads(errors_json(rows))["errors"]
    assert (error["error_type"], error["component"], error["severity"]) == ("canary_failed", "canary", "critical")
    assert "canary-wrong passed" in error["message"]


def test_a_cell_that_was_not_tried_after_its_canaries_failed(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as database:
        database.run()
        database.shard("s-cpu", "cpu", canary_ok=False)
        changes = unmeasured("infra_error") | {"error_type": "canary_failed", "stage": "load", "message": "not tried"}
        database.cell(database.plan("bert", "cpu"), "s-cpu", **changes)
    (error,) = json.loads(errors_json(read(path)))["errors"]
    assert (error["component"], error["message"]) == ("canary", "not tried")
