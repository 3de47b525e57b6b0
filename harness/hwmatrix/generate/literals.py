"""Values as Python literals for generated files. No value can inject code."""

from __future__ import annotations

import keyword
import math
from typing import Any, Final

WIDTH: Final = 140
"""The maximum line length of generated code."""
_STEP: Final = 4
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ._-+:/,;=()[]<>*'%@~#&?!|")
"""Characters that need no replacement in a docstring: no quote that could end it, no backslash, no brace, no line break."""
_BRACKETS: Final = {dict: ("{", "}"), list: ("[", "]"), tuple: ("(", ")")}


def literal(value: Any, indent: int = 0, column: int = 0) -> str:
    """The source of a value: on one line if it fits, else one item per line, as formatters lay it out.

    ``indent`` is that of the line on which the literal begins, ``column`` the width of the text before it; two columns are left
    for the text after it. Supports None, booleans, numbers, strings, and lists, tuples and dictionaries of them.

    Raises:
        TypeError: a value of another type.
    """
    flat = _flat(value)
    if column + len(flat) + 2 <= WIDTH or not isinstance(value, (dict, list, tuple)) or not value:
        return flat
    inner = indent + _STEP
    if isinstance(value, dict):
        items = [f"{_flat(key)}: {literal(item, inner, inner + len(_flat(key)) + 2)}" for key, item in value.items()]
    else:
        items = [literal(item, inner, inner) for item in value]
    begin, end = _BRACKETS[type(value)]
    lines = "".join(f"{' ' * inner}{item},\n" for item in items)
    return f"{begin}\n{lines}{' ' * indent}{end}"


def member(name: str, module: str) -> str:
    """The source of a module's member, such as ``transformers.BertModel``. A name that is no identifier stays a string."""
    return f"{module}.{name}" if name.isidentifier() and not keyword.iskeyword(name) else f"getattr({module}, {literal(name)})"


def plain(text: object) -> str:
    """Text for a docstring: characters that are not plain ASCII, or could end the string, become question marks."""
    return "".join(character if character in _PLAIN else "?" for character in str(text))


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flat(key)}: {_flat(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flat(item) for item in value) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(_flat(item) for item in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, str):
        return _string(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    raise TypeError(f"a {type(value).__name__} has no literal: {value!r}")


def _string(text: str) -> str:
    """A string literal in ASCII, in double quotes unless single quotes need fewer escapes."""
    quoted = ascii(text)
    return f'"{quoted[1:-1]}"' if quoted[0] == "'" and '"' not in text else quoted
