"""A closed output pipe: a command ends quietly, with the exit code that a shell gives a program killed by SIGPIPE."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest
from factory_sweep import sweep

from hwmatrix.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

CLOSED = 141


def exit_code_when_closed(*words: str) -> int:
    """The exit code of a command whose stdout is a pipe that its reader has closed."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        code = main([*words])
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)
        return code


@pytest.mark.parametrize("words", [["--help"], ["schema", "matrix"], ["types"]])
def test_a_command_ends_quietly(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code_when_closed(*words) == CLOSED
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("words", [["show"], ["show", "--format", "json"], ["groups"], ["why", "arch-000", "openvino"]])
def test_output_of_rich_ends_like_output_of_typer(tmp_path: Path, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    database = sweep(tmp_path / "matrix.duckdb", models=14)
    assert exit_code_when_closed(*words, "--database", str(database)) == CLOSED
    assert capfd.readouterr().err == ""


def test_every_file_is_written_although_nobody_reads_which(tmp_path: Path) -> None:
    database = sweep(tmp_path / "matrix.duckdb", models=2)
    report = ("report", "--database", str(database), "--output-dir")
    assert main([*report, str(tmp_path / "read")]) == 0
    assert exit_code_when_closed(*report, str(tmp_path / "unread")) == CLOSED
    read, unread = ({path.name for path in (tmp_path / name).rglob("*")} for name in ("read", "unread"))
    assert unread == read


def test_an_error_keeps_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code_when_closed("show", "--database", "nowhere.duckdb") == 7
    assert "nowhere.duckdb" in capfd.readouterr().err
