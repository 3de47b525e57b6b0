"""A closed output pipe: every command does its work, and ends quietly with the exit code that a shell gives a program killed by SIGPIPE."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from factory_sweep import sweep
from rich.console import Console

from hwmatrix.app.schemas import REPORTS
from hwmatrix.cli import main as program
from hwmatrix.cli.main import main

if TYPE_CHECKING:
    import io

CLOSED = 141
COMMANDS = sorted(program._COMMANDS)


def closed_pipe() -> io.TextIOWrapper:
    """A stream like stdout after its reader has closed the pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", encoding="utf-8")


def exit_code_when_closed(*words: str) -> int:
    """The exit code of a command whose stdout is closed. Streams are replaced in the test itself, because pytest sets its own before."""
    with closed_pipe() as stream, contextlib.redirect_stdout(stream):
        return main([*words])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_ends_quietly(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code_when_closed(command, "--help") == CLOSED
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


def test_the_work_is_done_to_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def works() -> dict[str, str]:
        typer.echo("a line that nobody reads")
        Console(file=sys.stdout).print("and another one")
        print("and more than any buffer holds\n" * 100_000, flush=True)  # noqa: T201 - what is tested
        (tmp_path / "done").touch()
        return {}

    monkeypatch.setitem(REPORTS, "matrix", works)
    assert exit_code_when_closed("schema", "matrix") == CLOSED
    assert (tmp_path / "done").exists()
    assert capfd.readouterr().err == ""


def test_a_process_started_later_has_an_output_too(monkeypatch: pytest.MonkeyPatch) -> None:
    led_to: list[str] = []

    def prints() -> dict[str, str]:
        print("to nobody", flush=True)  # noqa: T201 - what is tested
        led_to.append(str(Path(f"/proc/self/fd/{sys.stdout.fileno()}").readlink()))
        return {}

    monkeypatch.setitem(REPORTS, "matrix", prints)
    assert exit_code_when_closed("schema", "matrix") == CLOSED
    assert led_to == [os.devnull]


def test_a_closed_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_pipe() as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert main(["show", "--database", "nowhere.duckdb"]) == 7


def test_a_broken_connection_does_not_count_as_a_closed_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise BrokenPipeError(32, "the other side has left")

    for name in ("stdout", "stderr"):  # typer replaces them
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setitem(REPORTS, "matrix", broken)
    with pytest.raises(BrokenPipeError, match="the other side has left"):
        main(["schema", "matrix"])


def test_no_file_stays_open(capsys: pytest.CaptureFixture[str]) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    main(["--version"])
    assert opened() == before
    assert capsys.readouterr().out.startswith("hwmatrix ")
