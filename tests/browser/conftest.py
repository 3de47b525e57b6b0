"""A real Chromium for the tests of the page: that of the image of the target `webgpu`, without a network; else one that is installed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import axe
import pytest
from chromium import FLAGS, Browser, Page
from repeated_rows import PUBLISHED, repeated_rows

import hwmatrix
from hwmatrix.errors import EngineError
from hwmatrix.host.engine import Engine, connect, docker_clients
from hwmatrix.report.write import write_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROJECT = Path(__file__).parents[2]
IMAGE = f"hwmatrix/webgpu:{hwmatrix.__version__}"
CI = os.environ.get("CI") == "true"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pages lie that the browser opens. Anybody may read it, because in a container the browser is anybody."""
    made = tmp_path_factory.mktemp("pages")
    made.chmod(0o755)
    return made


@pytest.fixture(scope="session")
def browser(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests; each page of it is a world of its own."""
    log = tmp_path_factory.mktemp("chromium") / "stderr"
    try:
        command, local = _in_container(connect(dict(os.environ), need_builder=False), folder), False
    except EngineError as error:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        if chromium is None:
            if CI:
                pytest.fail(f"these tests must run in CI: {error}")
            pytest.skip(f"no browser: neither a container engine ({error}) nor Chromium is here")
        command, local = ["sh", "-c", _piped(chromium, f"--user-data-dir={tmp_path_factory.mktemp('profile')}")], True
    with Browser(command, stderr=log, local=local) as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page, 1280 by 900."""
    opened = browser.open()
    opened.size(1280)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def address(browser: Browser, folder: Path) -> Callable[[Path], str]:
    """What the browser calls a file below ``folder``."""
    inside = f"file://{folder}" if browser.local else "file:///pages"

    def told(path: Path) -> str:
        return f"{inside}/{path.relative_to(folder)}"

    return told


@pytest.fixture(scope="session")
def published(folder: Path, address: Callable[[Path], str]) -> str:
    """The page of a published run, of 16 models on nine targets, as the command writes it."""
    write_reports(PUBLISHED, folder / "published" / "latest")
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


def _in_container(engine: Engine, folder: Path) -> list[str]:
    """The browser of the image, which is built if it is not here: no network, nothing to write but /tmp, and these pages to read."""
    client = next(iter(docker_clients(engine.environment)), None)
    if client is None:
        raise EngineError("there is no docker command line")
    found = subprocess.run([client, "image", "inspect", IMAGE], capture_output=True, check=False, env=engine.command_environment())
    if found.returncode != 0:
        build = [sys.executable, "-m", "hwmatrix", "images", "--targets", "webgpu", "--matrix", str(PROJECT / "matrix.yaml")]
        subprocess.run(build, check=True, cwd=PROJECT, env=os.environ | {"PYTHONPATH": str(PROJECT / "harness")})
    harmless = "--network none --read-only --cap-drop ALL --security-opt no-new-privileges --pids-limit 512 --memory 4g"
    return [
        *(str(client), "run", "--rm", "--interactive", "--name", f"hwmatrix-page-tests-{os.getpid()}", "--label", "hwmatrix-page-tests=1"),
        *harmless.split(),
        *("--user", "10001:10001", "--tmpfs", "/tmp:rw,exec,size=1g,mode=1777", "--env", "HOME=/tmp"),  # noqa: S108 - inside
        *("--volume", f"{folder}:/pages:ro", "--entrypoint", "sh", IMAGE, "-c", _piped("chromium", "--user-data-dir=/tmp/profile")),
    ]


def _piped(*command: str) -> str:
    """A shell's line that starts the browser with its pipe on standard input and output."""
    return f"exec {shlex.join([*command, *FLAGS, 'about:blank'])} 3<&0 4>&1 </dev/null >/dev/null"
