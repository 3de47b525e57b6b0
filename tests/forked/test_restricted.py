"""What a hostile child cannot change: other folders, open files, its parent (Landlock). Each attempt works without restriction."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.records import Limits
from hwmatrix.runner import child, landlock
from hwmatrix.runner.forked import run_forked, run_owning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(landlock.version() < 3, reason="this kernel has no Landlock, or lacks its rule for truncating")
LIMITS = Limits(timeout_s=20.0, memory_mb=1024)
SIGNALS_SINCE = 6


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with another model's file, which the child's user may change. Not under /tmp, which a container has for itself."""
    monkeypatch.setattr(child, "_TEMPORARY", ())
    folder = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix=".restricted-"))
    (folder / "other").mkdir()
    (folder / "other" / "model.safetensors").write_text("another model's weights")
    yield folder
    shutil.rmtree(folder)


def end_of(attempt: Callable[[Path], Any], outside: Path, *, restricted: bool) -> str:
    """What became of an attempt in a child that owns the folder ``own``: ``done``, or the name of the error."""
    own = outside / "own"
    own.mkdir(exist_ok=True)

    def work(send: Callable[[dict[str, Any]], None]) -> None:
        try:
            attempt(outside)
        except OSError as error:
            send({"end": type(error).__name__})
        else:
            send({"end": "done"})

    end = run_owning(work, own, limits=LIMITS, restricted=restricted)
    assert end.messages, end
    return str(end.messages[-1]["end"])


def test_a_child_may_write_temporary_files_wherever_they_belong(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TMPDIR names a folder that is not under /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", str(outside))

    def attempt(_outside: Path) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(b"a graph")

    assert end_of(attempt, outside, restricted=True) == "done"


def overwrite(outside: Path) -> None:
    (outside / "other" / "model.safetensors").write_text("mine")


def append(outside: Path) -> None:
    with (outside / "other" / "model.safetensors").open("a") as file:
        file.write("mine")


def truncate(outside: Path) -> None:
    os.truncate(outside / "other" / "model.safetensors", 0)


def delete(outside: Path) -> None:
    (outside / "other" / "model.safetensors").unlink()


def add(outside: Path) -> None:
    (outside / "other" / "more").touch()


def make_a_folder(outside: Path) -> None:
    (outside / "key").mkdir()


def make_a_link(outside: Path) -> None:
    (outside / "other" / "link").symlink_to("/etc/passwd")


def move_out(outside: Path) -> None:
    (outside / "own" / "mine").touch()
    (outside / "own" / "mine").rename(outside / "other" / "mine")


def move_in(outside: Path) -> None:
    (outside / "other" / "model.safetensors").rename(outside / "own" / "taken")


def link_in(outside: Path) -> None:
    (outside / "own" / "linked").hardlink_to(outside / "other" / "model.safetensors")


def in_a_program(outside: Path) -> None:
    done = subprocess.run(["/bin/sh", "-c", f"echo mine > {outside}/other/model.safetensors"], capture_output=True, check=False)
    if done.returncode:
        raise PermissionError(done.stderr)


def write_to_the_parent_s_memory(_: Path) -> None:
    os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR))


def read_the_parent_s_memory(_: Path) -> None:
    os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY))


ATTEMPTS = (
    *(overwrite, append, truncate, delete, add, make_a_folder, make_a_link, move_out, move_in, link_in, in_a_program),
    *(write_to_the_parent_s_memory, read_the_parent_s_memory),
)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.__name__)
def test_what_is_not_the_child_s_stays_as_it_is(outside: Path, attempt: Callable[[Path], None]) -> None:
    before = {path: path.read_text() if path.is_file() else None for path in (outside / "other").rglob("*")}
    assert end_of(attempt, outside, restricted=True) == "PermissionError" or attempt in {move_out, move_in, link_in}
    assert {path: path.read_text() if path.is_file() else None for path in (outside / "other").rglob("*")} == before
    assert sorted(path.name for path in outside.iterdir()) == ["other", "own"]
    assert end_of(attempt, outside, restricted=False) == "done", "the attempt proves nothing"


@pytest.mark.parametrize("attempt", [move_out, move_in, link_in], ids=lambda attempt: attempt.__name__)
def test_nothing_is_linked_or_moved_across(outside: Path, attempt: Callable[[Path], None]) -> None:
    assert end_of(attempt, outside, restricted=True) != "done"


def test_its_own_folder_and_temporary_files_are_the_child_s(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def attempt(outside: Path) -> None:
        inner = outside / "own" / "deep" / "er"
        inner.mkdir(parents=True)
        (inner / "file").write_text("mine")
        (inner / "file").rename(outside / "own" / "deep" / "file")
        shutil.rmtree(inner)
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"temporary")
        Path("/dev/null").write_text("nothing")
        Path("/proc/self/clear_refs").write_text("5")

    assert end_of(attempt, outside, restricted=True) == "done"
    assert (outside / "own" / "deep" / "file").read_text() == "mine"


@pytest.mark.skipif(landlock.version() < SIGNALS_SINCE, reason="this kernel's Landlock does not restrict signals")
def test_the_parent_gets_no_signal(outside: Path) -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))

    def attempt(_: Path) -> None:
        os.kill(os.getppid(), signal.SIGUSR1)

    try:
        assert end_of(attempt, outside, restricted=True) == "PermissionError"
        time.sleep(0.05)
        assert got == []
        assert end_of(attempt, outside, restricted=False) == "done"
        assert got == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("restricted", [True, False])
def test_a_file_that_the_parent_has_open_for_writing_is_closed(outside: Path, *, restricted: bool) -> None:
    """As the shard is, whose descriptor a forked child would inherit."""
    shard, other = outside / "shard.duckdb", outside / "other" / "model.safetensors"
    with shard.open("w") as writing, other.open() as reading:
        writing.write("rows")
        writing.flush()

        def work(send: Callable[[dict[str, Any]], None]) -> None:
            send({"read": os.pread(reading.fileno(), 7, 0).decode()})
            os.pwrite(writing.fileno(), b"mine", 0)

        end = run_forked(work, limits=LIMITS, writable=() if restricted else None)
        assert end.messages == ({"read": "another"},)
        assert end.exit_code == int(restricted)
    assert shard.read_text() == ("rows" if restricted else "mine")


def test_a_kernel_without_it_restricts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert landlock.version() == 0
    assert not landlock.restrict(changing=[Path("/nowhere")])
