"""docs/security.md and docs/faults.md claim only what a test verifies: each row names existing tests and files."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "docs" / name for name in ("security.md", "faults.md")]
NAMED = re.compile(r"`((?:images|\.github|tests)/[\w./-]+)(?:::(\w+))?`")


def mechanisms(page: str) -> list[tuple[str, str]]:
    """The rows of all tables of mechanisms or faults: the mechanism or fault, and the tests that verify it."""
    tables = re.findall(r"^\| (?:mechanism|fault \| what happens) \| shown by \|\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for table in tables for line in table.splitlines()]
    return [(row[0].strip(), row[-1].strip()) for row in rows]


@functools.cache
def functions(file: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef))


def unverified(page: str, root: Path) -> Iterator[str]:
    """Mechanisms without a test, and names on the page that do not exist."""
    for mechanism, shown_by in mechanisms(page):
        if not NAMED.search(shown_by):
            yield mechanism
    for path, test in NAMED.findall(page):
        if not (root / path).is_file():
            yield path
        elif test and test not in functions(root / path):
            yield f"{path}::{test}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_mechanism_names_existing_tests(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert len(mechanisms(page)) == len(re.findall(r"^\| .*`tests/|^\| .*`images/|^\| .*`\.github/", page, re.MULTILINE)) > 0
    assert list(unverified(page, ROOT)) == []


@pytest.mark.parametrize(
    ("claim", "missing"),
    [
        ("| a | `tests/test_a.py::test_here`, `images/file` |", []),
        ("| a | it is so |", ["a"]),
        ("| a | `tests/test_a.py::test_gone` |", ["tests/test_a.py::test_gone"]),
        ("| a | `tests/test_a.py::test_in_a_string` |", ["tests/test_a.py::test_in_a_string"]),
        ("| a | `tests/test_b.py::test_here` |", ["tests/test_b.py"]),
        ("| a | `images/gone` |", ["images/gone"]),
    ],
)
def test_an_unverified_claim_is_found(tmp_path: Path, claim: str, missing: list[str]) -> None:
    for name, text in (("tests/test_a.py", 'def test_here(): "def test_in_a_string("\n'), ("images/file", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert list(unverified(f"| mechanism | shown by |\n|---|---|\n{claim}\n", tmp_path)) == missing


def test_pushed_images_and_releases_are_attested_by_jobs_with_that_permission() -> None:
    jobs: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]
    attesting = {name: [step for step in job["steps"] if step.get("uses", "").startswith("actions/attest@")] for name, job in jobs.items()}
    attesting = {name: steps for name, steps in attesting.items() if steps}
    may = {name for name, job in jobs.items() if "attestations" in job["permissions"]}
    assert may == attesting.keys() != set()
    assert all(jobs[name]["permissions"][right] == "write" for name in may for right in ("attestations", "id-token"))
    given = [step["with"] for steps in attesting.values() for step in steps]
    assert all(each.keys() & {"subject-path", "subject-checksums", "subject-digest"} for each in given)
