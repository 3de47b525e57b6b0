"""Totals, what blocks most and what models were given, on the page of very many models of which nothing was timed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import axe
import pytest

from hwmatrix.report.write import write_reports

if TYPE_CHECKING:
    from collections.abc import Callable

    from chromium import Page

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from factory_sweep import sweep

pytestmark = pytest.mark.containers

MODELS = 70
WIDE = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
EXAMPLE = "[...document.querySelectorAll('details.example')].find(each => each.closest('tr').textContent.includes('get_rope_index'))"
SHOWN = "document.getElementById('shown').textContent"


@pytest.fixture(scope="module")
def swept(folder: Path, address: Callable[[Path], str]) -> str:
    write_reports(sweep(folder / "sweep.duckdb", models=MODELS), folder / "sweep" / "latest")
    return address(folder / "sweep" / "latest" / "index.html")


def test_totals_lead_to_their_cells(page: Page, swept: str) -> None:
    page.go(f"{swept}#view=overview")
    heads = page.evaluate("[...document.querySelectorAll('.totals thead th')].map(head => head.textContent)")
    assert heads[:3] == ["Target", "Models", "Generating"]
    assert heads[3:] == ["embedding", "text generation", "vision", "audio", "multimodal", "video", "other"]
    assert "No cell was timed" in page.evaluate("document.getElementById('view-overview').textContent")
    page.click(".totals tbody tr:nth-child(2) td:nth-child(6) a")
    page.settle()
    assert page.evaluate("Links.state().family") == ["vision"]
    assert page.evaluate("Links.state().target") == ["openvino"]
    assert page.evaluate(SHOWN) == f"10 rows of {MODELS} shown"
    assert page.complaints() == []


def test_an_example_has_what_was_said_and_how_to_repeat_it(page: Page, swept: str) -> None:
    page.go(f"{swept}#view=errors")
    page.evaluate(f"{EXAMPLE}.open = true")
    page.settle()
    told = page.evaluate(f"{EXAMPLE}.textContent")
    assert "Could not guard on data-dependent expression Eq(u" in told
    assert "in get_rope_index" in told
    assert "hwmatrix matrix --models arch-" in told
    assert page.evaluate(f"{EXAMPLE}.querySelector('details').open") is False  # the traceback is folded
    page.evaluate(f"{EXAMPLE}.querySelector('a').click()")
    page.settle()
    assert page.evaluate("document.getElementById('evidence').open")
    assert page.complaints() == []


def test_models_that_could_not_be_made_stand_apart(page: Page, swept: str) -> None:
    page.go(f"{swept}#view=errors")
    titles = page.evaluate("[...document.querySelectorAll('#view-errors h3')].map(title => title.textContent)")
    assert titles == ["What blocks most", "What could not be made", "By type, with what to do"]
    assert "never counted against hardware" in page.evaluate("document.getElementById('view-errors').textContent")


@pytest.mark.parametrize(
    ("asked", "models"),
    [
        ("inputs=image%2C+text", [n for n in range(MODELS) if n % 7 == 3 and n % 4 != 1 and n % 13 != 12]),
        ("path=text+path+only", [n for n in range(MODELS) if n % 7 == 3 and n % 4 == 1 and n % 13 != 12]),
    ],
)
def test_what_models_were_given_can_be_filtered(page: Page, swept: str, asked: str, models: list[int]) -> None:
    page.go(f"{swept}#view=matrix&{asked}")
    page.settle()
    assert page.evaluate("[...document.querySelectorAll('#matrix .body b')].map(name => name.textContent)") == [
        f"arch-{number:03}" for number in models
    ]
    filters = page.evaluate("[...document.querySelectorAll('#choices summary')].map(each => each.textContent.split(':')[0])")
    assert {"Inputs", "Text path"} <= set(filters)
    assert page.complaints() == []


def test_a_run_without_times_offers_none(page: Page, swept: str) -> None:
    page.go(f"{swept}#view=matrix&show=p50")
    assert page.evaluate("[...document.querySelectorAll('#show option')].map(each => each.disabled)") == [False, True, True, False]
    labels = page.evaluate("[...document.querySelectorAll('#matrix [data-cell]')].map(cell => cell.innerText)")
    assert any("not timed" in label for label in labels)
    assert not any(" ms" in label for label in labels)


@pytest.mark.parametrize("view", ["overview", "errors"])
@pytest.mark.parametrize("look", [(1280, "light"), (390, "dark")])
def test_the_views_are_accessible(page: Page, swept: str, axe_core: str, view: str, look: tuple[int, str]) -> None:
    width, scheme = look
    page.size(width)
    page.media(prefers_color_scheme=scheme)
    page.go(f"{swept}#view={view}")
    page.settle()
    page.evaluate("for (const each of [...document.querySelectorAll('details.example')].slice(0, 3)) each.open = true")
    page.settle()
    assert [found for found in axe.violations(page, axe_core) if found.impact in axe.GRAVE] == []


@pytest.mark.parametrize("view", ["overview", "errors"])
def test_the_views_fit_where_it_is_narrow(page: Page, swept: str, view: str) -> None:
    page.size(390)
    page.go(f"{swept}#view={view}")
    page.settle()
    page.evaluate("for (const each of [...document.querySelectorAll('details.example')].slice(0, 3)) each.open = true")
    page.settle()
    assert page.evaluate(WIDE)
