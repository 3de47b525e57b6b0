"""What holds for all tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED_CACHE: Final = "HWMATRIX_TESTS_CACHE"
"""The variable that names the shared cache to tests that run inside of tests."""
FORKED: Final = Path(__file__).parent / "forked"
BROWSER: Final = Path(__file__).parent / "browser"


def pytest_configure() -> None:
    """A shell starts what runs in its background with interrupts ignored, and every process below inherits that. Tests send some."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares the machine with no other test: what uses the container engine, and what is forked from a test's own process, where
    xdist has threads. Pages are opened in a browser of each process's own, and wait for it longer than any load makes them: they share.
    """
    for item in items:
        uses_engine = item.get_closest_marker("containers") is not None and not item.path.is_relative_to(BROWSER)
        if uses_engine or item.path.is_relative_to(FORKED):
            item.add_marker("alone")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each file, exempt what is alive from garbage collection. PyTorch and transformers leave 300,000 objects in a process, and each
    full collection in a later test would visit them all.
    """
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _logs_are_left_as_found() -> Iterator[None]:
    """A log that one test silences is missing in the tests that run after it in the same process."""
    before = _log_state()
    yield
    assert _log_state() == before, "this test, or the code that it tried, changed what is logged in this process"


def _log_state() -> tuple[object, ...]:
    ours = [logging.getLogger(), logging.getLogger("hwmatrix")]
    return logging.root.manager.disable, *((each.level, each.propagate, each.disabled) for each in ours)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache (HWMATRIX_CACHE) for all tests that only need bundles: the first that needs one builds it, on whichever worker it runs."""
    named = os.environ.get(SHARED_CACHE)
    base = tmp_path_factory.getbasetemp()
    folder = Path(named) if named else (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-cache"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
