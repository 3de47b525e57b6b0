"""How a Chromium is started for the page: from the image of the target `webgpu`, without a network, else the one that is installed."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from chromium import FLAGS

import hwmatrix
from hwmatrix.errors import EngineError
from hwmatrix.host.engine import Engine, connect, docker_clients

PROJECT: Final = Path(__file__).parents[2]
IMAGE: Final = f"hwmatrix/webgpu:{hwmatrix.__version__}"
INSIDE: Final = "/pages"
_HARMLESS: Final = "--network none --read-only --cap-drop ALL --security-opt no-new-privileges --pids-limit 2048 --memory 4g"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """A command that starts a browser, what that is, and the name by which it reads a folder of pages."""

    command: tuple[str, ...]
    told: str
    folder: str

    def address(self, path: str) -> str:
        """What the browser calls a file of the folder."""
        return f"file://{self.folder}/{path}"


def start(folder: Path, profile: Path) -> Start:
    """A browser that may read ``folder``; ``profile`` is for one that is installed here.

    Raises:
        EngineError: there is neither a container engine nor an installed browser.
    """
    try:
        return _in_container(connect(dict(os.environ), need_builder=False), folder)
    except EngineError as error:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        if chromium is None:
            raise EngineError(f"no browser: neither a container engine ({error}) nor Chromium is here") from error
        command = ("sh", "-c", _piped(chromium, f"--user-data-dir={profile}"))
        return Start(command=command, told=f"{chromium}, installed here", folder=str(folder))


def _in_container(engine: Engine, folder: Path) -> Start:
    """The browser of the image, which is built if it is not here: no network, nothing to write but /tmp, and these pages to read."""
    client = next(iter(docker_clients(engine.environment)), None)
    if client is None:
        raise EngineError("there is no docker command line")
    found = subprocess.run([client, "image", "inspect", IMAGE], capture_output=True, check=False, env=engine.command_environment())
    if found.returncode != 0:
        build = [sys.executable, "-m", "hwmatrix", "images", "--targets", "webgpu", "--matrix", str(PROJECT / "matrix.yaml")]
        subprocess.run(build, check=True, cwd=PROJECT, env=os.environ | {"PYTHONPATH": str(PROJECT / "harness")})
    command = (
        *(str(client), "run", "--rm", "--interactive", "--name", f"hwmatrix-page-{os.getpid()}", "--label", "hwmatrix-page-tests=1"),
        *_HARMLESS.split(),
        *("--user", "10001:10001", "--tmpfs", "/tmp:rw,exec,size=1g,mode=1777", "--env", "HOME=/tmp"),  # noqa: S108 - inside
        *("--volume", f"{folder}:{INSIDE}:ro", "--entrypoint", "sh", IMAGE, "-c", _piped("chromium", "--user-data-dir=/tmp/profile")),
    )
    return Start(command=command, told=f"in the image {IMAGE}, without a network", folder=INSIDE)


def _piped(*command: str) -> str:
    """A shell's line that starts the browser with its pipe on standard input and output."""
    return f"exec {shlex.join([*command, *FLAGS, 'about:blank'])} 3<&0 4>&1 </dev/null >/dev/null"
