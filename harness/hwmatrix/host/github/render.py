"""Renders workflow files from matrix.yaml. No value can inject an expression or a command: values are quoted, or rejected."""

from __future__ import annotations

import functools
import json
import re
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Final

import pydantic
import pydantic.dataclasses
from markupsafe import Markup

from hwmatrix.basics import templates
from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    import jinja2

    from hwmatrix.matrix.load import LoadedMatrix

WORKFLOWS: Final = ("ci.yml", "matrix.yml", "release.yml")
ACTION: Final = "action.yml"
REPOSITORY: Final = "repository.yml"
"""The template of the workflow that ``hwmatrix init`` writes."""
ACTIONS: Final = "actions.yaml"
_BARE: Final = re.compile(r"[\w./:@+ ,'=&|!()-]*")
"""Text that may be written without quotes: our own words, names, versions, commits."""
_EXPRESSION: Final = "${{"
_JUST_TEXT: Final = (str, int, float, list, tuple, type(None))


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class ActionPin:
    """The commit at which an action is used, and its version name in the action's repository."""

    commit: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{40}$")]
    version: Annotated[str, pydantic.Field(pattern=r"^v\d+(\.\d+){0,2}$")]


def action_pins() -> dict[str, ActionPin]:
    """The actions that the workflows use, by name."""
    text = resources.files(__package__).joinpath(ACTIONS).read_text(encoding="utf-8")
    return pydantic.TypeAdapter(dict[str, ActionPin]).validate_python(parsed(text))


def render(loaded: LoadedMatrix) -> dict[str, str]:
    """Render the workflow files of a matrix.yaml, and the action: name to text, which is YAML and ends with a line break.

    Raises:
        ConfigError: matrix.yaml contains something that is not allowed in a workflow.
    """
    spec = loaded.spec
    facts: dict[str, Any] = {
        "github": spec.github,
        "hosted": list(spec.github.runs_on),
        "targets": list(spec.targets),
        "suites": list(spec.suites),
        "reference": spec.images.reference,
        "actions": action_pins(),
    }
    environment = _environment()
    return {name: _whole(environment, name, facts) for name in (*WORKFLOWS, ACTION)}


def render_repository(loaded: LoadedMatrix, requirement: str) -> str:
    """Render the only workflow of a user's own repository, which installs hwmatrix by this argument of pip. Returns YAML.

    Raises:
        ConfigError: matrix.yaml contains something that is not allowed in a workflow.
    """
    facts = {"github": loaded.spec.github, "hosted": list(loaded.spec.github.runs_on), "actions": action_pins()}
    return _whole(_environment(), REPOSITORY, facts | {"requirement": requirement})


def _whole(environment: jinja2.Environment, name: str, facts: dict[str, Any]) -> str:
    mine = {"callable": name == "matrix.yml", "selectable": name == "matrix.yml", "publishing": name == "release.yml"}
    text = environment.get_template(f"{name}.j2").render(facts | mine)
    text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    parsed(text)  # it is YAML
    return text


@functools.cache
def _environment() -> jinja2.Environment:
    """An environment with square brackets as delimiters, because GitHub's own expressions use braces."""
    return templates.environment(
        "hwmatrix.host.github",
        autoescape=True,  # makes macros return Markup, which distinguishes them from values
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
    """Return any value as JSON, which YAML parses to the same value."""
    if isinstance(value, Markup):
        return value
    if not isinstance(value, _JUST_TEXT):
        raise TypeError(f"{type(value).__name__} has no place in a workflow")
    return Markup(_checked(json.dumps(value)))  # noqa: S704 - quoted by json.dumps


def _bare(value: str) -> Markup:
    if not _BARE.fullmatch(value):
        raise ConfigError([Problem(where="matrix.yaml", what=f"{value!r} is not allowed in a workflow file", hint="use a plain name")])
    return Markup(_checked(value))  # noqa: S704 - it has no special characters


def _checked(text: str) -> str:
    if _EXPRESSION in text:
        raise ConfigError([Problem(where="matrix.yaml", what=f"{text} contains a GitHub expression", hint="remove it")])
    return text
