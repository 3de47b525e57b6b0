"""What the files of `hwmatrix init` install: the hwmatrix that wrote them, from where it came from."""

from __future__ import annotations

import importlib.metadata
import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

import hwmatrix
from hwmatrix.host import starter
from hwmatrix.host.starter import requirement

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
URL = "https://git.example/team/hwmatrix"
GIT = f"hwmatrix[host] @ git+{URL}@{COMMIT}"
RELEASED = f"hwmatrix[host]=={hwmatrix.__version__}"
WHEEL = f"./hwmatrix-{hwmatrix.__version__}-py3-none-any.whl[host]"


class Installed(importlib.metadata.Distribution):
    """An installation that came from ``origin``, the content of direct_url.json (PEP 610); None: from an index."""

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self.origin_text = None if origin is None else json.dumps(origin)

    def read_text(self, filename: str) -> str | None:
        return self.origin_text if filename == "direct_url.json" else None

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, RELEASED),
        ({"url": URL, "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, GIT),
        ({"url": "https://git.example/$(x)", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, WHEEL),
        ({"url": "file:///tmp/hwmatrix-0.1.0-py3-none-any.whl", "archive_info": {}}, WHEEL),
    ],
)
def test_an_installation_names_its_origin(
    origin: dict[str, Any] | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "harness_source", lambda: None)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: Installed(origin))
    assert requirement(tmp_path) == expected
    assert [path.name for path in tmp_path.iterdir()] == ([] if expected != WHEEL else [WHEEL[2:].partition("[")[0]])


@pytest.mark.parametrize(
    ("address", "commit", "expected"), [(URL, COMMIT, GIT), (URL, f"{COMMIT}-dirty", WHEEL), (None, COMMIT, WHEEL), (URL, None, WHEEL)]
)
def test_a_checkout_names_its_commit_if_it_has_no_changes(
    address: str | None, commit: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "web_address_of", lambda _root: address)
    monkeypatch.setattr(starter, "commit_of", lambda _root: commit)
    monkeypatch.setattr(
        importlib.metadata, "distribution", lambda _name: Installed({"url": "file:///here", "dir_info": {"editable": True}})
    )
    assert requirement(tmp_path) == expected
    for wheel in tmp_path.iterdir():  # all that a run needs
        assert {"hwmatrix/shipped/matrix.yaml", "hwmatrix/cli/main.py"} <= set(zipfile.ZipFile(wheel).namelist())
