from __future__ import annotations

import http.client
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import pytest

from hwmatrix.host.local_index import local_path, serving
from hwmatrix.host.pip_settings import PipSettings

if TYPE_CHECKING:
    from pathlib import Path


def get(url: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    (tmp_path / "mirror/simple/one").mkdir(parents=True)
    (tmp_path / "mirror/files").mkdir()
    (tmp_path / "mirror/simple/one/index.html").write_text('<a href="../../files/one-1.whl">one</a>')
    (tmp_path / "mirror/files/one-1.whl").write_bytes(b"wheel")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/two 2.whl").write_bytes(b"two")
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path


@pytest.mark.usefixtures("loopback")
def test_folders_and_file_indexes_become_urls_until_the_block_ends(mirror: Path) -> None:
    lists = {"find-links": (str(mirror / "wheels"),), "extra-index-url": (f"file://{mirror}/mirror/simple", "https://other.example/simple")}
    with serving(PipSettings(lists=lists), on_line=pytest.fail) as served:
        assert served.names_loopback
        (wheels,), (index, other) = served.lists["find-links"], served.lists["extra-index-url"]
        assert other == "https://other.example/simple"
        assert b"two%202.whl" in get(wheels)[1]
        assert get(wheels + "two%202.whl") == (200, b"two")
        assert get(urljoin(f"{index}one/", "../../files/one-1.whl")) == (200, b"wheel")
    with pytest.raises(OSError, match="refused"):
        get(wheels)


@pytest.mark.usefixtures("loopback")
def test_only_the_given_folders_are_served_and_only_under_the_secret_path(mirror: Path) -> None:
    with serving(PipSettings(lists={"find-links": (str(mirror / "wheels"),)}), on_line=pytest.fail) as served:
        url = urlsplit(served.lists["find-links"][0])
        origin, (_, token, number, _) = f"http://{url.netloc}", url.path.split("/")
        assert get(f"{origin}/") == (200, b""), "no list of what is served"
        assert get(f"{origin}/guess/{number}/two%202.whl")[0] == 404
        assert get(f"{origin}/{token}/7/two%202.whl")[0] == 404
        assert get(f"{origin}/{token}/{number}/../secret.txt")[0] == 404
        assert get(f"{origin}/{token}/{number}/%2e%2e/secret.txt")[0] == 404


@pytest.mark.usefixtures("loopback")
def test_of_a_page_only_the_file_itself_is_served(mirror: Path) -> None:
    (mirror / "page.html").write_text("links")
    with serving(PipSettings(lists={"find-links": (str(mirror / "page.html"),)}), on_line=pytest.fail) as served:
        (url,) = served.lists["find-links"]
        assert get(url) == (200, b"links")
        for other in ("secret.txt", "wheels/", "page.html/x"):
            assert get(urljoin(url, other))[0] == 404
        assert b"secret" not in get(urljoin(url, "."))[1]


def test_a_missing_folder_is_left_out_and_reported(mirror: Path) -> None:
    said: list[str] = []
    with serving(PipSettings(lists={"find-links": (str(mirror / "gone"),)}), on_line=said.append) as served:
        assert served.lists["find-links"] == ()
    assert "gone" in said[0]


def test_without_local_folders_nothing_is_served() -> None:
    settings = PipSettings(single={"index-url": "https://packages.example/simple"})
    with serving(settings, on_line=pytest.fail) as served:
        assert served is settings


def test_local_path(tmp_path: Path) -> None:
    assert local_path(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert local_path(str(tmp_path)) == tmp_path
    assert local_path("https://packages.example/simple") is None
