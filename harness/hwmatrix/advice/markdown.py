"""Reports as Markdown. Foreign text can break no table and bring no HTML, link or mention: it stands in code, or is escaped."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    import jinja2

_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}
_BACKSLASHED: Final = frozenset("\\`*_[]~$#")
_LINKS: Final = re.compile(r"(?<=:)(?=//)|(?<=@)(?=\w)|(?<=\bwww)(?=\.)")
_ZERO_WIDTH: Final = "&#8203;"
"""Keeps a reader from making a link or a mention of what is around it."""


def render(name: str, **values: Any) -> str:
    """A template of ``templates/reporter``, filled in.

    Raises:
        ConfigError: the package that fills templates is not installed.
    """
    return _environment().get_template(f"reporter/{name}").render(**values).strip() + "\n"


def text(value: object) -> str:
    """Text on one line that reads as it is, in a paragraph or a table."""
    line = " ".join(_visible(str(value)).split())
    escaped = "".join(_ENTITIES.get(character) or (f"\\{character}" if character in _BACKSLASHED else character) for character in line)
    return _LINKS.sub(_ZERO_WIDTH, escaped)


def code(value: object) -> str:
    """A code span on one line; inside a table too."""
    line = " ".join(_visible(str(value)).split())
    if not line:
        return ""
    if "`" in line or "|" in line:
        return f"<code>{text(line)}</code>"
    return f"`{line}`"


def fence(value: object) -> str:
    """A block of text, lines kept, that nothing within can end."""
    lines = [_visible(line, keep="\t").rstrip() for line in str(value).splitlines()]
    body = "\n".join(lines).strip("\n")
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
    return f"{ticks}text\n{body}\n{ticks}"


def _visible(value: str, keep: str = "\n\t") -> str:
    """Control and format characters can hide or reorder what stands around them."""
    return "".join(
        character if character in keep or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co"} else "\ufffd"
        for character in value
    )


@functools.cache
def _environment() -> jinja2.Environment:
    try:
        import jinja2  # noqa: PLC0415 - only hosts have it
    except ImportError as error:
        hint = "pip install hwmatrix[host], or ask for json"
        raise ConfigError([Problem(where="format", what="markdown needs the package jinja2, which is not installed", hint=hint)]) from error

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hwmatrix.advice"),
        autoescape=False,  # noqa: S701 - what comes out is Markdown; everything printed goes through a filter of this module, or is a number
        finalize=_refuse_none,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"text": text, "code": code, "fence": fence}
    return environment


def _refuse_none(value: Any) -> Any:
    if value is None:
        raise TypeError("a template printed a value that is missing")
    return value
