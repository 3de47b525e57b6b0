"""A process is identified by its number and its start time, because numbers are reused."""

from __future__ import annotations

import os

import pytest

from hwmatrix.basics.processes import living, own_mark


def test_this_process_is_alive() -> None:
    assert living(f"{own_mark()}\n") == os.getpid()


def test_a_reused_number_is_another_process() -> None:
    assert living(f"{os.getpid()}:12.00") is None


@pytest.mark.parametrize("mark", ["no number:1", "1", "-1:1", ""])
def test_an_invalid_identifier_is_no_process(mark: str) -> None:
    assert living(mark) is None
