"""Removes old hwmatrix data: the least recently used first, never data in use or of other programs."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from hwmatrix.host.ci_machines.inventory import Item, Kind
from hwmatrix.host.containers import LABEL
from hwmatrix.host.run_folder import RunFolder, worker
from hwmatrix.models.folder import LOCKS, discard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import docker

DEFAULT_DAYS: Final = 30.0
GIB: Final = 2**30
_PROGRAM: Final = "hwmatrix"
_MODULES: Final = ("hwmatrix.cli.main", "hwmatrix.runner")
_HARMLESS: Final = (("runner",), ("cluster", "keys"), ("cluster", "members"), ("cluster", "scheduler"))
"""The commands that use no images, environments and bundles of this machine, by their first words."""
_ELSEWHERE: Final = "--scheduler"
"""The option of a run whose work is done by the workers of a cluster."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """What may be removed: items unused for ``older_than``, until ``keep_bytes`` are left. None sets no limit."""

    older_than: dt.timedelta | None
    keep_bytes: int | None


def choose(items: Sequence[Item], rule: Rule, now: dt.datetime) -> list[Item]:
    """Return the items to remove, in order: the oldest first, and items of one age in the given order."""
    left = sum(item.size for item in items)
    chosen: list[Item] = []
    for item in sorted(items, key=lambda item: item.used_at):
        if rule.keep_bytes is not None and left <= rule.keep_bytes:
            break
        if item.kept is None and (rule.older_than is None or now - item.used_at >= rule.older_than):
            chosen.append(item)
            left -= item.size
    return chosen


def busy(client: docker.DockerClient | None, processes: Iterable[tuple[int, Sequence[str]]]) -> str | None:
    """Return why the cache or an image may be in use now, or None.

    A run chooses images and bundles by name long before it opens them. So while any hwmatrix command works on this machine, images,
    environments and the cache are left alone. ``processes`` are ids and command lines.
    """
    if client is not None:
        for container in client.containers.list(filters={"label": f"{LABEL}=1"}, ignore_removed=True):
            return f"the container {container.name} is running"
    for number, command in processes:
        if is_work(command):
            return f"process {number} ({' '.join(command[:4])}) is working"
    return None


def is_work(command: Sequence[str]) -> bool:
    """Whether a command line is hwmatrix itself or one of its runners, doing work that uses the data."""
    interpreter = bool(command) and Path(command[0]).name.startswith("python")
    for index, word in enumerate(command[: 4 if interpreter else 1]):
        module = command[index - 1] == "-m" and word in _MODULES if index else False
        if module or Path(word).name == _PROGRAM:
            arguments = tuple(command[index + 1 :])
            return _ELSEWHERE not in arguments and not any(arguments[: len(words)] == words for words in _HARMLESS)
    return False


def others() -> Iterator[tuple[int, list[str]]]:
    """Yield all processes of this machine except this one and its ancestors."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["pid", "cmdline"]):
        if process.pid not in mine and process.info["cmdline"]:
            yield process.pid, process.info["cmdline"]


def guarded(items: Iterable[Item], reason: str | None) -> list[Item]:
    """Return the items, with all but runs kept if there is a ``reason``. A run is checked by its own owner file instead."""
    if reason is None:
        return list(items)
    return [item if item.kept or item.kind is Kind.RUN else dataclasses.replace(item, kept=reason) for item in items]


def remove(item: Item, client: docker.DockerClient | None) -> str | None:
    """Remove one item, under the lock that its users take. Return why it stays: it has come into use, or cannot be removed."""
    try:
        return _remove_image(item, client) if item.kind is Kind.IMAGE else _remove_folder(item)
    except OSError as error:
        return f"cannot be removed: {error}"


def _remove_image(item: Item, client: docker.DockerClient | None) -> str | None:
    from docker.errors import APIError, ImageNotFound

    if client is None:
        return "no engine answers"
    names = [] if item.name.startswith("untagged ") else item.name.split(", ")
    try:
        now = client.images.get(item.place).tags
        if set(now) != set(names):
            return "it was tagged meanwhile"
        for name in names or [item.place]:
            client.images.remove(name, force=False)  # the engine itself refuses to remove an image that a container uses
    except ImageNotFound:
        return None
    except APIError as error:
        return f"the engine keeps it: {error.explanation or error}"
    return None


def _remove_folder(item: Item) -> str | None:
    folder = Path(item.place)
    if item.kind is Kind.RUN:
        working = worker(RunFolder(path=folder))
        if working is not None:
            return f"process {working} works in it"
        discard(folder)
        return None
    with _held(_lock_of(item.kind, folder)) as held:
        if not held:
            return "it is locked: another process is making or checking it"
        discard(folder)  # its manifest first, so that a partly removed folder does not look complete
    return None


def _lock_of(kind: Kind, folder: Path) -> Path | None:
    """The lock that makers and checkers of this item take: see models/folder.py and host/venvs.py."""
    if kind is Kind.ENVIRONMENT:
        return folder.with_suffix(".lock")
    if kind is Kind.BUNDLE:
        return folder.parent / LOCKS / folder.name
    if kind is Kind.EXPORT:
        return folder.parent.parent / LOCKS / f"{folder.parent.name}-{folder.name}"
    return None


@contextlib.contextmanager
def _held(lock: Path | None) -> Iterator[bool]:
    """Hold a lock if it is free now. The file stays, because removing it would race."""
    if lock is None:
        yield True
        return
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
