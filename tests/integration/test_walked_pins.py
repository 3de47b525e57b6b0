"""Executes the jobs of pins.yml on this machine: a real resolution, fake answers of GitHub and an image registry, and the branch."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from workflow_walker import Walker

from hwmatrix.host.github.render import action_pins

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
TOKEN = "token-of-the-test"  # noqa: S105 - of a server of the test
NEWER, TAG = "d" * 40, "e" * 40
DIGEST = "sha256:" + "c" * 64
DOCKER = f"""#!/bin/sh
[ "$1 $2 $3 $4" = "buildx imagetools inspect python:3.11-slim-bookworm" ] || exit 9
echo {DIGEST}
"""
GH = """#!/usr/bin/env python3
import json, os, pathlib, sys
assert os.environ["GH_TOKEN"]
with (pathlib.Path(os.environ["FAKE_GH"]) / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
"""


class Handler(http.server.BaseHTTPRequestHandler):
    """A fake GitHub API whose releases of actions equal the pins, except for checkout, which has a newer one with an annotated tag."""

    def do_GET(self) -> None:
        name = "/".join(self.path.split("/")[2:4])
        pin = action_pins()[name]
        newer = name == "actions/checkout"
        answer: dict[str, Any]
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.send_error(401)
            return
        if self.path.endswith("/releases/latest"):
            answer = {"tag_name": "v99.0.0" if newer else pin.version}
        elif self.path.endswith(f"/git/tags/{TAG}"):
            answer = {"object": {"type": "commit", "sha": NEWER}}
        else:
            answer = {"object": {"type": "tag", "sha": TAG} if newer else {"type": "commit", "sha": pin.commit}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_arguments: Any) -> None: ...


@pytest.fixture
def api() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)  # noqa: S607 - that of the checkout
    return done.stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkout with a remote, in which one pinned package is outdated."""
    folder, remote = tmp_path / "source", tmp_path / "remote.git"
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "harness", "images", ".github").split("\0")
    for name in [*listed, "pyproject.toml", "README.md", "LICENSE", "matrix.yaml"]:
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    path = folder / "images/constraints-host.txt"
    text = path.read_text(encoding="utf-8")
    older = [line if not line.startswith("types-psutil==") else "types-psutil==7.0.0.20250218" for line in text.splitlines()]
    path.write_text("\n".join(older) + "\n", encoding="utf-8")
    git(tmp_path, "init", "--quiet", "--bare", str(remote))
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "begin")
    git(folder, "remote", "add", "origin", str(remote))
    return folder


def walker(source: Path, folder: Path, api: str) -> Walker:
    (folder / "artifacts").mkdir()
    (folder / "gh").mkdir()
    for name, text in {"gh": GH, "docker": DOCKER}.items():
        tool = folder / "tools" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(text, encoding="utf-8")
        tool.chmod(stat.S_IRWXU)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "RUNNER_", "HWMATRIX_", "PYTHON"))}
    environment = {
        **kept,
        "PATH": f"{folder / 'tools'}{os.pathsep}{os.environ['PATH']}",
        "FAKE_GH": str(folder / "gh"),
        "GITHUB_API_URL": api,
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_RUN_ID": "7",
        "PIP_RETRIES": "0",  # if PyTorch's own index is unreachable, each package would wait for it
    }
    github = {"event_name": "schedule", "token": TOKEN, "event": {"repository": {"fork": False, "default_branch": "main"}}}
    return Walker.of(ROOT / ".github/workflows/pins.yml", source=source, folder=folder, github=github, environment=environment)


def test_a_refresh_from_the_lookup_to_the_pull_request(source: Path, tmp_path: Path, api: str) -> None:
    walking = walker(source, tmp_path, api)
    refresh = walking.walk("refresh", {})
    assert refresh.result == "success", refresh.log
    assert refresh.outputs == {"changed": "yes"}
    assert "actions.yaml: actions/checkout" in refresh.log
    assert "constraints-host.txt: types-psutil 7.0.0.20250218 -> " in refresh.log
    assert [path.name for path in (tmp_path / "artifacts" / "pins").iterdir()] == ["pins.patch"]
    assert walking.starts("propose", {"refresh": refresh})
    propose = walking.walk("propose", {"refresh": refresh})
    assert propose.result == "success", propose.log
    (branch,) = git(tmp_path / "remote.git", "for-each-ref", "--format=%(refname:short)").split()
    assert branch.startswith("pins-")
    assert branch.endswith("-7")
    changed = set(git(source, "--git-dir", str(tmp_path / "remote.git"), "diff", "--name-only", f"{branch}~1", branch).split())
    assert changed >= {"matrix.yaml", "images/constraints-host.txt", "harness/hwmatrix/host/github/actions.yaml"}
    assert changed <= {"matrix.yaml", "harness/hwmatrix/host/github/actions.yaml"} | {
        f"images/{path.name}" for path in (source / "images").glob("constraints*.txt")
    }
    shown = git(source, "--git-dir", str(tmp_path / "remote.git"), "show", f"{branch}:harness/hwmatrix/host/github/actions.yaml")
    assert yaml.safe_load(shown)["actions/checkout"] == {"commit": NEWER, "version": "v99.0.0"}
    calls = [json.loads(line) for line in (tmp_path / "gh" / "calls").read_text(encoding="utf-8").splitlines()]
    assert [words[:2] for words in calls] == [["auth", "setup-git"], ["pr", "create"]]
    assert calls[1][calls[1].index("--head") + 1] == branch


def test_the_patch_of_another_job_can_only_change_pins(source: Path, tmp_path: Path, api: str) -> None:
    """The job with write permissions runs nothing that was installed, and takes only the files with pins from the patch."""
    walking = walker(source, tmp_path, api)
    for name in ("matrix.yaml", ".github/tools.txt", "harness/hwmatrix/__init__.py"):
        with (source / name).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
    artifact = tmp_path / "artifacts" / "pins" / "pins.patch"
    artifact.parent.mkdir()
    artifact.write_text(git(source, "diff"), encoding="utf-8")
    git(source, "checkout", "--quiet", "--", ".")
    propose = walking.walk("propose", {})
    assert propose.result == "success", propose.log
    remote = str(tmp_path / "remote.git")
    (branch,) = git(tmp_path / "remote.git", "for-each-ref", "--format=%(refname:short)").split()
    assert git(source, "--git-dir", remote, "diff", "--name-only", f"{branch}~1", branch).split() == ["matrix.yaml"]


def test_a_fork_refreshes_nothing(source: Path, tmp_path: Path, api: str) -> None:
    walking = walker(source, tmp_path, api)
    walking.github["event"]["repository"]["fork"] = True
    assert not walking.starts("refresh", {})
