"""Escapes untrusted text for Markdown: names, messages and tracebacks cannot break tables or inject HTML, links, images or mentions.

Report templates need not escape anything: everything they print goes through :func:`md`, unless it is :class:`markupsafe.Markup`, which
only the functions here (and the templates themselves) create. The result never contains ``|`` or a line break that breaks a table.
"""

from __future__ import annotations

import html as _html
import re
from typing import Any, Final

from markupsafe import Markup

from hwmatrix.basics.text import plain, visible

_BACKTICKS: Final = re.compile(r"`+")
_ZERO_WIDTH: Final = "&#8203;"
"""A zero-width space as an entity: visible in the raw text, and it keeps GitHub from making a link or a mention."""

_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"}
_BACKSLASHED: Final = frozenset("\\`*[]~$")
_LINKS: Final = re.compile(r"://|@(?=\w)|#(?=\d)|\b(?:www|WWW)(?=\.)|\b(?:mailto|xmpp)(?=:)|\bGH(?=-\d)")
_UNDERSCORE: Final = re.compile(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_LEADING: Final = re.compile(r"^(\d{1,9})?(?=(?:[-+#=.)]|&gt;))(?=[-+=]*(?:\s|$)|#{1,6}(?:\s|$)|[.)](?:\s|$))")
"""The position before a character that would begin a list, a heading or an underline."""
_HTML_PUNCTUATION: Final = re.compile(r"[^0-9A-Za-z \u0080-\U0010ffff]")


def md(text: Any) -> Markup:
    """Escape text so that Markdown shows it unchanged, on one line."""
    return Markup(_md(plain(text)))  # noqa: S704 - this is the escaping


def code(text: Any) -> Markup:
    """Return a code span on one line, for paragraphs and tables. Nothing in it is a link, a mention or HTML."""
    content = plain(text)
    if not content:
        return Markup()
    if "|" in content or content.endswith("\\"):
        # In tables, parsers disagree on backslashes before a pipe and before the end. Entities avoid this.
        encoded = _HTML_PUNCTUATION.sub(lambda found: f"&#{ord(found[0])};", content).replace("&#64;", f"&#64;{_ZERO_WIDTH}")
        return Markup(f"<code>{encoded}</code>")  # noqa: S704 - every ASCII character but letters, digits and spaces is an entity
    ticks = "`" * (_longest_run(content) + 1)
    pad = " " if content.startswith("`") or content.endswith("`") else ""
    return Markup(f"{ticks}{pad}{content}{pad}{ticks}")  # noqa: S704 - the span's ticks are longer than any run inside


def fence(text: Any, language: str = "") -> Markup:
    """Return a fenced block that keeps the line breaks. It must be on its own lines."""
    lines = [visible(line, keep="\t").rstrip() for line in str(text).splitlines()]
    body = "\n".join(lines).strip("\n")
    ticks = "`" * max(3, _longest_run(body) + 1)
    return Markup(f"{ticks}{language}\n{body}\n{ticks}")  # noqa: S704 - the fence is longer than any run inside


def html(text: Any) -> Markup:
    """Escape text for the inside of an HTML element on one line, where Markdown is not parsed."""
    escaped = _html.escape(plain(text))
    return Markup(_LINKS.sub(lambda found: found[0] + _ZERO_WIDTH, escaped).replace("|", "&#124;"))  # noqa: S704 - escaped above


def short(text: Any, length: int = 100) -> str:
    """Return the first ``length`` characters on one line, with an ellipsis if something was cut. Not escaped yet."""
    content = plain(text)
    return content if len(content) <= length else content[: length - 1].rstrip() + "…"


def finalize(value: Any) -> Markup:
    """Escape a value that a template prints, unless it is escaped already."""
    return value if isinstance(value, Markup) else md(value)


def _md(text: str) -> str:
    parts, end = [], 0
    for found in _LINKS.finditer(text):  # "://", "@name", "#12", "www.": split so that no renderer turns them into links
        cut = found.start() + 1 if found[0] == "://" else found.end()
        parts += [_escape_characters(text[end:cut]), _ZERO_WIDTH]
        end = cut
    parts.append(_escape_characters(text[end:]))
    joined = "".join(parts)
    return _LEADING.sub(r"\g<0>\\", joined)


def _escape_characters(text: str) -> str:
    escaped = "".join(_ENTITIES.get(character) or (f"\\{character}" if character in _BACKSLASHED else character) for character in text)
    return _UNDERSCORE.sub(r"\\_", escaped)


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
