"""All views of the page in a real Chromium: charts, themes, widths, accessibility, and that nothing is loaded from anywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import axe
import pytest
from repeated_rows import RECORDED

from hwmatrix.report.page import VIEWS
from hwmatrix.report.write import write_reports
from hwmatrix.store.history import add

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chromium import Page

pytestmark = pytest.mark.containers

CHARTS = {"overview": {"families", "matrix"}, "performance": {"latency"}, "memory": {"memory"}, "tradeoffs": {"tradeoffs"}}
DRAWN = "[...document.querySelectorAll('#view-%s [data-chart]')].every(figure => figure.querySelector('svg, .nothing'))"
MIDDLE = """
    (() => {
        const mark = document.querySelectorAll("[data-chart=latency] svg .mark-symbol path")[3];
        mark.scrollIntoView({block: "center"});
        const box = mark.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    })()
"""
FITS = """
    (() => {
        const panel = document.getElementById("evidence"), box = panel.getBoundingClientRect();
        return box.left >= 0 && box.right <= innerWidth && panel.scrollWidth <= panel.clientWidth;
    })()
"""
WIDE = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def opened(page: Page, address: str, view: str) -> None:
    page.go(f"{address}#view={view}")
    page.wait(f"!document.getElementById('view-{view}').hidden")
    page.wait(DRAWN % view)
    page.settle()


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_opens_without_complaint_or_request(page: Page, published: str, view: str) -> None:
    opened(page, published, view)
    assert page.evaluate("document.querySelector('#views [aria-current]').dataset.view") == view
    assert page.evaluate("document.title").endswith("· hwmatrix")
    drawn = set(page.evaluate(f"[...document.querySelectorAll('#view-{view} [data-chart]')].map(figure => figure.dataset.chart)"))
    assert drawn == CHARTS.get(view, set())
    assert page.evaluate(
        f"[...document.querySelectorAll('#view-{view} [data-chart]')].every(figure => figure.querySelectorAll('svg path').length > 1)"
    )
    assert page.complaints() == []
    assert {request.partition("#")[0] for request in page.requests()} == {published}


def test_a_chart_has_words_a_table_and_tips_that_are_text(page: Page, published: str) -> None:
    opened(page, published, "performance")
    figure = "document.querySelector('[data-chart=latency]')"
    assert page.evaluate(f"{figure}.querySelector('[role=img]').getAttribute('aria-label')") == "Median latency of 45 cells on hardware"
    assert page.evaluate(f"{figure}.querySelector('.rows').childElementCount") == 0
    page.click("[data-chart=latency] summary")
    page.wait(f"{figure}.querySelectorAll('.rows tbody tr').length === 45")
    place = page.evaluate(MIDDLE)
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    page.wait("document.querySelector('.tip') !== null")
    assert "p50_ms" in page.evaluate("document.querySelector('.tip').innerText")


def test_another_model_is_compared_by_choice_and_by_link(page: Page, published: str) -> None:
    opened(page, published, "tradeoffs")
    titles = page.evaluate("[...document.querySelectorAll('#comparison option')].map(each => each.value)")
    first, other = titles[0], titles[-1]
    rows = "document.querySelector('#compared tbody').innerText"
    points = "document.querySelectorAll('[data-chart=tradeoffs] svg .mark-symbol path').length > 2"
    assert page.evaluate("document.getElementById('comparison').value") == first
    before = page.evaluate(rows)
    page.evaluate(f"document.getElementById('comparison').value = {json.dumps(other)}")
    page.evaluate("document.getElementById('comparison').dispatchEvent(new Event('change', {bubbles: true})) && null")
    page.wait(f"{rows} !== {json.dumps(before)}")
    page.wait(points)
    address = page.evaluate("location.hash")
    page.go("about:blank")
    page.go(f"{published}{address}")
    page.wait(f"document.getElementById('comparison').value === {json.dumps(other)}")
    page.wait(points)
    assert page.evaluate(rows) != before
    page.click("#compared tbody a")
    page.wait("document.getElementById('evidence').open")
    assert page.evaluate("document.getElementById('comparison').value") == other
    assert page.complaints() == []


def test_the_library_is_run_with_the_first_chart_and_not_before(page: Page, published: str) -> None:
    opened(page, published, "matrix")
    assert page.evaluate("typeof window.hwmatrixDraw") == "undefined"
    page.click("#views a[data-view=memory]")
    page.wait("typeof window.hwmatrixDraw === 'function'")


def test_no_text_becomes_a_program(page: Page, published: str) -> None:
    """The policy: neither eval nor a script that somebody adds, nor anything from anywhere."""
    opened(page, published, "overview")
    refused = "(() => { try { return window.eval('1 + 1'); } catch (error) { return error.name; } })()"
    assert page.evaluate(f"new Promise(done => setTimeout(() => done({refused})))") in {"EvalError", 2}  # DevTools may lift it for itself
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.__pwned = 1'}))")
    page.evaluate("document.body.append(Object.assign(document.createElement('img'), {src: 'https://example.invalid/x.png'}))")
    page.settle()
    assert page.evaluate("typeof window.__pwned") == "undefined"
    assert page.evaluate("fetch('https://example.invalid/').then(() => 'sent', () => 'refused')") == "refused"
    assert any("Content Security Policy" in told for told in page.complaints())
    tried = {event["requestId"] for event in page.events("Network.requestWillBeSent") if event["request"]["url"].startswith("http")}
    stopped = {event["requestId"] for event in page.events("Network.loadingFailed") if event.get("blockedReason") == "csp"}
    assert tried <= stopped


def broken(page: Page, axe_core: str) -> list[axe.Violation]:
    """What is grave on a page in both themes, which differ in nothing but colors."""
    page.media(prefers_color_scheme="light")
    light = axe.violations(page, axe_core)
    page.media(prefers_color_scheme="dark")
    return [found for found in (*light, *axe.violations(page, axe_core, "color-contrast")) if found.impact in axe.GRAVE]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_accessible(page: Page, published: str, axe_core: str, view: str) -> None:
    opened(page, published, view)
    for details in page.evaluate(f"[...document.querySelectorAll('#view-{view} details')].slice(0, 6).map((_, at) => at)"):
        page.evaluate(f"document.querySelectorAll('#view-{view} details')[{details}].open = true")
    page.settle()
    assert broken(page, axe_core) == []


def test_a_color_that_only_the_dark_theme_makes_unreadable_is_found(page: Page, published: str, axe_core: str) -> None:
    opened(page, published, "errors")
    dark = "@media (prefers-color-scheme: dark) { h1 { color: #333 !important; background: #222 !important } }"
    page.evaluate(f"document.head.append(Object.assign(document.createElement('style'), {{textContent: {json.dumps(dark)}}}))")
    assert [found.rule for found in broken(page, axe_core)] == ["color-contrast"]


@pytest.mark.parametrize("key", ["bert/tiny/openvino/float32/b1-s16-t1", "mixtral/tiny/qnn/float16/b1-s16-t1"])
def test_the_evidence_is_accessible(page: Page, published: str, axe_core: str, key: str) -> None:
    page.go(f"{published}#view=matrix&status=mismatch&cell={key}")
    page.wait("document.getElementById('evidence').open")
    assert broken(page, axe_core) == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_narrow_window_scrolls_no_page_sideways(page: Page, published: str, view: str) -> None:
    page.size(390, 844)
    opened(page, published, view)
    assert page.evaluate(WIDE), page.evaluate("document.documentElement.scrollWidth")
    page.go(f"{published}#view={view}&cell=mixtral/tiny/qnn/float16/b1-s16-t1")
    page.wait("document.getElementById('evidence').open")
    assert page.evaluate(FITS)


def test_the_theme_is_chosen_and_kept(page: Page, published: str) -> None:
    opened(page, published, "overview")
    color = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(color) == "rgb(255, 255, 255)"
    for told in ("Theme: light", "Theme: dark"):
        page.click("#theme")
        assert page.evaluate("document.getElementById('theme').textContent") == told
    assert page.evaluate(color) == "rgb(14, 18, 23)"
    page.wait("document.querySelector('[data-chart=families] svg .role-axis-label text').getAttribute('fill') === '#e6edf3'")
    page.reload()
    assert page.evaluate("document.getElementById('theme').textContent") == "Theme: dark"
    assert page.evaluate(color) == "rgb(14, 18, 23)"
    assert page.complaints() == []


def test_a_history_is_drawn_over_its_runs(page: Page, folder: Path, address: Callable[[Path], str]) -> None:
    other = RECORDED.with_name("performance.duckdb")
    place = folder / "history"
    place.mkdir()
    add(place / "history.duckdb", [RECORDED], release="1.0")
    add(place / "history.duckdb", [other], release="1.1")
    write_reports(RECORDED, place / "latest")
    opened(page, address(place / "latest" / "index.html"), "history")
    assert page.evaluate("document.querySelectorAll('[data-chart=status_trend] svg .mark-rect path').length") >= 4
    runs = page.evaluate("[...document.querySelectorAll('#view-history tbody tr')].map(row => row.children[1].innerText)")
    assert runs == ["1.1", "1.0"]
    assert page.complaints() == []
