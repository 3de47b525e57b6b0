"""The project's pages: every relative link points to an existing file and heading, and every file that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
PACKAGE: Final = ROOT / "harness" / "hwmatrix"
GENERATED: Final = ROOT / "reports" / "latest"
PAGES: Final = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "reports/**/*.md", "images/**/*.md", "tests/**/*.md")
    for page in ROOT.glob(pattern)
    if not page.is_relative_to(GENERATED)
)
_FENCE: Final = re.compile(r"^(`{3,}|~{3,}).*?^\1[`~]*\s*$", re.DOTALL | re.MULTILINE)
_SPAN: Final = re.compile(r"(`+).*?\1", re.DOTALL)
_LINK: Final = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_HEADING: Final = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
_ANCHOR: Final = re.compile(r'<a id="([^"]+)"></a>')
_EXAMPLE: Final = "torchscript"
"""The example target of docs/adding-a-target.md."""
_FILE: Final = re.compile(r"`((?:[A-Za-z0-9_.-]+/)+[A-Za-z0-9_.-]+\.(?:py|sql|yaml|toml|md))`")


def prose_of(page: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """The fragments of GitHub for a page's headings (lower case, no punctuation, hyphens; repeated ones are numbered), and its anchors."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in _HEADING.findall(prose_of(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        anchors.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return anchors | set(_ANCHOR.findall(prose_of(page)))


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in _LINK.findall(_SPAN.sub("", prose_of(page))):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            broken.append(f"{target}: there is no such file")
        elif fragment and file.suffix == ".md" and fragment not in anchors_of(file):
            broken.append(f"{target}: {file.name} has no such heading")
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_has_a_target(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    """Checks paths in code spans, relative to the root or the package. Paths in folders that do not exist are a user's and are skipped."""
    missing = []
    for name in _FILE.findall(prose_of(page)):
        if _EXAMPLE in name:
            continue
        bases = [base for base in (ROOT, PACKAGE) if (base / name.partition("/")[0]).is_dir()]
        if bases and not name.startswith("reports/") and not any((base / name).is_file() for base in bases):
            missing.append(name)
    assert missing == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One `thing`, twice\n\n## A.b\n## A.b\n\n```sh\n# no heading\n```\n", encoding="utf-8")
    page = tmp_path / "page.md"
    good = "[a](other.md) [b](other.md#one-thing-twice) [c](other.md#ab-1) [d](https://x.example/none) [e](#here) `[f](none.md)`"
    page.write_text(f"# Here\n\n{good}\n\n```md\n[g](none.md)\n```\n", encoding="utf-8")
    assert broken_links(page) == []
    page.write_text("[a](none.md) [b](other.md#no-heading) [c](#nowhere)\n", encoding="utf-8")
    assert [line.partition(":")[0] for line in broken_links(page)] == ["none.md", "other.md#no-heading", "#nowhere"]
