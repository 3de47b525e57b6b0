"""The plan of a run: models, targets, cells, and the rules that apply to them."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
from typing import Annotated, Any, Final, TypeAlias

import pydantic

from hwmatrix.records.adaptations import Adaptation, AdaptRule
from hwmatrix.records.backends import OnnxUse, descriptor_of
from hwmatrix.records.strict import STRICT
from hwmatrix.records.vocabulary import Dtype, Execution, Family, Isolation, Role, Size

PLAN_SCHEMA: Final = "hwmatrix/plan/1"
_GENERATIVE: Final = re.compile(
    "(CausalLM|LMHeadModel|ConditionalGeneration|EncoderDecoderModel|GenerationDecoder|MTModel|SpeechToText|Text2Text)$"
)
"""Matches the names of the transformers classes (5.23) that generate text."""
_BATCH: Final = re.compile(r"/b(?P<batch>[0-9]+)-s[0-9]+-t[0-9]+")
"""Matches the batch in the key of a cell."""
_WITHOUT_TEXT: Final = frozenset({Family.VISION, Family.AUDIO, Family.VIDEO})
TYPE_PREFIX: Final = "type:"
"""The prefix of a transformers model type whose name could also be another model's. Names in matrix.yaml have no colon."""

ModelKey: TypeAlias = tuple[str, Size, int, int]
"""What distinguishes the models of a plan, each of which has a bundle of its own: name, size, batch, sequence length."""


def _without_nan(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration. JSON has no NaN and no infinity.

    Raises:
        ValueError: it has one.
    """
    json.dumps(config, allow_nan=False)
    return config


_Config = Annotated[dict[str, Any], pydantic.AfterValidator(_without_nan)]


RUNTIME_S_THREADS: Final = 0
"""The ``threads`` of a cell in the precision ``default``: nothing is set, as by a program that leaves everything to the runtime."""


def threads_in_words(threads: int) -> str:
    """``1 thread``, ``2 threads``, or ``threads of the runtime's choice``."""
    if threads == RUNTIME_S_THREADS:
        return "threads of the runtime's choice"
    return "1 thread" if threads == 1 else f"{threads} threads"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a cell: cells are comparable only if these are equal.

    ``sequence_length`` counts tokens (text inputs only); ``threads`` are intra-op threads on the host, 0 (:data:`RUNTIME_S_THREADS`): as
    many as the runtime chooses. ``new_tokens`` is how many are generated after the input; 0: one forward pass.
    """

    dtype: Dtype
    batch: int
    sequence_length: int
    threads: int
    new_tokens: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a cell: wall-clock seconds, and MiB of address space above what the process had at its start."""

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
    """How far outputs in a precision may be from the reference's, and why (:mod:`hwmatrix.measure.verdict`).

    ``excess`` and ``bound`` are multiples of a model's noise floor: up to ``excess`` its numbers are right, above ``bound`` they are wrong
    whatever its task says. ``relative_error`` is the largest relative L2 error if the floor is not known, or ``excess`` is None.
    """

    relative_error: float
    reason: str
    excess: float | None = None
    bound: float | None = None

    @property
    def hard_bound(self) -> float:
        """The multiple of the noise floor above which a target is wrong: ``bound``, or ``excess`` if there is none."""
        return (self.excess or 0.0) if self.bound is None else self.bound


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """One model in one size, as a bundle can be built from it.

    ``weights`` is ``recipe`` (random weights from ``seed``), ``factory`` (the same, with a configuration made from the type
    ``architecture`` alone), ``hub`` (``hub_id`` at ``revision``) or a local folder's path. ``selector`` is the value of ``--models``
    that selects it again. ``unbuildable`` states why the model cannot be built; then nothing is tried. ``batch_asked`` says that the
    user set ``batch``, and matrix.yaml has another; ``memory_asked`` the same of the limit of its cells. ``new_tokens`` is how many its
    bundle's prompts generate; 0: no prompts. ``prompt_lengths`` are the tokens of further prompts, ascending. ``limits`` are those of
    making its bundle and of each of its exports, whichever targets are selected: the largest of a cell's on any target of matrix.yaml.
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
    trained: bool = False
    seed: int = 0
    config: _Config = dataclasses.field(default_factory=dict)
    batch: int = 1
    batch_asked: bool = False
    memory_asked: bool = False
    sequence_length: int = 16
    new_tokens: int = 0
    prompt_lengths: tuple[int, ...] = ()
    limits: Limits = Limits(timeout_s=120.0, memory_mb=4096)
    role: Role = Role.MODEL
    unbuildable: str | None = None
    matrix_line: int | None = None

    @property
    def key(self) -> ModelKey:
        """What distinguishes it from the other models of a plan."""
        return self.name, self.size, self.batch, self.sequence_length

    @property
    def takes_text(self) -> bool:
        """Whether its inputs have a sequence length that can be varied, judged by its family."""
        return self.family not in _WITHOUT_TEXT

    @property
    def generative(self) -> bool:
        """Whether its class generates text, judged by its name: a plan is made without transformers."""
        return _GENERATIVE.search(self.model_class) is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """One target of a run. ``options`` go to its backend; ``unavailable`` states why it cannot run here.

    ``devices`` are device nodes that its container gets; ``gpus`` requests the GPUs from the container toolkit. ``isolation`` is
    that of the run, except for a target that is always native. ``onnx``, ``forward_export`` and ``generation_export`` are copied from the
    backend, which need not be installed where bundles are built. If an option of the target asks for one of the ONNX exports,
    ``forward_export`` is that one and ``onnx`` none; if it asks for a graph that cells make, ``forward_export`` is None.
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
    generation_export: str | None = None
    forward_export: str | None = None

    @property
    def onnx_use(self) -> OnnxUse:
        """Which ONNX exports it needs. Plans of earlier versions do not record it; their backends are all of this package."""
        return self.onnx if self.onnx is not None else descriptor_of(self.backend).onnx


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellPlan:
    """One cell: ``model`` and ``target`` are names within the same plan. ``key`` is unique in the plan and spells out the cell.

    ``adaptation`` says which failed cell this one retries, and with which change.
    """

    key: str
    model: str
    size: Size
    target: str
    settings: Settings
    limits: Limits
    adaptation: Adaptation | None = None

    @property
    def model_key(self) -> ModelKey:
        """The key of its model."""
        return self.model, self.size, self.settings.batch, self.settings.sequence_length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axes:
    """The values of settings that a run varies: each model has a cell for every combination. Empty: the one value of matrix.yaml."""

    batch: tuple[Annotated[int, pydantic.Field(gt=0)], ...] = ()
    sequence_length: tuple[Annotated[int, pydantic.Field(gt=0)], ...] = ()
    threads: tuple[Annotated[int, pydantic.Field(gt=0)], ...] = ()

    def flags(self, model: ModelPlan, settings: Settings) -> str:
        """The options of a command that ask for these values of the settings varied for a model; empty, or beginning with a space."""
        names = (field.name for field in dataclasses.fields(self) if model.takes_text or field.name != "sequence_length")
        varied = (name for name in names if getattr(self, name))
        return "".join(f" --{name.replace('_', '-')} {getattr(settings, name)}" for name in varied)


@STRICT
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a run must do: the runner needs no other file of the project.

    ``timing`` False: only compatibility is tested, no speed is measured. ``types_of`` is the version of transformers whose model types
    are all in the plan; None: it has none or only some. ``measure_of`` is the suite that defines the rule ``measure``; None: the matrix
    does. ``dtypes`` are the precisions that were asked for; empty: all of each target. ``withdrawn`` are keys of cells that an earlier
    plan of this run had and this one has not: their results in shards no longer count. ``adapt`` says which changes are tried if a cell
    fails; None: none. ``axes`` are the settings that were varied.
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
    dtypes: tuple[Dtype, ...] = ()
    withdrawn: tuple[str, ...] = ()
    adapt: AdaptRule | None = None
    axes: Axes = dataclasses.field(default_factory=Axes)
    schema: str = PLAN_SCHEMA

    def model_of(self, cell: CellPlan) -> ModelPlan:
        """Return the model of a cell."""
        return self._models[cell.model_key]

    def cell(self, key: str) -> CellPlan:
        """Return the cell with this key.

        Raises:
            KeyError: there is none.
        """
        return self._cells[key]

    def isolation_of(self, target: str) -> Isolation:
        """Return the isolation of a target from the machine."""
        return self.target(target).isolation or self.isolation

    def target(self, name: str) -> TargetPlan:
        """Return the target of a cell."""
        return self._targets[name]

    @functools.cached_property
    def _models(self) -> dict[ModelKey, ModelPlan]:
        return {model.key: model for model in self.models}

    @functools.cached_property
    def _cells(self) -> dict[str, CellPlan]:
        return {cell.key: cell for cell in self.cells}

    @functools.cached_property
    def _targets(self) -> dict[str, TargetPlan]:
        return {target.name: target for target in self.targets}


def cell_command(model: ModelPlan, cell: CellPlan, plan: Plan) -> str:
    """Return the command that repeats a single cell of a plan.

    A retry with another precision or batch is repeated by its failed cell: its target need not list that precision.
    """
    isolation = plan.isolation.value
    if model.batch_asked or model.memory_asked:
        tested = f"--model {shlex.quote(model.selector or model.name)} --size {cell.size.value} --device {cell.target}"
        tested += f" --memory {cell.limits.memory_mb}" if model.memory_asked else ""
        tested += f" --dtype {cell.settings.dtype.value}" if plan.dtypes else ""
        tested += plan.axes.flags(model, cell.settings)
        return f"hwmatrix test {tested} --batch-size {cell.settings.batch} --isolation {isolation} --no-fallback"
    selected = f"--models {shlex.quote(model.selector or model.name)} --size {cell.size.value} --targets {cell.target}"
    settings = cell.settings
    if cell.adaptation is None:
        selected += f" --dtypes {settings.dtype.value}"
    elif (batch := _BATCH.search(cell.adaptation.of)) is not None:
        settings = dataclasses.replace(settings, batch=int(batch["batch"]))
    by_name = model.matrix_line is not None or model.weights == "factory"  # any other selector would be added to the whole suite
    own_rule = f" --suite {shlex.quote(plan.measure_of)} --timing" if plan.measure_of is not None and by_name else ""
    timed = own_rule if plan.timing else " --no-timing"
    return f"nox -s matrix -- {selected}{plan.axes.flags(model, settings)} --isolation {isolation}{timed}"
