"""The packaged files are used in a folder without its own, and overridden by its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hwmatrix.cli import main
from hwmatrix.errors import ConfigError
from hwmatrix.host.requirements import layers
from hwmatrix.matrix import shipped
from hwmatrix.matrix.load import load

ROOT = Path(__file__).parents[3]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package installed without a checkout: a folder with the layout of the wheel."""
    package = tmp_path / "site-packages" / "hwmatrix"
    shutil.copytree(ROOT / "images", package / shipped.DATA / "images")
    shutil.copy(ROOT / "matrix.yaml", package / shipped.DATA)
    monkeypatch.setattr(shipped, "_PACKAGE", package)
    return package


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder in which commands run."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    return folder


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_checkout_uses_its_own_files() -> None:
    assert shipped.shipped_root() == ROOT
    assert shipped.harness_source() == ROOT


def test_without_a_checkout_the_packaged_files_are_used(installed: Path, own: Path) -> None:
    assert shipped.shipped_root() == installed / shipped.DATA
    assert shipped.harness_source() is None
    assert load(shipped.shipped_root() / "matrix.yaml").spec == load(ROOT / "matrix.yaml").spec
    names = [layer.requirements for layer in layers(own, base="torch-cpu", image="openvino")]
    assert all(path.is_file() and path.is_relative_to(installed) for path in names)


def test_another_checkout_uses_its_own_harness(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "")
    write(tmp_path / "harness/hwmatrix/__init__.py", "")
    assert shipped.harness_source(tmp_path) == tmp_path


def test_a_user_s_image_is_added_to_the_packaged_ones(installed: Path, own: Path) -> None:
    mine = write(own / "images/mine/requirements.txt", "mine==1\n")
    write(own / "images/mine/Dockerfile", "ARG BASE\nFROM ${BASE}\n")
    write(own / "images/cpu/Dockerfile", "ARG BASE\nFROM ${BASE}\n")
    found = shipped.image_files(own)
    assert found["mine"] == own / "images/mine"
    assert found["cpu"] == own / "images/cpu"
    assert found["openvino"] == installed / shipped.DATA / "images/openvino"
    top = layers(own, base="torch-cpu", image="mine")[-1]
    assert top.requirements == mine
    assert top.constraints == installed / shipped.DATA / "images/constraints.txt"
    write(own / "images/constraints.txt", "mine==1\n")
    assert layers(own, base="torch-cpu", image="mine")[-1].constraints == own / "images/constraints.txt"


def test_a_folder_of_pictures_does_not_count_as_container_images(own: Path) -> None:
    write(own / "images/logo.svg", "<svg/>")
    write(own / "images/cpu/processor.png", "a picture")
    assert shipped.image_files(own) == shipped.image_files(ROOT)


def test_a_missing_image_is_expected_beside_matrix_yaml(own: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        layers(own, base="torch-cpu", image="mine")
    assert str(own / "images/mine/requirements.txt") in str(caught.value)


@pytest.mark.usefixtures("installed", "own")
def test_without_a_matrix_yaml_the_default_one_is_used_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "--models", "bert", "--targets", "cpu", "--format", "json"]) == 0
    printed = capsys.readouterr()
    (line,) = [line for line in printed.err.splitlines() if "matrix.yaml" in line]
    assert line.startswith("no matrix.yaml here: using the one that comes with hwmatrix ")
    assert "matrix.yaml here" not in printed.out


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("argv", [["plan", "--matrix", "matrix.yaml"], ["plan", "--matrix", "other.yaml"], ["workflow"]])
def test_a_given_or_required_file_is_not_replaced_by_the_default(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(argv) == 2
    printed = capsys.readouterr()
    assert "cannot be read" in printed.err
    assert "comes with hwmatrix" not in printed.err


def test_an_existing_matrix_yaml_is_read(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(own / "matrix.yaml", "version: 1\n")
    assert main.main(["plan"]) == 2
    assert "models is missing" in capsys.readouterr().err


@pytest.mark.usefixtures("installed", "own")
def test_no_page_is_written_into_the_installed_package(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["ops", "--targets", "onnxruntime", "--write-docs"]) == 2
    assert "--write-docs" in capsys.readouterr().err
    assert not (installed / shipped.DATA / "docs").exists()
