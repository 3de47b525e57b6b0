"""Pinned lists: the result for every model type of one version of transformers, as data, so that regressions are detected."""

from __future__ import annotations

import functools
import importlib.resources
import math
import re
from typing import Annotated, Any, Final, Literal

import pydantic
import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass

from hwmatrix.basics.plain_yaml import parsed
from hwmatrix.errors import StoreError
from hwmatrix.records import Family, Status

PASS: Final = Status.PASS.value
_STRICT: Final = pydantic.ConfigDict(extra="forbid")
_PACKAGE: Final = "hwmatrix.models.factory"
_FOLDER: Final = "pinned"
_VERSION: Final = re.compile(r"\d+(\.\d+)*[\w.]*", re.ASCII)
_HEADER: Final = """\
# Written by `nox -s types -- --write`: the result of each model type of this version of transformers (docs/architectures.md).
# status is pass or the type of the error; inputs are the kinds of input of the tiny model.
"""
_LONGEST_MESSAGE: Final = 200


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PinnedType:
    """One type: the class built for it, ``pass`` or the type of the error, and the kinds of input that it got.

    ``message`` says why it does not pass; it does not count when lists are compared.
    """

    model_class: Annotated[str, Field(alias="class", pattern=r"^[A-Za-z_]\w*$")]
    family: Family
    status: Annotated[str, Field(pattern=r"^[a-z_]+$")]
    inputs: tuple[Literal["text", "image", "video", "audio"], ...] = ()
    message: str | None = None

    @property
    def passes(self) -> bool:
        """Whether a tiny model of it was built, saved, loaded and run."""
        return self.status == PASS


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PinnedList:
    """The results of all types of one version of transformers, by name."""

    version: Annotated[str, Field(pattern=_VERSION.pattern)]
    types: dict[str, PinnedType]

    @property
    def passing(self) -> tuple[str, ...]:
        """The types that pass, by name."""
        return tuple(sorted(name for name, entry in self.types.items() if entry.passes))


def pinned_versions() -> tuple[str, ...]:
    """The versions of transformers that have a list, the newest last."""
    folder = importlib.resources.files(_PACKAGE) / _FOLDER
    names = (file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))
    return tuple(sorted(names, key=_order))


@functools.cache
def pinned(version: str) -> PinnedList | None:
    """The list of one version of transformers; None if there is none.

    Raises:
        StoreError: the list is damaged.
    """
    if version not in pinned_versions():
        return None
    file = importlib.resources.files(_PACKAGE) / _FOLDER / f"{version}.yaml"
    found = parse(file.read_text(encoding="utf-8"), where=file.name)
    if found.version != version:
        raise StoreError(f"{file.name}: its version is {found.version}", advice=_REWRITE_ADVICE)
    return found


def newest() -> PinnedList:
    """The list of the newest version that has one.

    Raises:
        StoreError: there is no list, or it is damaged.
    """
    versions = pinned_versions()
    found = pinned(versions[-1]) if versions else None
    if found is None:
        raise StoreError("hwmatrix has no pinned list of transformers' types", advice="Install it again.")
    return found


_REWRITE_ADVICE: Final = "Write it again with nox -s types -- --write, or install hwmatrix again."


def parse(text: str, *, where: str) -> PinnedList:
    """Parse the text of a list.

    Raises:
        StoreError: it is not such a list.
    """
    try:
        return pydantic.TypeAdapter(PinnedList).validate_python(parsed(text))
    except yaml.YAMLError as error:
        raise StoreError(f"{where}: not YAML: {str(error).splitlines()[0]}", advice=_REWRITE_ADVICE) from error
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"{where}: {first['msg']} at {at or 'the top'} ({error.error_count()} in all)", advice=_REWRITE_ADVICE) from error


def written(pins: PinnedList) -> str:
    """The list as text: sorted, one type per line, so that a change of one type changes one line."""
    lines = [f"  {_scalar(name)}: {_entry(pins.types[name])}" for name in sorted(pins.types)]
    return "\n".join([f"{_HEADER}version: {_scalar(pins.version)}", "types:" if lines else "types: {}", *lines, ""])


def _entry(entry: PinnedType) -> str:
    parts = [f"class: {_scalar(entry.model_class)}", f"family: {entry.family.value}", f"status: {_scalar(entry.status)}"]
    parts += [f"inputs: [{', '.join(sorted(entry.inputs))}]"] if entry.inputs else []
    parts += [f"message: {_quoted(entry.message)}"] if entry.message is not None else []
    return f"{{{', '.join(parts)}}}"


def _scalar(word: str) -> str:
    """A word as YAML: quoted if YAML would read something else (``5.23``, ``on``)."""
    plain = re.fullmatch(r"[A-Za-z][\w-]*", word) is not None and isinstance(parsed(word), str)
    return word if plain else _quoted(word)


def _quoted(text: str) -> str:
    """A text in quotes on one line, escaped so that YAML reads it back unchanged."""
    return str(yaml.safe_dump(text, default_style='"', width=math.inf)).strip()


def short(message: str) -> str:
    """A message for a list: one line of limited length, without what differs from run to run (addresses, temporary folders)."""
    line = " ".join(message.split())
    line = re.sub(r"0x[0-9a-f]{6,}", "0x...", line)
    line = re.sub(r"/tmp/[^\s'\",:;)]+", "...", line)  # noqa: S108 - nothing is written there
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[: _LONGEST_MESSAGE - 3]}..."


def worse(before: PinnedType, now: PinnedType) -> str | None:
    """The regression of a type that passed, in words; None if there is none."""
    if not before.passes:
        return None
    if not now.passes:
        return f"it passed, and now has {now.status}: {now.message or 'no message'}"
    lost = sorted(set(before.inputs) - set(now.inputs))
    return f"it got {' and '.join(before.inputs)}, and no longer gets {' and '.join(lost)}" if lost else None


def better(before: PinnedType | None, now: PinnedType) -> str | None:
    """The improvement of a type over the list, in words; None if there is none."""
    if not now.passes:
        return None
    if before is None or not before.passes:
        return "it passes now" if before is not None else "it is new and passes"
    won = sorted(set(now.inputs) - set(before.inputs))
    return f"it gets {' and '.join(won)} now" if won else None


def _order(version: str) -> tuple[Any, ...]:
    """Sort key of a version: 5.9 comes before 5.23, and a release candidate before its release."""
    numbers = re.match(r"[\d.]*", version)
    release = numbers[0] if numbers else ""
    rest = version.removeprefix(release)
    return tuple(int(number) for number in release.split(".") if number), rest == "", rest
