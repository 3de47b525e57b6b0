"""Attacks in every text of a run are shown as text: no script runs, nothing is loaded, nothing hides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hostile_rows import hostile_rows

from hwmatrix.report.page import VIEWS
from hwmatrix.report.write import write_reports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chromium import Page

pytestmark = pytest.mark.containers

PWNED = "typeof window.__pwned"
NOISY = "innerText.match(/[\\u202a-\\u202e\\u2066-\\u2069\\u200b\\ufeff\\u0007\\u001b\\u2028\\u2029]/)"


@pytest.fixture(scope="module")
def hostile(folder: Path, address: Callable[[Path], str]) -> str:
    write_reports(hostile_rows(folder / "hostile.duckdb"), folder / "hostile" / "latest")
    return address(folder / "hostile" / "latest" / "index.html")


def harmless(page: Page, address: str) -> None:
    assert page.evaluate(PWNED) == "undefined"
    assert page.complaints() == []
    assert {request.partition("#")[0] for request in page.requests()} == {address}
    assert (
        page.evaluate("document.querySelectorAll('img, iframe, object, embed, [onerror], [onload], [onmouseover], [onfocus]').length") == 0
    )
    assert page.evaluate("[...document.querySelectorAll('a')].every(link => link.getAttribute('href').startsWith('#'))")
    assert page.evaluate("document.scripts.length") <= 6  # our own five, and the library once it was needed
    assert page.evaluate(f"document.body.{NOISY}") is None


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_harmless(page: Page, hostile: str, view: str) -> None:
    page.go(f"{hostile}#view={view}")
    page.wait(f"!document.getElementById('view-{view}').hidden")
    page.wait(f"[...document.querySelectorAll('#view-{view} [data-chart]')].every(figure => figure.querySelector('svg'))")
    page.evaluate(f"for (const details of document.querySelectorAll('#view-{view} details')) details.open = true")
    page.settle()
    harmless(page, hostile)


def test_every_cells_evidence_is_harmless(page: Page, hostile: str) -> None:
    page.go(f"{hostile}#view=matrix")
    keys = page.evaluate("Array.from({length: Data.count}, (_, number) => Data.cells.key(number))")
    assert len(keys) == len(set(keys)) == 22
    for number in range(len(keys)):
        page.evaluate(f"Links.go({{cell: Data.cells.key({number})}})")
        page.settle()
        assert page.evaluate("document.getElementById('evidence').open")
        page.evaluate("for (const details of document.querySelectorAll('#evidence details')) details.open = true")
        page.settle()
    harmless(page, hostile)


def test_what_was_said_is_shown_word_for_word(page: Page, hostile: str) -> None:
    page.go(f"{hostile}#view=matrix")
    names = page.evaluate("[...document.querySelectorAll('#matrix b')].map(name => name.textContent)")
    assert "good0 </script><script>window.__pwned = 1</script>" in names
    assert any(name.startswith("good5 \ufffd[31mred\ufffd[0m") for name in names)
    assert any("gnp.\ufffdtxt.exe" in name for name in names)
    longest = max(names, key=len)
    assert longest.endswith("…")
    assert len(longest) == 200


def test_long_texts_are_cut_with_a_word_about_it(page: Page, hostile: str) -> None:
    page.go(f"{hostile}#view=matrix&sort=model")
    number = page.evaluate(
        "Array.from({length: Data.count}, (_, number) => number).find(number => Data.cells.model(number).startsWith('bad0'))"
    )
    page.evaluate(f"Links.go({{cell: Data.cells.key({number})}})")
    page.settle()
    traceback = page.evaluate("document.querySelector('#evidence details pre').textContent")
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert "characters left out]" in traceback
    assert traceback.rstrip().endswith("Error: </script><script>window.__pwned = 1</script>")
    assert len(traceback) < 21_000


def test_a_hostile_address_is_a_state_like_any_other(page: Page, hostile: str) -> None:
    attack = "%3Cimg%20src=x%20onerror=window.__pwned=1%3E"
    page.go(f"{hostile}#view={attack}&q={attack}&family={attack}&sort={attack}&show={attack}&cell={attack}&constructor=1&__proto__=2")
    page.settle()
    assert page.evaluate("!document.getElementById('view-overview').hidden")
    page.click("#views a[data-view=matrix]")
    page.settle()
    assert page.evaluate("document.querySelector('#matrix .empty').textContent") == "No cell matches."
    harmless(page, hostile)
