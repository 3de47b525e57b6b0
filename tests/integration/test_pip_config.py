"""pip's settings, as reported by the pip that is installed here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hwmatrix.errors import ConfigError
from hwmatrix.host import pip_settings

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pip")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home folder and without pip's variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**kept, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_files_are_read_with_pip_s_precedence(home: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "xdg/pip/pip.conf", "[global]\nindex-url = https://shared/simple\nretries = 1\nquiet = 2\n")
    write(tmp_path / "config/pip/pip.conf", "[global]\nindex_url = https://me:p%40ss@user/simple\nfind-links =\n  /a\n  /b\n")
    found = pip_settings.read(home)
    assert found.single["index-url"] == "https://me:p%40ss@user/simple"
    assert found.single["retries"] == "1"
    assert found.lists["find-links"] == ("/a", "/b")
    assert pip_settings.read({**home, "PIP_INDEX_URL": "https://variable/simple"}).single["index-url"] == "https://variable/simple"
    chosen = write(tmp_path / "chosen.conf", "[install]\nindex-url = https://chosen/simple\n")
    assert pip_settings.read({**home, "PIP_CONFIG_FILE": str(chosen)}).single["index-url"] == "https://chosen/simple"
    assert "index-url" not in pip_settings.read({**home, "PIP_CONFIG_FILE": os.devnull}).single


def test_a_broken_file_is_an_error_that_names_it(home: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path / "config/pip/pip.conf", "no section\n")
    with pytest.raises(ConfigError, match=str(path)):
        pip_settings.read(home)
