"""docs/security.md claims nothing that no test shows: every test and file that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/security.md").read_text(encoding="utf-8")
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


@pytest.mark.parametrize(("file", "name"), TESTS, ids=[name for _, name in TESTS])
def test_a_test_that_is_named_exists(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_mechanism_names_what_shows_it() -> None:
    defended = TEXT.partition("## What is defended against")[2].partition("## What is not defended against")[0]
    rows = [line for line in defended.splitlines() if line.startswith("| ") and not line.startswith("| mechanism")]
    assert len(rows) > 25
    for row in rows:
        assert re.search(r"`(tests|\.github|images)/", row.split(" | ")[1]), row


def test_files_that_are_named_exist() -> None:
    for path in re.findall(r"`((?:images|\.github|tests)/[\w./-]+)`", TEXT):
        assert (ROOT / path).is_file(), path


def test_what_the_release_attests() -> None:
    assert "actions/attest@" in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
