"""Which target of matrix.yaml would run on which of the given runners, by GitHub's rule: a runner needs all requested labels."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

import yaml

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.basics.plain_yaml import composed
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.host.ci_machines.labels import SELF_HOSTED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hwmatrix.matrix.spec import MatrixSpec

_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")
_HOSTED: Final = re.compile(r"(ubuntu|macos|windows)-[a-z0-9.-]+")
"""Matches labels of GitHub-hosted machines, such as ubuntu-24.04 or macos-15."""
_TOP: Final = "runners"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runner:
    """A runner by name, with its labels as written."""

    name: str
    labels: tuple[str, ...]

    def lacks(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The wanted labels that it does not have. GitHub ignores case."""
        mine = {label.lower() for label in self.labels}
        return tuple(label for label in wanted if label.lower() not in mine)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a target would run: matching ``runners``, or ``hosted`` by GitHub; otherwise the ``nearest`` runner and the labels it lacks."""

    target: str
    labels: tuple[str, ...]
    runners: tuple[str, ...]
    hosted: bool
    nearest: str | None
    missing: tuple[str, ...]


def place(spec: MatrixSpec, runners: Sequence[Runner], targets: Sequence[str]) -> tuple[Placement, ...]:
    """Return where each target would run. A target without ``runs_on`` uses the labels of ``github.runs_on``."""
    return tuple(_one(target, spec.targets[target].runs_on or spec.github.runs_on, runners) for target in targets)


def _one(target: str, wanted: tuple[str, ...], runners: Sequence[Runner]) -> Placement:
    lacking = {runner.name: runner.lacks(wanted) for runner in runners}
    fit = tuple(name for name, missing in lacking.items() if not missing)
    hosted = not fit and SELF_HOSTED not in {label.lower() for label in wanted} and any(_HOSTED.fullmatch(label) for label in wanted)
    near = min(lacking, key=lambda name: len(lacking[name])) if lacking and not fit and not hosted else None
    return Placement(target=target, labels=wanted, runners=fit, hosted=hosted, nearest=near, missing=lacking[near] if near else ())


def runner_of(text: str) -> Runner:
    """Parse a runner from ``NAME:label,label``.

    Raises:
        ConfigError: the text has another form.
    """
    name, colon, rest = text.partition(":")
    wanted = [label.strip() for label in rest.split(",") if label.strip()]
    where = f"--runners {text}"
    if not colon or not wanted:
        hint = "write NAME:label,label, or name a YAML file"
        raise ConfigError([Problem(where=where, what="it is neither a file nor a runner with labels", hint=hint)])
    problems = _wrong(name, wanted, where)
    if problems:
        raise ConfigError(problems)
    return Runner(name=name, labels=tuple(wanted))


def read_runners(path: Path) -> tuple[Runner, ...]:
    """Read the runners of a file: under ``runners``, each name with its list of labels.

    Raises:
        ConfigError: it cannot be read, or contains mistakes. Each problem has its line.
    """
    try:
        tree = composed(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(where=str(path), what=f"cannot be read: {error}", hint="name a YAML file of runners")]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError([Problem(where=where, what=f"not YAML: {getattr(error, 'problem', None) or error}")]) from error
    problems: list[Problem] = []
    found = tuple(_runners(tree, path, problems))
    if not found and not problems:
        problems.append(Problem(where=f"{path}:1", what="it has no runner", hint=_EXAMPLE))
    if problems:
        raise ConfigError(problems)
    return found


_EXAMPLE: Final = "runners: {cuda-box: [self-hosted, linux, x64, cuda]}"


def _runners(tree: Any, path: Path, problems: list[Problem]) -> list[Runner]:
    """Return the runners of a YAML tree. Mistakes go to ``problems``."""
    if not isinstance(tree, yaml.MappingNode):
        problems.append(Problem(where=f"{path}:1", what="not a mapping", hint=_EXAMPLE))
        return []
    runners: dict[str, Runner] = {}
    for key, value in tree.value:
        if key.value != _TOP:
            what, hint = f"unknown key {key.value!r}", near_miss(str(key.value), (_TOP,))
            problems.append(Problem(where=f"{path}:{key.start_mark.line + 1}", what=what, hint=hint))
        elif not isinstance(value, yaml.MappingNode):
            problems.append(Problem(where=f"{path}:{value.start_mark.line + 1}", what="runners is not a mapping", hint=_EXAMPLE))
        else:
            for name, listed in value.value:
                _add(runners, name, listed, path, problems)
    return list(runners.values())


def _add(runners: dict[str, Runner], name: Any, listed: Any, path: Path, problems: list[Problem]) -> None:
    where = f"{path}:{name.start_mark.line + 1}"
    if not isinstance(name, yaml.ScalarNode):
        problems.append(Problem(where=where, what="a name is a list or a mapping", hint=_EXAMPLE))
        return
    if name.value in runners:
        problems.append(Problem(where=where, what=f"{name.value!r} appears twice", hint="rename or remove one of them"))
    if not isinstance(listed, yaml.SequenceNode) or not all(isinstance(item, yaml.ScalarNode) for item in listed.value):
        problems.append(Problem(where=where, what=f"the labels of {name.value!r} are not a list of strings", hint=_EXAMPLE))
        return
    wanted = [str(item.value) for item in listed.value]
    problems += _wrong(str(name.value), wanted, where)
    runners[name.value] = Runner(name=str(name.value), labels=tuple(wanted))


def _wrong(name: str, wanted: list[str], where: str) -> list[Problem]:
    hint = "letters, digits, dots, dashes and underscores"
    named = [] if _NAME.fullmatch(name) else [Problem(where=where, what=f"{name!r} is not a valid runner name", hint=hint)]
    empty = [] if wanted else [Problem(where=where, what=f"{name!r} has no label", hint=_EXAMPLE)]
    return [
        *named,
        *empty,
        *(Problem(where=where, what=f"{it!r} is not a valid label", hint=hint) for it in wanted if not _LABEL.fullmatch(it)),
    ]
