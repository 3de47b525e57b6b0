"""Both exporters on real models: the graphs' names, and, by onnx's own reference implementation, their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import RunFacts, Selection, make_plan
from hwmatrix.models import bundle as bundles
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.models.onnx_export import OnnxExport, OnnxFailure, export_all, export_one, read_all
from hwmatrix.models.onnx_exporters import EXPORTERS, TORCH, TRANSFORMERS
from hwmatrix.models.types import model_types
from hwmatrix.records import Isolation, ModelPlan, Size
from hwmatrix.targets.onnx.rewriting import rewritten

if TYPE_CHECKING:
    from hwmatrix.models.bundle import Bundle

pytestmark = pytest.mark.torch
MATRIX = load(Path(__file__).parents[2] / "matrix.yaml")


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> Path:
    return shared_cache / "bundles"


def tiny(name: str, cache: Path) -> Bundle:
    """The bundle of a model of matrix.yaml, tiny."""
    facts = RunFacts(run_id="r", created_at="", command="", hwmatrix_version="", commit=None, isolation=Isolation.NONE)
    plan = make_plan(MATRIX, Selection(models=(name,), targets=("cpu",), size=Size.TINY), facts)
    return bundles.find_or_build(plan.models[0], cache)


def of_type(name: str) -> ModelPlan:
    """The plan of a model made from its type alone."""
    (kind,) = [kind for kind in model_types() if kind.name == name]
    return ModelPlan(name=name, size=Size.TINY, family=kind.family, architecture=name, model_class=kind.model_class, weights=FACTORY)


@pytest.mark.parametrize("name", ["vit", "clip", "mixtral"])
def test_both_exporters_give_the_reference_s_outputs(name: str, cache: Path) -> None:
    """mixtral: the loop over the experts that were hit must have become a product over all of them."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    bundle = tiny(name, cache)
    found = export_all(bundle, cache)
    assert [one.exporter for one in found] == ["transformers", "torch"]
    inputs, expected = bundle.input_arrays(), bundle.expected_arrays()
    for export in found:
        assert isinstance(export, OnnxExport), export
        model = onnx.load(export.path)
        onnx.checker.check_model(model, full_check=True)
        assert [value.name for value in model.graph.input] == list(export.inputs)
        assert set(export.inputs) <= inputs.keys()
        assert {output for output in export.outputs if output} == expected.keys()
        assert {dimension.dim_param for value in model.graph.input for dimension in value.type.tensor_type.shape.dim} == {""}
        outputs = ReferenceEvaluator(model).run(None, {name: inputs[name] for name in export.inputs})
        for output, array in zip(export.outputs, outputs, strict=True):
            if output is not None:
                assert np.linalg.norm(array - expected[output]) <= 1e-5 * np.linalg.norm(expected[output]), output
    assert read_all(bundle, cache) == found


def test_a_model_that_returns_its_inputs_has_a_valid_graph_of_each_exporter(cache: Path) -> None:
    """kosmos-2.5 returns its height and width: the graph's inputs keep these names, and its outputs are told by the reference's."""
    import onnx

    bundle = bundles.find_or_build(of_type("kosmos-2.5"), cache)
    made = export_all(bundle, cache)
    assert len(made) == len(EXPORTERS)
    for export in made:
        assert isinstance(export, OnnxExport), export
        model = onnx.load(export.path)
        onnx.checker.check_model(model, full_check=True)
        assert {"height", "width"} <= set(export.inputs) <= bundle.input_arrays().keys()
        assert {output for output in export.outputs if output} == bundle.expected_arrays().keys()
        own = dict(zip(export.outputs, (value.name for value in model.graph.output), strict=True))
        assert (own["height"], own["width"]) == ("output.height", "output.width")


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("video_llama_3_vision", {"position_ids", "cu_seqlens"}),  # transformers' exporter computes them from the grid
        ("cosmos3_edge", {"image_grid_thw", "video_grid_thw"}),  # it does not, and the model loops over the grid
        # nor here, and only the language model in it knows of its experts
        pytest.param("kimi_k25", {"image_grid_thw", "video_grid_thw"}, marks=pytest.mark.long),
    ],
)
def test_what_follows_from_a_grid_is_a_constant_of_the_graph(name: str, fixed: set[str], cache: Path) -> None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    bundle = bundles.find_or_build(of_type(name), cache)
    export = export_one(bundle, cache, TRANSFORMERS)
    assert isinstance(export, OnnxExport), export
    assert set(export.fixed) == fixed
    inputs, expected = bundle.input_arrays(), bundle.expected_arrays()
    assert set(export.inputs) <= inputs.keys() - fixed
    model = onnx.load(export.path)
    onnx.checker.check_model(model, full_check=True)
    outputs = ReferenceEvaluator(model).run(None, {name: inputs[name] for name in export.inputs})
    found = {name: array for name, array in zip(export.outputs, outputs, strict=True) if name}
    assert found.keys() == expected.keys()
    for output, array in found.items():
        assert np.linalg.norm(array - expected[output]) <= 1e-5 * np.linalg.norm(expected[output]), output


@pytest.mark.parametrize("exporter", [TRANSFORMERS, TORCH])
def test_a_squeeze_of_an_axis_longer_than_one_is_replaced_on_request(exporter: str, cache: Path, tmp_path: Path) -> None:
    """parakeet_tdt squeezes an axis of 16; onnxscript's conversion of that is no valid graph."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    bundle = bundles.find_or_build(of_type("parakeet_tdt"), cache)
    export = export_one(bundle, cache, exporter)
    assert isinstance(export, OnnxExport), export
    with pytest.raises(onnx.shape_inference.InferenceError):
        onnx.checker.check_model(onnx.load(export.path), full_check=True)
    (export,) = rewritten([export], tmp_path, constants={})
    assert export.prepared.replaced == ("Squeeze",)
    model = onnx.load(export.path)
    onnx.checker.check_model(model, full_check=True)
    inputs, expected = bundle.input_arrays(), bundle.expected_arrays()
    outputs = ReferenceEvaluator(model).run(None, {name: inputs[name] for name in export.inputs})
    for output, array in zip(export.outputs, outputs, strict=True):
        if output is not None:
            assert np.linalg.norm(array - expected[output]) <= 1e-5 * np.linalg.norm(expected[output]), output


def test_what_an_exporter_cannot_do_is_kept_with_its_reason(cache: Path) -> None:
    bundle = tiny("llava", cache)
    made, failed = export_all(bundle, cache)
    assert isinstance(made, OnnxExport)
    assert isinstance(failed, OnnxFailure)
    assert "aten._is_all_true" in failed.message
    assert failed.message.startswith("ConversionError")
    assert "Traceback" in (failed.traceback or "")
    assert read_all(bundle, cache) == (made, failed)
