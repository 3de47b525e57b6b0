"""A cell's evidence on the page, in a real Chromium."""

# ruff: noqa: RUF001 - the sign of a ratio is meant
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chromium import Page

pytestmark = pytest.mark.containers

OPEN = "document.getElementById('evidence').open"
PASSING = "bert/tiny/openvino/float32/b1-s16-t1"
SOFTWARE = "bert/tiny/webgpu/float32/b1-s16-t1"
EMULATED = "bert/tiny/qnn/a16w8/b1-s16-t1"
WRONG = "mixtral/tiny/qnn/float16/b1-s16-t1"
ABSENT = "bert/tiny/cuda/float32/b1-s16-t1"


def opened(page: Page, published: str, key: str) -> str:
    """The text of a cell's evidence, which a link has opened."""
    page.go(f"{published}#view=matrix&cell={key}")
    page.wait(OPEN)
    text: str = page.evaluate("document.getElementById('evidence').innerText")
    return text


def facts(page: Page) -> dict[str, str]:
    pairs: list[tuple[str, str]] = page.evaluate(
        "[...document.querySelectorAll('#evidence dt')].map(dt => [dt.innerText, dt.nextSibling.innerText])"
    )
    return dict(pairs)


def test_a_passing_cell_tells_everything_that_was_measured(page: Page, published: str) -> None:
    text = opened(page, published, PASSING)
    for part in (
        "How far it got",
        "Placement and parity",
        "Latency of one inference",
        "Memory and loading",
        "Outputs",
        "Evidence",
        "Repeat it",
    ):
        assert part in text, part
    assert "High" in text
    assert "11×" not in text, "a tiny model has no speed"
    told = facts(page)
    assert told["On the target"] == "100 %"
    assert told["p50"].endswith(" ms")
    assert " to " in told["95 % interval"]
    assert told["Samples"] == "8,996"
    assert told["Contended"] == "no"
    assert told["Image"].startswith("sha256:")
    assert "openvino 2026.4.1" in told["Versions"]
    assert told["Isolation"] == "container"
    assert told["Executed"].startswith("2026-11-20 07:27 UTC, ")
    assert told["Cell"] == PASSING
    assert page.evaluate("document.querySelector('#evidence .command').textContent").startswith("nox -s matrix -- --models bert")
    assert page.evaluate("document.querySelectorAll('#evidence .funnel .passed').length") == 6
    assert page.evaluate("document.querySelector('#evidence .spread polyline').getAttribute('points').split(' ').length") == 20
    assert "half within" in page.evaluate("document.querySelector('#evidence .spread').getAttribute('aria-label')")
    assert "hwmatrix generate" not in text, "nothing fails that a script could show"
    assert page.complaints() == []


def test_software_is_called_that(page: Page, published: str) -> None:
    text = opened(page, published, SOFTWARE)
    assert "Medium · software" in text
    assert "Software execution: its times say nothing about hardware." in text
    assert "Speed over cpu" not in facts(page)


def test_what_was_emulated_has_no_speed(page: Page, published: str) -> None:
    text = opened(page, published, EMULATED)
    assert "Emulated: it shows what works, not how fast." in text
    assert "Latency" not in text
    told = facts(page)
    assert {"p50", "Mean", "Speed over cpu", "First inference", "Samples"} & told.keys() == set()
    stages = page.evaluate("[...document.querySelectorAll('#evidence .funnel li')].map(each => each.innerText.replace('\\n', ' '))")
    assert [stage for stage in stages if stage.startswith(("run", "measure"))] == ["run not timed", "measure not timed"]


def test_a_failing_cell_says_where_it_ended_what_to_do_and_what_works(page: Page, published: str) -> None:
    text = opened(page, published, WRONG)
    assert "relative L2 error 0.626 of logits exceeds 0.02" in text
    assert "What to do" in text
    assert "Report the operator to the authors of onnxruntime-qnn" in text
    assert "Compute in a wider precision" not in text  # it has computed in float16, and that is for a16w8 and a8w8
    assert "hwmatrix generate --reproduce mixtral qnn --dtype float16 --size tiny --database matrix.duckdb" in text
    assert page.evaluate("document.querySelector('#evidence .funnel .ended').innerText").startswith("compare")
    assert page.evaluate("document.querySelector('#evidence .funnel .never').innerText").startswith("measure")
    links = page.evaluate("[...document.querySelectorAll('#evidence a')].map(link => link.innerText)")
    assert links[0] == "on openvino in float32"
    page.click("#evidence li a")
    page.wait("document.getElementById('evidence-title').textContent === 'mixtral on openvino'")
    assert page.evaluate(OPEN)


def test_a_cell_that_was_not_executed_says_why_and_shows_no_numbers(page: Page, published: str) -> None:
    text = opened(page, published, ABSENT)
    assert "no NVIDIA driver is loaded here" in text
    assert "not executed" in text
    assert {"Latency of one inference", "How far it got", "Memory and loading", "Repeat it"} & set(text.splitlines()) == set()


def test_enter_opens_escape_closes_and_the_focus_comes_back(page: Page, published: str) -> None:
    page.go(f"{published}#view=matrix")
    page.evaluate("document.querySelector('#matrix [tabindex=\"0\"]').focus()")
    page.press("ArrowRight")
    page.press("Enter")
    page.wait(OPEN)
    assert page.evaluate("document.getElementById('evidence').contains(document.activeElement)")
    assert f"cell={PASSING}" in page.evaluate("decodeURIComponent(location.hash)")
    page.press("Escape")
    page.wait(f"!{OPEN}")
    page.wait("document.activeElement.dataset.column === '2'")
    assert "cell=" not in page.evaluate("location.hash")
    page.evaluate("history.back()")
    page.wait(OPEN)


def test_a_press_on_a_cell_opens_it_and_beside_it_closes_it(page: Page, published: str) -> None:
    page.go(f"{published}#view=matrix")
    page.click("#matrix [data-cell].none")
    page.wait(OPEN)
    assert page.evaluate("document.getElementById('evidence-title').textContent") == "mixtral on qnn"
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=200, y=500, button="left", clickCount=1)
    page.wait(f"!{OPEN}")


def test_a_link_to_a_cell_of_another_run_says_that_there_is_none(page: Page, published: str) -> None:
    page.go(f"{published}#view=matrix&cell=bert/huge/tpu")
    page.wait("document.getElementById('told').textContent !== ''")
    assert page.evaluate("document.getElementById('told').textContent") == "The cell in the link is not in this run."
    assert not page.evaluate(OPEN)
    assert page.complaints() == []


def test_the_command_is_copied_or_else_selected(page: Page, published: str) -> None:
    opened(page, published, PASSING)
    page.click("#evidence .copied button")
    page.wait("document.querySelector('#evidence .copied [role=status]').textContent !== ''")
    told = page.evaluate("document.querySelector('#evidence .copied [role=status]').textContent")
    if told != "copied":
        assert page.evaluate("getSelection().toString()").startswith("nox -s matrix -- --models bert")
    page.evaluate("navigator.clipboard.writeText = () => Promise.reject(new Error('refused'))")
    page.click("#evidence .copied button")
    page.wait("document.querySelector('#evidence .copied [role=status]').textContent.startsWith('selected')")
    assert page.evaluate("getSelection().toString()").startswith("nox -s matrix -- --models bert")


def test_an_error_leads_to_its_cells(page: Page, published: str) -> None:
    page.go(f"{published}#view=errors")
    page.click("#view-errors .few a")
    page.wait(OPEN)
    assert page.evaluate("document.getElementById('view-errors').hidden") is False
    page.press("Escape")
    page.click("#view-errors .cells summary")
    page.wait("document.querySelectorAll('#view-errors .cells a').length > 0")
    named = int(page.evaluate("document.querySelector('#view-errors .cells summary').textContent.split(' ')[0]"))
    assert page.evaluate("document.querySelector('#view-errors .cells').querySelectorAll('li').length") == named
