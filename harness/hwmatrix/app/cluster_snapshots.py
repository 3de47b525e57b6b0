"""Collects what the parts of a run on a cluster have finished so far: a machine that is lost takes only its last seconds with it."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Final, Self

from hwmatrix.basics.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from hwmatrix.app.cluster_member import Snapshot

    Ask = Callable[[frozenset[str]], Mapping[str, list[Snapshot] | Exception]]

COLLECT_S: Final = 5.0
"""How often the members are asked, in seconds: more finished work than this is never lost."""


class Snapshots:
    """Asks all members every few seconds, in a thread of its own, and keeps the latest archive of each part and member as a file.

    Args:
        folder: where the files are kept. A client that continues the run finds those of the earlier one.
        ask: asks each member for snapshots whose stamps are not among the given ones; returns the answers by the members' addresses.
    """

    def __init__(self, folder: Path, ask: Ask) -> None:
        self._folder = folder
        self._ask = ask
        self._known: dict[Path, str] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="hwmatrix-snapshots", daemon=True)

    def __enter__(self) -> Self:
        """Begin to collect."""
        self._folder.mkdir(exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop collecting. A question to a member that does not answer is not waited for."""
        self._stopped.set()
        self._thread.join(1.0)

    def of(self, part: str | None = None) -> Iterator[Path]:
        """The archives of a part, or of all parts."""
        yield from sorted(self._folder.glob("*.tar" if part is None else f"{part} *.tar"))

    def clear(self) -> None:
        """Delete all archives."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _collect(self) -> None:
        while not self._stopped.wait(COLLECT_S):
            # The scheduler that does not answer and the disk that is full are noticed by the run itself; the next try may succeed.
            with contextlib.suppress(OSError, TimeoutError, CancelledError):
                for address, answer in self._ask(frozenset(self._known.values())).items():
                    for snapshot in answer if isinstance(answer, list) else ():
                        self._keep(address, snapshot)

    def _keep(self, address: str, snapshot: Snapshot) -> None:
        path = self._folder / f"{snapshot.part} {hashlib.sha256(address.encode()).hexdigest()[:12]}.tar"
        if not self._stopped.is_set():
            write_atomically(path, snapshot.archive)
            self._known[path] = snapshot.stamp
