"""The source of the harness: its commit, and its project's web address, as git knows them."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from hwmatrix.matrix.shipped import harness_source

if TYPE_CHECKING:
    from pathlib import Path

_SSH: Final = re.compile(r"(?:ssh://)?[\w.-]+@([\w.-]+)[:/](.+)")


def commit_of(project_root: Path) -> str | None:
    """Return the commit of the harness in images (marked if the working tree differs); None if it was installed without its source.

    The commit of a repository with only a matrix.yaml says nothing about the harness.
    """
    source = harness_source(project_root)
    return None if source is None else _git(source, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")


def web_address_of(root: Path) -> str | None:
    """Return the project's web address from the remote ``origin``, without any login in it; None if there is no such remote."""
    remote = _git(root, "remote", "get-url", "origin")
    return None if remote is None else web_address(remote)


def web_address(remote: str) -> str | None:
    """Turn a remote into an address for a browser; None if it is not a server's."""
    ssh = _SSH.fullmatch(remote)
    if ssh and not remote.startswith(("http://", "https://")):
        return f"https://{ssh[1]}/{ssh[2].removesuffix('.git')}"
    parts = urlsplit(remote)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return None
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path.removesuffix('.git')}"


def _git(root: Path, *arguments: str) -> str | None:
    """Return git's output in a folder; None if there is no git, no checkout, or no output."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
