"""A real Chromium for the tests of the page, and the pages that it opens."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import axe
import pytest
from chromium import Browser, Page
from repeated_rows import RECORDED, repeated_rows
from starting import Start, start

from hwmatrix.errors import EngineError
from hwmatrix.report.write import write_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CI = os.environ.get("CI") == "true"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pages lie that the browser opens. Anybody may read it, because in a container the browser is anybody."""
    made = tmp_path_factory.mktemp("pages")
    made.chmod(0o755)
    return made


@pytest.fixture(scope="session")
def started(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    try:
        return start(folder, tmp_path_factory.mktemp("profile"))
    except EngineError as error:
        if CI:
            pytest.fail(f"these tests must run in CI: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def browser(started: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests; each page of it is a world of its own."""
    with Browser(started.command, stderr=tmp_path_factory.mktemp("chromium") / "stderr") as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page, 1280 by 900."""
    opened = browser.open()
    opened.size(1280)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def address(started: Start, folder: Path) -> Callable[[Path], str]:
    """What the browser calls a file below ``folder``."""

    def told(path: Path) -> str:
        return started.address(path.relative_to(folder).as_posix())

    return told


@pytest.fixture(scope="session")
def published(folder: Path, address: Callable[[Path], str]) -> str:
    """The page of a published run, of 16 models on nine targets, as the command writes it."""
    write_reports(RECORDED, folder / "published" / "latest")
    return address(folder / "published" / "latest" / "index.html")


@pytest.fixture(scope="session")
def full(folder: Path, address: Callable[[Path], str]) -> str:
    """The page of 650 models on 8 targets, which is no measurement."""
    write_reports(repeated_rows(folder / "repeated.duckdb"), folder / "full" / "latest")
    return address(folder / "full" / "latest" / "index.html")


@pytest.fixture(scope="session")
def axe_core(pytestconfig: pytest.Config) -> str:
    """The text of axe-core."""
    try:
        return axe.fetch(pytestconfig.cache.mkdir("axe-core"))
    except (OSError, subprocess.SubprocessError) as error:
        if CI:
            pytest.fail(f"these tests must run in CI: {error}")
        pytest.skip(f"axe-core cannot be fetched: {error}")
