"""The precision that OpenVINO computes in: read from the compiled model, and the one that judges the cell."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from factory_plans import cell_plan, target_plan
from fake_target import outcome_of

from hwmatrix.hardware.cpu import detect
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.models.bundle import find_or_build
from hwmatrix.models.onnx_export import OPENVINO, export_one
from hwmatrix.models.openvino_conversion import OpenVinoExport
from hwmatrix.records import Dtype, MeasureRule, Size, Tolerance
from hwmatrix.records.backends import descriptor_of
from hwmatrix.runner import cell
from hwmatrix.runner.job import CellJob
from hwmatrix.targets.openvino import target

openvino = pytest.importorskip("openvino")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]  # as an error, a warning of an exporter is a failed export

BERT = dataclasses.replace(model_plan("bert", load(Path(__file__).parents[2] / "matrix.yaml").spec, Size.TINY), trained=False)
TOLERANCES = {
    Dtype.FLOAT32: Tolerance(relative_error=1e-4, reason="a test"),
    Dtype.FLOAT16: Tolerance(relative_error=2e-2, excess=8, bound=16, reason="a test"),
    Dtype.BFLOAT16: Tolerance(relative_error=1e-1, excess=8, bound=16, reason="a test"),
    Dtype.INT8: Tolerance(relative_error=1e-1, excess=100, reason="a test"),
    Dtype.INT4: Tolerance(relative_error=5e-1, excess=100, reason="a test"),
    Dtype.A8W8: Tolerance(relative_error=2e-1, excess=4, bound=8, reason="a test"),
}


def adds_in_16_bits() -> bool:
    """Whether the processor multiplies integers of 8 bits without VNNI: sums of two products may then be cut off."""
    known = set(detect()[1]["instructions"] or ())
    return "avx2" in known and not known & {"avx512_vnni", "avx_vnni", "amx_int8"}


def ended(dtype: Dtype, cache: Path, *, rule: MeasureRule | None = None, allowed: float | None = None, **options: Any) -> dict[str, Any]:
    """The verdict of a cell on OpenVINO's CPU plugin, with further options of the target. It is timed by ``rule``. Rounding may cost
    at most the relative error ``allowed``.
    """
    plan, told = cell_plan(), list[dict[str, Any]]()
    job = CellJob(
        cell=dataclasses.replace(
            plan, settings=dataclasses.replace(plan.settings, dtype=dtype), limits=dataclasses.replace(plan.limits, timeout_s=600.0)
        ),
        model=BERT,
        target=dataclasses.replace(
            target_plan(),
            backend="openvino",
            options={"device": "CPU"} | options,
            forward_export=None if options.keys() & {*descriptor_of("openvino").own_graph} else OPENVINO,
        ),
        bundle=find_or_build(BERT, cache).path,
        rule=rule,
        tolerances=TOLERANCES if allowed is None else {**TOLERANCES, dtype: dataclasses.replace(TOLERANCES[dtype], relative_error=allowed)},
    )
    cell.execute(job, told.append)
    stage = [message["stage"] for message in told if "stage" in message][-1]
    return outcome_of(told) | {"stage": stage}


@pytest.mark.parametrize("allowed", [None, 1e-3])
def test_what_costs_too_much_is_timed_because_its_kernels_are_right(allowed: float | None, shared_cache: Path) -> None:
    rule = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.0, min_samples=3, max_s=0.1)
    found = ended(Dtype.INT8, shared_cache / "bundles", rule=rule, allowed=allowed)
    verdict = ("pass", None, "measure") if allowed is None else ("mismatch", "precision_loss", "measure")
    assert (found["verdict"], (found["error"] or {}).get("type"), found["stage"]) == verdict
    assert len(found["facts"]["samples_wall_ns"]) >= 3
    assert found["facts"]["stages"]["measure"] > 0


def native() -> set[str]:
    """The precisions that this processor has instructions for, by OpenVINO's names."""
    return set(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def test_float32_is_float32_on_every_processor(shared_cache: Path) -> None:
    found = ended(Dtype.FLOAT32, shared_cache / "bundles")
    assert (found["verdict"], found["facts"]["precision"]) == ("pass", "float32"), found["error"]
    assert found["facts"]["relative_error"] < 1e-5


def test_cells_share_the_graph_of_their_bundle_unless_an_option_asks_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = ended(Dtype.FLOAT32, tmp_path)
    assert isinstance(export_one(find_or_build(BERT, tmp_path), tmp_path, OPENVINO), OpenVinoExport)
    loaded = list[str | None]()
    load_model = target.load_model

    def counted(*what: Any, attention: str | None = None) -> Any:
        loaded.append(attention)
        return load_model(*what, attention=attention)

    monkeypatch.setattr(target, "load_model", counted)
    for dtype in (Dtype.FLOAT32, Dtype.INT8):
        found = ended(dtype, tmp_path)
        assert found["verdict"] == "pass", found["error"]
        assert found["facts"]["method"].startswith(converted["facts"]["method"])
        assert found["facts"]["parameters"] == converted["facts"]["parameters"]
    assert loaded == []
    assert ended(Dtype.FLOAT32, tmp_path, attention="eager")["verdict"] == "pass"
    assert ended(Dtype.FLOAT32, tmp_path, export="trace")["facts"]["method"] == "openvino.convert_model"
    assert loaded == ["eager", None]


def test_a_cell_that_reads_a_graph_needs_no_transformers(shared_cache: Path) -> None:
    cache = shared_cache / "bundles"
    assert isinstance(export_one(find_or_build(BERT, cache), cache, OPENVINO), OpenVinoExport)
    code = """
import sys
from pathlib import Path
from test_openvino_precision import Dtype, ended

for dtype in (Dtype.FLOAT32, Dtype.A8W8):
    print(ended(dtype, Path(sys.argv[1]))["verdict"], "transformers" in sys.modules)
"""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code, str(cache)], capture_output=True, text=True, env=env, check=False)
    rounded = "mismatch" if adds_in_16_bits() else "pass"
    assert done.stdout.splitlines() == ["pass False", f"{rounded} False"], done.stderr


def test_by_default_the_processor_s_precision_judges_the_cell(shared_cache: Path) -> None:
    found = ended(Dtype.DEFAULT, shared_cache / "bundles")
    assert found["verdict"] == "pass", found["error"]
    precision, error = Dtype(found["facts"]["precision"]), found["facts"]["relative_error"]
    if "BF16" in native():
        assert precision is Dtype.BFLOAT16
    assert (error < 1e-5) is (precision is Dtype.FLOAT32)
    assert ("excess" in found["facts"]) is (precision is not Dtype.FLOAT32)


def test_a_precision_that_the_plugin_replaces_is_unsupported(shared_cache: Path) -> None:
    """Not every processor has instructions for bfloat16; the plugin uses only what it has."""
    found = ended(Dtype.BFLOAT16, shared_cache / "bundles")
    if "BF16" in native():
        assert (found["verdict"], found["facts"]["precision"]) == ("pass", Dtype.BFLOAT16), found["error"]
    else:
        assert (found["verdict"], found["error"]["type"]) == ("unsupported", "unsupported_dtype")
        assert "bfloat16 was requested, but the runtime computes in" in found["error"]["message"]
        assert found["facts"]["precision"] != Dtype.BFLOAT16  # what it computes in instead is kept


@pytest.mark.parametrize(
    ("dtype", "how", "weights"),
    [
        (Dtype.FLOAT16, "compress_to_fp16", " of f16 weights by "),
        (Dtype.INT8, "NNCF INT8_ASYM", " of u8 weights by "),
        (Dtype.INT4, "NNCF INT4_SYM in groups of 32", " of i4 weights by "),
        (Dtype.A8W8, "nncf.quantize from 8 inputs", " of i8 weights by "),
    ],
)
def test_weights_in_a_precision_are_judged_by_it_and_the_placement_tells_how_they_are_multiplied(
    dtype: Dtype, how: str, weights: str, shared_cache: Path
) -> None:
    """On every processor: the type that they are multiplied in may differ, and is in the placement, with the kernel."""
    found = ended(dtype, shared_cache / "bundles")
    facts = found["facts"]
    assert found["verdict"] == "pass" or (dtype is Dtype.A8W8 and adds_in_16_bits()), found["error"]
    assert how in facts["method"]
    assert weights in facts["placement_detail"] or "FullyConnected of" in facts["placement_detail"]
    assert 1e-5 < facts["relative_error"] < 1
    if dtype is not Dtype.FLOAT16 and found["verdict"] == "pass":
        assert facts["loss"] == pytest.approx(facts["relative_error"], rel=0.05)
        assert facts["kernel_error"] <= facts["allowed_error"]
        assert facts["allowed_error"] < 1e-3 or dtype is Dtype.A8W8


def test_without_hints_rounded_weights_are_multiplied_as_the_plugin_chooses_and_the_fixed_limit_judges(shared_cache: Path) -> None:
    """What the plugin rounds besides depends on the processor, so there is no graph in float32 to compare with."""
    found = ended(Dtype.INT8, shared_cache / "bundles", precision_hints=False)
    facts = found["facts"]
    assert found["verdict"] == "pass", found["error"]
    assert "NNCF INT8_ASYM" in facts["method"]
    assert facts["method"].endswith(", multiplied as the plugin chooses")
    assert "FullyConnected of " in facts["placement_detail"]
    assert "excess" not in facts
    assert facts["kernel_detail"] == "without precision hints it is not known what the plugin rounds"
    hinted = ended(Dtype.INT8, shared_cache / "bundles")["facts"]
    assert "excess" in hinted
    assert "as the plugin chooses" not in hinted["method"]
