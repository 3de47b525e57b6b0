"""Templates for Python files: names, messages and settings reach them as values, and come out as literals or as comments."""

from __future__ import annotations

import functools
import textwrap
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.advice.literals import WIDTH, literal
from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    import jinja2

_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ._-+:/,;=()[]<>*'%@~#&?!|")
"""What may stand in a docstring as it is: no quote that could end one, no backslash, no brace, no line break."""


def render(name: str, **values: Any) -> str:
    """A template of ``templates/``, filled in. A value that the template names and nobody gave is an error.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    return _environment().get_template(name).render(**values)


def plain(text: object) -> str:
    """Text for a docstring: what is not plain ASCII, or could end the string, becomes a question mark."""
    return "".join(character if character in _PLAIN else "?" for character in str(text))


def comment(text: object, prefix: str = "# ") -> str:
    """Text as comment lines of at most 140 columns, each begun by ``prefix``; what is not printable becomes a question mark."""
    lines: list[str] = []
    for line in str(text).splitlines() or [""]:
        shown = "".join(character if character.isprintable() else "?" for character in line)
        lines += textwrap.wrap(shown, WIDTH - len(prefix), break_on_hyphens=False) or [""]
    return "\n".join(f"{prefix}{line}".rstrip() for line in lines)


def rows(value: list[Any], indent: int = 0, column: int = 0) -> str:
    """Numbers in rows as long as a line allows: for tables that nobody reads number by number."""
    flat = literal(value, column=-(10**9))
    if column + len(flat) + 1 <= WIDTH:
        return flat
    lines = textwrap.wrap(flat, WIDTH - indent - 4)
    return "\n".join(["", *(f"{' ' * (indent + 4)}{line}" for line in lines), " " * indent])


@functools.cache
def _environment() -> jinja2.Environment:
    try:
        import jinja2  # noqa: PLC0415 - only hosts have it
    except ImportError as error:
        problem = Problem(where="hwmatrix generate", what=f"templates cannot be filled in: {error}", hint="pip install 'hwmatrix[host]'")
        raise ConfigError([problem]) from error
    environment = jinja2.Environment(  # noqa: S701 - what comes out is Python, where HTML's escapes would be wrong
        loader=jinja2.PackageLoader("hwmatrix.advice"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"literal": literal, "plain": plain, "comment": comment, "rows": rows}
    return environment
