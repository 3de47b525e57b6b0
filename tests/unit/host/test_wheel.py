"""The harness wheel for images: the same bytes from a checkout and from an installation."""

from __future__ import annotations

import importlib.metadata
import io
import zipfile
from pathlib import Path

import pytest

import hwmatrix
from hwmatrix.errors import ImageBuildError
from hwmatrix.host import wheel
from hwmatrix.matrix import shipped

ROOT = Path(__file__).parents[3]
MOST_BYTES = 5 * 2**20


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distributed wheel."""
    from hatchling.builders.wheel import WheelBuilder

    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("distributed")), versions=["standard"])
    return Path(built)


@pytest.fixture
def site(distributed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation of it by pip, which is the running package."""
    folder = tmp_path / "site-packages"
    with zipfile.ZipFile(distributed) as archive:
        archive.extractall(folder)
    (metadata,) = folder.glob("*.dist-info")
    noted = {f"{metadata.name}/INSTALLER": "pip\n", f"{metadata.name}/direct_url.json": "{}", "hwmatrix/__pycache__/errors.pyc": "x"}
    for name, text in noted.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    record = metadata / "RECORD"
    lines = sorted([*record.read_text().splitlines(), "../../../bin/hwmatrix,sha256=AAAA,1", *(f"{name},," for name in noted)])
    record.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(shipped, "_PACKAGE", folder / "hwmatrix")
    monkeypatch.setattr(hwmatrix, "__file__", str(folder / "hwmatrix" / "__init__.py"))
    found = importlib.metadata.Distribution.at(metadata)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: found)
    return folder


def names_of(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return set(archive.namelist())


def test_the_distributed_wheel_is_complete_and_small(distributed: Path) -> None:
    assert distributed.stat().st_size < MOST_BYTES
    names = names_of(distributed)
    there = {
        f"hwmatrix/{shipped.DATA}/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "images").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there | {f"hwmatrix/{shipped.DATA}/matrix.yaml"} == {name for name in names if name.startswith(f"hwmatrix/{shipped.DATA}/")}


def test_an_installation_gives_the_same_wheel_as_the_checkout(site: Path, tmp_path: Path) -> None:
    assert shipped.harness_source() is None
    ours = wheel.build_wheel(tmp_path / "no checkout", tmp_path / "ours")
    theirs = wheel.build_wheel(ROOT, tmp_path / "theirs")
    assert ours.name == theirs.name
    assert ours.read_bytes() == theirs.read_bytes()
    assert site.is_dir()


def test_the_wheel_for_images_has_only_the_package(distributed: Path, tmp_path: Path) -> None:
    ours = wheel.build_wheel(ROOT, tmp_path)
    assert names_of(ours) == {name for name in names_of(distributed) if not name.startswith(f"hwmatrix/{shipped.DATA}/")}


def test_its_record_matches_its_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel.build_wheel(ROOT, tmp_path)) as archive:
        for name in archive.namelist():
            path = tmp_path / "unpacked" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
    (metadata,) = (tmp_path / "unpacked").glob("*.dist-info")
    recorded = importlib.metadata.Distribution.at(metadata).files or []
    assert {path.as_posix() for path in recorded} == {
        path.relative_to(tmp_path / "unpacked").as_posix() for path in (tmp_path / "unpacked").rglob("*") if path.is_file()
    }
    for path in recorded:
        if path.hash is not None:
            assert path.hash.value == wheel._digest(Path(str(path.locate())).read_bytes())


def test_a_copy_that_was_never_installed_is_refused(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ImageBuildError, match="not installed"):
        wheel.build_wheel(tmp_path, tmp_path / "out")
    assert site.is_dir()


def test_changing_matrix_yaml_or_images_does_not_change_the_wheel(site: Path, tmp_path: Path) -> None:
    """Otherwise each edit of matrix.yaml would rebuild all images and make every verdict stale."""
    files = wheel._of_installation()
    before = wheel._write(files, tmp_path).read_bytes()
    changed = {name: data + b"#" if name.startswith(f"hwmatrix/{shipped.DATA}/") else data for name, data in files.items()}
    assert changed != files
    assert wheel._write(changed, tmp_path).read_bytes() == before
    assert zipfile.is_zipfile(io.BytesIO(before))
    assert site.is_dir()
