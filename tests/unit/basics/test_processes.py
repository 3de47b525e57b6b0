"""A process is known by its number and its start, since numbers are used again."""

from __future__ import annotations

import os

import pytest

from hwmatrix.basics.processes import living, own_mark


def test_this_process_lives() -> None:
    assert living(f"{own_mark()}\n") == os.getpid()


def test_a_number_that_is_used_again_is_another_process() -> None:
    assert living(f"{os.getpid()}:12.00") is None


@pytest.mark.parametrize("mark", ["no number:1", "1", "-1:1", ""])
def test_what_is_no_mark_stands_for_no_process(mark: str) -> None:
    assert living(mark) is None
