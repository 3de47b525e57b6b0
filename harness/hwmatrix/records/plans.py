"""The plan of a run: models, targets, cells, and the rules that apply to them."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from typing import Annotated, Any, Final

import pydantic

from hwmatrix.records.adaptations import Adaptation, AdaptRule
from hwmatrix.records.backends import OnnxUse, descriptor_of
from hwmatrix.records.strict import STRICT
from hwmatrix.records.vocabulary import Dtype, Execution, Family, Isolation, Role, Size

PLAN_SCHEMA: Final = "hwmatrix/plan/1"
BUNDLE_SCHEMA: Final = "hwmatrix/bundle/2"
TYPE_PREFIX: Final = "type:"
"""Before the name of a model type of transformers where that could be the name of another model. No name of matrix.yaml has a colon."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What, besides model and target, makes two cells comparable.

    ``sequence_length`` counts tokens (text inputs only); ``threads`` are intra-op threads on the host.
    """

    dtype: Dtype
    batch: int
    sequence_length: int
    threads: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """When a cell is ended: wall-clock seconds, and MiB of address space above what the process had at its start."""

    timeout_s: float
    memory_mb: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureRule:
    """When warm-up and timing stop. The defaults come from the study in docs/measuring.md."""

    warmup_s: Annotated[float, pydantic.Field(ge=0)] = 0.15
    warmup_iterations: Annotated[int, pydantic.Field(ge=0)] = 10
    min_s: Annotated[float, pydantic.Field(ge=0)] = 0.3
    min_samples: Annotated[int, pydantic.Field(gt=0)] = 30
    max_s: Annotated[float, pydantic.Field(gt=0)] = 3.0
    half_width: Annotated[float, pydantic.Field(gt=0, lt=1)] = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The largest relative L2 error that still counts as the same result, and why this number."""

    relative_error: float
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """One model in one size, as a bundle can be built from it.

    ``weights`` is ``recipe`` (random weights from ``seed``), ``factory`` (the same, and its configuration is made from the type
    ``architecture`` alone), ``hub`` (``hub_id`` at ``revision``) or a local folder's path. ``selector`` is what ``--models`` must be
    given to select it again. ``unbuildable`` states why there is no such model, and then nothing is tried. ``batch_asked`` says that
    ``batch`` was asked for: matrix.yaml has another.
    """

    name: str
    selector: str = ""
    size: Size
    family: Family
    architecture: str
    model_class: str
    hub_id: str | None = None
    revision: str | None = None
    weights: str = "recipe"
    seed: int = 0
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch: int = 1
    batch_asked: bool = False
    sequence_length: int = 16
    role: Role = Role.MODEL
    unbuildable: str | None = None
    matrix_line: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """One target of a run. ``options`` go to its backend; ``unavailable`` states why it cannot run here.

    ``devices`` are device nodes that its container gets, ``gpus`` asks the container toolkit for the GPUs. ``isolation`` is
    that of the run, but for a target that is always native. ``onnx`` is the backend's, so that who makes bundles need not have it.
    """

    name: str
    backend: str
    execution: Execution
    image: str
    isolation: Isolation | None = None
    devices: tuple[str, ...] = ()
    gpus: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    unavailable: str | None = None
    matrix_line: int | None = None
    onnx: OnnxUse | None = None

    @property
    def onnx_use(self) -> OnnxUse:
        """Which ONNX exports it needs. A plan of an earlier version does not say, and its backends are those of this package."""
        return self.onnx if self.onnx is not None else descriptor_of(self.backend).onnx


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellPlan:
    """One cell: ``model`` and ``target`` are names within the same plan. ``key`` is unique in it and says it all.

    ``adaptation`` says which cell was changed into this one, and how.
    """

    key: str
    model: str
    size: Size
    target: str
    settings: Settings
    limits: Limits
    adaptation: Adaptation | None = None


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is to do, whole: the runner needs no other file of the project.

    ``timing`` False: compatibility alone, nothing is measured of how fast. ``types_of`` is the version of transformers of which the plan
    has every model type, None: it has none or only some. ``measure_of`` is the suite whose own rule ``measure`` is, None: it is
    the matrix's. ``withdrawn`` are keys of cells that an earlier plan of this run had and this one has not: what shards hold of them
    no longer counts. ``adapt`` says what is tried where a cell fails, None: nothing.
    """

    run_id: str
    created_at: str
    command: str
    hwmatrix_version: str
    matrix_sha256: str
    commit: str | None
    isolation: Isolation
    measure: MeasureRule
    tolerances: dict[Dtype, Tolerance]
    targets: tuple[TargetPlan, ...]
    models: tuple[ModelPlan, ...]
    cells: tuple[CellPlan, ...]
    timing: bool = True
    types_of: str | None = None
    measure_of: str | None = None
    withdrawn: tuple[str, ...] = ()
    adapt: AdaptRule | None = None
    schema: str = PLAN_SCHEMA

    def model(self, name: str, size: Size) -> ModelPlan:
        """The model of a cell."""
        return self._models[name, size]

    def isolation_of(self, target: str) -> Isolation:
        """What separates this target from the machine."""
        return self.target(target).isolation or self.isolation

    def target(self, name: str) -> TargetPlan:
        """The target of a cell."""
        return self._targets[name]

    @functools.cached_property
    def _models(self) -> dict[tuple[str, Size], ModelPlan]:
        return {(model.name, model.size): model for model in self.models}

    @functools.cached_property
    def _targets(self) -> dict[str, TargetPlan]:
        return {target.name: target for target in self.targets}


def cell_command(model: ModelPlan, cell: CellPlan, isolation: Isolation, *, timing: bool = True, measure_of: str | None = None) -> str:
    """The command that repeats one cell alone. ``timing`` and ``measure_of`` are those of its plan."""
    if model.batch_asked:
        tested = f"--model {shlex.quote(model.selector or model.name)} --size {cell.size.value} --device {cell.target}"
        return f"hwmatrix test {tested} --batch-size {cell.settings.batch} --isolation {isolation.value} --no-fallback"
    selected = f"--models {shlex.quote(model.selector or model.name)} --size {cell.size.value} --targets {cell.target}"
    by_name = model.matrix_line is not None or model.weights == "factory"  # with another model beside it, the whole suite would run
    own_rule = f" --suite {shlex.quote(measure_of)} --timing" if measure_of is not None and by_name else ""
    timed = own_rule if timing else " --no-timing"
    return f"nox -s matrix -- {selected} --isolation {isolation.value}{timed}"
