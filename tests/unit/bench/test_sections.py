"""Programs that write sections of one page do not change each other's sections."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

PLACE = Path(__file__).parents[3] / "tests" / "bench" / "sections.py"


@pytest.fixture(scope="module")
def sections() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sections", PLACE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_a_section_is_added_then_replaced_and_the_rest_is_unchanged(sections: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\nmine\n", encoding="utf-8")
    sections.put(page, "page", "first\n")
    sections.put(page, "other", "foreign\n")
    sections.put(page, "page", "second\n\nlines\n")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Benchmarks\n\nmine\n\n<!-- page: begin -->\nsecond\n\nlines\n<!-- page: end -->\n")
    assert "first" not in text
    assert text.endswith("<!-- other: begin -->\nforeign\n<!-- other: end -->\n")


def test_rewriting_the_page_keeps_the_sections(sections: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    assert sections.kept(page) == ""
    sections.put(page, "page", "numbers\n")
    kept = sections.kept(page)
    page.write_text(f"# Anew\n{kept}", encoding="utf-8")
    assert page.read_text(encoding="utf-8") == "# Anew\n\n<!-- page: begin -->\nnumbers\n<!-- page: end -->\n"
    sections.put(page, "page", "numbers\n")
    assert sections.kept(page) == kept
