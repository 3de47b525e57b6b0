"""What holds for all tests."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import pytest

FORKED: Final = Path(__file__).parent / "forked"


def pytest_configure() -> None:
    """A shell starts what runs in its background with interrupts ignored, and every process below inherits that. Tests send some."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares the machine with no other test: containers, and what is forked from a test's own process, where xdist has threads."""
    for item in items:
        if item.get_closest_marker("containers") is not None or item.path.is_relative_to(FORKED):
            item.add_marker("alone")
