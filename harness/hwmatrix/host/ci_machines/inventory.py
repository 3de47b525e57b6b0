"""Lists the data that hwmatrix keeps on a machine (images, environments, bundles, exports, checkpoints, runs) with sizes and last use.

Only data that is provably ours is listed: it has a label or name that only hwmatrix gives, or a file that only hwmatrix writes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import hwmatrix
from hwmatrix.basics.cache_folder import bundles_folder
from hwmatrix.host.base_image import MADE_TAG
from hwmatrix.host.run_folder import OPERATORS, RUNS, SURVEYS, RunFolder, worker
from hwmatrix.host.venvs import MARKER
from hwmatrix.models.folder import MANIFEST
from hwmatrix.models.onnx_export import EXPORTS, ONNX_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

TITLE: Final = "org.opencontainers.image.title"
_OURS: Final = "hwmatrix "
_NAMES: Final = "hwmatrix/"
_NONE: Final = "<none>"
_KEY: Final = re.compile(r"[0-9a-f]{16,64}")
VENVS: Final = "venvs"
_LAYERS: Final = "lib/python*/site-packages/hwmatrix-layers.pth"


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
    """One piece of data. ``place`` is a folder or an image id, ``used_at`` (UTC) its last use as far as known.

    ``kept`` says why it must stay, or is None. ``size`` is in bytes, without image layers shared with others.
    """

    kind: Kind
    name: str
    place: str
    size: int
    used_at: dt.datetime
    kept: str | None = None


def images(listed: Iterable[Mapping[str, Any]], used: Mapping[str, str]) -> list[Item]:
    """Return our images among those that the engine lists (its ``df``). ``used`` maps an image id to a container that uses it."""
    items = []
    for image in listed:
        tags = [tag for tag in image.get("RepoTags") or () if _NONE not in tag]
        mine = [tag for tag in tags if tag.startswith(_NAMES)]
        title = str((image.get("Labels") or {}).get(TITLE, ""))
        if not mine and (tags or not title.startswith(_OURS)):
            continue  # a name given by others makes it theirs, whatever it was built from
        items.append(
            Item(
                kind=Kind.IMAGE,
                name=", ".join(mine) or f"untagged {title}",
                place=str(image["Id"]),
                size=max(0, int(image["Size"]) - max(0, int(image.get("SharedSize") or 0))),
                used_at=dt.datetime.fromtimestamp(int(image["Created"]), dt.UTC),
                kept=_image_kept(tags, mine, used.get(str(image["Id"]))),
            )
        )
    return items


def _image_kept(tags: Sequence[str], mine: Sequence[str], container: str | None) -> str | None:
    if container is not None:
        return f"the container {container} was made of it"
    if len(mine) < len(tags):
        return "it has another name too"
    current = [tag for tag in mine if tag == MADE_TAG or tag.rpartition(":")[2] == hwmatrix.__version__]
    return f"{current[0]} is current" if current else None


def environments(cache: Path) -> list[Item]:
    """List the layers of virtual environments, those that build on others first. A layer was used when one that builds on it was."""
    root = cache / VENVS
    below = {folder: _below(folder, root) for folder in _folders(root) if (folder / MARKER).is_file()}
    used = {folder: _used(folder / MARKER) for folder in below}
    for folder, others in below.items():
        used |= {other: max(used[other], used[folder]) for other in others if other in used}
    layers = sorted(below, key=lambda folder: -len(below[folder]))
    return [_item(Kind.ENVIRONMENT, folder.name, folder, used[folder]) for folder in layers]


def _below(folder: Path, root: Path) -> list[Path]:
    """The layers that a layer builds on."""
    lines = [line for file in folder.glob(_LAYERS) for line in file.read_text(encoding="utf-8").splitlines()]
    return [root / Path(line).relative_to(root).parts[0] for line in lines if Path(line).is_relative_to(root)]


def bundles(cache: Path) -> list[Item]:
    """List the bundles, by their manifests."""
    root = bundles_folder(cache)
    folders = [folder for folder in _folders(root) if _KEY.fullmatch(folder.name) and (folder / MANIFEST).is_file()]
    return [_item(Kind.BUNDLE, folder.name, folder, _used(folder / MANIFEST)) for folder in folders]


def exports(cache: Path) -> list[Item]:
    """List the ONNX exports: one folder per exporter, in the folder of their bundle."""
    root = bundles_folder(cache) / ONNX_DIR
    folders = [folder for above in _folders(root) if _KEY.fullmatch(above.name) for folder in _folders(above) if folder.name in EXPORTS]
    return [_item(Kind.EXPORT, f"{folder.parent.name}/{folder.name}", folder, _newest(folder)) for folder in folders]


def checkpoints(cache: Path) -> list[Item]:
    """List the hub checkpoints in our own cache, as huggingface_hub reports them. Caches of other programs are not read."""
    if not any(cache.glob("models--*")):
        return []
    from huggingface_hub import scan_cache_dir

    return [
        Item(
            kind=Kind.CHECKPOINT,
            name=repo.repo_id,
            place=str(repo.repo_path),
            size=repo.size_on_disk,
            used_at=dt.datetime.fromtimestamp(repo.last_accessed, dt.UTC),
        )
        for repo in scan_cache_dir(cache).repos
        if repo.repo_type == "model" and repo.repo_path.parent == cache
    ]


def runs(output: Path) -> list[Item]:
    """List the runs in an output folder. The newest of each kind is kept: reports and ``--resume`` need it."""
    items = []
    for above in (output, output / OPERATORS, output / SURVEYS):
        folders = [folder for folder in _folders(above / RUNS) if (folder / "plan.json").is_file()]
        for folder in folders:
            working = worker(RunFolder(path=folder))
            kept = f"process {working} works in it" if working is not None else None
            if kept is None and folder == folders[-1]:
                kept = "it is the latest"
            items.append(_item(Kind.RUN, folder.name, folder, _newest(folder), kept))
    return items


def _item(kind: Kind, name: str, folder: Path, used_at: dt.datetime, kept: str | None = None) -> Item:
    return Item(kind=kind, name=name, place=str(folder), size=size_of(folder), used_at=used_at, kept=kept)


def _folders(above: Path) -> list[Path]:
    """The folders in a folder, by name. Links are left out, because they may point to anybody's data."""
    return sorted(path for path in above.iterdir() if path.is_dir() and not path.is_symlink()) if above.is_dir() else []


def _used(file: Path) -> dt.datetime:
    """When a file was last read or written. Some systems do not record the time of reading."""
    status = file.stat()
    return dt.datetime.fromtimestamp(max(status.st_atime, status.st_mtime), dt.UTC)


def _newest(folder: Path) -> dt.datetime:
    return max([_used(path) for path in _files(folder)], default=dt.datetime.fromtimestamp(folder.stat().st_mtime, dt.UTC))


def size_of(folder: Path) -> int:
    """The size in bytes of all files in a folder, without following links."""
    return sum(path.stat().st_size for path in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    for here, _, names in os.walk(folder):
        yield from (path for path in (Path(here) / name for name in names) if not path.is_symlink())
