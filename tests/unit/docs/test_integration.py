"""Executes the examples of docs/integration.md in order."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factory_rows import Database, steady

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "integration.md"


def test_every_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(ROOT / "matrix.yaml", tmp_path / "matrix.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "torch", None)  # sizes come from the table
    (tmp_path / "reports" / "latest").mkdir(parents=True)
    bert = {"family": "embedding", "architecture": "bert", "hub_id": "google-bert/bert-base-uncased", "size": "full"}
    with Database(tmp_path / "reports" / "latest" / "matrix.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.cell(database.plan("bert", "cpu", **bert), "s-cpu", wall=steady(100.0))
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 8
    names: dict[str, Any] = {}
    for number, example in enumerate(examples, 1):
        exec(compile(example, f"{PAGE.name}, example {number}", "exec"), names)  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    assert "measured cpu: measured: pass" in printed
    assert "mixtral" in printed
    assert names["found"]["not_recommended"]
    assert (tmp_path / "models.sqlite").is_file()
