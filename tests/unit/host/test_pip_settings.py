from __future__ import annotations

import configparser
from typing import TYPE_CHECKING

import pytest

from hwmatrix.host import pip_settings
from hwmatrix.host.pip_settings import PipSettings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_certificates_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_settings, "SYSTEM_BUNDLES", ())


def read(environment: dict[str, str] | None = None, *, listed: str = "", **values: str) -> PipSettings:
    """The settings if ``pip config list`` prints ``listed``, and ``pip config get`` prints the entry of ``values``."""

    def ask(action: str, name: str = "") -> str:
        return {"list": listed, "get": f"{values.get(name.replace('.', '_').replace('-', '_'))}\n"}[action]

    return pip_settings.read(environment or {}, ask=ask)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_without_settings_nothing_is_returned() -> None:
    assert read() == PipSettings()


def test_variables_override_files_and_install_overrides_global() -> None:
    listed = "global.index-url='https://global/simple'\nglobal.retries='1'\ninstall.index-url='https://install/simple'\n"
    assert read(listed=listed).single == {"index-url": "https://install/simple", "retries": "1"}
    found = read({"PIP_INDEX_URL": "https://variable/simple", "PIP_DEFAULT_TIMEOUT": "180", "PIP_RETRIES": ""}, listed=listed)
    assert found.single == {"index-url": "https://variable/simple", "retries": "1", "timeout": "180"}


def test_variables_that_pip_lists_are_not_read_twice() -> None:
    assert read({"PIP_RETRIES": "3"}, listed=":env:.retries='2'\n:env:.config-file='/some/pip.conf'\n").single == {"retries": "3"}


def test_pip_decides_between_two_files() -> None:
    listed = "global.retries='1'\nglobal.proxy='same'\nglobal.retries='2'\nglobal.proxy='same'\n"
    assert read(listed=listed, global_retries="1").single == {"retries": "1", "proxy": "same"}
    assert read(listed=listed, global_retries="2").single == {"retries": "2", "proxy": "same"}


def test_multi_line_values_are_read_as_pip_quotes_them() -> None:
    listed = r"global.extra-index-url='\nhttps://a/simple\nhttps://me:it\'s%40@b/simple'"
    assert read(listed=listed).lists == {"extra-index-url": ("https://a/simple", "https://me:it's%40@b/simple")}


def test_without_pip_only_variables_count_and_the_problem_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    found = pip_settings.read({"PIP_INDEX_URL": "https://variable/simple"})
    assert found.single == {"index-url": "https://variable/simple"}
    assert "pip is not installed" in found.problem


def test_lists_are_split_and_rendered_so_that_pip_reads_them_back() -> None:
    found = read({"PIP_EXTRA_INDEX_URL": "https://a/simple\n https://b/simple", "PIP_FIND_LINKS": "/wheels"})
    assert found.lists == {"extra-index-url": ("https://a/simple", "https://b/simple"), "find-links": ("/wheels",)}
    parser = configparser.RawConfigParser()
    parser.read_string(found.render(certificates="/run/secrets/ca.pem"))
    assert parser["global"]["extra-index-url"].split() == ["https://a/simple", "https://b/simple"]
    assert parser["global"]["cert"] == "/run/secrets/ca.pem"


def test_a_percent_sign_in_a_password_survives() -> None:
    found = read({"PIP_INDEX_URL": "https://me:p%40ss@host/simple"})
    parser = configparser.RawConfigParser()
    parser.read_string(found.render(certificates=None))
    assert parser["global"]["index-url"] == "https://me:p%40ss@host/simple"
    assert "p%40ss" not in repr(found)


def test_settings_specific_to_this_machine_are_left_out() -> None:
    found = read({"PIP_TARGET": "/somewhere", "PIP_USER": "1", "PIP_NO_INDEX": "1"})
    assert found.single == {"no-index": "1"}
    assert found.lists == {}


def test_certificates_come_from_pip_first_then_from_the_usual_variables(tmp_path: Path) -> None:
    mine, other = write(tmp_path / "mine.pem", "x"), write(tmp_path / "other.pem", "y")
    assert read({"PIP_CERT": str(mine), "SSL_CERT_FILE": str(other)}).certificates == mine
    assert read({"SSL_CERT_FILE": str(other)}).certificates == other
    assert read({"PIP_CERT": str(tmp_path / "gone.pem")}).certificates is None


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
