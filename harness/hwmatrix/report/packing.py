"""Data inside a page: compact tables by column, and JSON that no HTML parser can misread."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.text import cut, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LONGEST_TEXT: Final = 20_000
"""Characters of one text in a page. The full text is in the database and, for errors, in errors.json."""
_LEAST_TEXT: Final = 300
_DIGITS: Final = 5
_MANY: Final = 100_000
"""Characters of a column from which it is worth packing by pieces."""
_IN_SCRIPT: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_BARE: Final = frozenset({int, float, bool, type(None)})
"""Types of values that need no cleaning."""
_ENDS_SCRIPT: Final = re.compile(r"<(?=/script|!--)", re.IGNORECASE)


def table(columns: Mapping[str, Sequence[Any]], pieced: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A table by column, each packed by :func:`column`; texts of the columns ``pieced`` by :func:`pieces`, if there are very many.

    ``pieced`` has what separates the pieces of a text, by column.
    """
    return {
        name: pieces(values, between) if (between := (pieced or {}).get(name)) and _characters(values) > _MANY else column(values)
        for name, values in columns.items()
    }


def pieces(values: Sequence[str | None], between: str) -> dict[str, Any]:
    """A column of long texts that share most of their pieces, such as the lines of tracebacks.

    ``{pieces, between, texts, codes}``: a text is a list of indices of ``pieces``, joined with ``between``, and ``codes`` are the indices
    of each row's text (-1: none).
    """
    texts = {text: code for code, text in enumerate(dict.fromkeys(value for value in values if value is not None))}
    known: dict[str, int] = {}
    lists = [[known.setdefault(piece, len(known)) for piece in text.split(between)] for text in texts]
    return {"pieces": list(known), "between": between, "texts": lists, "codes": [-1 if value is None else texts[value] for value in values]}


def _characters(values: Iterable[str | None]) -> int:
    return sum(len(value) for value in values if value is not None)


def column(values: Sequence[Any]) -> dict[str, Any]:
    """One column: ``{same}`` if all rows are equal, ``{words, codes}`` if texts repeat (-1: none), else ``{values}``."""
    if not values or all(value == values[0] and type(value) is type(values[0]) for value in values):
        return {"same": values[0] if values else None}
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == sum(value is not None for value in values):
        words = {word: code for code, word in enumerate(dict.fromkeys(texts))}
        if 2 * len(words) <= len(texts):
            return {"words": list(words), "codes": [-1 if value is None else words[value] for value in values]}
    return {"values": list(values)}


def rounded(value: float | None) -> float | int | None:
    """A measured number as shown: five significant digits, whole numbers without a point. None if not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 10**_DIGITS else short


def fitting(texts: Sequence[str | None], longest: int, together: int) -> list[str | None]:
    """Cut texts to an equal share of ``together`` characters for each distinct one."""
    share = together // max(1, len({text for text in texts if text}))
    length = max(_LEAST_TEXT, min(longest, share))
    return [cut(text, length) if text else None for text in texts]


def script_json(document: Any) -> str:
    """A document as JSON inside a script element: nothing in it ends the element, and nothing hides or reorders text.

    Control characters and other invisible ones become the replacement character.
    """
    text = json.dumps(_clean(document), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in _IN_SCRIPT.items():
        text = text.replace(character, escape)
    return text


def script_text(code: str) -> str:
    """JavaScript inside a script element. A string that would end the element is escaped.

    Line ends are normalized as by an HTML parser, so that :func:`digest` matches the element's text.
    """
    return _ENDS_SCRIPT.sub(r"\\x3c", code.replace("\r\n", "\n").replace("\r", "\n"))


def digest(text: str) -> str:
    """The name of an inline script in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def listed(numbers: Iterable[int]) -> str:
    """Numbers in an attribute: ``1 2 3``."""
    return " ".join(map(str, numbers))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return visible(cut(value, LONGEST_TEXT), keep="\t\n")
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [each if type(each) in _BARE else _clean(each) for each in value]
    return value
