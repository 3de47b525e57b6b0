"""The cache folder, for everything that can be recreated."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hwmatrix.basics.cache_folder import cache_folder, needed_cache_folder
from hwmatrix.errors import ConfigError


def test_a_variable_names_it() -> None:
    assert cache_folder({"HWMATRIX_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}) == Path("/a/b")
    assert cache_folder({"HWMATRIX_CACHE": "", "XDG_CACHE_HOME": "/c"}) == Path("/c/hwmatrix")
    assert cache_folder({"HWMATRIX_CACHE": "here"}) == Path.cwd() / "here"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the place of caches is another one elsewhere")
def test_without_one_it_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder({}) == needed_cache_folder({}) == tmp_path / ".cache" / "hwmatrix"


def test_without_a_home_folder_the_error_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", home)
    assert cache_folder({}) is None
    with pytest.raises(ConfigError, match="HWMATRIX_CACHE"):
        needed_cache_folder({})
