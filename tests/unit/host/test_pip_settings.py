from __future__ import annotations

import configparser
import os
from typing import TYPE_CHECKING

import pytest

from hwmatrix.errors import ConfigError
from hwmatrix.host import pip_settings
from hwmatrix.host.pip_settings import PipSettings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which no file of this machine is read."""
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(pip_settings, "SYSTEM_BUNDLES", ())
    real = pip_settings.config_files
    monkeypatch.setattr(pip_settings, "config_files", lambda env: [path for path in real(env) if path.is_relative_to(tmp_path)])
    return {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_set_gives_nothing(home: dict[str, str]) -> None:
    assert pip_settings.read(home) == PipSettings()


def test_variables_win_over_files_and_install_over_global(home: dict[str, str], tmp_path: Path) -> None:
    text = "[global]\nindex_url = https://global/simple\nretries = 1\n[install]\nindex-url = https://install/simple\n"
    write(tmp_path / "home/.config/pip/pip.conf", text)
    assert pip_settings.read(home).single == {"index-url": "https://install/simple", "retries": "1"}
    found = pip_settings.read({**home, "PIP_INDEX_URL": "https://variable/simple", "PIP_DEFAULT_TIMEOUT": "180"})
    assert found.single == {"index-url": "https://variable/simple", "retries": "1", "timeout": "180"}


def test_a_chosen_file_replaces_the_users_and_devnull_replaces_all(home: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "home/.config/pip/pip.conf", "[global]\nindex-url = https://user/simple\n")
    write(tmp_path / "prefix/pip.conf", "[global]\nretries = 2\n")
    chosen = write(tmp_path / "chosen.conf", "[global]\nindex-url = https://chosen/simple\n")
    assert pip_settings.read({**home, "PIP_CONFIG_FILE": str(chosen)}).single == {"index-url": "https://chosen/simple", "retries": "2"}
    assert pip_settings.read({**home, "PIP_CONFIG_FILE": os.devnull}).single == {}


def test_lists_are_split_and_rendered_so_that_pip_reads_them_back(home: dict[str, str]) -> None:
    found = pip_settings.read({**home, "PIP_EXTRA_INDEX_URL": "https://a/simple\n https://b/simple", "PIP_FIND_LINKS": "/wheels"})
    assert found.lists == {"extra-index-url": ("https://a/simple", "https://b/simple"), "find-links": ("/wheels",)}
    parser = configparser.RawConfigParser()
    parser.read_string(found.render(certificates="/run/secrets/ca.pem"))
    assert parser["global"]["extra-index-url"].split() == ["https://a/simple", "https://b/simple"]
    assert parser["global"]["cert"] == "/run/secrets/ca.pem"


def test_a_percent_sign_in_a_password_survives(home: dict[str, str]) -> None:
    found = pip_settings.read({**home, "PIP_INDEX_URL": "https://me:p%40ss@host/simple"})
    parser = configparser.RawConfigParser()
    parser.read_string(found.render(certificates=None))
    assert parser["global"]["index-url"] == "https://me:p%40ss@host/simple"
    assert "p%40ss" not in repr(found)


def test_settings_of_this_machine_alone_are_left_out(home: dict[str, str]) -> None:
    found = pip_settings.read({**home, "PIP_TARGET": "/somewhere", "PIP_USER": "1", "PIP_NO_INDEX": "1"})
    assert found.single == {"no-index": "1"}
    assert found.lists == {}


def test_certificates_come_from_pip_first_then_from_the_usual_variables(home: dict[str, str], tmp_path: Path) -> None:
    mine, other = write(tmp_path / "mine.pem", "x"), write(tmp_path / "other.pem", "y")
    assert pip_settings.read({**home, "PIP_CERT": str(mine), "SSL_CERT_FILE": str(other)}).certificates == mine
    assert pip_settings.read({**home, "SSL_CERT_FILE": str(other)}).certificates == other
    assert pip_settings.read({**home, "PIP_CERT": str(tmp_path / "gone.pem")}).certificates is None


def test_a_broken_file_is_an_error_that_names_it(home: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path / "home/.config/pip/pip.conf", "no section\n")
    with pytest.raises(ConfigError, match=str(path)):
        pip_settings.read(home)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:80/simple", True),
        ("http://localhost/simple", True),
        ("http://[::1]:3141/simple", True),
        ("localhost:3128", True),
        ("https://me:word@packages.example/simple", False),
        ("http://10.127.0.1/simple", False),
    ],
)
def test_loopback(url: str, *, loopback: bool) -> None:
    assert pip_settings.is_loopback(url) is loopback
    assert PipSettings(lists={"extra-index-url": (url,)}).names_loopback is loopback
