"""Generation with exported graphs: ONNX Runtime and OpenVINO run the steps that the reference recorded."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from factory_plans import cell_plan, target_plan

from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.models import onnx_export
from hwmatrix.models.bundle import find_or_build
from hwmatrix.models.generation_export import GenerationExport, Graph
from hwmatrix.records import MeasureRule, Size, Tolerance
from hwmatrix.records.backends import descriptor_of
from hwmatrix.runner import cell
from hwmatrix.runner.job import CellJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import ModelPlan

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

SPEC = load(Path(__file__).parents[2] / "matrix.yaml").spec
NEW = 6
RULE = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.0, min_samples=6, max_s=1.0)
TOLERANCES = {dtype: Tolerance(**dataclasses.asdict(found)) for dtype, found in SPEC.tolerances.items()}
RUNTIMES = ("onnxruntime", "openvino")


@pytest.fixture
def exported(shared_cache: Path) -> Callable[[str, str], tuple[ModelPlan, Bundle]]:
    """Builds or finds the bundle of a model with random weights, and its export for a runtime to generate with."""

    def made(name: str, runtime: str) -> tuple[ModelPlan, Bundle]:
        plan = dataclasses.replace(model_plan(name, SPEC, Size.TINY), trained=False, new_tokens=NEW)
        bundle = find_or_build(plan, shared_cache / "bundles")
        pytest.importorskip(runtime)
        export = descriptor_of(runtime).generation_export
        assert export is not None
        assert isinstance(onnx_export.export_one(bundle, shared_cache / "bundles", export), GenerationExport)
        return plan, bundle

    return made


def ended(plan: ModelPlan, bundle: Bundle, runtime: str) -> dict[str, Any]:
    """The last message of a cell that generates on a runtime."""
    planned, told = cell_plan(), list[dict[str, Any]]()
    settings = dataclasses.replace(planned.settings, new_tokens=plan.new_tokens)
    job = CellJob(
        cell=dataclasses.replace(planned, settings=settings),
        model=plan,
        target=dataclasses.replace(target_plan(), name=runtime, backend=runtime),
        bundle=bundle.path,
        rule=RULE,
        tolerances=TOLERANCES,
    )
    cell.execute(job, told.append)
    return told[-1]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("name", "graphs"),
    [("llama", "decode"), ("t5", "prefill and decode")],
)
def test_prompts_of_every_length_are_continued_with_the_cache(name: str, graphs: str, runtime: str, exported: Any) -> None:
    plan, bundle = exported(name, runtime)
    found = ended(plan, bundle, runtime)
    facts = found["facts"]
    assert found["verdict"] == "pass", found["error"]
    assert facts["relative_error"] < 1e-5
    assert graphs in facts["method"]
    assert facts["on_target"] == 1
    assert {"load", "prepare", "prefill", "decode", "compare", "measure"} == set(facts["stages"])
    assert min(facts["ttft_ms"], facts["tpot_ms"], *facts["itl_ms"], facts["cache_mb"]) > 0
    assert len(facts["itl_ms"]) == NEW - 1
    assert ("cache_error" in facts) == (name == "llama")


def changed_arguments(change: Callable[[dict[str, Any]], None]) -> Any:
    """The arguments of every decoding step are changed first."""
    real = Graph.feed

    def feed(graph: Graph, given: Any) -> Any:
        changed = dict(given)
        if changed["input_ids"].shape[1] == 1:
            change(changed)
        return real(graph, changed)

    return mock.patch.object(Graph, "feed", feed)


def shifted_position() -> Any:
    """Positions while decoding are one too large."""
    return changed_arguments(lambda given: given.update(position_ids=given["position_ids"] + 1))


def lost_mask() -> Any:
    """The padding of the past is no longer masked."""
    return changed_arguments(lambda given: given.update(attention_mask=np.ones_like(given["attention_mask"])))


@contextlib.contextmanager
def changed_cache(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
    """The cache is changed before each decoding step: ``change`` gets keys and values as arrays by their names."""
    import onnxruntime
    import openvino

    from hwmatrix.targets.onnx.generator import OnnxGenerator
    from hwmatrix.targets.openvino.generator import OpenVinoGenerator

    real_onnx, real_openvino = OnnxGenerator._step, OpenVinoGenerator._step

    def onnx(generator: Any, graph: Any, given: Any) -> Any:
        if given["input_ids"].shape[1] == 1:
            changed = change({name: value.numpy() for name, value in generator._state.items()})
            generator._state = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in changed.items()}
        return real_onnx(generator, graph, given)

    def stateful(generator: Any, graph: Any, given: Any) -> Any:
        if given["input_ids"].shape[1] == 1:
            states = {state.name: state for state in generator._requests["decode"].query_state()}
            for name, array in change({name: np.array(state.state.data) for name, state in states.items()}).items():
                states[name].state = openvino.Tensor(array)
        return real_openvino(generator, graph, given)

    with mock.patch.object(OnnxGenerator, "_step", onnx), mock.patch.object(OpenVinoGenerator, "_step", stateful):
        yield


def stale_slot() -> Any:
    """The newest slot holds what an earlier one had."""

    def change(cache: dict[str, Any]) -> dict[str, Any]:
        return {name: np.concatenate([array[:, :, :-1], array[:, :, :1]], axis=2) for name, array in cache.items()}

    return changed_cache(change)


def swapped() -> Any:
    """Keys and values change places."""

    def other(name: str) -> str:
        return name.replace(".keys", ".values") if ".keys" in name else name.replace(".values", ".keys")

    return changed_cache(lambda cache: {name: np.ascontiguousarray(cache[other(name)]) for name in cache})


@contextlib.contextmanager
def state_not_reset() -> Iterator[None]:
    """Each prompt after the first begins with the cache of the one before."""
    from hwmatrix.targets.onnx.generator import OnnxGenerator
    from hwmatrix.targets.openvino.generator import OpenVinoGenerator

    real_onnx, real_openvino = OnnxGenerator._begin, OpenVinoGenerator._begin

    def onnx(generator: Any, rows: int) -> None:
        if not generator._state:
            real_onnx(generator, rows)

    seen: list[Any] = []

    def stateful(generator: Any) -> None:
        if not seen:
            real_openvino(generator)
        seen.append(generator)

    with mock.patch.object(OnnxGenerator, "_begin", onnx), mock.patch.object(OpenVinoGenerator, "_begin", stateful):
        yield


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("fault", "kind", "where"),
    [
        (stale_slot, "cache_mismatch", ("traced", "decode", 1)),
        (swapped, "cache_mismatch", ("traced", "decode", 1)),
        (shifted_position, "cache_mismatch", ("traced", "decode", 1)),
        (lost_mask, "mismatch", ("padded", "decode", 1)),
    ],
)
def test_a_fault_of_the_cache_is_found_where_it_is(fault: Any, kind: str, where: tuple[str, str, int], runtime: str, exported: Any) -> None:
    plan, bundle = exported("llama", runtime)
    with fault():
        found = ended(plan, bundle, runtime)
    facts = found["facts"]
    assert found["verdict"] == "mismatch", found
    assert (facts["failing_prompt"], facts["failing_component"], facts["failing_step"]) == where
    assert found["error"]["type"] == kind
    assert (facts["cache_error"] > 0.01) == (kind == "cache_mismatch")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_state_that_is_not_reset_is_no_pass(runtime: str, exported: Any) -> None:
    plan, bundle = exported("llama", runtime)
    with state_not_reset():
        found = ended(plan, bundle, runtime)
    assert found["verdict"] in {"mismatch", "error"}, found  # and not a fault of the export
    assert found["facts"]["failing_prompt"] == "shorter"
