"""One run measures speed on a machine at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from hwmatrix.errors import StoreError
from hwmatrix.host.timing_turn import timing_turn

if TYPE_CHECKING:
    from pathlib import Path


def test_the_second_run_waits_for_the_first(tmp_path: Path) -> None:
    told: list[str] = []
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with timing_turn(lambda text: (told.append(text), waiting.set()), folder=tmp_path):
            order.append("second")

    with timing_turn(told.append, folder=tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert told == ["waiting: another run measures speed on this machine"]


def test_a_run_that_is_stopped_does_not_wait(tmp_path: Path) -> None:
    stopping = threading.Event()
    stopping.set()
    with timing_turn(lambda _: None, folder=tmp_path), timing_turn(lambda _: None, stopping, folder=tmp_path):
        pass


def test_the_lock_ends_with_the_block(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        with timing_turn(told.append, folder=tmp_path):
            pass
    assert told == []


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hwmatrix-timing.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"cannot be opened: .*\nDelete it, or set another TMPDIR"), timing_turn(print, folder=tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["hwmatrix-timing.lock"]
