"""Cells that generate, and faults of a cache planted in them: in transformers' own, or between the steps of exported graphs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping  # types of fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np
import torch
import transformers
from factory_plans import cell_plan, target_plan
from fake_target import outcome_of

from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.models import onnx_export
from hwmatrix.models.bundle import find_or_build
from hwmatrix.models.generation_export import GenerationExport, Graph
from hwmatrix.models.types import listing
from hwmatrix.records import Dtype, MeasureRule, ModelPlan, Size, Tolerance
from hwmatrix.records.backends import descriptor_of
from hwmatrix.runner import cell
from hwmatrix.runner.job import CellJob
from hwmatrix.targets.torch.cpu import TorchCpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwmatrix.models.bundle import Bundle

SPEC: Final = load(Path(__file__).parents[2] / "matrix.yaml").spec
NEW: Final = 6
"""Tokens that are generated."""
RULE: Final = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.0, min_samples=6, max_s=1.0)
RUNTIMES: Final = ("onnxruntime", "openvino")
"""Backends that generate with exported graphs, where these tests run."""
TOLERANCES: Final = {dtype: Tolerance(**dataclasses.asdict(found)) for dtype, found in SPEC.tolerances.items()}


def random_model(name: str, **changes: Any) -> ModelPlan:
    """A model of matrix.yaml with random weights that generates."""
    return dataclasses.replace(model_plan(name, SPEC, Size.TINY), trained=False, new_tokens=NEW, **changes)


def type_model(name: str) -> ModelPlan:
    """A model made from its type alone that generates."""
    kind = listing().by_name[name]
    return ModelPlan(
        name=name,
        size=Size.TINY,
        family=kind.family,
        architecture=name,
        model_class=kind.model_class,
        weights="factory",
        new_tokens=NEW,
    )


def bundle_for(plan: ModelPlan, cache: Path, runtime: str = "cpu") -> Bundle:
    """Build or find the bundle of a model, and the export that a runtime generates with, if any."""
    bundle = find_or_build(plan, cache)
    export = descriptor_of(runtime).generation_export
    if export is not None:
        made = onnx_export.export_one(bundle, cache, export)
        assert isinstance(made, GenerationExport), made
    return bundle


def ended(
    plan: ModelPlan, bundle: Bundle, runtime: str = "cpu", *, dtype: Dtype = Dtype.FLOAT32, rule: MeasureRule | None = None, **options: Any
) -> dict[str, Any]:
    """The last message of a cell that generates. Without a rule, it is not timed."""
    planned, told = cell_plan(), list[dict[str, Any]]()
    settings = dataclasses.replace(planned.settings, dtype=dtype, new_tokens=plan.new_tokens)
    job = CellJob(
        cell=dataclasses.replace(planned, settings=settings),
        model=plan,
        target=dataclasses.replace(target_plan(runtime), options=options),
        bundle=bundle.path,
        rule=rule,
        tolerances=TOLERANCES,
    )
    cell.execute(job, told.append)
    return outcome_of(told)


@contextlib.contextmanager
def changed_layers(change: Callable[[Any, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Every update of a layer of the cache goes through ``change(layer, keys, values)``, once there is a past."""
    real = transformers.cache_utils.DynamicLayer.update

    def update(layer: Any, keys: torch.Tensor, values: torch.Tensor, *more: Any, **named: Any) -> Any:
        past = layer.keys.shape[-2] if layer.is_initialized and layer.keys is not None else 0
        if past:
            keys, values = change(layer, keys, values)
        return real(layer, keys, values, *more, **named)

    with mock.patch.object(transformers.cache_utils.DynamicLayer, "update", update):
        yield


def stale_slot() -> Any:
    """The newest slot keeps what an earlier one had."""
    return changed_layers(lambda layer, _, values: (layer.keys[..., -1:, :].clone(), values))


def swapped() -> Any:
    """Keys and values change places."""
    return changed_layers(lambda _, keys, values: (values, keys))


def late_nan() -> Any:
    """The values are NaN from the fifth token of a text of 16 on."""
    return changed_layers(lambda layer, keys, values: (keys, values * math.nan if layer.keys.shape[-2] >= 20 else values))


@contextlib.contextmanager
def patched_forward(change: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """The arguments of every forward pass with a past are changed first."""
    real = TorchCpu.load_generator

    def loaded(target: Any, bundle: Bundle) -> int:
        parameters = real(target, bundle)
        forward = target._model.forward

        @functools.wraps(forward)  # generate asks the signature for the arguments that it prepares
        def call(*given: Any, **named: Any) -> Any:
            cache = named.get("past_key_values")
            if cache is not None and cache.get_seq_length():
                change(named)
            return forward(*given, **named)

        target._model.forward = call
        return parameters

    with mock.patch.object(TorchCpu, "load_generator", loaded):
        yield


def shifted_position() -> Any:
    """Positions while decoding are one too large."""

    def change(named: dict[str, Any]) -> None:
        named["position_ids"] = torch.tensor([[named["past_key_values"].get_seq_length() + 1]])

    return patched_forward(change)


def lost_mask() -> Any:
    """The padding of the past is no longer masked."""

    def change(named: dict[str, Any]) -> None:
        if "attention_mask" in named:  # generate drops a mask of ones
            named["attention_mask"] = torch.ones_like(named["attention_mask"])

    return patched_forward(change)


@contextlib.contextmanager
def state_not_reset() -> Iterator[None]:
    """Each prompt after the first finds the last token of the one before in its past."""
    before: list[Any] = []
    real = TorchCpu.generate

    def generate(target: Any, prompt: Any, *more: Any, **named: Any) -> None:
        inputs, ids = prompt.inputs, prompt.inputs["input_ids"]
        longer = {name: np.concatenate([before[-1][name][:, -1:], array], axis=1) for name, array in inputs.items()} if before else inputs
        before.append({"input_ids": ids, "attention_mask": np.ones_like(ids)})
        real(target, dataclasses.replace(prompt, inputs=longer), *more, **named)

    with mock.patch.object(TorchCpu, "generate", generate):
        yield


def changed_arguments(change: Callable[[dict[str, Any]], None]) -> Any:
    """The arguments of every decoding step are changed first."""
    real = Graph.feed

    def feed(graph: Graph, given: Any) -> Any:
        changed = dict(given)
        if changed["input_ids"].shape[1] == 1:
            change(changed)
        return real(graph, changed)

    return mock.patch.object(Graph, "feed", feed)


def exported_shifted_position() -> Any:
    """Positions while decoding are one too large."""
    return changed_arguments(lambda given: given.update(position_ids=given["position_ids"] + 1))


def exported_lost_mask() -> Any:
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


def exported_stale_slot() -> Any:
    """The newest slot holds what an earlier one had."""

    def change(cache: dict[str, Any]) -> dict[str, Any]:
        return {name: np.concatenate([array[:, :, :-1], array[:, :, :1]], axis=2) for name, array in cache.items()}

    return changed_cache(change)


def exported_swapped() -> Any:
    """Keys and values change places."""

    def other(name: str) -> str:
        return name.replace(".keys", ".values") if ".keys" in name else name.replace(".values", ".keys")

    return changed_cache(lambda cache: {name: np.ascontiguousarray(cache[other(name)]) for name in cache})


@contextlib.contextmanager
def exported_state_not_reset() -> Iterator[None]:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a cache, planted in transformers' caches or in those of exported graphs, and where it must be found first.

    ``where`` is the prompt, the component and the step; ``elsewhere`` has those of backends on which it first shows at another step.
    ``kind`` is the type of the error.
    """

    name: str
    description: str
    plant: Callable[[], Any]
    plant_exported: Callable[[], Any]
    kind: str
    where: tuple[str, str, int]
    elsewhere: Mapping[str, tuple[str, str, int]] = dataclasses.field(default_factory=dict)

    def first(self, runtime: str) -> tuple[str, str, int]:
        """Where cells of a runtime must first fail."""
        return self.elsewhere.get(runtime, self.where)

    def planted(self, runtime: str) -> Any:
        """The context in which cells of a runtime have the fault."""
        return self.plant_exported() if runtime in RUNTIMES else self.plant()


FAULTS: Final = (
    Fault(
        name="stale slot",
        description="the newest slot keeps what an earlier one had",
        plant=stale_slot,
        plant_exported=exported_stale_slot,
        kind="cache_mismatch",
        where=("traced", "decode", 1),
    ),
    Fault(
        name="swapped",
        description="keys and values change places",
        plant=swapped,
        plant_exported=exported_swapped,
        kind="cache_mismatch",
        where=("traced", "decode", 1),
    ),
    Fault(
        name="shifted position",
        description="positions while decoding are one too large",
        plant=shifted_position,
        plant_exported=exported_shifted_position,
        kind="cache_mismatch",
        where=("traced", "decode", 1),
    ),
    Fault(
        name="lost mask",
        description="the padding of the past is no longer masked",
        plant=lost_mask,
        plant_exported=exported_lost_mask,
        kind="mismatch",
        where=("padded", "decode", 1),
    ),
    Fault(
        name="state not reset",
        description="a prompt begins with what the one before left in the cache",
        plant=state_not_reset,
        plant_exported=exported_state_not_reset,
        kind="mismatch",
        where=("shorter", "prefill", 0),
        elsewhere={"openvino": ("shorter", "decode", 1)},
    ),
)
