"""Project rules that no tool checks. The import contracts and ruff (pyproject.toml) cover the others."""

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


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted((PACKAGE / "measure").glob("*.py")), ids=name_of)
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
