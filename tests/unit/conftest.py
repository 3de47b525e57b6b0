"""Unit tests must not start processes or use the network. Either fails the test, even if the code swallows the error."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from hwmatrix.knowledge import on_record, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPAWNING: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"})
_REACHING: Final = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})


class ForbiddenError(RuntimeError):
    """A unit test started a process or opened a connection."""


class Guard:
    """An audit hook, because it sees every way to do this. A hook cannot be removed, so it is switched on and off."""

    def __init__(self) -> None:
        self.active = False
        self.loopback = False
        self.caught: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Raise if a unit test does something forbidden."""
        if not self.active or not (event in _SPAWNING or (event in _REACHING and self._leaves(*arguments[:2]))):
            return
        what = f"{event}{arguments!r}"
        self.caught.append(what)
        raise ForbiddenError(what)

    def _leaves(self, connecting: socket.socket, address: object = None) -> bool:
        """Whether a connection leads out of this process's own files; the fixture ``loopback`` allows one to 127.0.0.1."""
        if connecting.family == socket.AF_UNIX:
            return False
        return not (self.loopback and isinstance(address, tuple) and address[0] == "127.0.0.1")


_GUARD: Final = Guard()
sys.addaudithook(_GUARD)


@pytest.fixture(autouse=True)
def guard() -> Iterator[Guard]:
    """Guard every unit test. A test of the guard itself empties ``caught``."""
    _GUARD.caught.clear()
    _GUARD.active = True
    try:
        yield _GUARD
    finally:
        _GUARD.active = _GUARD.loopback = False
    assert not _GUARD.caught, f"a unit test must not do this: {_GUARD.caught}"


@pytest.fixture
def loopback(guard: Guard) -> None:
    """Allow a test to connect to a server that it runs itself."""
    guard.loopback = True


@pytest.fixture(autouse=True)
def nothing_published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the published results, so that tests do not depend on them. Tests of published results use ``published_evidence``."""
    if request.node.get_closest_marker("published_evidence") is not None:
        return
    folder = tmp_path_factory.getbasetemp() / "nothing-published"
    if not folder.is_dir():
        folder.mkdir()
        snapshot.write(snapshot.collect({}), folder / "published.json.gz")
    monkeypatch.setattr(on_record, "SNAPSHOT", folder / "published.json.gz")
    monkeypatch.setattr(on_record, "PUBLISHED", folder / "published")


@pytest.fixture(autouse=True)
def no_size_of_an_earlier_test() -> None:
    """Clear the sizes cached in the process: one computed with torch would otherwise be used in a test that hides torch."""
    if (sizes := sys.modules.get("hwmatrix.models.sizes")) is not None:
        sizes._cached_size.cache_clear()
