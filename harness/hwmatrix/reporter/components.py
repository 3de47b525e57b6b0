"""Checks whether the parts of hwmatrix can be imported and work, and whether the packages of its targets are installed."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.resources
import importlib.util
import traceback
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import pydantic
from pydantic import Field
from pydantic.dataclasses import dataclass

from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.faults.catalogue import advice_for
from hwmatrix.faults.error_records import ReportedError, of_type
from hwmatrix.records import Backend, Severity
from hwmatrix.records.backends import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

COMPONENT: Final = "components"
_STRICT = pydantic.ConfigDict(extra="forbid")
_KNOWN_MODEL: Final = "google-bert/bert-base-uncased"
"""A model name that every classifier must recognize."""
_REINSTALL: Final = "Install hwmatrix again with what it depends on (pip install --force-reinstall hwmatrix[host])."
"""The advice if even the catalogue does not work."""
_Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Part:
    """A part of hwmatrix: its module, and what is lost without it."""

    name: _Text
    module: _Text
    severity: Severity
    costs: _Text


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Package:
    """A package that a part of hwmatrix needs, and what is lost without it."""

    module: _Text
    costs: _Text


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Parts:
    """The content of components.yaml."""

    version: Literal[1]
    components: tuple[Part, ...]
    packages: tuple[Package, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A part or a target, and whether it can be used in this interpreter; ``reason`` says why not."""

    kind: str
    name: str
    usable: bool
    reason: str | None


@functools.cache
def parts() -> Parts:
    """The parsed components.yaml."""
    text = (importlib.resources.files("hwmatrix.reporter") / "components.yaml").read_text(encoding="utf-8")
    return pydantic.TypeAdapter(Parts).validate_python(parsed(text))


def check() -> tuple[tuple[Checked, ...], tuple[ReportedError, ...]]:
    """Check every part, and look for every package, without importing a framework.

    Returns:
        Whether each part, package and target can be used; and the errors of those that cannot.
    """
    checked: list[Checked] = []
    errors: list[ReportedError] = []
    for part in parts().components:
        error = _error_of_part(part)
        checked.append(Checked(kind="component", name=part.name, usable=error is None, reason=error.message if error else None))
        errors += [error] if error else []
    for package in parts().packages:
        missing = _missing((package.module,))
        reason = f"the package {package.module} is not installed: {package.costs}" if missing else None
        checked.append(Checked(kind="package", name=package.module, usable=reason is None, reason=reason))
        errors += [of_type("tool_missing", reason, component=COMPONENT)] if reason else []
    for each in descriptors():
        missing = _missing(each.requires)
        reason = f"the target {each.name} cannot run in this interpreter, which lacks {', '.join(missing)}" if missing else None
        checked.append(Checked(kind="target", name=each.name, usable=reason is None, reason=reason))
        errors += [of_type("runtime_not_installed", reason, component=COMPONENT, hardware=each.name)] if reason else []
    return tuple(checked), tuple(errors)


def _error_of_part(part: Part) -> ReportedError | None:
    """Import a part and call it; the error, if either fails."""
    try:
        _PROBES[part.name](importlib.import_module(part.module))
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything, which is then reported
        message = f"{part.name} ({part.module}) does not work, so {part.costs}: {type(error).__name__}: {error}"
        return ReportedError(
            hardware_type=None,
            error_type="component_broken",
            severity=part.severity,
            message=message,
            component=COMPONENT,
            timestamp=None,
            model_name=None,
            recommendations=(_REINSTALL,) if part.name == "catalogue" else advice_for("component_broken", "any"),
            traceback=traceback.format_exc(),
        )
    return None


def _missing(modules: tuple[str, ...]) -> list[str]:
    return [module for module in modules if importlib.util.find_spec(module) is None]


def _expect(answer: object, what: str) -> None:
    if not answer:
        raise RuntimeError(f"it returned {answer!r} instead of {what}")


def _catalogue(module: ModuleType) -> None:
    _expect(module.catalogue(), "a list of error types")


def _detection(module: ModuleType) -> None:
    _expect(module.HardwareDetector().is_available(module.CPU), "an available processor")


def _store(module: ModuleType) -> None:
    _expect(module.names(), "the names of its queries")


def _classification(module: ModuleType) -> None:
    _expect(module.classify(_KNOWN_MODEL).family, f"the family of {_KNOWN_MODEL}")


def _requirements(module: ModuleType) -> None:
    """Both requirements and the error that the model's size is unknown are valid answers."""
    classification = importlib.import_module("hwmatrix.models.classify").classify(_KNOWN_MODEL)
    try:
        module.requirements_for(None, model_name=_KNOWN_MODEL, classification=classification, hardware=Backend.CPU.value)
    except module.RequirementsError as unknown:
        _expect(str(unknown), "a reason")


def _integration(module: ModuleType) -> None:
    _expect(module.HardwareAwareModelClassifier(), "a classifier")


def _pool(module: ModuleType) -> None:
    _expect(module.get_global_resource_pool().get_stats(), "the statistics of the pool")


def _fallback(module: ModuleType) -> None:
    _expect(module.next_attempt(module.AttemptPlan(order=(Backend.CPU.value,))), "a first attempt")


_PROBES: Final[dict[str, Callable[[Any], None]]] = {
    "catalogue": _catalogue,
    "hardware_detection": _detection,
    "store": _store,
    "model_classification": _classification,
    "requirements": _requirements,
    "model_integration": _integration,
    "resource_pool": _pool,
    "fallback": _fallback,
}
"""The check of each part: a call that is fast on every machine."""
