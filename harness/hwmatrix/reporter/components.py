"""Checks whether the packages that containers and targets need are installed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final, Literal

import pydantic
from pydantic.dataclasses import dataclass

from hwmatrix.faults.error_records import of_type
from hwmatrix.records.backends import descriptors

if TYPE_CHECKING:
    from hwmatrix.faults.error_records import ReportedError

COMPONENT: Final = "components"
_ENGINE: Final = "docker"
"""The package that starts containers. Images lack it."""


@dataclass(frozen=True, kw_only=True, config=pydantic.ConfigDict(extra="forbid"))
class Checked:
    """A package or a target, and whether it can be used in this interpreter; ``reason`` says why not."""

    kind: Literal["package", "target"]
    name: str
    usable: bool
    reason: str | None


def check() -> tuple[tuple[Checked, ...], tuple[ReportedError, ...]]:
    """Look for every package, without importing one.

    Returns:
        Whether each package and target can be used; and the errors of those that cannot.
    """
    checked: list[Checked] = []
    errors: list[ReportedError] = []
    lacks_engine = bool(missing((_ENGINE,)))
    reason = f"the package {_ENGINE} is not installed: targets cannot run in containers (virtual environments still work)"
    checked.append(Checked(kind="package", name=_ENGINE, usable=not lacks_engine, reason=reason if lacks_engine else None))
    errors += [of_type("tool_missing", reason, component=COMPONENT)] if lacks_engine else []
    for each in descriptors():
        lacking = missing(each.requires)
        reason = f"the target {each.name} cannot run in this interpreter, which lacks {', '.join(lacking)}"
        checked.append(Checked(kind="target", name=each.name, usable=not lacking, reason=reason if lacking else None))
        errors += [of_type("runtime_not_installed", reason, component=COMPONENT, hardware=each.name)] if lacking else []
    return tuple(checked), tuple(errors)


def missing(modules: tuple[str, ...]) -> list[str]:
    """Those of the modules that are not installed."""
    return [module for module in modules if importlib.util.find_spec(module) is None]
