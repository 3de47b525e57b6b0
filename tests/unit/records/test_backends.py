"""Backends of other packages: found by their entry points, loaded on demand, refused if invalid."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from hwmatrix.errors import ConfigError
from hwmatrix.faults.catalogue import advice_for, match
from hwmatrix.hardware import container, detector
from hwmatrix.matrix.load import load
from hwmatrix.matrix.spec import json_schema
from hwmatrix.records import Severity, backends
from hwmatrix.records.backends import TABLE, OnnxUse, descriptor_of, names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
from hwmatrix.records.backends import Descriptor, Hardware, OnnxUse
ABACUS = Descriptor(
    name="abacus", target="no_such_module:Abacus", image="abacus", requires=("beads",), packages=("beads",), onnx=OnnxUse.BEST,
    hardware=Hardware(detector="hwmatrix_abacus_hardware"), errors="hwmatrix_abacus:errors.yaml",
)
OTHER = 1
"""
DETECTOR = """
def detect():
    return "an abacus", {"beads": 100}
"""
ERRORS = """
version: 1
errors:
- type: bead_stuck
  hardware: [abacus]
  severity: warning
  summary: A bead is stuck.
  when: [{message: 'stuck bead'}]
  recommendations: [Oil the rods.]
  seen: in this test
"""
MATRIX = """
version: 1
sizes: {tiny: {}, full: {}}
tolerances: {float32: {relative_error: 1.0e-4, reason: a test}}
targets: {cpu: {backend: cpu, image: cpu}, mine: {backend: BACKEND, image: mine}}
models: {bert: {family: embedding, architecture: bert, class: BertModel}}
suites: {default: {models: [bert]}}
"""


class Site:
    """A folder of installed packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, package: str, points: str) -> None:
        info = self.folder / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[hwmatrix.targets]\n{points}\n", encoding="utf-8")
        forget()


def forget() -> None:
    backends._from_elsewhere.cache_clear()
    descriptor_of.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    package = folder / "hwmatrix_abacus"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(MODULE, encoding="utf-8")
    (package / "errors.yaml").write_text(ERRORS, encoding="utf-8")
    (folder / "hwmatrix_abacus_hardware.py").write_text(DETECTOR, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    yield Site(folder)
    monkeypatch.undo()
    for module in ("hwmatrix_abacus", "hwmatrix_abacus_hardware"):
        sys.modules.pop(module, None)
    forget()


@pytest.fixture
def abacus(site: Site) -> Site:
    site.install("hwmatrix-abacus", "abacus = hwmatrix_abacus:ABACUS")
    return site


@pytest.mark.usefixtures("abacus")
def test_an_installed_package_provides_a_backend() -> None:
    assert names() == (*TABLE, "abacus")
    assert "hwmatrix_abacus" not in sys.modules
    assert descriptor_of("abacus").onnx is OnnxUse.BEST


@pytest.mark.usefixtures("abacus")
def test_its_detector_is_called_and_a_container_sees_the_result() -> None:
    found = detector.detect("abacus")
    assert (found.hardware_type, found.available, found.name, found.features) == ("abacus", True, "an abacus", {"beads": 100})
    around = container.Surroundings(inside=None, nodes=(), toolkit=(), cdi=(), runtimes=())
    assert container.view("abacus", found, around).visible


@pytest.mark.usefixtures("abacus")
def test_its_own_error_catalogue_comes_first_and_only_for_it() -> None:
    assert match("a stuck bead", hardware="abacus").type == "bead_stuck"
    assert match("a stuck bead", hardware="abacus").severity is Severity.WARNING
    assert match("a stuck bead", hardware="cpu").type == "unmatched"
    assert advice_for("bead_stuck", "abacus") == ("Oil the rods.",)


def test_matrix_yaml_may_name_an_installed_backend(abacus: Site, tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(MATRIX.replace("BACKEND", "abacus"), encoding="utf-8")
    assert load(path).spec.targets["mine"].backend == "abacus"
    assert '"abacus"' in json.dumps(json_schema())
    path.write_text(MATRIX.replace("BACKEND", "abacsu"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"did you mean 'abacus'\?"):
        load(path)
    (abacus.folder / "hwmatrix-abacus-1.0.dist-info" / "entry_points.txt").unlink()
    forget()
    path.write_text(MATRIX.replace("BACKEND", "abacus"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"targets\.mine\.backend is 'abacus'"):
        load(path)


def test_an_unknown_backend_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no package in this interpreter has a backend 'abacus'.*cpu, openvino"):
        descriptor_of("abacus")


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ("beads = hwmatrix_abacus:ABACUS", "hwmatrix_abacus:ABACUS is not the descriptor of a backend 'beads'"),
        ("beads = hwmatrix_abacus:OTHER", "hwmatrix_abacus:OTHER is not the descriptor of a backend 'beads'"),
    ],
)
def test_an_entry_point_that_is_not_a_descriptor_is_refused(site: Site, points: str, message: str) -> None:
    site.install("hwmatrix-abacus", points)
    with pytest.raises(ConfigError, match=message):
        descriptor_of("beads")


@pytest.mark.parametrize("points", ["cpu = hwmatrix_abacus:ABACUS", "abacus = hwmatrix_abacus:OTHER"])
def test_two_backends_with_the_same_name_are_refused(abacus: Site, points: str) -> None:
    abacus.install("another-package", points)
    with pytest.raises(ConfigError, match="and so has another"):
        names()
