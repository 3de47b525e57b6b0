"""Workflow files from matrix.yaml. No value can inject an expression or a command: values are quoted, or rejected."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import pydantic
import yaml
from markupsafe import Markup

import hwmatrix
from hwmatrix.basics import templates
from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    import jinja2

    from hwmatrix.matrix.load import LoadedMatrix

WORKFLOWS: Final = ("ci.yml", "matrix.yml", "release.yml", "pins.yml")
ACTION: Final = "action.yml"
REPOSITORY: Final = "repository.yml"
"""The template of the workflow that ``hwmatrix init`` writes."""
ACTIONS: Final = "actions.yaml"
_OLDEST_PYTHON: Final = "3.11"
"""Versions are resolved for it: what it can install, so can the later ones. It is that of the base image, and of requires-python."""
_BARE: Final = re.compile(r"[\w./:@+ ,'=&|!()-]*")
"""What may be written without quotes: words of ours, names, versions, commits."""
_EXPRESSION: Final = "${{"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_JUST_TEXT: Final = (str, int, float, list, tuple, type(None))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionPin:
    """The commit of an action that is used, and the version that its repository calls it."""

    commit: str
    version: str

    def __post_init__(self) -> None:
        """Refuse what is no full commit or no version: both are written into workflow files."""
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit) or not re.fullmatch(r"v\d+(\.\d+){0,2}", self.version):
            where, what = f"host/github/{ACTIONS}", f"{self.commit!r} ({self.version!r}) is no pin"
            raise ConfigError([Problem(where=where, what=what, hint="a full commit, and a version such as v1.2.3")])


def action_pins() -> dict[str, ActionPin]:
    """The actions that the workflows use, by name."""
    text = resources.files(__package__).joinpath(ACTIONS).read_text(encoding="utf-8")
    found = pydantic.TypeAdapter(dict[str, dict[str, str]]).validate_python(yaml.safe_load(text))
    return {name: ActionPin(commit=pin["commit"], version=pin["version"]) for name, pin in found.items()}


def render(loaded: LoadedMatrix) -> dict[str, str]:
    """The workflow files of a matrix.yaml, and the action: name to text, which ends with a line break and is YAML.

    Raises:
        ConfigError: matrix.yaml has something that must not stand in a workflow.
    """
    spec = loaded.spec
    facts: dict[str, Any] = {
        "github": spec.github,
        "hosted": list(spec.github.runs_on),
        "targets": list(spec.targets),
        "suites": list(spec.suites),
        "reference": spec.images.reference,
        "actions": action_pins(),
        "oldest_python": _OLDEST_PYTHON,
    }
    environment = _environment()
    return {name: _whole(environment, name, facts) for name in (*WORKFLOWS, ACTION)}


def render_repository(loaded: LoadedMatrix) -> str:
    """The one workflow of a repository of somebody's own, which installs this version of hwmatrix: YAML.

    Raises:
        ConfigError: matrix.yaml has something that must not stand in a workflow.
    """
    facts = {"github": loaded.spec.github, "hosted": list(loaded.spec.github.runs_on), "actions": action_pins()}
    return _whole(_environment(), REPOSITORY, facts | {"version": hwmatrix.__version__})


def _whole(environment: jinja2.Environment, name: str, facts: dict[str, Any]) -> str:
    mine = {"callable": name == "matrix.yml", "selectable": name == "matrix.yml", "publishing": name == "release.yml"}
    text = environment.get_template(f"{name}.j2").render(facts | mine)
    text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe one
    return text


@functools.cache
def _environment() -> jinja2.Environment:
    """Square brackets instead of braces, which GitHub's own expressions have."""
    return templates.environment(
        "hwmatrix.host.github",
        autoescape=True,  # so that macros give Markup, which tells them from values
        filters={"bare": _bare},
        finalize=_quoted,
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        comment_start_string="[#",
        comment_end_string="#]",
    )


def _quoted(value: Any) -> Markup:
    """Any value as JSON, which YAML reads as what it is."""
    if isinstance(value, Markup):
        return value
    if not isinstance(value, _JUST_TEXT):
        raise TypeError(f"{type(value).__name__} has no place in a workflow")
    return Markup(_checked(json.dumps(value)))  # noqa: S704 - it is quoted


def _bare(value: str) -> Markup:
    if not _BARE.fullmatch(value):
        raise ConfigError([Problem(where="matrix.yaml", what=f"{value!r} cannot stand in a workflow file", hint="use a plain name")])
    return Markup(_checked(value))  # noqa: S704 - it is plain


def _checked(text: str) -> str:
    if _EXPRESSION in text:
        raise ConfigError([Problem(where="matrix.yaml", what=f"{text} has an expression of GitHub in it", hint="take it out")])
    return text
