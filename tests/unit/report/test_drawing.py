"""The page's drawing library in the cache folder. The bundler is a fake; test_page.py has the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hwmatrix.report import drawing

if TYPE_CHECKING:
    from pathlib import Path


class Bundler:
    """A vl-convert that counts its bundles."""

    def __init__(self, version: str) -> None:
        self.__version__ = version
        self.bundles = 0

    def javascript_bundle(self, snippet: str, *, vl_version: str) -> str:
        self.bundles += 1
        return f"// {self.__version__}, {vl_version}\n{snippet}"


@pytest.fixture
def bundler(monkeypatch: pytest.MonkeyPatch) -> Bundler:
    made = Bundler("1.0")
    monkeypatch.setattr(drawing, "converter", lambda: made)
    return made


def library(cache: Path | None) -> str:
    """The library as a new process gets it."""
    forget()
    try:
        return drawing.chart_library(cache)
    finally:
        forget()


def forget() -> None:
    drawing.chart_library.cache_clear()
    drawing._bundle.cache_clear()


def test_it_is_bundled_once_for_all_processes(bundler: Bundler, tmp_path: Path) -> None:
    uncached = library(None)
    assert [library(tmp_path / "new") for _ in range(3)] == [uncached] * 3
    assert bundler.bundles == 2


def test_another_version_is_bundled_anew(bundler: Bundler, tmp_path: Path) -> None:
    first = library(tmp_path)
    bundler.__version__ = "2.0"
    assert library(tmp_path) != first
    assert "// 2.0" in library(tmp_path)
    assert bundler.bundles == 2


@pytest.mark.parametrize("damaged", [b"", b"nonsense", b"\xff\xfe\n\xff", None])
def test_a_damaged_file_is_replaced(bundler: Bundler, tmp_path: Path, damaged: bytes | None) -> None:
    first = library(tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] if damaged is None else damaged)
    assert library(tmp_path) == first
    assert file.read_bytes() == whole
    assert bundler.bundles == 2


def test_a_folder_that_cannot_be_written_does_not_matter(bundler: Bundler, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert library(tmp_path / "file" / "cache") == library(None)
    assert bundler.bundles == 2
