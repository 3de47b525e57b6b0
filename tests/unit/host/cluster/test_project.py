"""The inputs of a run that its members get."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from hwmatrix.errors import StoreError
from hwmatrix.host.cluster import project

if TYPE_CHECKING:
    from pathlib import Path


def test_a_project_arrives_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "images" / "mine").mkdir(parents=True)
    (tmp_path / "images" / "mine" / "Dockerfile").write_text("FROM base\n")
    (tmp_path / "matrix.yaml").write_text("targets: {}\n")
    place = tmp_path / "there"
    project.unpack(project.pack(tmp_path / "matrix.yaml"), place)
    assert (place / "matrix.yaml").read_text() == "targets: {}\n"
    assert (place / "images" / "mine" / "Dockerfile").read_text() == "FROM base\n"
    assert (place / "images" / "cpu" / "Dockerfile").is_file()  # those that come with hwmatrix, too


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"matrix\.yaml: cannot be read"):
        project.pack(tmp_path / "matrix.yaml")


@pytest.mark.parametrize("name", ["../matrix.yaml", "images/../../x"])
def test_a_path_out_of_the_project_is_refused(tmp_path: Path, name: str) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(tarfile.OutsideDestinationError):
        project.unpack(content.getvalue(), tmp_path / "there")
