"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell starts what runs in its background with interrupts ignored, and every process below inherits that. Tests send some."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
