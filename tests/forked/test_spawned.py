"""The other way to start a child, which macOS needs, run here for real: the same ends are told in the same words."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.records import Limits
from hwmatrix.runner import forked
from hwmatrix.runner.forked import run_forked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Send = Callable[[dict[str, Any]], None]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and process trees as Linux has them")
LIMITS = Limits(timeout_s=20.0, memory_mb=512)
MODULE = """
import mmap, os, time


def tell(what, send):
    print("the child prints")
    send({"what": what, "threads": len(os.listdir("/proc/self/task")), "parent": os.getppid(), "group": os.getpgid(0) == os.getpid()})


def fail(send):
    raise ValueError("on purpose")


def die(number, send):
    os.kill(os.getpid(), number)


def wait(send):
    send({"stage": "load"})
    time.sleep(60)


def fill(send):
    send({"got": len(bytearray(4 * 2**30))})


def reserve(send):
    with mmap.mmap(-1, 8 * 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0) as space:
        send({"reserved": len(space)})


def inherited(send):
    send({"files": [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]})
"""


@pytest.fixture
def works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that the new interpreter can import, as it can all of ours."""
    (tmp_path / "spawned_works.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)]))
    monkeypatch.setattr(forked, "SPAWNS", True)
    import spawned_works

    yield spawned_works
    del sys.modules["spawned_works"]


def test_the_work_is_done_in_another_interpreter(works: Any) -> None:
    end = run_forked(functools.partial(works.tell, "this"), limits=LIMITS)
    assert (end.exit_code, end.signal, end.timed_out, end.log) == (0, None, False, "the child prints")
    assert end.messages == ({"what": "this", "threads": 1, "parent": os.getpid(), "group": True},)


def test_it_gets_no_file_of_its_parent(works: Any, tmp_path: Path) -> None:
    with (tmp_path / "a file of the parent").open("w", encoding="utf-8"):
        (message,) = run_forked(works.inherited, limits=LIMITS).messages
    assert not [name for name in message["files"] if "a file of the parent" in name]


def test_an_exception_is_told_by_the_log(works: Any) -> None:
    end = run_forked(works.fail, limits=LIMITS)
    assert (end.exit_code, end.messages) == (1, ())
    assert "ValueError: on purpose" in end.log


def test_work_that_cannot_be_found_there_ends_with_its_reason(works: Any, tmp_path: Path) -> None:
    (tmp_path / "spawned_works.py").unlink()
    end = run_forked(works.fail, limits=LIMITS)
    assert end.exit_code == 1
    assert "No module named 'spawned_works'" in end.log


def test_a_signal_is_told(works: Any) -> None:
    end = run_forked(functools.partial(works.die, signal.SIGSEGV), limits=LIMITS)
    assert (end.exit_code, end.signal) == (None, signal.SIGSEGV)


def test_a_deadline_ends_it(works: Any) -> None:
    begin = time.monotonic()
    end = run_forked(works.wait, limits=Limits(timeout_s=1.5, memory_mb=512))
    assert (end.timed_out, end.signal, end.messages) == (True, signal.SIGKILL, ({"stage": "load"},))
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("reserves", [False, True])
def test_its_memory_is_limited(works: Any, reserves: bool) -> None:  # noqa: FBT001
    end = run_forked(works.fill, limits=LIMITS, reserves_address_space=reserves)
    assert (end.exit_code, end.messages) == (1, ())
    assert "MemoryError" in end.log


def test_address_space_may_be_reserved_where_a_runtime_does_so(works: Any) -> None:
    assert "Cannot allocate memory" in run_forked(works.reserve, limits=LIMITS).log
    assert run_forked(works.reserve, limits=LIMITS, reserves_address_space=True).messages == ({"reserved": 8 * 2**30},)


def test_a_kernel_without_pidfds_is_asked_again_and_again(works: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    assert run_forked(functools.partial(works.tell, "this"), limits=LIMITS).exit_code == 0
    assert run_forked(works.wait, limits=Limits(timeout_s=1.5, memory_mb=512)).timed_out
