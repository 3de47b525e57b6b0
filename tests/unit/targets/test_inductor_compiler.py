"""The compiler that TorchInductor needs, and the folder in which cells compile."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from factory_plans import cell_plan

from hwmatrix.basics.processes import own_mark
from hwmatrix.errors import UnavailableError
from hwmatrix.records.backends import descriptor_of
from hwmatrix.targets.inductor import compiler

if TYPE_CHECKING:
    from collections.abc import Callable


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="ascii")
    path.chmod(0o755)
    return path


@pytest.fixture
def torch_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyTorch 2.13.0, Python's headers, and compilers whose files contain what they say of their version."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"torch": "2.13.0"}[name])
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["--version"]
        return subprocess.CompletedProcess(command, 0, stdout=Path(command[0]).read_text(encoding="ascii"))

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.usefixtures("torch_here")
@pytest.mark.parametrize(
    ("name", "system", "told", "version"),
    [
        ("g++", "linux", "g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0"),
        ("clang++", "darwin", "Apple clang version 14.0.6", "14.0.6"),
    ],
)
def test_the_compiler_is_found_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, name: str, system: str, told: str, version: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, name, f"{told}\nCopyright")
    assert compiler.detect() == ("TorchInductor 2.13.0", {"version": "2.13.0", "compiler": name, "compiler_version": version})
    assert compiler.installed()[1]["compiler_version"] is None


@pytest.mark.usefixtures("torch_here")
def test_the_variable_cxx_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "g++", "g++ 1.0")
    own = program(tmp_path, "mine", "")
    monkeypatch.setenv("CXX", str(own))
    assert compiler.found() == str(own)
    assert compiler.detect()[1] == {"version": "2.13.0", "compiler": "mine", "compiler_version": None}, "it does not say its version"


@pytest.mark.usefixtures("torch_here")
def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "clang++", "clang version 14.0.6")  # which PyTorch calls only on macOS, or if CXX names it
    with pytest.raises(UnavailableError, match=r"there is no g\+\+: install it, or name another") as caught:
        compiler.detect()
    assert caught.value.error_type == "compiler_missing"
    program(tmp_path, "g++", "g++ 12.2.0")
    (tmp_path / "Python.h").unlink()
    with pytest.raises(UnavailableError, match=r"has no Python\.h: install libpython3-dev"):
        compiler.detect()


@pytest.fixture(autouse=True)
def pytorch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cell changes in PyTorch, in its own process, is undone after each test."""
    if importlib.util.find_spec("torch"):
        from torch._inductor import async_compile

        for name in ("cpp_pybinding", "wait"):
            monkeypatch.setattr(async_compile.AsyncCompile, name, getattr(async_compile.AsyncCompile, name))
        for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
            monkeypatch.setattr(f"torch._inductor.codecache.{name}", "a cell's own")


def test_without_pytorch_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(UnavailableError, match="torch is not installed") as caught:
        compiler.detect()
    assert caught.value.error_type == "missing_package"


def test_a_target_compiles_if_its_backend_or_its_options_say_so() -> None:
    assert descriptor_of("inductor").compiling({})
    assert descriptor_of("cuda").compiling({"compile": True})
    assert not descriptor_of("cpu").compiling({"compile": False})
    assert not descriptor_of("onnxruntime").compiling({"compile": True})


@pytest.mark.parametrize(("installed", "chosen", "used"), [(True, None, True), (True, "/mine", False), (False, None, False)])
def test_cells_link_with_mold_until_one_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: object, chosen: str | None, used: object
) -> None:
    target = pytest.importorskip("hwmatrix.targets.inductor.target")
    (tmp_path / "mold").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path) if installed else "")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(target.compiler, "installed", lambda: ("", {}))
    monkeypatch.setattr(target.TorchCpu, "check", lambda _: "a CPU")
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.pick_vec_isa", lambda: None)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "before")
    monkeypatch.setenv("COMPILER_PATH", chosen or "")
    if chosen is None:
        monkeypatch.delenv("COMPILER_PATH")
    place = target.Workplace()
    service = place.start()
    cell = target.Inductor(settings=cell_plan().settings, options={}, service=service)
    cell.check()
    linker = Path(service["folder"]) / "linker"
    assert linker.is_dir() is used
    assert os.environ.get("COMPILER_PATH") == (str(linker) if used else chosen)
    if used:
        assert (linker / "ld").resolve() == tmp_path / "mold"
    cell.start_cold()
    assert os.environ.get("COMPILER_PATH") == chosen
    place.stop()


def test_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = pytest.importorskip("hwmatrix.targets.inductor.target")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(target.compiler, "installed", lambda: ("", {}))
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.pick_vec_isa", lambda: None)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "before")
    dead, alive = (tmp_path / f"hwmatrix-inductor-{mark.replace(':', '-')}-x" for mark in ("999999:1.00", own_mark()))
    dead.mkdir()
    alive.mkdir()
    place = target.Workplace()
    assert not place.alive()
    folder = Path(place.start()["folder"])
    assert place.alive()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder / "common")
    assert {path.name for path in tmp_path.glob("hwmatrix-*")} == {alive.name, folder.name}
    place.stop()
    assert not place.alive()
    assert not folder.exists()
    place.stop()


@pytest.fixture
def cell_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Makes a cell's target, in a folder in which an earlier cell has compiled something."""
    target = pytest.importorskip("hwmatrix.targets.inductor.target")
    monkeypatch.setattr(target.compiler, "installed", lambda: ("", {}))
    monkeypatch.setattr(target.TorchCpu, "check", lambda _: "a CPU")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "before")
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "kernel.so").touch()
    service = {"folder": str(tmp_path)}
    return lambda: target.Inductor(settings=cell_plan().settings, options={}, service=service)


def test_cells_share_what_they_compile_until_one_is_timed(tmp_path: Path, cell_in: Callable[[], Any]) -> None:
    cell = cell_in()
    assert cell.check() == "a CPU"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cells")
    assert (tmp_path / "cells" / "kernel.so").is_file()
    cell.start_cold()
    assert not (tmp_path / "cells").exists()
    cell.start_cold()


@pytest.mark.parametrize(("total_mb", "free_mb", "kept"), [(1024, 600, True), (1024, 400, False), (1 << 20, 3072, True)])
def test_a_disk_that_fills_ends_the_sharing(  # noqa: PLR0917 - a table of three
    tmp_path: Path, cell_in: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, total_mb: int, free_mb: int, kept: object
) -> None:
    disk = type(shutil.disk_usage("/"))(total_mb << 20, (total_mb - free_mb) << 20, free_mb << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    cell_in().check()
    assert (tmp_path / "cells").exists() is kept
