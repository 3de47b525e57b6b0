"""Executes the examples of docs/pool.md and docs/fallback.md in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.knowledge.priorities import priorities
from hwmatrix.pool import pool as pool_module
from hwmatrix.records import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[3] / "docs"
WORDS = {"CUDA": "cuda", "ROCm": "rocm", "MPS": "mps", "OpenVINO": "openvino", "QNN": "qnn", "CPU": "cpu"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A separate folder, and no global pool yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    for variable in ("LOW_MEMORY", "TIMEOUT_MINS"):
        monkeypatch.delenv(f"RESOURCE_POOL_{variable}", raising=False)
    monkeypatch.setattr(pool_module, "_GLOBAL", [])
    yield
    for pool in pool_module._GLOBAL:
        pool.clear()


@pytest.mark.parametrize(("page", "number"), [("pool.md", 7), ("fallback.md", 3)])
def test_every_example_works(page: str, number: int) -> None:
    examples = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == number
    names: dict[str, Any] = {}
    for place, example in enumerate(examples, 1):
        exec(compile(example, f"{page}, example {place}", "exec"), names)  # noqa: S102 - our own page


def test_the_table_of_orders_matches_the_data() -> None:
    text = (DOCS / "fallback.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| ((?:CUDA|ROCm)[^|]+) \|$", text, re.MULTILINE)
    told = {tuple(WORDS[word] for word in row.split(", ")) for row in rows}
    assert told == {tuple(hardware.value for hardware in rule.hardware) for rule in priorities().priorities}


def test_the_table_of_the_policy_has_every_outcome() -> None:
    text = (DOCS / "fallback.md").read_text(encoding="utf-8")
    table = text[text.index("| outcome |") : text.index("```python")]
    assert {status.value for status in Status} == set(
        re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row))
    )
