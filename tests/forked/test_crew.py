"""Workers that share the work: who gets what, what a worker's death costs, and that nothing stays behind."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from hwmatrix.records import Limits
from hwmatrix.runner import crew as crews
from hwmatrix.runner.crew import Crew, Done, at_once
from hwmatrix.runner.forked import End, run_forked
from hwmatrix.store.shard import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Send = Callable[[dict[str, Any]], None]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked where children are")
LIMITS = Limits(timeout_s=20.0, memory_mb=512)


def in_child(number: int, closing: tuple[int, ...], *, act: Callable[[int, Send], None], limits: Limits = LIMITS) -> dict[str, Any]:
    """What a real piece of work does: a child a piece, whose end is the answer."""
    end = run_forked(functools.partial(act, number), limits=limits, closing=closing)
    return dataclasses.asdict(end)


def tell(number: int, send: Send) -> None:
    send({"number": number, "worker": os.getppid()})


def run(act: Callable[[int, Send], None], numbers: Sequence[int], *, size: int = 2, limits: Limits = LIMITS) -> dict[int, Done]:
    begun: list[int] = []
    with Crew(functools.partial(in_child, act=act, limits=limits), size=size, patience=lambda _: limits.timeout_s) as crew:
        found = {done.number: done for done in crew.do(numbers, begun.append)}
    assert sorted(begun) == sorted(numbers)
    return found


def messages(done: Done) -> tuple[dict[str, Any], ...]:
    assert done.answer is not None
    return tuple(done.answer["messages"])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_piece_is_done_once(size: int) -> None:
    found = run(tell, range(20), size=size)
    assert [messages(found[number])[0]["number"] for number in range(20)] == list(range(20))
    workers = {messages(done)[0]["worker"] for done in found.values()}
    assert len(workers) == size
    assert (os.getpid() in workers) == (size == 1)
    assert not any(psutil.pid_exists(pid) for pid in workers - {os.getpid()})


def test_an_answer_says_what_an_end_says() -> None:
    answer = run(tell, [7])[7].answer
    assert answer is not None
    end = End(**(answer | {"messages": tuple(answer["messages"])}))
    assert (end.exit_code, end.signal, end.timed_out, end.oom_killed) == (0, None, False, False)


def test_pieces_run_at_the_same_time(tmp_path: Path) -> None:
    def meet(number: int, send: Send) -> None:
        (tmp_path / str(number)).touch()
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.01)
        send({"met": True})

    assert all(messages(done) == ({"met": True},) for done in run(meet, range(4), size=4).values())


def test_who_is_done_early_takes_more(tmp_path: Path) -> None:
    def wait(number: int, send: Send) -> None:
        tell(number, send)
        while number == 0 and len(list(tmp_path.iterdir())) < 8:
            time.sleep(0.01)
        (tmp_path / str(number)).touch()

    workers = [messages(done)[0]["worker"] for _, done in sorted(run(wait, range(9)).items())]
    assert len(set(workers[1:])) == 1
    assert workers[0] not in workers[1:]


def test_a_killed_worker_costs_its_own_piece_alone() -> None:
    def kill(number: int, send: Send) -> None:
        tell(number, send)
        if number == 3:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(30)

    found = run(kill, range(12))
    assert found[3] == Done(number=3, problem="was ended by signal 9")
    assert all(messages(found[number])[0]["number"] == number for number in range(12) if number != 3)


def test_what_a_killed_worker_had_started_is_ended(tmp_path: Path) -> None:
    told = tmp_path / "pids"

    def kill(_number: int, _send: Send) -> None:
        stray = os.fork()
        if stray == 0:
            os.setsid()
            time.sleep(60)
            os._exit(0)
        told.write_text(f"{os.getpid()} {stray}", encoding="ascii")
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    assert run(kill, [0])[0].problem == "was ended by signal 9"
    assert not any(psutil.pid_exists(int(pid)) for pid in told.read_text(encoding="ascii").split())


def test_work_that_raises_costs_its_own_piece_alone() -> None:
    def work(number: int, _closing: tuple[int, ...]) -> dict[str, Any]:
        if number == 1:
            raise OSError("no room")
        return {"number": number}

    with Crew(work, size=2, patience=lambda _: 5.0) as crew:
        found = {done.number: done for done in crew.do(range(3), lambda _: None)}
    assert found[1] == Done(number=1, problem="failed: OSError: no room")
    assert (found[0].answer, found[2].answer) == ({"number": 0}, {"number": 2})


def test_without_workers_what_the_work_raises_is_raised() -> None:
    def work(_number: int, _closing: tuple[int, ...]) -> dict[str, Any]:
        raise OSError("no room")

    with Crew(work, size=1, patience=lambda _: 5.0) as crew, pytest.raises(OSError, match="no room"):
        list(crew.do([0], lambda _: None))


def test_a_worker_that_falls_silent_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "_GRACE_S", 0.3)

    def work(number: int, _closing: tuple[int, ...]) -> dict[str, Any]:
        if number == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        return {}

    with Crew(work, size=2, patience=lambda _: 0.2) as crew:
        found = {done.number: done for done in crew.do(range(4), lambda _: None)}
    assert found[0].problem == "did not answer in time and was killed"
    assert [found[number].problem for number in (1, 2, 3)] == [None, None, None]


def test_a_child_cannot_speak_for_its_worker() -> None:
    """A model that writes to every file it finds."""

    def babble(number: int, send: Send) -> None:
        for descriptor in Path("/proc/self/fd").iterdir():
            if descriptor.is_symlink() and str(descriptor.readlink()).startswith("socket:"):
                os.write(int(descriptor.name), b"\x00" * 64)
        send({"number": number})

    found = run(babble, range(4))
    assert [messages(found[number])[-1] for number in range(4)] == [{"number": number} for number in range(4)]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"junk", "not JSON: "),
        (b"[]", "neither an answer nor a problem"),
        (b'{"answer": 3}', "neither an answer nor a problem"),
        (b'{"answer": {}, "more": 1}', "neither an answer nor a problem"),
        (b"[" * 200_000, "not JSON: "),
        (None, "18,446,744,073,709,551,615 bytes"),
    ],
)
def test_a_worker_that_sends_no_answer_costs_its_own_piece_alone(monkeypatch: pytest.MonkeyPatch, sent: bytes | None, why: str) -> None:
    ours = crews._answer_of

    def told(work: Any, number: int, channel: int) -> dict[str, Any]:
        if number == 1:
            os.write(channel, b"\xff" * 8 if sent is None else len(sent).to_bytes(8, "big") + sent)
        return ours(work, number, channel)

    monkeypatch.setattr(crews, "_answer_of", told)
    found = run(tell, range(4))
    assert {number for number, done in found.items() if done.answer is None} == {1}
    assert (found[1].problem or "").startswith(f"sent an unreadable answer and was killed: {why}")


def test_a_large_answer_arrives_whole() -> None:
    def work(number: int, _closing: tuple[int, ...]) -> dict[str, Any]:
        return {"text": "x" * 5_000_000, "number": number}

    with Crew(work, size=2, patience=lambda _: 20.0) as crew:
        answers = [done.answer for done in crew.do(range(4), lambda _: None)]
    assert sorted(answer["number"] for answer in answers if answer) == [0, 1, 2, 3]
    assert all(answer and len(answer["text"]) == 5_000_000 for answer in answers)


def test_an_interrupt_ends_workers_and_children(tmp_path: Path) -> None:
    def wait(number: int, _send: Send) -> None:
        write_atomically(tmp_path / f"{number}", f"{os.getpid()} {os.getppid()}")
        time.sleep(60)

    def interrupt() -> None:
        """As a terminal does: the signal goes to the process, and wakes its main thread. Sent once both children are at work."""
        while not all((tmp_path / f"{number}").exists() for number in range(2)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(wait, range(2), limits=dataclasses.replace(LIMITS, timeout_s=300.0))
    assert time.monotonic() - begun < 300.0, "their own limit ended them, and not the interrupt"
    pids = [int(pid) for path in tmp_path.iterdir() for pid in path.read_text(encoding="ascii").split()]
    assert len(pids) == 4
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_no_file_stays_open() -> None:
    def opened() -> set[str]:
        return {path.name for path in Path("/proc/self/fd").iterdir()}

    run(tell, range(2))
    before = opened()
    run(tell, range(6), size=3)
    assert opened() == before


@pytest.mark.parametrize(
    ("asked", "threads", "cores", "expected"), [(1, 1, 8, 1), (8, 1, 4, 4), (8, 2, 4, 2), (8, 16, 4, 1), (3, 1, 64, 3), (8, 0, 4, 4)]
)
def test_how_many_at_once(monkeypatch: pytest.MonkeyPatch, asked: int, threads: int, cores: int, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert at_once(asked, threads) == expected


def test_where_children_are_interpreters_there_are_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "SPAWNS", True)
    assert at_once(8, 1) == 1
