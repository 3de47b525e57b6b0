"""The matrix on the page, in a real Chromium: what is shown, filtered, sorted, linked, reached by keyboard, and printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from chromium import Page

pytestmark = pytest.mark.containers

ROWS = "[...document.querySelectorAll('#matrix .body [role=row]')].map(row => row.querySelector('b').textContent)"
HEADS = "[...document.querySelectorAll('#matrix [role=columnheader] .title')].map(head => head.textContent)"
FOCUSED = "[document.activeElement.parentElement.dataset.row, document.activeElement.dataset.column].map(Number)"
SHOWN = "document.getElementById('shown').textContent"
IN_SIGHT = """
    (() => {
        const cell = document.activeElement.getBoundingClientRect();
        const grid = document.getElementById("matrix").getBoundingClientRect();
        return cell.top >= grid.top && cell.bottom <= grid.bottom;
    })()
"""
HASH = "decodeURIComponent(location.hash)"


def cells(page: Page, selector: str = "[data-cell]") -> list[str]:
    found: list[str] = page.evaluate(
        f"[...document.querySelectorAll('#matrix {selector}')].map(cell => cell.innerText.replace('\\n', ' '))"
    )
    return found


def typed(page: Page, text: str) -> None:
    page.evaluate("document.getElementById('search').focus()")
    for letter in text:
        page.press(letter)


def choose(page: Page, name: str, value: str) -> None:
    """Open a filter and tick a value, with the pointer."""
    summary = f"#choices details:nth-child({page.evaluate(_NUMBER % name)}) summary"
    page.click(summary)
    page.click(f"#choices details[open] input[value='{value}']")
    page.press("Escape")


_NUMBER = "[...document.querySelectorAll('#choices summary')].findIndex(each => each.textContent.startsWith('%s')) + 1"


def test_it_shows_every_model_and_target_with_words_and_shapes(page: Page, published: str) -> None:
    page.go(f"{published}#view=matrix")
    assert page.evaluate(HEADS) == [
        *("Model", "cpu", "openvino", "onnxruntime", "cuda", "rocm", "mps", "qnn", "qnn", "qnn", "webgpu", "webnn"),
    ]
    assert page.evaluate(ROWS)[:3] == ["bert", "roberta", "gpt2"]
    assert page.evaluate(SHOWN) == "16 rows of 16 shown"
    words = set(cells(page))
    assert {"High", "unavailable", "mismatch", "Medium emulated", "Medium software"} <= words
    assert page.evaluate(
        "[...document.querySelectorAll('#matrix [data-cell]')].every(cell => cell.querySelector('svg use') && cell.innerText)"
    )
    marks = "new Set([...document.querySelectorAll('#matrix use')].map(use => use.getAttribute('href')))"
    assert page.evaluate(f"[...{marks}].every(mark => document.querySelector(mark))")
    assert page.complaints() == []


def test_only_rows_in_sight_are_there_and_all_can_be_reached(page: Page, full: str) -> None:
    page.go(f"{full}#view=matrix")
    assert page.evaluate(SHOWN) == "650 rows of 650 shown"
    counted = "['aria-rowcount', 'aria-colcount'].map(name => document.getElementById('matrix').getAttribute(name))"
    assert page.evaluate(counted) == ["651", "9"]
    assert len(page.evaluate(ROWS)) < 60
    page.evaluate("document.getElementById('matrix').scrollTop = 1e6")
    page.settle()
    last = page.evaluate("[...document.querySelectorAll('#matrix .body [role=row]')].at(-1).getAttribute('aria-rowindex')")
    assert last == "651"
    assert len(page.evaluate(ROWS)) < 60
    order = page.evaluate(
        "[...document.querySelectorAll('#matrix .body [role=row]')].map(row => Number(row.getAttribute('aria-rowindex')))"
    )
    assert order == sorted(order)


def test_search_narrows_with_every_key_and_is_in_the_address(page: Page, published: str) -> None:
    page.go(f"{published}#view=matrix")
    typed(page, "bert")
    assert page.evaluate(ROWS) == ["bert", "roberta"]
    assert page.evaluate(SHOWN) == "2 rows of 16 shown"
    page.wait("location.hash.includes('q=bert')")
    typed(page, " zzz")
    assert page.evaluate("document.querySelector('#matrix .body b')") is None
    assert page.evaluate("document.querySelector('#matrix .empty').textContent") == "No cell matches."
    page.click("#reset")
    assert page.evaluate(SHOWN) == "16 rows of 16 shown"


def test_filters_leave_what_was_asked_for(page: Page, published: str) -> None:
    page.go(f"{published}#view=matrix")
    choose(page, "Status", "mismatch")
    assert page.evaluate(ROWS) == ["mixtral", "vit", "swin", "xclip"]
    assert cells(page, "[data-cell].none") == ["mismatch"] * 8
    assert "status=mismatch" in page.evaluate(HASH)
    choose(page, "Family", "vision")
    assert page.evaluate(ROWS) == ["vit", "swin"]
    choose(page, "Precision", "a16w8")
    assert page.evaluate(HEADS) == ["Model", "qnn"]
    assert page.evaluate(ROWS) == ["swin"]
    page.click("#reset")
    choose(page, "Target", "cpu")
    choose(page, "Target", "webgpu")
    assert page.evaluate(HEADS) == ["Model", "cpu", "webgpu"]
    choose(page, "Execution", "software")
    assert page.evaluate(HEADS) == ["Model", "webgpu"]


def test_back_and_forward_restore_what_was_shown(page: Page, published: str) -> None:
    page.go(f"{published}#view=matrix")
    choose(page, "Family", "audio")
    assert page.evaluate(ROWS) == ["whisper", "wav2vec2"]
    page.click("#views a[data-view=memory]")
    page.wait("!document.getElementById('view-memory').hidden")
    page.evaluate("history.back()")
    page.wait("!document.getElementById('view-matrix').hidden")
    assert page.evaluate(ROWS) == ["whisper", "wav2vec2"]
    page.evaluate("history.back()")
    page.wait(f"{SHOWN} === '16 rows of 16 shown'")
    page.evaluate("history.forward()")
    page.wait(f"{SHOWN} === '2 rows of 16 shown'")


def test_a_link_holds_everything_that_is_shown(page: Page, published: str) -> None:
    key = "swin/tiny/qnn/a16w8/b1-s16-t1"
    page.go(f"{published}#view=matrix&family=vision&status=mismatch&sort=-model&show=memory&q=i&cell={key}")
    assert page.evaluate(ROWS) == ["vit", "swin"]
    assert page.evaluate("document.getElementById('evidence').open")
    assert page.evaluate("document.getElementById('evidence-title').textContent") == "swin on qnn"
    assert page.evaluate("['search', 'sort', 'show'].map(id => document.getElementById(id).value)") == ["i", "", "memory"]
    heads = "document.querySelector('#matrix [role=columnheader]')"
    assert page.evaluate(f"{heads}.getAttribute('aria-sort')") == "descending"


def test_a_header_sorts_best_first_then_worst_first_then_as_planned(page: Page, published: str) -> None:
    page.go(f"{published}#view=matrix")
    planned = page.evaluate(ROWS)
    header = "#matrix [data-sort='qnn.container.a8w8']"
    page.click(header)
    column = "[...document.querySelectorAll('#matrix .body [role=row]')].map(row => row.children[9].innerText.split('\\n')[0])"
    best_first = page.evaluate(column)
    assert best_first == sorted(best_first, key=["Medium", "Low", "mismatch", "factory error"].index)
    page.click(header)
    assert page.evaluate(column) == sorted(best_first, key=["factory error", "mismatch", "Low", "Medium"].index)
    assert page.evaluate(f"document.querySelector(\"{header}\").getAttribute('aria-sort')") == "descending"
    page.click(header)
    assert page.evaluate(ROWS) == planned


def test_cells_show_latency_speed_or_memory_but_no_speed_of_an_emulator(page: Page, published: str) -> None:
    page.go(f"{published}#view=matrix&show=p50")
    first: list[str] = page.evaluate("[...document.querySelector('#matrix .body [role=row]').children].map(cell => cell.innerText)")
    assert first[1].endswith(" ms")
    assert first[10].endswith("software")
    emulated = [
        ["Medium", "emulated"],
        ["Low", "model changed, emulated"],
        ["Low", "model changed, emulated"],
    ]  # in 16 and 8 bits, their graphs were rewritten
    assert [cell.split("\n") for cell in first[7:10]] == emulated
    page.go(f"{published}#view=matrix&show=speed")
    first = page.evaluate("[...document.querySelector('#matrix .body [role=row]').children].map(cell => cell.innerText)")
    assert first[2] == "High", "a tiny model has no speed"
    assert [cell.split("\n") for cell in first[7:11]] == [*emulated, ["Medium", "software, 98 % on the target"]]
    page.go(f"{published}#view=matrix&show=memory&sort=-openvino.container")
    sizes = [float(text.split()[0]) for text in cells(page, '[aria-colindex="3"][data-cell]') if "MiB" in text]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 15


def test_keys_move_through_the_whole_matrix(page: Page, full: str) -> None:
    page.go(f"{full}#view=matrix")
    page.evaluate("document.querySelector('#matrix [tabindex=\"0\"]').focus()")
    visited = {}
    for key, modifiers in (
        ("ArrowRight", 0),
        ("ArrowDown", 0),
        ("PageDown", 0),
        ("End", 0),
        ("ArrowRight", 0),
        ("Home", 0),
        ("End", 2),
        ("Home", 2),
        ("ArrowUp", 0),
        ("ArrowUp", 0),
    ):
        page.press(key, modifiers=modifiers)
        visited[len(visited)] = (key, *page.evaluate(FOCUSED))
        assert page.evaluate("document.querySelectorAll('#matrix [tabindex=\"0\"]').length") == 1
    moves: list[Any] = list(visited.values())
    assert moves[0] == ("ArrowRight", 0, 2)
    assert moves[1] == ("ArrowDown", 1, 2)
    assert moves[2][1] > 5
    assert moves[3][2] == moves[4][2] == 8  # the last column, and no further
    assert moves[5][2] == 0
    assert moves[6] == ("End", 649, 8)
    assert moves[7] == ("Home", 0, 0)
    assert moves[8] == moves[9] == ("ArrowUp", -1, 0)  # the header, and no further
    assert page.evaluate(IN_SIGHT)


def test_the_place_in_the_tab_order_stays_though_its_row_is_out_of_sight(page: Page, full: str) -> None:
    page.go(f"{full}#view=matrix")
    page.evaluate("document.querySelector('#matrix [tabindex=\"0\"]').focus()")
    page.press("ArrowDown")
    page.evaluate("document.getElementById('matrix').scrollTop = 20000")
    page.settle()
    assert page.evaluate(FOCUSED) == [1, 1]
    page.press("ArrowDown")
    assert page.evaluate(FOCUSED) == [2, 1]
    assert page.evaluate("document.getElementById('matrix').scrollTop") < 200


def test_paper_gets_the_whole_matrix_as_it_is_filtered(page: Page, full: str) -> None:
    page.go(f"{full}#view=matrix&family=vision")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    lines = page.evaluate("document.querySelectorAll('#printed tbody tr').length")
    assert page.evaluate(SHOWN) == f"{lines} rows of 650 shown"
    assert lines > 60
    assert page.evaluate("document.querySelector('#printed td.High').innerText").strip().startswith("High")
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate("getComputedStyle(document.getElementById('matrix')).display") == "none"
    assert page.evaluate("getComputedStyle(document.getElementById('printed')).display") == "block"
    page.call("Emulation.setEmulatedMedia", media="")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.getElementById('printed').childElementCount") == 0
    assert len(page.call("Page.printToPDF", landscape=True)["data"]) > 10_000
