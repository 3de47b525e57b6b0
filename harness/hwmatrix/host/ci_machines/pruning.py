"""Lists the data that hwmatrix keeps on a machine, and removes what is old: never data in use or of other programs.

Only data that is provably ours is listed: it has a label or name that only hwmatrix gives, or a file that only hwmatrix writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

import hwmatrix
from hwmatrix.basics.cache_folder import bundles_folder
from hwmatrix.host.base_image import MADE_TAG
from hwmatrix.host.containers import LABEL
from hwmatrix.host.run_folder import OPERATORS, RUNS, SURVEYS, RunFolder, worker
from hwmatrix.host.venvs import LAYERS, MARKER
from hwmatrix.models import folder as folders
from hwmatrix.models.onnx_export import EXPORTS, ONNX_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import docker

DEFAULT_DAYS: Final = 30.0
GIB: Final = 2**30
TITLE: Final = "org.opencontainers.image.title"
VENVS: Final = "venvs"
_PROGRAM: Final = "hwmatrix"
_NONE: Final = "<none>"
_KEY: Final = re.compile(r"[0-9a-f]{16,64}")
_MODULES: Final = ("hwmatrix.cli.main", "hwmatrix.runner")
_HARMLESS: Final = (("runner",), ("cluster", "keys"), ("cluster", "members"), ("cluster", "scheduler"))
"""The commands that use no images, environments and bundles of this machine, by their first words."""
_ELSEWHERE: Final = "--scheduler"
"""The option of a run whose work is done by the workers of a cluster."""


class Kind(enum.StrEnum):
    """The kinds of data that can be removed."""

    IMAGE = "image"
    ENVIRONMENT = "environment"
    BUNDLE = "bundle"
    EXPORT = "export"
    CHECKPOINT = "checkpoint"
    RUN = "run"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One piece of data: a folder, or an image with its names (its id, if it has none)."""

    kind: Kind
    name: str
    places: tuple[str, ...]
    size: int
    """Bytes, without image layers shared with others."""
    used_at: dt.datetime
    """Its last use as far as known (UTC)."""
    kept: str | None = None
    """Why it must stay, or None."""
    lock: tuple[Path, str] | None = None
    """The cache and the key of the lock that its makers and users take."""


def images(listed: Iterable[Mapping[str, Any]]) -> list[Item]:
    """Return our images among those that the engine lists (its ``df``): a name given by others makes an image theirs."""
    items = []
    for image in listed:
        tags = [tag for tag in image.get("RepoTags") or () if _NONE not in tag]
        title = str((image.get("Labels") or {}).get(TITLE, ""))
        if all(tag.startswith(f"{_PROGRAM}/") for tag in tags) if tags else title.startswith(f"{_PROGRAM} "):
            current = [tag for tag in tags if tag == MADE_TAG or tag.rpartition(":")[2] == hwmatrix.__version__]
            items.append(
                Item(
                    kind=Kind.IMAGE,
                    name=", ".join(tags) or f"untagged {title}",
                    places=(*tags,) or (str(image["Id"]),),
                    size=max(0, int(image["Size"]) - max(0, int(image.get("SharedSize") or 0))),
                    used_at=dt.datetime.fromtimestamp(int(image["Created"]), dt.UTC),
                    kept=f"{current[0]} is current" if current else None,
                )
            )
    return items


def environments(cache: Path) -> list[Item]:
    """List the layers of virtual environments. Those on which others build are kept."""
    layers = [folder for folder in _folders(cache / VENVS) if (folder / MARKER).is_file()]
    links = [file for folder in layers for file in folder.glob(f"lib/python*/site-packages/{LAYERS}")]
    below = {Path(line) for file in links for line in file.read_text(encoding="utf-8").splitlines()}
    needed = {folder: "other environments build on it" for folder in layers if any(path.is_relative_to(folder) for path in below)}
    return [_item(Kind.ENVIRONMENT, folder, kept=needed.get(folder), lock=(folder.parent, folder.name)) for folder in layers]


def bundles(cache: Path) -> list[Item]:
    """List the bundles, and the ONNX exports: one folder per exporter, in a folder with the key of their bundle."""
    root = bundles_folder(cache)
    exports = [folder for above in _keys(root / ONNX_DIR) for folder in _folders(above) if folder.name in EXPORTS]
    return [
        *(_item(Kind.BUNDLE, each, lock=(root, each.name)) for each in _keys(root) if (each / folders.MANIFEST).is_file()),
        *(_item(Kind.EXPORT, each, lock=(root / ONNX_DIR, f"{each.parent.name}-{each.name}")) for each in exports),
    ]


def checkpoints(cache: Path) -> list[Item]:
    """List the hub checkpoints in our own cache, by huggingface_hub's names of their folders. Caches of other programs are not read."""
    return [_item(Kind.CHECKPOINT, folder) for folder in _folders(cache) if folder.name.startswith("models--")]


def runs(output: Path) -> list[Item]:
    """List the runs in an output folder. The newest of each kind is kept: reports and ``--resume`` need it."""
    items = []
    for above in (output, output / OPERATORS, output / SURVEYS):
        planned = [folder for folder in _folders(above / RUNS) if (folder / "plan.json").is_file()]
        items += [_item(Kind.RUN, each, kept=_worked(each) or ("it is the latest" if each == planned[-1] else None)) for each in planned]
    return items


def choose(items: Sequence[Item], *, older_than: dt.timedelta | None, keep_bytes: int | None, now: dt.datetime) -> list[Item]:
    """Return the items to remove, in order: the oldest first, unused for ``older_than``, until ``keep_bytes`` are left. None: no limit."""
    left = sum(item.size for item in items)
    chosen: list[Item] = []
    for item in sorted(items, key=lambda item: item.used_at):
        if keep_bytes is not None and left <= keep_bytes:
            break
        if item.kept is None and (older_than is None or now - item.used_at >= older_than):
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


def remove(item: Item, client: docker.DockerClient | None) -> str | None:
    """Remove one item, under the lock that its users take. Return why it stays: it has come into use, or cannot be removed."""
    if item.kind is Kind.IMAGE:
        return _remove_image(item, client)
    folder = Path(item.places[0])
    try:
        if item.kind is Kind.RUN and (working := _worked(folder)) is not None:
            return working
        with folders.unlocked(*item.lock) if item.lock else contextlib.nullcontext(enter_result=True) as free:
            if not free:
                return "it is locked: another process is making or checking it"
            folders.discard(folder)
    except OSError as error:
        return f"cannot be removed: {error}"
    return None


def _remove_image(item: Item, client: docker.DockerClient | None) -> str | None:
    from docker.errors import APIError, ImageNotFound

    if client is None:
        return "no engine answers"
    for place in item.places:
        try:
            if place.startswith("sha256:") and client.images.get(place).tags:
                return "it was tagged meanwhile"
            client.images.remove(place, force=False)  # the engine itself refuses to remove an image that a container uses
        except ImageNotFound:
            continue
        except APIError as error:
            return f"the engine keeps it: {error.explanation or error}"
    return None


def _item(kind: Kind, folder: Path, *, kept: str | None = None, lock: tuple[Path, str] | None = None) -> Item:
    """A folder with the size of its files, and when one of them (of an environment its marker) was last read or written."""
    paths = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    files = [path.stat() for path in paths if not path.is_symlink()]
    stamps = [(folder / MARKER).stat()] if kind is Kind.ENVIRONMENT else files  # its other files are read here
    used = max([max(file.st_atime, file.st_mtime) for file in stamps], default=folder.stat().st_mtime)
    name = f"{folder.parent.name}/{folder.name}" if kind is Kind.EXPORT else folder.name
    used_at, size = dt.datetime.fromtimestamp(used, dt.UTC), sum(file.st_size for file in files)
    return Item(kind=kind, name=name, places=(str(folder),), size=size, used_at=used_at, kept=kept, lock=lock)


def _worked(folder: Path) -> str | None:
    working = worker(RunFolder(path=folder))
    return f"process {working} works in it" if working is not None else None


def _keys(above: Path) -> list[Path]:
    return [folder for folder in _folders(above) if _KEY.fullmatch(folder.name)]


def _folders(above: Path) -> list[Path]:
    """The folders in a folder, by name. Links are left out, because they may point to anybody's data."""
    return sorted(path for path in above.iterdir() if path.is_dir() and not path.is_symlink()) if above.is_dir() else []
