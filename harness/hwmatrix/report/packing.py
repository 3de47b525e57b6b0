"""Data inside a page: compact tables by column, and JSON that no HTML parser can misread."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.escape import visible
from hwmatrix.basics.text import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LONGEST_TEXT: Final = 20_000
"""Characters of one text that a page carries. The whole of it is in the database and, of errors, in errors.json."""
_LEAST_TEXT: Final = 300
_DIGITS: Final = 5
_IN_SCRIPT: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_BARE: Final = frozenset({int, float, bool, type(None)})
"""Types of values in which nothing can hide."""
_ENDS_SCRIPT: Final = re.compile(r"<(?=/script|!--)", re.IGNORECASE)


def table(columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """A table by column, each packed by :func:`column`."""
    return {name: column(values) for name, values in columns.items()}


def column(values: Sequence[Any]) -> dict[str, Any]:
    """One column: ``{same}`` where all rows are alike, ``{words, codes}`` where texts repeat themselves (-1: none), else ``{values}``."""
    if not values or all(value == values[0] and type(value) is type(values[0]) for value in values):
        return {"same": values[0] if values else None}
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == sum(value is not None for value in values):
        words = {word: code for code, word in enumerate(dict.fromkeys(texts))}
        if 2 * len(words) <= len(texts):
            return {"words": list(words), "codes": [-1 if value is None else words[value] for value in values]}
    return {"values": list(values)}


def rounded(value: float | None) -> float | int | None:
    """A measured number as it is shown: five significant digits, a whole number without a point. Not finite: None."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 10**_DIGITS else short


def fitting(texts: Sequence[str | None], longest: int, together: int) -> list[str | None]:
    """Texts cut to a length that lets all different ones have their share."""
    share = together // max(1, len({told for told in texts if told}))
    length = max(_LEAST_TEXT, min(longest, share))
    return [cut(told, length) if told else None for told in texts]


def script_json(document: Any) -> str:
    """A document as JSON inside a script element: nothing in it ends the element, and nothing hides or reorders text.

    Control characters and the like are shown as the replacement character, whatever column they come from.
    """
    text = json.dumps(_clean(document), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in _IN_SCRIPT.items():
        text = text.replace(character, escape)
    return text


def script_text(code: str) -> str:
    """JavaScript inside a script element. A string that would end the element is written otherwise.

    Line ends are those that an HTML parser would make of them, so that :func:`digest` is that of the element's text.
    """
    return _ENDS_SCRIPT.sub(r"\\x3c", code.replace("\r\n", "\n").replace("\r", "\n"))


def digest(text: str) -> str:
    """What a content security policy calls an inline script."""
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
