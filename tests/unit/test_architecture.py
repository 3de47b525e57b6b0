"""Project rules that no tool checks, verified in the source. The import contract (pyproject.toml) covers the layers."""

from __future__ import annotations

import ast
import functools
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hwmatrix.records.backends import TABLE, Descriptor, descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Guard

PACKAGE = Path(__file__).parents[2] / "harness" / "hwmatrix"
SOURCES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"torch", "transformers", "openvino", "onnx", "docker", "huggingface_hub"}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE.parent).as_posix()


def imports(tree: ast.AST) -> Iterator[str]:
    """Every imported module, wherever the import is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_at_import(tree: ast.Module) -> Iterator[str]:
    """The modules imported when the module is imported: not by its functions, nor only for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Try):
            yield from imports(node)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def below(folder: str) -> list[Path]:
    return [path for path in SOURCES if path.relative_to(PACKAGE).parts[0] == folder]


@pytest.mark.parametrize("path", [path for path in SOURCES if "targets" not in path.parts], ids=name_of)
def test_heavy_packages_are_imported_only_where_they_are_used(path: Path) -> None:
    """Target modules are imported by name, each in its image; modules that build models are imported only inside functions."""
    if path.parent.name == "models" and path.stem in {"build", "bundle", "inputs", "outputs", "reference"}:
        pytest.skip("runs in an image only")
    assert HEAVY & {name.partition(".")[0] for name in imports_at_import(parsed(path))} == set()


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_exception_is_swallowed(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ExceptHandler):
            silent = all(isinstance(statement, ast.Pass) for statement in node.body)
            assert not silent, f"line {node.lineno}: use contextlib.suppress, which names the suppressed exception"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"suppress", "contextlib.suppress"}:
            suppressed = {ast.unparse(argument) for argument in node.args}
            assert not suppressed & {"Exception", "BaseException"}, f"line {node.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_only_entry_points_exit(path: Path) -> None:
    exits = [
        node.lineno for node in ast.walk(parsed(path)) if isinstance(node, ast.Call) and ast.unparse(node.func) in {"sys.exit", "exit"}
    ]
    allowed = {"hwmatrix/__main__.py", "hwmatrix/cli/main.py", "hwmatrix/runner/__main__.py"}
    assert not exits or name_of(path) in allowed


@pytest.mark.parametrize("path", below("measure"), ids=name_of)
def test_measuring_is_independent_of_the_backend(path: Path) -> None:
    assert not any("Backend" in name for name in imports(parsed(path)))


@pytest.mark.parametrize("backend", descriptors(), ids=lambda each: each.name)
def test_the_classes_that_a_descriptor_names_exist(backend: Descriptor) -> None:
    """They are read, not imported, because their frameworks may not be installed."""
    for place in filter(None, (backend.target, backend.operators)):
        module, _, name = place.partition(":")
        tree = parsed(PACKAGE.parent / f"{module.replace('.', '/')}.py")
        assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def test_reading_every_descriptor_imports_no_framework() -> None:
    for place in {place.partition(":")[0] for place in TABLE.values()}:
        assert HEAVY & {name.partition(".")[0] for name in imports(parsed(PACKAGE.parent / f"{place.replace('.', '/')}.py"))} == set()


def test_the_guard_catches_processes(guard: Guard) -> None:
    for attempt in (
        lambda: subprocess.run([sys.executable, "-V"], check=True),
        lambda: os.system("true"),  # noqa: S605, S607
        os.fork,
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
    ):
        with pytest.raises(RuntimeError, match=r"subprocess\.Popen|os\."):
            attempt()
    assert len(guard.caught) == 4
    guard.caught.clear()


def test_the_guard_catches_connections(guard: Guard) -> None:
    with socket.socket() as connecting, pytest.raises(RuntimeError, match=r"socket\.connect"):
        connecting.connect(("127.0.0.1", 9))
    with socket.socket(type=socket.SOCK_DGRAM) as sending, pytest.raises(RuntimeError, match=r"socket\.sendto"):
        sending.sendto(b"hello", ("192.0.2.1", 9))
    assert len(guard.caught) == 2
    guard.caught.clear()


def test_the_guard_allows_files_that_are_sockets(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as connecting:
        listening.bind(str(tmp_path / "s"))
        listening.listen(1)
        connecting.connect(str(tmp_path / "s"))
