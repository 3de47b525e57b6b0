"""The first files for a user's own repository: a short matrix.yaml for their models, and a nox session."""

from __future__ import annotations

import contextlib
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
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.records import Size
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import jinja2

    from hwmatrix.matrix.spec import MatrixSpec
    from hwmatrix.records import ModelPlan

REFERENCE: Final = "cpu"
"""The target whose image builds the references: the default of ``images.reference`` in a matrix.yaml."""
TARGETS: Final = (REFERENCE, "openvino", "onnxruntime")
"""Targets that every machine can run."""
_REQUIREMENT: Final = re.compile(r"hwmatrix\[host\] @ git\+https://[\w.:/~-]+@[0-9a-f]{40}")
"""What is safe in double quotes of a shell, and complete."""


def starter_matrix(plans: Sequence[ModelPlan], targets: Sequence[str], shipped: MatrixSpec) -> str:
    """Return the text of a matrix.yaml. ``plans`` are models in full size, or tiny models of types; ``targets`` are names in ``shipped``.

    By default, checkpoints run with real lengths. If there is a model type, whose model is always small, the default is tiny for all, and
    the suite ``performance`` has the checkpoints.
    """
    chosen = {name: target for name, target in shipped.targets.items() if name in {REFERENCE, *targets}}
    used = {each for target in chosen.values() for dtype in target.every_dtype for each in descriptor_of(target.backend).computes_in(dtype)}
    dtypes = [dtype for dtype in shipped.tolerances if dtype in used]
    names = _names(plans)
    sections = {
        "sizes": {size.value: _spoken(each) for size, each in shipped.sizes.items()},
        "tolerances": {dtype.value: _spoken(shipped.tolerances[dtype]) for dtype in dtypes},
        "targets": {name: _spoken(target) for name, target in chosen.items()},
        "models": {name: _entry(plan, shipped) for plan, name in zip(plans, names, strict=True)},
        "suites": _suites(plans, names),
    }
    others = [name for name in shipped.targets if name not in chosen]
    texts = {name: _yaml({name: section}) for name, section in sections.items()}
    return _environment().get_template("matrix.yaml.j2").render(others=others, **texts)


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


def _entry(plan: ModelPlan, shipped: MatrixSpec) -> dict[str, Any]:
    """A model's entry."""
    size = Size.TINY if plan.weights == FACTORY else Size.FULL
    entry = {
        "family": plan.family.value,
        "architecture": plan.architecture,
        "class": plan.model_class,
        "hub_id": plan.hub_id,
        "weights": plan.weights,
        size.value: {"sequence_length": plan.sequence_length} if plan.sequence_length != shipped.sizes[size].sequence_length else None,
    }
    return {name: value for name, value in entry.items() if value is not None}


def _suites(plans: Sequence[ModelPlan], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    checkpoints = [name for plan, name in zip(plans, names, strict=True) if plan.weights != FACTORY]
    if len(checkpoints) == len(plans):
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


def _spoken(settings: Any) -> dict[str, Any]:
    """The keys that differ from their defaults, with values as in YAML."""
    said = pydantic.TypeAdapter(type(settings)).dump_python(settings, mode="json", exclude_defaults=True)
    return {name: value for name, value in said.items() if value != {}}


def _yaml(section: dict[str, Any]) -> str:
    """A section of the file: each innermost mapping on one line. In ASCII, since PyYAML does not quote every line break of Unicode."""
    return yaml.safe_dump(section, default_flow_style=None, sort_keys=False, width=10_000).strip()


@functools.cache
def _environment() -> jinja2.Environment:
    return environment("hwmatrix.host", autoescape=False)  # YAML and Python: the only foreign text is YAML by _yaml
