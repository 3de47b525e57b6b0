"""Generation with exported graphs: ONNX Runtime and OpenVINO run the steps that the reference recorded."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import generation_faults
import pytest
from generation_faults import FAULTS, NEW, RULE, RUNTIMES, Fault, bundle_for, ended, random_model, type_model

from hwmatrix.models import onnx_export
from hwmatrix.models.onnx_export import OnnxFailure
from hwmatrix.records import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import ModelPlan

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]


@pytest.fixture
def exported(shared_cache: Path) -> Callable[[str, str], tuple[ModelPlan, Bundle]]:
    """Builds or finds the bundle of a model with random weights, and its export for a runtime to generate with."""

    def made(name: str, runtime: str) -> tuple[ModelPlan, Bundle]:
        pytest.importorskip(runtime)
        plan = random_model(name)
        return plan, bundle_for(plan, shared_cache / "bundles", runtime)

    return made


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("name", "graphs"),
    [("llama", "decode"), ("t5", "prefill and decode")],
)
def test_prompts_of_every_length_are_continued_with_the_cache(name: str, graphs: str, runtime: str, exported: Any) -> None:
    plan, bundle = exported(name, runtime)
    found = ended(plan, bundle, runtime, rule=RULE)
    facts = found["facts"]
    assert found["verdict"] == "pass", found["error"]
    assert facts["relative_error"] < 1e-5
    assert graphs in facts["method"]
    assert ("KV cache in f32" in facts["method"]) == (runtime == "openvino" and graphs == "decode")
    assert facts["on_target"] == 1
    assert {"load", "prepare", "prefill", "decode", "compare", "measure"} == set(facts["stages"])
    assert min(facts["ttft_ms"], facts["tpot_ms"], *facts["itl_ms"], facts["cache_mb"]) > 0
    assert len(facts["itl_ms"]) == NEW - 1
    assert ("cache_error" in facts) == (name == "llama")


@pytest.mark.parametrize(
    ("name", "dtype", "method", "kernel", "least"),
    [
        ("llama", Dtype.INT4, "MatMulNBits in groups of 32: 15 weights", "15 MatMulNBits", 1e-2),
        ("gpt2", Dtype.INT4, "MatMulNBits in groups of 32: 9 weights", "9 MatMulNBits", 1e-2),  # eight of them are Gemm in its export
        ("llama", Dtype.INT8_DYNAMIC, "quantize_dynamic: 15 MatMulInteger", "MatMulIntegerToFloat", 1e-3),
        ("t5", Dtype.INT4, "MatMulNBits in groups of 32", "executed: 17 MatMulNBits", 1e-2),  # its second graph, that of decoding
    ],
)
def test_onnx_runtime_generates_with_rounded_weights(  # noqa: PLR0917 - what was rounded, and what ran
    name: str, dtype: Dtype, method: str, kernel: str, least: float, exported: Any
) -> None:
    plan, bundle = exported(name, "onnxruntime")
    facts = ended(plan, bundle, "onnxruntime", dtype=dtype)["facts"]
    assert method in facts["method"]
    assert kernel in facts["placement_detail"]
    assert least < facts["relative_error"] < 0.5


@pytest.mark.parametrize(
    ("runtime", "name", "dtype"),
    [
        ("cpu", "llama", Dtype.INT8),
        ("cpu", "t5", Dtype.INT8_DYNAMIC),
        ("openvino", "llama", Dtype.INT8),  # its cache is a state of the graph
        ("openvino", "t5", Dtype.INT8),
        ("onnxruntime", "llama", Dtype.INT4),
        ("onnxruntime", "t5", Dtype.INT8_DYNAMIC),
    ],
)
def test_rounded_weights_are_compared_with_the_same_in_float32(runtime: str, name: str, dtype: Dtype, exported: Any) -> None:
    if runtime == "cpu":
        pytest.importorskip("torchao")
        plan, bundle = exported(name, "onnxruntime")
    else:
        plan, bundle = exported(name, runtime)
    found = ended(plan, bundle, runtime, dtype=dtype)
    facts = found["facts"]
    assert (found["error"] or {"type": "precision_loss"})["type"] == "precision_loss", found
    assert 1e-3 < facts["loss"] < 0.6
    assert facts["excess"] is not None


def test_what_costs_too_much_is_timed_because_its_kernels_are_right(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = dataclasses.replace(generation_faults.TOLERANCES[Dtype.INT4], relative_error=1e-3)
    monkeypatch.setitem(generation_faults.TOLERANCES, Dtype.INT4, strict)
    plan, bundle = exported("llama", "onnxruntime")
    found = ended(plan, bundle, "onnxruntime", dtype=Dtype.INT4, rule=RULE)
    assert (found["verdict"], found["error"]["type"]) == ("mismatch", "precision_loss")
    assert min(found["facts"]["ttft_ms"], found["facts"]["tpot_ms"]) > 0


@pytest.mark.parametrize("dtype", [Dtype.INT4])
def test_a_wrong_scale_is_a_fault_of_the_kernel_and_no_loss(dtype: Dtype, exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime gets graphs in which one product has scales that are a quarter too large; the quantizer's own are read back."""
    import onnx
    from onnx import numpy_helper

    from hwmatrix.targets.onnx.onnxruntime import OnnxRuntime

    kind, position = "MatMulNBits", 2
    real = OnnxRuntime._session_of

    def with_fault(target: OnnxRuntime, path: Path) -> Any:
        model = onnx.load(path)
        known = {tensor.name: tensor for tensor in model.graph.initializer}
        scaled = [node for node in model.graph.node if node.op_type == kind and any("scale" in name for name in node.input[1:])]
        tensor = known[next(name for name in scaled[len(scaled) // 2].input[position:] if name in known)]
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 1.25, tensor.name))
        faulty = path.with_name(f"faulty-{path.name}")
        onnx.save(model, faulty)
        return real(target, faulty)

    plan, bundle = exported("llama", "onnxruntime")
    monkeypatch.setattr(OnnxRuntime, "_session_of", with_fault)
    found = ended(plan, bundle, "onnxruntime", dtype=dtype)
    facts = found["facts"]
    assert found["error"]["type"] == "mismatch", found
    assert "from its own rounded weights in float32" in found["error"]["message"]
    assert (facts["failing_prompt"], facts["failing_step"]) == ("traced", 0)
    assert facts["excess"] > 100


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("fault", FAULTS[:-1], ids=lambda fault: fault.name)
def test_a_fault_of_the_cache_is_found_where_it_is(fault: Fault, runtime: str, exported: Any) -> None:
    plan, bundle = exported("llama", runtime)
    with fault.planted(runtime):
        found = ended(plan, bundle, runtime)
    facts = found["facts"]
    assert found["verdict"] == "mismatch", found
    assert (facts["failing_prompt"], facts["failing_component"], facts["failing_step"]) == fault.first(runtime)
    assert found["error"]["type"] == fault.kind
    assert (facts["cache_error"] > 0.01) == (fault.kind == "cache_mismatch")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_state_that_is_not_reset_is_no_pass(runtime: str, exported: Any) -> None:
    plan, bundle = exported("llama", runtime)
    with FAULTS[-1].planted(runtime):
        found = ended(plan, bundle, runtime)
    assert found["verdict"] in {"mismatch", "error"}, found  # and not a fault of the export
    facts = found["facts"]
    assert (facts["failing_prompt"], facts["failing_component"], facts["failing_step"]) == FAULTS[-1].first(runtime)


@pytest.mark.parametrize(
    ("runtime", "kind", "method"),
    [
        # It adds a token of its own to the text, and drops the mask.
        pytest.param("onnxruntime", "flaubert", "prefill and decode", marks=pytest.mark.long),
        ("onnxruntime", "internvl", "prefill and decode"),  # its image has one size
        pytest.param("openvino", "qwen3_asr", "prefill and decode", marks=pytest.mark.long),  # the length of a sound comes from its mask
    ],
)
def test_what_prompts_never_change_may_be_fixed(runtime: str, kind: str, method: str, shared_cache: Path) -> None:
    pytest.importorskip(runtime)
    plan = type_model(kind)
    found = ended(plan, bundle_for(plan, shared_cache / "bundles", runtime), runtime)
    assert found["verdict"] == "pass", found["error"]
    assert method in found["facts"]["method"]


def test_a_state_that_generate_changes_between_steps_has_no_graph(shared_cache: Path) -> None:
    plan = type_model("xlnet")
    made = onnx_export.export_one(bundle_for(plan, shared_cache / "bundles"), shared_cache / "bundles", "generation")
    assert isinstance(made, OnnxFailure)
    assert re.search(r"generate changes mems\.0 between two steps: from the shape \[\d+, 1, 64\] to", made.message)
