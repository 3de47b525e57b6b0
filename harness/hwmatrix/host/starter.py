"""The first files for a user's own repository: a short matrix.yaml for their models, and a nox session."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import re
from typing import TYPE_CHECKING, Any, Final

import pydantic
import yaml

import hwmatrix
from hwmatrix.basics.templates import environment
from hwmatrix.host.source_repository import commit_of, web_address_of
from hwmatrix.host.wheel import build_wheel
from hwmatrix.matrix.shipped import harness_source
from hwmatrix.matrix.spec import MatrixSpec, TargetSpec
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.records import Size
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import jinja2

    from hwmatrix.records import ModelPlan

REFERENCE: Final = "cpu"
"""The target whose image builds the references: the default of ``images.reference`` in a matrix.yaml."""
TARGETS: Final = (REFERENCE, "openvino", "onnxruntime")
"""Targets that every machine can run."""
_REQUIREMENT: Final = re.compile(r"hwmatrix\[host\] @ git\+https://[\w.:/~-]+@[0-9a-f]{40}")
"""What is safe in double quotes of a shell, and complete."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StarterModel:
    """An entry of ``models``. ``hub_id``, ``weights`` and the ``variants`` by size are YAML text."""

    name: str
    family: str
    architecture: str
    model_class: str
    hub_id: str | None
    weights: str
    variants: dict[str, str]


def starter_matrix(plans: Sequence[ModelPlan], targets: Sequence[str], shipped: MatrixSpec) -> str:
    """Return the text of a matrix.yaml. ``plans`` are models in full size, or tiny models of types; ``targets`` are names in ``shipped``.

    By default, checkpoints run with real lengths. If there is a model type, whose model is always small, the default is tiny for all, and
    the suite ``performance`` has the checkpoints.
    """
    chosen = {name: target for name, target in shipped.targets.items() if name in {REFERENCE, *targets}}
    used = {each for target in chosen.values() for dtype in target.every_dtype for each in descriptor_of(target.backend).computes_in(dtype)}
    dtypes = [dtype for dtype in shipped.tolerances if dtype in used]
    models = [_entry(plan, name, shipped) for plan, name in zip(plans, _names(plans), strict=True)]
    return (
        _environment()
        .get_template("matrix.yaml.j2")
        .render(
            sizes={size.value: _flow(dataclasses.asdict(each)) for size, each in shipped.sizes.items()},
            tolerances={dtype.value: _flow(dataclasses.asdict(shipped.tolerances[dtype])) for dtype in dtypes},
            targets={name: _flow(_said(target)) for name, target in chosen.items()},
            others=[name for name in shipped.targets if name not in chosen],
            models=models,
            suites={name: _flow(suite) for name, suite in _suites(models).items()},
        )
    )


def requirement(folder: Path) -> str:
    """What pip installs, as one argument, to get the hwmatrix that runs: from an index or git, where it came from there.

    Otherwise it is a wheel, which is written into ``folder``, and the argument is its name.

    Raises:
        ImageBuildError: the wheel cannot be built.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        direct = importlib.metadata.distribution("hwmatrix").read_text("direct_url.json")  # PEP 610: None if it came from an index
        source = harness_source()
        if source is None and direct is None:
            return f"hwmatrix[host]=={hwmatrix.__version__}"
        origin = json.loads(direct) if direct else {}
        address, commit = origin.get("url"), origin.get("vcs_info", {}).get("commit_id")
        if source is not None:
            address, commit = web_address_of(source), commit_of(source)
        found = f"hwmatrix[host] @ git+{address}@{commit}"
        if address and commit and _REQUIREMENT.fullmatch(found):  # a working tree with changes has no commit to install
            return found
    return f"./{build_wheel(folder, folder, whole=True).name}[host]"


def nox_session(requirement: str) -> str:
    """Return a nox session that installs hwmatrix by this argument of pip, and runs the matrix."""
    return _environment().get_template("session.py.j2").render(requirement=requirement).rstrip("\n")


def noxfile(requirement: str) -> str:
    """Return a noxfile.py with only that session."""
    return _environment().get_template("noxfile.py.j2").render(session=nox_session(requirement))


def _entry(plan: ModelPlan, name: str, shipped: MatrixSpec) -> StarterModel:
    variants: dict[str, str] = {}
    if plan.weights == FACTORY:
        if plan.sequence_length != shipped.sizes[Size.TINY].sequence_length:
            variants["tiny"] = _flow({"sequence_length": plan.sequence_length})
    elif plan.sequence_length != shipped.sizes[Size.FULL].sequence_length:
        variants["full"] = _flow({"sequence_length": plan.sequence_length})
    return StarterModel(
        name=name,
        family=plan.family.value,
        architecture=plan.architecture,
        model_class=plan.model_class,
        hub_id=_scalar(plan.hub_id) if plan.hub_id else None,
        weights=_scalar(plan.weights),
        variants=variants,
    )


def _suites(models: Sequence[StarterModel]) -> dict[str, dict[str, Any]]:
    checkpoints = [model.name for model in models if model.weights != FACTORY]
    if len(checkpoints) == len(models):
        return {"default": {"size": Size.FULL.value, "models": "all", "description": "every model, with its usual length"}}
    suites: dict[str, dict[str, Any]] = {
        "default": {"size": Size.TINY.value, "models": "all", "description": "every model, with short inputs"}
    }
    if checkpoints:
        of_checkpoints = {"size": Size.FULL.value, "models": checkpoints, "description": "the checkpoints, with their usual length"}
        suites["performance"] = of_checkpoints
    return suites


def _names(plans: Sequence[ModelPlan]) -> list[str]:
    """Give each model a valid name: the last part of its original name, or more if two would be equal."""
    found: list[str] = []
    for plan in plans:
        whole = _as_name(plan.name)
        short = _as_name(plan.name.rpartition("/")[2])
        candidates = [short, whole, *(f"{whole}-{number}" for number in range(2, len(plans) + 2))]
        found.append(next(name for name in candidates if name not in found))
    return found


def _as_name(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._") or "model"


def _said(target: TargetSpec) -> dict[str, Any]:
    """The keys that differ from their defaults, with values as in YAML."""
    said = pydantic.TypeAdapter(TargetSpec).dump_python(target, mode="json", exclude_defaults=True)
    return {name: value for name, value in said.items() if value != {}}


def _flow(settings: dict[str, Any]) -> str:
    """A mapping in one line of YAML."""
    return yaml.safe_dump(settings, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True).strip()


def _scalar(text: str) -> str:
    """A text as YAML, quoted if necessary."""
    return _flow({"key": text}).removeprefix("{key: ").removesuffix("}")


@functools.cache
def _environment() -> jinja2.Environment:
    return environment("hwmatrix.host", autoescape=False)  # YAML and Python: foreign text is quoted by _flow, or is a checked name
