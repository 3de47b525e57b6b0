# ruff: noqa: RUF001 - typographic signs are meant
from __future__ import annotations

import random
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from markupsafe import Markup

from hwmatrix.basics import escape

NASTY = [
    "a|b",
    "a\\|b",
    "a\\",
    "ends with a tick`",
    "`",
    "``",
    "`|`",
    "`` ` ``",
    "```\nfence\n```",
    "~~~\nfence\n~~~",
    "line one\nline two",
    "line\r\n\r\n| a | b |\n|---|---|",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</details></summary><h1>big</h1>",
    "<!-- comment",
    "--> &lt; &#60; &amp;",
    "![image](https://evil.example/x.png)",
    "[link](https://evil.example)",
    "[reference]: https://evil.example",
    "<https://evil.example>",
    "https://evil.example/path?q=1",
    "www.evil.example",
    "mail me@evil.example",
    "@everyone and @octocat",
    "see #123 and GH-123 and owner/name#1",
    "**bold** _em_ *em* ~~gone~~ __bold__",
    "# heading",
    "- item",
    "1. item",
    "> quote",
    "---",
    "===",
    "+ item",
    "$x^2$ $$y$$",
    ":smile: {% raw %} {{ 7 * 7 }}",
    "\x1b[31mred\x1b[0m \x00 \x07",
    "right-to-left \u202eevil\u202c",
    "\u2028line\u2029paragraph",
    "tab\there",
    "snake_case_name and _leading_ trailing_",
    "emoji 🎉 and ünïcödé 漢字",
    "   spaces   ",
    "-" * 300,
    "|" * 50,
    "\\" * 7,
    "javascript:alert(1)",
    "mailto:me@evil.example",
]


class Texts(HTMLParser):
    """The tags and the text of an HTML fragment."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs or tag in {"th", "td", "code"}, (tag, attrs)
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(markdown: str) -> Texts:
    """Render like the most permissive reader: with HTML, tables and strikethrough."""
    return Texts(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown))


def read_back(text: str) -> str:
    return " ".join(text.replace("\u200b", "").split())


@pytest.mark.parametrize("text", NASTY)
def test_text_reads_as_it_is(text: str) -> None:
    found = rendered(escape.md(text))
    assert found.tags == ["p"]
    assert read_back(found.text) == escape.plain(text)


@pytest.mark.parametrize("text", NASTY)
def test_code_reads_as_it_is(text: str) -> None:
    found = rendered(f"before {escape.code(text)} after")
    assert found.tags == ["p", "code"]
    assert read_back(found.text) == read_back(f"before {escape.plain(text)} after")


@pytest.mark.parametrize("wrap", [escape.md, escape.code])
@pytest.mark.parametrize("text", NASTY)
def test_a_table_keeps_its_cells(text: str, wrap: object) -> None:
    assert callable(wrap)
    row = f"| {wrap(text)} | second |"
    assert "\n" not in row
    assert row.count("|") == 3
    found = rendered(f"| a | b |\n|---|---|\n{row}\n")
    assert [tag for tag in found.tags if tag in {"tr", "td", "th"}] == ["tr", "th", "th", "tr", "td", "td"]
    assert set(found.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}
    assert read_back(found.text).endswith(f"{escape.plain(text)} second")


@pytest.mark.parametrize("text", NASTY)
def test_a_fence_holds_everything(text: str) -> None:
    found = rendered(f"<details>\n<summary>s</summary>\n\n{escape.fence(text, 'text')}\n\n</details>\n\nafter\n")
    assert found.tags == ["details", "summary", "pre", "code", "p"]
    assert found.text.strip().endswith("after")


@pytest.mark.parametrize("text", NASTY)
def test_html_stays_text(text: str) -> None:
    found = rendered(f"<details>\n<summary>{escape.html(text)}</summary>\n\n</details>\n")
    assert found.tags == ["details", "summary"]
    assert read_back(found.text) == escape.plain(text)


@pytest.mark.parametrize("text", NASTY)
def test_characters_that_hide_or_reorder_text_are_removed(text: str) -> None:
    for wrapped in (escape.md(text), escape.code(text), escape.html(text), escape.fence(text)):
        assert not {"\x1b", "\x00", "\x07", "\u202e", "\u202c", "\u2028", "\u2029"} & set(wrapped)


@pytest.mark.parametrize(
    "text",
    ["https://evil.example", "http://e.example", "www.evil.example", "@octocat", "#123", "GH-123", "mailto:a@b.example", "a@b.example"],
)
def test_github_makes_no_link_or_mention_of_text(text: str) -> None:
    """GitHub searches rendered text outside of code for these, so they must contain a zero-width space."""
    for wrapped in (escape.md(text), escape.html(text)):
        assert text not in Texts(str(wrapped)).text
        assert read_back(Texts(str(wrapped)).text) == text


def test_random_punctuation_breaks_nothing() -> None:
    dice = random.Random(20260102)  # noqa: S311 - the same strings every time
    parts = [*"`|\\*_[]()<>!#&~-+=:@$.1a \n\t", "``", "](", "\n\n", "http://", "<b>", "&lt;", "\\|", "`|`"]
    for _ in range(2000):
        text = "".join(dice.choices(parts, k=dice.randint(1, 12)))
        shown = escape.plain(text)
        for wrapped in (escape.md(text), escape.code(text)):
            found = rendered(f"| a | b |\n|---|---|\n| {wrapped} | second |\n")
            assert found.tags.count("td") == 2, text
            assert set(found.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}, text
            assert read_back(found.text) == read_back(f"a b {shown} second"), text
        assert rendered(escape.md(text)).tags == ["p"] * bool(shown), text
        assert rendered(escape.fence(text)).tags == ["pre", "code"], text


def test_ordinary_text_is_not_changed() -> None:
    for text in ("bert-base-uncased", "text_generation", "3.42", "1.9×", "0.312 to 0.318", "cpu (container)", "–", "✅ High · 1.9×", "C++"):
        assert escape.md(text) == text
        assert escape.code(text) == f"`{text}`"


def test_short() -> None:
    assert escape.short("abc\ndef", 20) == "abc def"
    assert escape.short("x" * 30, 10) == "x" * 9 + "…"
    assert len(escape.short("y" * 10, 10)) == 10


def test_escaped_text_is_not_escaped_again() -> None:
    assert escape.finalize(Markup("**bold**")) == "**bold**"
    assert escape.finalize("**bold**") == r"\*\*bold\*\*"
    assert escape.finalize(7) == "7"
