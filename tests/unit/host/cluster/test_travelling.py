"""Files that travel between members: a project's inputs, and archives that are stored by their content."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from hwmatrix.basics.cache_folder import CACHE_VARIABLE
from hwmatrix.errors import StoreError
from hwmatrix.host.cluster import travelling
from hwmatrix.host.cluster.travelling import Archive, Project, folder_of

if TYPE_CHECKING:
    from pathlib import Path

RUN = "20261125T000000Z-abcdef"


def test_a_project_arrives_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "images" / "mine").mkdir(parents=True)
    (tmp_path / "images" / "mine" / "Dockerfile").write_text("FROM base\n")
    (tmp_path / "matrix.yaml").write_text("targets: {}\n")
    project = Project.of(tmp_path / "matrix.yaml")
    place = project.unpacked(tmp_path / "cache")
    assert (place / "matrix.yaml").read_text() == "targets: {}\n"
    assert (place / "images" / "mine" / "Dockerfile").read_text() == "FROM base\n"
    assert (place / "images" / "cpu" / "Dockerfile").is_file()  # those that come with hwmatrix, too
    assert project.unpacked(tmp_path / "cache") == place
    assert not list(place.parent.glob("tmp*"))


def test_another_content_is_another_project(tmp_path: Path) -> None:
    first, second = Project(files={"matrix.yaml": b"a"}), Project(files={"matrix.yaml": b"b"})
    assert first.unpacked(tmp_path) != second.unpacked(tmp_path)
    assert Project(files={"a": b"bc"}).digest != Project(files={"ab": b"c"}).digest


@pytest.mark.parametrize("name", ["../matrix.yaml", "/etc/matrix.yaml", "images/../../x"])
def test_a_path_out_of_the_project_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="is not a path within a project"):
        Project(files={name: b""}).unpacked(tmp_path / "cache")
    assert not list(tmp_path.rglob("*.yaml"))


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    (tmp_path / "made.tar").write_bytes(b"bundles" * 1000)
    return Archive.keep(RUN, tmp_path / "made.tar", tmp_path / "here")


def test_an_archive_is_named_by_its_content(archive: Archive, tmp_path: Path) -> None:
    assert archive.path == folder_of(tmp_path / "here", RUN) / "archives" / f"{archive.digest}.tar"
    assert archive.path.read_bytes() == b"bundles" * 1000
    assert not (tmp_path / "made.tar").exists()


@pytest.mark.parametrize("protocol", [4, 5])
def test_an_archive_arrives_in_the_receivers_cache(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    sent = pickle.dumps(archive, protocol)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "there"))
    for _ in range(2):  # the second time it is there already
        got = pickle.loads(sent)  # noqa: S301 - our own
        assert got.digest == archive.digest
        assert got.path.is_relative_to(tmp_path / "there")
        assert got.path.read_bytes() == archive.path.read_bytes()
    assert [path.name for path in got.path.parent.iterdir()] == [f"{archive.digest}.tar"]


def test_its_bytes_are_not_copied_into_the_message(archive: Archive) -> None:
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(archive, 5, buffer_callback=buffers.append)
    assert len(sent) < 500
    assert sum(buffer.raw().nbytes for buffer in buffers) == 7000


def test_a_damaged_archive_is_refused(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "there"))
    with pytest.raises(StoreError, match=f"the archive {archive.digest} arrived as"):
        travelling._received(RUN, archive.digest, b"bundles" * 999)
    assert not list((tmp_path / "there").rglob("*.tar"))
