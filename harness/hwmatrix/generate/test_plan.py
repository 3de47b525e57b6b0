"""What a test covers: the model that a name refers to, and the devices to use. Resolved when a test is generated or when it runs."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.generate.literals import plain
from hwmatrix.knowledge.names import look_up
from hwmatrix.knowledge.priorities import backend_of, priority_for
from hwmatrix.knowledge.requirements import RequirementsError, requirements_for
from hwmatrix.models.classify import classify
from hwmatrix.models.types import is_type
from hwmatrix.records import TYPE_PREFIX, Backend, Basis, Classification, Dtype, Size

if TYPE_CHECKING:
    from hwmatrix.matrix.spec import MatrixSpec, TargetSpec
    from hwmatrix.records import ModelPlan, Requirements

DEFAULT_TIMEOUT_MIN: Final = 30.0
_LOG: Final = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """Options for generated tests.

    ``device`` fixes the device, None: all devices in the model's priorities. ``timeout_min`` is how long the resource pool keeps an
    unused model. ``cache`` is the folder of bundles, ``database`` a merged database as the only source of measurements (None: the
    default sources).
    """

    size: Size = Size.TINY
    device: str | None = None
    timeout_min: float = DEFAULT_TIMEOUT_MIN
    cache: Path | None = None
    database: Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """A device to test on, with the facts that the test needs. ``basis`` is the basis of the memory (MiB)."""

    device: str
    dtype: Dtype
    tolerance: float
    memory_mb: int | None
    basis: Basis
    threads: int
    options: dict[str, Any]


def plan_of(model: str, spec: MatrixSpec, wish: Wish) -> ModelPlan:
    """The model that a name refers to, in the requested size.

    Raises:
        ConfigError: a test cannot load the model, or it cannot be built, with the reason.
    """
    plan = None if model.startswith(TYPE_PREFIX) else look_up(model, spec=spec, cache=wish.cache, size=wish.size)
    where = f"--model {plain(model)}"
    if plan is None:
        what = "is only a name: there are neither weights nor a recipe for it here"
        hint = "add it to matrix.yaml, name a checkpoint's folder, or fetch it: hwmatrix matrix --models owner/name"
        if is_type(model):
            what = "is a type of transformers, and only hwmatrix's own runs make models from a type alone"
            hint = f"run it: hwmatrix test --model {model}; for a generated test, add it to matrix.yaml"
        raise ConfigError([Problem(where=where, what=what, hint=hint)])
    if plan.unbuildable:
        other = Size.FULL if plan.size is Size.TINY else Size.TINY
        hint = f"--size {other.value} may be buildable" if _is_buildable(plan.name, spec, other) else "there is nothing to test"
        raise ConfigError([Problem(where=where, what=f"cannot be built in {plan.size.value} size: {plan.unbuildable}", hint=hint)])
    return plan


def _is_buildable(name: str, spec: MatrixSpec, size: Size) -> bool:
    return name in spec.models and spec.models[name].variant(size).unbuildable is None


def classification_of(plan: ModelPlan, spec: MatrixSpec) -> Classification:
    """A model's classification. The family is that of its plan: from matrix.yaml, or from its configuration."""
    config = spec.models[plan.name].tiny.config if plan.name in spec.models else {}
    found = classify(plan.name, model_class=plan.model_class, architecture=plan.architecture, config=plan.config or config)
    return found if found.family is plan.family else dataclasses.replace(found, family=plan.family, source="matrix.yaml says so")


def places_of(plan: ModelPlan, found: Classification, spec: MatrixSpec, wish: Wish) -> tuple[DevicePlan, ...]:
    """The devices to test on, in order: those in the model's priorities, or the requested one.

    Raises:
        ConfigError: there is no such device.
    """
    names = (backend_of(wish.device).value,) if wish.device not in {None, "auto"} else priority_for(found)
    return tuple(_place(name, plan, found, spec, wish) for name in names)


def _place(name: str, plan: ModelPlan, found: Classification, spec: MatrixSpec, wish: Wish) -> DevicePlan:
    backend = Backend(name)
    target = next((target for target in spec.targets.values() if target.backend == backend), None)
    dtype = _dtype(target, spec)
    needs = _requirements(name, plan, found, wish, dtype)
    return DevicePlan(
        device=name,
        dtype=dtype,
        tolerance=spec.tolerances[dtype].relative_error,
        memory_mb=needs.min_memory_mb if needs else None,
        basis=needs.basis if needs else Basis.NONE,
        threads=target.threads if target else 1,
        options=target.options if target else {},
    )


def _dtype(target: TargetSpec | None, spec: MatrixSpec) -> Dtype:
    """float32 if the target supports it; else its first precision with a tolerance; else the first precision with a tolerance."""
    listed = [dtype for dtype in target.every_dtype if dtype in spec.tolerances] if target else []
    listed = listed or list(spec.tolerances)
    return Dtype.FLOAT32 if Dtype.FLOAT32 in listed else listed[0]


def _requirements(name: str, plan: ModelPlan, found: Classification, wish: Wish, dtype: Dtype) -> Requirements | None:
    try:
        return requirements_for(
            plan, model_name=plan.name, classification=found, hardware=name, dtype=dtype, database=wish.database, cache=wish.cache
        )
    except RequirementsError as error:
        _LOG.info("%s on %s: %s", plan.name, name, error)
        return None
