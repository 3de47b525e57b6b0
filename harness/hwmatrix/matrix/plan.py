"""Makes the plan of a run from a specification and a selection: which models, on which targets, with which settings."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, NothingSelectedError, Problem
from hwmatrix.records import (
    RUNTIME_S_THREADS,
    Axes,
    CellPlan,
    Dtype,
    Family,
    Isolation,
    Limits,
    ModelPlan,
    Plan,
    Settings,
    Size,
    TargetPlan,
    Tolerance,
)
from hwmatrix.records.backends import OnnxUse, descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.matrix.spec import MatrixSpec, SuiteSpec, TargetSpec

DEFAULT_SUITE = "default"
_FACTORY: Final = "factory"
"""The ``weights`` of a model that is made from its type alone (``models/factory``)."""
_RECIPE: Final = "recipe"
_TRAINED: Final = "trained"
"""The ``weights`` in matrix.yaml of a recipe whose tiny model is trained."""
_NOT_FOLDERS: Final = (_RECIPE, _FACTORY, "hub")
"""The ``weights`` of a plan that are no folder of a checkpoint."""
_SUITES_OF_TYPES: Final = ("types", "diffusion")
"""The values of a suite's ``models`` with which it also has models that matrix.yaml does not list."""
_TINY_ONLY: Final = f"a model made from its type alone (weights: {_FACTORY}) is tiny"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """The user's selection. If it is empty, the suite decides, on all targets.

    ``extra`` are models that matrix.yaml does not list (a hub id, a checkpoint folder), already inspected. ``types`` are models made from
    transformers' model types alone; ``types_of`` is the version of transformers that has these types. ``timing``, ``generation`` and
    ``axes`` override the suite's. ``forward`` False leaves out the cells of one forward pass.
    """

    suite: str | None = None
    models: tuple[str, ...] = ()
    extra: tuple[ModelPlan, ...] = ()
    types: tuple[ModelPlan, ...] = ()
    types_of: str | None = None
    timing: bool | None = None
    generation: bool | None = None
    forward: bool = True
    architectures: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    axes: Axes = dataclasses.field(default_factory=Axes)
    size: Size | None = None
    everything: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts about the run for its plan. ``unavailable`` has the reasons by target."""

    run_id: str
    created_at: str
    command: str
    hwmatrix_version: str
    commit: str | None
    isolation: Isolation
    unavailable: dict[str, str] = dataclasses.field(default_factory=dict)

    def isolation_of(self, target: TargetSpec) -> Isolation:
        """The isolation of a target. A native target runs in a virtual environment if others run in containers."""
        return Isolation.VENV if target.native and self.isolation is Isolation.CONTAINER else self.isolation


def check_selection(matrix: LoadedMatrix, selection: Selection) -> None:
    """Check every name in a selection against matrix.yaml, and that its parts do not contradict each other.

    Raises:
        ConfigError: lists all problems: unknown names, each with the allowed names and a similar one, and contradictions.
    """
    spec = matrix.spec
    kinds = (
        ("--models", selection.models, {*spec.models, *(model.name for model in selection.types)}),
        ("--targets", selection.targets, set(spec.targets)),
        (
            "--architectures",
            selection.architectures,
            {m.architecture for m in spec.models.values()} | {m.architecture for m in (*selection.extra, *selection.types)},
        ),
        ("--suite", (selection.suite,) if selection.suite else (), set(spec.suites)),
    )
    problems = [
        Problem(where=option, what=f"{name!r} is not in {matrix.path.name}", hint=near_miss(name, allowed))
        for option, names, allowed in kinds
        for name in names
        if name not in allowed
    ]
    chosen = [target for name, target in spec.targets.items() if not selection.targets or name in selection.targets]
    tested = dict.fromkeys(dtype.value for target in chosen for dtype in target.every_dtype)
    problems += [
        Problem(where="--dtypes", what=f"no selected target is tested in {dtype.value}", hint=near_miss(dtype.value, tested))
        for dtype in selection.dtypes
        if tested and dtype.value not in tested
    ]
    problems += _contradictions(matrix, selection)
    if problems:
        raise ConfigError(problems)


def none_of(asked: Iterable[str], has: Iterable[str]) -> str:
    """Why a target has no cells: ``none of int4; it has float32, int8``."""
    return f"none of {', '.join(asked)}; it has {', '.join(has)}"


def _contradictions(matrix: LoadedMatrix, selection: Selection) -> Iterator[Problem]:
    """What a selection asks for and cannot have at once: of options that can both hold, the cells are those that both select."""
    others = {"--models": selection.models or selection.extra, "--suite": selection.suite}
    if selection.everything:
        for option in (option for option, value in others.items() if value):
            yield Problem(where=f"--all {option}", what="they contradict each other", hint=f"leave out --all or {option}")
    elif selection.suite in matrix.spec.suites:
        suite = matrix.spec.suites[selection.suite]
        types = {model.name: model for model in selection.types if (model.family is Family.DIFFUSION) is (suite.models == "diffusion")}
        of_suite = {*_models_of(matrix.spec, suite), *(types if suite.models in _SUITES_OF_TYPES else ())}
        for name in (*selection.models, *(model.name for model in selection.extra)):
            if name not in of_suite:
                yield Problem(where=f"--suite {selection.suite}", what=f"{name} is not in it", hint="leave out --suite, or name its models")


def make_plan(matrix: LoadedMatrix, selection: Selection, facts: RunFacts) -> Plan:
    """Make the plan of a run.

    Raises:
        ConfigError: the selection has names that are not in matrix.yaml, two models with one name, or a setting to vary that no model has;
            a model's weights are a folder that does not exist.
        NothingSelectedError: no cell is left.
    """
    check_selection(matrix, selection)
    models, targets = _chosen_models(matrix, selection), _not_excluded(matrix, selection, _chosen_targets(matrix, selection, facts))
    if _generation(matrix, selection):
        models = _generating(models, matrix.spec)
    axes = _axes(matrix, selection)
    models = _limited(_varied(models, axes), matrix)
    _check_folders(models, matrix)
    cells = _cells(models, targets, matrix, _Precisions.chosen(matrix, selection), axes)
    if not selection.forward:
        models, cells = _generating_alone(models, cells)
    if not cells:
        needed = "Use fewer restrictions, or another --suite." if selection.forward else "--no-forward needs models that generate text."
        raise NothingSelectedError("no cell matches the selection", advice=needed)
    made = _plan(matrix, facts, targets=targets, models=models, cells=cells, suite=_timed_as(matrix, selection))
    whole = selection.types_of if _has_types(matrix, selection) and not selection.architectures else None
    return dataclasses.replace(made, timing=_timing(matrix, selection), types_of=whole, dtypes=selection.dtypes, axes=axes)


def _check_folders(models: Iterable[ModelPlan], matrix: LoadedMatrix) -> None:
    """Check that the checkpoints that matrix.yaml names by their folders are there.

    Raises:
        ConfigError: lists those that are not.
    """
    hint = f"name a checkpoint's folder as seen from {Path.cwd()}, or one of {', '.join((*_NOT_FOLDERS, _TRAINED))}"
    problems = {
        line: Problem(
            where=f"{matrix.path}:{line}", what=f"the weights of model {model.name!r}: {model.weights} is not a folder", hint=hint
        )
        for model in models
        if model.weights not in _NOT_FOLDERS and model.unbuildable is None and not Path(model.weights).is_dir()
        if (line := matrix.lines.get(("models", model.name, "weights"))) is not None
    }
    if problems:
        raise ConfigError(list(problems.values()))


def replan(matrix: LoadedMatrix, old: Plan, *, types: Sequence[ModelPlan] = (), types_of: str | None = None) -> Plan:
    """Make a new plan for the same run from the current matrix.yaml: models no longer listed are dropped, never listed ones are kept.

    ``types`` are the models that can now be made from types of transformers alone. Types missing there are dropped, and if the run had all
    types, new ones are added. ``types_of`` is their version. Whether a target can run here is copied from the old plan.

    Raises:
        ConfigError: a model's weights are a folder that does not exist.
        NothingSelectedError: no cell is left.
    """
    spec = matrix.spec
    listed = {model.name for model in old.models if model.matrix_line is not None}
    made, still = {(model.name, model.size): model for model in types}, {model.name for model in types}
    models = tuple(
        model_plan(model.name, spec, model.size, line=matrix.lines.get(("models", model.name)))
        if model.name in spec.models
        else made.get((model.name, model.size), model)
        for model in {(model.name, model.size): model for model in old.models}.values()
        if model.name in spec.models or (model.name in still if model.weights == _FACTORY else model.name not in listed)
    )
    if old.types_of is not None:
        there = {model.name for model in models} | {model.architecture for model in models}
        added = (model for model in types if model.family is not Family.DIFFUSION)  # a suite of its own
        models += tuple(model for model in added if not {model.name, model.architecture} & there)
    if any(cell.settings.new_tokens for cell in old.cells):
        models = _generating(models, spec)
    facts = RunFacts(
        run_id=old.run_id,
        created_at=old.created_at,
        command=old.command,
        hwmatrix_version=old.hwmatrix_version,
        commit=old.commit,
        isolation=old.isolation,
        unavailable={target.name: target.unavailable for target in old.targets if target.unavailable is not None},
    )
    names = [target.name for target in old.targets if target.name in spec.targets]
    targets = tuple(_target_plan(name, spec.targets[name], matrix, facts) for name in names)
    models = _limited(_varied(models, old.axes), matrix)
    _check_folders(models, matrix)
    cells = _cells(models, targets, matrix, _Precisions.planned(old), old.axes)
    if all(cell.settings.new_tokens for cell in old.cells):
        models, cells = _generating_alone(models, cells)
    if not cells:
        raise NothingSelectedError("matrix.yaml no longer has any cell of the last run", advice="Start a new one without --stale.")
    whole = types_of if old.types_of is not None else None
    now = _plan(matrix, facts, targets=targets, models=models, cells=cells, suite=old.measure_of)
    withdrawn = {*(cell.key for cell in old.cells), *old.withdrawn} - {cell.key for cell in now.cells}
    kept = dataclasses.replace(now, timing=old.timing, types_of=whole, dtypes=old.dtypes, axes=old.axes)
    return dataclasses.replace(kept, withdrawn=tuple(sorted(withdrawn)))


@dataclasses.dataclass(frozen=True)
class _Precisions:
    """The precisions of a plan: the ``named`` ones, or those of each target with the ``added`` ones (None: all that it has)."""

    named: tuple[Dtype, ...]
    added: Mapping[str, tuple[Dtype, ...]] | None

    @classmethod
    def chosen(cls, matrix: LoadedMatrix, selection: Selection) -> _Precisions:
        """As the selection names them, or as its suite adds them."""
        suite = matrix.spec.suites.get(_timed_as(matrix, selection) or "")
        added = suite.dtypes if suite is not None else {}
        return cls(selection.dtypes, None if added == "all" else added)

    @classmethod
    def planned(cls, old: Plan) -> _Precisions:
        """As in an earlier plan."""
        added: dict[str, tuple[Dtype, ...]] = {}
        for cell in old.cells:
            added[cell.target] = (*added.get(cell.target, ()), cell.settings.dtype)
        return cls(old.dtypes, added)

    def of(self, name: str, target: TargetSpec) -> tuple[Dtype, ...]:
        """The precisions in which a target is tested."""
        if self.named:
            return tuple(dtype for dtype in target.every_dtype if dtype in self.named)
        if self.added is None:
            return target.every_dtype
        return (*target.dtypes, *(dtype for dtype in target.more_dtypes if dtype in self.added.get(name, ())))


def _cells(
    models: tuple[ModelPlan, ...], targets: tuple[TargetPlan, ...], matrix: LoadedMatrix, precisions: _Precisions, axes: Axes
) -> tuple[CellPlan, ...]:
    """The cells of all models on all targets, in these precisions of each target, with each number of threads.

    In the precision ``default``, where everything is left to the runtime, the number of threads is, too.
    A model that generates has two: one forward pass, then a prompt and the tokens that follow it.
    """
    return tuple(
        _cell_plan(model, target, _settings(model, dtype, threads, new_tokens), matrix)
        for model in models
        for target in targets
        for dtype in precisions.of(target.name, matrix.spec.targets[target.name])
        for threads in ((RUNTIME_S_THREADS,) if dtype is Dtype.DEFAULT else axes.threads or (matrix.spec.targets[target.name].threads,))
        for new_tokens in ((0, model.new_tokens) if model.new_tokens and _has_generation(target, dtype) else (0,))
    )


def _has_generation(target: TargetPlan, dtype: Dtype) -> bool:
    """Whether models have cells that generate on a target in a precision: it can, or there is a reason why it cannot."""
    descriptor = descriptor_of(target.backend)
    return dtype not in descriptor.forward_only and (descriptor.generates or descriptor.no_generation is not None)


def _varied(models: tuple[ModelPlan, ...], axes: Axes) -> tuple[ModelPlan, ...]:
    """Each model once for every combination of batch and sequence length. A model that takes no text has no sequence length to vary.

    Raises:
        ConfigError: none of them takes text, but the sequence length is to vary.
    """
    if axes.sequence_length and not any(model.takes_text for model in models):
        what = f"none of these models takes text: {', '.join(dict.fromkeys(model.name for model in models))}"
        raise ConfigError([Problem(where="--sequence-length", what=what, hint="leave it out, or vary --batch")])
    return tuple(
        dataclasses.replace(model, batch=batch, sequence_length=length)
        for model in models
        for batch in axes.batch or (model.batch,)
        for length in (axes.sequence_length if model.takes_text else ()) or (model.sequence_length,)
    )


def _limited(models: tuple[ModelPlan, ...], matrix: LoadedMatrix) -> tuple[ModelPlan, ...]:
    """The models with the limits of making their bundles and exports, which do not depend on the selected targets."""
    return tuple(dataclasses.replace(model, limits=_limits(model, matrix, matrix.spec.targets.values())) for model in models)


def _limits(model: ModelPlan, matrix: LoadedMatrix, targets: Iterable[TargetSpec]) -> Limits:
    """The limits of a model's cells on a target; on several, the largest."""
    defaults = matrix.spec.sizes[model.size]
    listed = matrix.spec.models.get(model.name)
    variant = listed.variant(model.size) if listed else None
    own = variant and variant.timeout_s
    return Limits(
        timeout_s=own or max(target.timeout_s or defaults.timeout_s for target in targets),
        memory_mb=(variant and variant.memory_mb) or defaults.memory_mb,
    )


def _axes(matrix: LoadedMatrix, selection: Selection) -> Axes:
    """The settings to vary: each as requested, or else as the suite says."""
    suite = matrix.spec.suites.get(_timed_as(matrix, selection) or "")
    of_suite = dataclasses.asdict(suite.settings) if suite is not None else {}
    asked = {name: values for name, values in dataclasses.asdict(selection.axes).items() if values}
    return Axes(**{name: tuple(sorted(set(values))) for name, values in (of_suite | asked).items()})


def _generating(models: tuple[ModelPlan, ...], spec: MatrixSpec) -> tuple[ModelPlan, ...]:
    """The models; those that can generate text get their size's number of new tokens, and its prompts."""

    def generating(model: ModelPlan) -> ModelPlan:
        size = spec.sizes[model.size]
        lengths = tuple(sorted(set(size.prompt_lengths))) if size.new_tokens else ()
        return dataclasses.replace(model, new_tokens=size.new_tokens, prompt_lengths=lengths)

    return tuple(generating(model) if model.generative else model for model in models)


def _generating_alone(models: tuple[ModelPlan, ...], cells: tuple[CellPlan, ...]) -> tuple[tuple[ModelPlan, ...], tuple[CellPlan, ...]]:
    """The cells that generate text, and their models."""
    kept = tuple(cell for cell in cells if cell.settings.new_tokens)
    named = {(cell.model, cell.size) for cell in kept}
    return tuple(model for model in models if (model.name, model.size) in named), kept


def make_operator_plan(matrix: LoadedMatrix, names: Sequence[str], facts: RunFacts) -> Plan:
    """Make the plan of a run of the operator tests on these targets. It has no models and no cells.

    Raises:
        ConfigError: matrix.yaml has no such target.
    """
    selection = Selection(targets=tuple(names))
    check_selection(matrix, selection)
    return _plan(matrix, facts, targets=_chosen_targets(matrix, selection, facts), models=(), cells=())


def make_survey_plan(matrix: LoadedMatrix, selection: Selection, facts: RunFacts) -> Plan:
    """Make the plan of a survey: targets to query, and models to classify. Nothing is executed, so it has no cells.

    Raises:
        ConfigError: the selection has names that are not in matrix.yaml, or two models with one name.
    """
    check_selection(matrix, selection)
    models, targets = _chosen_models(matrix, selection), _chosen_targets(matrix, selection, facts)
    return _plan(matrix, facts, targets=targets, models=models, cells=())


def _chosen_models(matrix: LoadedMatrix, selection: Selection) -> tuple[ModelPlan, ...]:
    """Return the models of a selection, in the order of matrix.yaml, then those that it does not list.

    Raises:
        ConfigError: two of them have the same name.
    """
    listed = [
        model_plan(name, matrix.spec, size, line=matrix.lines.get(("models", name))) for name, size in _selected_models(matrix, selection)
    ]
    wanted, types = selection.architectures, _chosen_types(matrix, selection)
    chosen = [model for model in (*listed, *selection.extra, *types) if not wanted or model.architecture in wanted]
    _check_names(chosen)
    return tuple(chosen)


def _chosen_types(matrix: LoadedMatrix, selection: Selection) -> tuple[ModelPlan, ...]:
    """Return the types among the named models, or all that were resolved if the suite has them and no models are named."""
    if selection.models:
        return tuple(model for model in selection.types if model.name in selection.models)
    return selection.types if _has_types(matrix, selection) else ()


def _has_types(matrix: LoadedMatrix, selection: Selection) -> bool:
    """Whether the selection is a whole suite with ``models: types`` or ``models: diffusion``."""
    suite = _suite(matrix, selection)
    return suite is not None and suite.models in _SUITES_OF_TYPES


def _suite(matrix: LoadedMatrix, selection: Selection) -> SuiteSpec | None:
    """Return the suite that selects the models; None if they are named, or all are selected."""
    if selection.everything or selection.models or selection.extra:
        return None
    return matrix.spec.suites[selection.suite or _default_suite(matrix)]


def _timing(matrix: LoadedMatrix, selection: Selection) -> bool:
    """Whether to time: as requested, or else as the suite says."""
    if selection.timing is not None:
        return selection.timing
    suite = matrix.spec.suites.get(_timed_as(matrix, selection) or "")
    return suite.timing if suite is not None else True


def _generation(matrix: LoadedMatrix, selection: Selection) -> bool:
    """Whether models that can generate text also do so: as requested, or else as the suite says."""
    if selection.generation is not None:
        return selection.generation
    suite = matrix.spec.suites.get(_timed_as(matrix, selection) or "")
    return suite.generation if suite is not None else True


def _timed_as(matrix: LoadedMatrix, selection: Selection) -> str | None:
    """Return the suite that decides about timing: the named one, even if only some of its models are selected, or else the default."""
    if selection.suite:
        return selection.suite
    return _default_suite(matrix) if _suite(matrix, selection) is not None else None


def _chosen_targets(matrix: LoadedMatrix, selection: Selection, facts: RunFacts) -> tuple[TargetPlan, ...]:
    """Return the targets of a selection that are tested in one of its precisions, in the order of matrix.yaml."""
    return tuple(
        _target_plan(name, target, matrix, facts)
        for name, target in matrix.spec.targets.items()
        if (not selection.targets or name in selection.targets) and (not selection.dtypes or {*selection.dtypes} & {*target.every_dtype})
    )


def _not_excluded(matrix: LoadedMatrix, selection: Selection, targets: tuple[TargetPlan, ...]) -> tuple[TargetPlan, ...]:
    """The targets without those that the suite excludes, unless the selection names targets."""
    suite = matrix.spec.suites.get(_timed_as(matrix, selection) or "")
    if suite is None or selection.targets:
        return targets
    return tuple(target for target in targets if target.name not in suite.exclude_targets)


def _plan(
    matrix: LoadedMatrix,
    facts: RunFacts,
    *,
    targets: tuple[TargetPlan, ...],
    models: tuple[ModelPlan, ...],
    cells: tuple[CellPlan, ...],
    suite: str | None = None,
) -> Plan:
    """Make a plan. ``suite`` uses its own timing rule, if it has one and still exists."""
    spec = matrix.spec
    rule = spec.measure_of(suite)
    return Plan(
        run_id=facts.run_id,
        created_at=facts.created_at,
        command=facts.command,
        hwmatrix_version=facts.hwmatrix_version,
        matrix_sha256=matrix.sha256,
        commit=facts.commit,
        isolation=facts.isolation,
        measure=rule,
        tolerances={dtype: Tolerance(**dataclasses.asdict(found)) for dtype, found in spec.tolerances.items()},
        targets=targets,
        models=models,
        cells=cells,
        measure_of=suite if rule != spec.measure else None,
        adapt=spec.adapt,
    )


def _check_names(models: list[ModelPlan]) -> None:
    """Check that names are unique per size: a cell finds its model by name and size, so duplicates would mix their results."""
    count = collections.Counter((model.name, model.size) for model in models)
    problems = [
        Problem(where="--models", what=f"{name!r} is the name of two models", hint="rename the checkpoint's folder")
        for (name, _), number in count.items()
        if number > 1
    ]
    if problems:
        raise ConfigError(problems)


def _selected_models(matrix: LoadedMatrix, selection: Selection) -> list[tuple[str, Size]]:
    """Return names and sizes, in the order of matrix.yaml, without duplicates. A checkpoint is always full: it has its own dimensions."""
    chosen = _sizes_asked_for(matrix, selection)
    made = {_RECIPE, _TRAINED, _FACTORY}
    return list(dict.fromkeys((name, size if matrix.spec.models[name].weights in made else Size.FULL) for name, size in chosen))


def _sizes_asked_for(matrix: LoadedMatrix, selection: Selection) -> list[tuple[str, Size]]:
    """Return the names of the selected models, each with its requested sizes."""
    spec = matrix.spec
    if selection.everything:
        return [(name, size) for name in spec.models for size in ((selection.size,) if selection.size else tuple(Size))]
    if selection.models or selection.extra:
        suite_size = spec.suites[selection.suite].size if selection.suite else Size.TINY
        return [(name, selection.size or suite_size) for name in spec.models if name in selection.models]
    suite = spec.suites[selection.suite or _default_suite(matrix)]
    return [(name, selection.size or suite.size) for name in _models_of(spec, suite)]


def _models_of(spec: MatrixSpec, suite: SuiteSpec) -> list[str]:
    """The entries of matrix.yaml that a suite selects, in their order. Suites of types also have other models."""
    if suite.models == "diffusion":
        return [name for name, model in spec.models.items() if model.family is Family.DIFFUSION]
    return [name for name in spec.models if not isinstance(suite.models, tuple) or name in suite.models]


def _default_suite(matrix: LoadedMatrix) -> str:
    if DEFAULT_SUITE not in matrix.spec.suites:
        what = f"no suite is called {DEFAULT_SUITE!r}"
        raise ConfigError([Problem(where=str(matrix.path), what=what, hint=f"name one with --suite: {', '.join(matrix.spec.suites)}")])
    return DEFAULT_SUITE


def model_plan(name: str, spec: MatrixSpec, size: Size, *, line: int | None = None) -> ModelPlan:
    """Make the plan of one model of matrix.yaml in one size. ``line`` is its line in the file."""
    model, defaults = spec.models[name], spec.sizes[size]
    variant = model.variant(size)
    return ModelPlan(
        name=name,
        selector=name,
        size=size,
        family=model.family,
        architecture=model.architecture,
        model_class=model.model_class,
        hub_id=model.hub_id,
        revision=model.revision,
        weights=_RECIPE if model.weights == _TRAINED else model.weights,
        trained=model.weights == _TRAINED and size is Size.TINY,
        seed=model.seed,
        config=variant.config,
        batch=variant.batch or defaults.batch,
        sequence_length=variant.sequence_length or defaults.sequence_length,
        unbuildable=_TINY_ONLY if model.weights == _FACTORY and size is Size.FULL else variant.unbuildable,
        matrix_line=line,
    )


def _target_plan(name: str, target: TargetSpec, matrix: LoadedMatrix, facts: RunFacts) -> TargetPlan:
    backend = descriptor_of(target.backend)
    named = target.options.get("export") if backend.onnx is not OnnxUse.NONE else None
    return TargetPlan(
        name=name,
        backend=target.backend,
        onnx=backend.onnx if named is None else OnnxUse.NONE,
        generation_export=backend.generation_export,
        forward_export=None if target.options.keys() & {*backend.own_graph} else named or backend.forward_export,
        execution=target.execution,
        image=target.image,
        isolation=facts.isolation_of(target),
        devices=target.devices,
        gpus=target.gpus,
        options=target.options,
        unavailable=facts.unavailable.get(name),
        matrix_line=matrix.lines.get(("targets", name)),
    )


def _settings(model: ModelPlan, dtype: Dtype, threads: int, new_tokens: int) -> Settings:
    return Settings(dtype=dtype, batch=model.batch, sequence_length=model.sequence_length, threads=threads, new_tokens=new_tokens)


def _cell_plan(model: ModelPlan, target: TargetPlan, settings: Settings, matrix: LoadedMatrix) -> CellPlan:
    generated = f"-n{settings.new_tokens}" if settings.new_tokens else ""
    varied = f"{settings.dtype.value}/b{settings.batch}-s{settings.sequence_length}-t{settings.threads}{generated}"
    return CellPlan(
        key=f"{model.name}/{model.size.value}/{target.name}/{varied}",
        model=model.name,
        size=model.size,
        target=target.name,
        settings=settings,
        limits=_limits(model, matrix, [matrix.spec.targets[target.name]]),
    )
