"""Which models suit a task: by the hub's pipeline tags, and by what a model was made for."""

from __future__ import annotations

import enum
import functools
import importlib.resources
from typing import TYPE_CHECKING, Literal, Self

import pydantic
import yaml
from pydantic.dataclasses import dataclass

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.matrix.load import near_miss
from hwmatrix.models.taxonomy import taxonomy

if TYPE_CHECKING:
    from hwmatrix.records import Classification


class Fit(enum.StrEnum):
    """How a model fits a task, the better first."""

    MADE_FOR_IT = "made for it"
    ANOTHER_HEAD = "with another head, which has to be trained"


@dataclass(frozen=True, kw_only=True, config=pydantic.ConfigDict(extra="forbid"))
class _Tasks:
    version: Literal[1]
    with_another_head: dict[str, tuple[str, ...]]

    @pydantic.model_validator(mode="after")
    def _is_known(self) -> Self:
        named = {*self.with_another_head, *(name for names in self.with_another_head.values() for name in names)}
        if unknown := sorted(named - taxonomy().subfamilies.keys()):
            raise ValueError(f"not among the subfamilies: {', '.join(unknown)}")
        return self


def known_tasks() -> tuple[str, ...]:
    """Every task that can be asked for: the hub's pipeline tags."""
    return tuple(sorted({*taxonomy().tasks, *taxonomy().usual_tasks}))


def subfamily_for(task: str) -> str:
    """The kind of model that is made for a task.

    Raises:
        ConfigError: there is no such task; the hint names the nearest.
    """
    found = taxonomy().tasks.get(task) or taxonomy().usual_tasks.get(task)
    if found is None:
        raise ConfigError([Problem(where="task", what=f"{task!r} is not a known task", hint=near_miss(task, known_tasks()))])
    return found


def fit_of(task: str, classification: Classification) -> Fit | None:
    """How a model fits a task; None where it does not.

    Raises:
        ConfigError: there is no such task.
    """
    wanted = subfamily_for(task)
    if classification.subfamily == wanted:
        return Fit.MADE_FOR_IT
    return Fit.ANOTHER_HEAD if wanted in _data().with_another_head.get(classification.subfamily or "", ()) else None


@functools.cache
def _data() -> _Tasks:
    text = (importlib.resources.files("hwmatrix.classifier") / "tasks.yaml").read_text(encoding="utf-8")
    return pydantic.TypeAdapter(_Tasks).validate_python(yaml.safe_load(text))
