"""One forked child a piece of work, for real: how each kind of end is told, and that nothing stays behind."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest

from hwmatrix.records import Limits, Status
from hwmatrix.runner import forked
from hwmatrix.runner.forked import End, run_forked
from hwmatrix.runner.results import result_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Send = Callable[[dict[str, Any]], None]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and process trees as Linux has them")
ROOT = Path(__file__).parents[2]
LIMITS = Limits(timeout_s=20.0, memory_mb=512)


def run(work: Callable[[Send], None], limits: Limits = LIMITS, cores: tuple[int, ...] | None = None) -> End:
    def quietly(send: Send) -> None:
        faulthandler.disable()  # pytest's, which would print the child's crash on pytest's own terminal
        work(send)

    return run_forked(quietly, limits=limits, cores=cores)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def say(text: str, file: int = 1) -> None:
    """Print as C code does: pytest has put its own object in the place of Python's stdout."""
    os.write(file, text.encode())


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_child_and_its_threads_run_on_the_cores_that_it_gets() -> None:
    mine = os.sched_getaffinity(0)

    def work(send: Send) -> None:
        found: list[set[int]] = []
        thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        send({"child": [*os.sched_getaffinity(0)], "thread": [*found[0]]})

    (one,) = run(work, cores=(max(mine),)).messages
    assert one == {"child": [max(mine)], "thread": [max(mine)]}
    (every,) = run(work).messages
    assert set(every["child"]) == set(every["thread"]) == mine == os.sched_getaffinity(0)


def test_messages_arrive_in_order() -> None:
    def work(send: Send) -> None:
        send({"stage": "load"})
        send({"verdict": "pass"})

    end = run(work)
    assert end.messages == ({"stage": "load"}, {"verdict": "pass"})
    assert (end.exit_code, end.signal, end.timed_out, end.oom_killed, end.log) == (0, None, False, False, "")
    assert 0 < end.wall_ms < 10_000


def test_a_segmentation_fault() -> None:
    def work(send: Send) -> None:
        send({"stage": "run"})
        ctypes.string_at(0)

    end = run(work)
    assert (end.signal, end.exit_code) == (signal.SIGSEGV, None)
    assert end.messages == ({"stage": "run"},)


def test_abort() -> None:
    assert run(lambda _send: os.abort()).signal == signal.SIGABRT


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), True),
        (lambda: os._exit(3), False),
        (os.abort, False),
        (lambda: time.sleep(30), False),
    ],
)
def test_who_is_taken_for_killed_for_memory(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], *, expected: bool) -> None:
    """The kernel has killed somebody of this cgroup meanwhile: perhaps this child, perhaps another that ran at the same time."""
    counts = iter([4, 5])
    monkeypatch.setattr(forked, "_oom_kills", lambda: next(counts))
    assert run(lambda _send: act(), Limits(timeout_s=1.0, memory_mb=512)).oom_killed == expected


@pytest.mark.parametrize("code", [0, 3])
def test_leaving_without_a_word(code: int) -> None:
    end = run(lambda _send: os._exit(code))
    assert (end.exit_code, end.signal, end.messages) == (code, None, ())


def test_a_real_time_signal() -> None:
    number = signal.SIGRTMIN + 4
    assert run(lambda _send: os.kill(os.getpid(), number)).signal == number


def test_a_loop_without_end_is_ended_in_time() -> None:
    def work(send: Send) -> None:
        send({"pid": os.getpid()})
        while True:
            pass

    begin = time.monotonic()
    end = run(work, Limits(timeout_s=1.0, memory_mb=512))
    assert end.timed_out
    assert end.signal == signal.SIGKILL
    assert 0.9 < time.monotonic() - begin < 5
    assert not is_alive(end.messages[0]["pid"])


def test_a_child_that_ignores_every_signal_is_ended_in_time() -> None:
    def work(_send: Send) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(60)

    assert run(work, Limits(timeout_s=0.5, memory_mb=512)).timed_out


def test_memory_without_end_is_refused_and_can_be_told() -> None:
    def work(send: Send) -> None:
        taken = []
        try:
            while True:
                taken.append(bytearray(64 * 2**20))  # too large for what the parent's heap has free
        except MemoryError:
            count = len(taken)
            taken.clear()
            send({"taken": count})

    end = run(work, Limits(timeout_s=20.0, memory_mb=200))
    assert end.messages[0]["taken"] in {2, 3}
    assert end.exit_code == 0


def test_an_exception_is_in_the_log() -> None:
    def work(_send: Send) -> None:
        raise ValueError("what went wrong")

    end = run(work)
    assert end.exit_code == 1
    # Printed by Python, so that under pytest it goes where pytest has put stderr: the code is what the parent goes by.
    assert end.messages == ()


def test_junk_on_both_streams_ends_in_the_log_and_not_in_the_messages() -> None:
    def work(send: Send) -> None:
        say("to stdout\n")
        send({"n": 1})
        say("to stderr\n", 2)
        say('{"verdict": "pass"}\n')

    end = run(work)
    assert end.messages == ({"n": 1},)
    assert end.log == 'to stdout\nto stderr\n{"verdict": "pass"}'


def test_only_the_end_of_a_long_log_is_kept() -> None:
    def work(_send: Send) -> None:
        for number in range(200_000):
            say(f"line {number}\n")

    log = run(work).log
    assert len(log) <= 8192
    assert log.endswith("line 199999")


def test_a_message_beyond_a_pipes_buffer_arrives_whole() -> None:
    texts = {str(number): "x" * 1000 for number in range(5000)}

    def work(send: Send) -> None:
        send(texts)
        send({"after": True})

    end = run(work)
    assert end.messages == (texts, {"after": True})


def test_half_a_message_of_a_killed_child_is_none() -> None:
    def work(send: Send) -> None:
        send({"whole": True})
        writer = threading.Thread(target=send, args=({"text": "x" * 50_000_000},), daemon=True)
        writer.start()
        time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)

    end = run(work)
    assert end.signal == signal.SIGKILL
    assert end.messages[0] == {"whole": True}


@pytest.mark.parametrize("leaves_its_group", [False, True])
def test_a_grandchild_that_stays_behind_is_ended(*, leaves_its_group: bool) -> None:
    def work(send: Send) -> None:
        pid = os.fork()
        if pid == 0:
            if leaves_its_group:
                os.setsid()
            time.sleep(60)
            os._exit(0)
        time.sleep(0.2)
        send({"pid": pid})

    begin = time.monotonic()
    end = run(work)
    assert end.exit_code == 0
    assert time.monotonic() - begin < 10
    assert not is_alive(end.messages[0]["pid"])


def test_a_grandchild_that_holds_the_pipe_does_not_hold_up_the_end() -> None:
    def work(send: Send) -> None:
        if os.fork() == 0:
            while True:
                say("noise " * 100)
        send({"done": True})

    begin = time.monotonic()
    assert run(work).messages == ({"done": True},)
    assert time.monotonic() - begin < 10


def test_a_child_that_closes_its_pipes_and_goes_on_is_waited_for() -> None:
    def work(send: Send) -> None:
        send({"n": 1})
        os.closerange(0, 64)
        time.sleep(0.3)
        os._exit(7)

    end = run(work)
    assert (end.exit_code, end.messages) == (7, ({"n": 1},))
    assert end.wall_ms >= 300


def test_an_interrupt_of_the_parent_ends_the_child(tmp_path: Path) -> None:
    told = tmp_path / "pid"

    def work(_send: Send) -> None:
        told.write_text(str(os.getpid()), encoding="ascii")
        time.sleep(60)

    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run(work)
    assert not is_alive(int(told.read_text(encoding="ascii")))


def leave_a_file(send: Send) -> None:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(b"a graph")
    send({"path": file.name, "variable": os.environ["TMPDIR"]})


def leave_a_file_and_crash(send: Send) -> None:
    leave_a_file(send)
    os.abort()


def leave_a_file_and_hang(send: Send) -> None:
    leave_a_file(send)
    time.sleep(60)


@pytest.mark.parametrize("work", [leave_a_file, leave_a_file_and_crash, leave_a_file_and_hang])
def test_temporary_files_of_a_child_are_removed_however_it_ends(work: Callable[[Send], None], temporary: Path) -> None:
    (told,) = run(work, Limits(timeout_s=2.0, memory_mb=512)).messages
    path = Path(told["path"])
    assert path.parent == Path(told["variable"])
    assert path.parent.parent == temporary
    assert not list(temporary.iterdir())
    assert tempfile.gettempdir() == str(temporary)


def test_an_interrupted_parent_removes_temporary_files(temporary: Path) -> None:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run(leave_a_file_and_hang)
    assert not list(temporary.iterdir())


def test_a_child_runs_where_no_temporary_folder_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert run(lambda send: send({"done": True})).messages == ({"done": True},)


def test_no_file_stays_open() -> None:
    def opened() -> set[str]:
        return {path.name for path in Path("/proc/self/fd").iterdir()}

    run(lambda _send: None)
    before = opened()
    run(lambda _send: os.abort())
    run(lambda _send: time.sleep(5), Limits(timeout_s=0.1, memory_mb=512))
    assert opened() == before


def test_many_children_one_after_the_other() -> None:
    for number in range(50):
        assert run(lambda send, n=number: send({"n": n})).messages == ({"n": number},)  # type: ignore[misc]


@pytest.mark.parametrize("module", ["hwmatrix", "hwmatrix.cli.main", "hwmatrix.runner.__main__", "hwmatrix.report.write"])
def test_what_is_heavy_is_imported_only_where_it_is_used(module: str) -> None:
    """In an interpreter of its own: here, tests have imported everything already."""
    program = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "harness")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, timeout=60)
    heavy = {"torch", "transformers", "openvino", "onnx", "docker", "nox", "huggingface_hub"}
    assert heavy & set(done.stdout.split()) == set()
    assert done.stderr == ""


def test_a_child_can_tell_its_cpu_time_in_microseconds() -> None:
    """Some limits make the kernel count it in ticks of milliseconds; a sample is shorter than one."""

    def work(send: Send) -> None:
        spent = []
        for _ in range(50):
            begin = time.process_time_ns()
            sum(range(2000))
            spent.append(time.process_time_ns() - begin)
        send({"zero": sum(value == 0 for value in spent)})

    assert run(work).messages[0] == {"zero": 0}


def write_beside(data: bytes, known: set[str], *, for_ever: bool = False) -> None:
    """Write into the pipe that the child's messages go through: the one that its parent has made, besides that of its output."""
    links = {int(entry.name): str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.exists()}
    (pipe,) = {number for number, link in links.items() if link.startswith("pipe:") and link not in {*known, links[1]}}
    while os.write(pipe, data) and for_ever:
        pass


def open_files() -> set[str]:
    return {str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.exists()}


def test_a_child_that_sends_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_MOST_BYTES", 2**20)
    known = open_files()
    end = run(lambda _send: write_beside(b"x" * 65_536, known, for_ever=True))
    assert (end.signal, end.timed_out, end.messages) == (signal.SIGKILL, False, ())
    assert end.refused == "it sent more than 1,048,576 bytes"


@pytest.mark.parametrize("line", [b"{}", b"[]", b"junk", b'{"verdict": "splendid"}', b'{"stage": 1e400}', b'"' + b"x" * 2**20 + b'"'])
def test_a_bad_line_ends_its_cell_and_the_next_one_runs(line: bytes) -> None:
    known = open_files()

    def bad(send: Send) -> None:
        send({"stage": "load", "facts": {}})
        write_beside(line + b"\n", known)
        send({"verdict": "pass", "final": True, "facts": {}, "error": None})

    def good(send: Send) -> None:
        send({"stage": "load", "facts": {}})
        send({"verdict": "pass", "final": True, "facts": {}, "error": None})

    found = [
        result_of(run(work), cell=make.cell_plan(), model=make.model_plan(), target=make.target_plan(), started_at="2026-01-02T03:04:06")
        for work in (bad, good)
    ]
    assert [each.status for each in found] == [Status.CRASH, Status.PASS]
    assert found[0].error is not None
    assert found[0].error.message.startswith("the process sent an invalid message: line 2")


def test_text_that_no_character_has_is_told_all_the_same() -> None:
    assert run(lambda send: send({"text": "a\udcffb"})).messages == ({"text": "a?b"},)
