"""Images of a release: which ones are pushed, and the records of the jobs that pushed them, collected for the release files."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import StoreError
from hwmatrix.host.publishing import RECORD, RECORD_SCHEMA, is_never_pushed
from hwmatrix.matrix.shipped import image_files
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hwmatrix.matrix.load import LoadedMatrix

_LARGEST: Final = 16 * 2**20
"""The size limit in bytes of one file, which is also the limit of an attestation for an SBOM."""
_TARGET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gathered:
    """The files written (with images.json, unless nothing arrived), and what was refused with the reason."""

    names: tuple[str, ...]
    refused: tuple[str, ...]


def pushable(loaded: LoadedMatrix, targets: Iterable[str]) -> list[str]:
    """Return the targets whose images a release builds and pushes. Of several targets with one image, only the first.

    Native targets have no image of their own. Images are left out if their Dockerfile is missing or declares that they are never pushed.
    """
    images = image_files(loaded.path.absolute().parent)
    found: dict[tuple[str, str], str] = {}
    for name in targets:
        spec = loaded.spec.targets[name]
        dockerfile = images[spec.image] / "Dockerfile" if spec.image in images else None
        if not spec.native and dockerfile is not None and dockerfile.is_file() and not is_never_pushed(dockerfile):
            found.setdefault((spec.base, spec.image), name)
    return list(found.values())


def gather(arrived: Path, database: Path, folder: Path) -> Gathered:
    """Write the SBOMs and one images.json into ``folder``. ``arrived`` has a folder per image with its images.json and its SBOM.

    For a single image, the files are in ``arrived`` itself, because GitHub's action makes no folder for a single artifact. Each image gets
    ``measured``: whether the run in ``database`` used exactly this image, by its id. Invalid records are left out and reported.

    Raises:
        StoreError: the database cannot be read, or the folder cannot be written.
    """
    measured = _measured(database)
    images: list[dict[str, Any]] = []
    names: list[str] = []
    refused: list[str] = []
    never: set[str] = set()
    for place in _places(arrived):
        try:
            image, forbidden, sbom = _record_of(place)
            if image["sbom"] in names:
                raise StoreError(f"the SBOM {image['sbom']} arrived twice")  # noqa: TRY301 - reported with the others
        except StoreError as error:
            refused.append(f"{place.name!r}: {error.message}")
            continue
        _write(folder / image["sbom"], sbom)
        names.append(image["sbom"])
        ids = measured.get(image["target"])
        images.append({**image, "measured": image["image_id"] in ids if ids else None})
        never |= forbidden
    if images:
        told = {"schema": RECORD_SCHEMA, "images": images, "never_pushed": sorted(never)}
        _write(folder / RECORD, (json.dumps(told, indent=2) + "\n").encode())
        names.append(RECORD)
    return Gathered(names=tuple(names), refused=tuple(refused))


def _places(arrived: Path) -> list[Path]:
    if not arrived.is_dir():
        return []
    return [arrived] if (arrived / RECORD).is_file() else sorted(arrived.iterdir())


def _record_of(place: Path) -> tuple[dict[str, Any], set[str], bytes]:
    """Read a folder's single image record, the targets that it declares as never pushed, and the SBOM.

    Raises:
        StoreError: the folder contains anything else.
    """
    if place.is_symlink() or not place.is_dir():
        raise StoreError("it is not a folder")
    told = _json(place / RECORD)
    images = told.get("images")
    if told.get("schema") != RECORD_SCHEMA or not isinstance(images, list) or len(images) != 1 or not isinstance(images[0], dict):
        raise StoreError(f"its {RECORD} does not describe one image in version {RECORD_SCHEMA}")
    image: dict[str, Any] = images[0]
    target = image.get("target")
    if not isinstance(target, str) or not _TARGET.fullmatch(target) or image.get("sbom") != f"sbom-{target}.cdx.json":
        raise StoreError(f"its {RECORD} names no target, or another SBOM than the target's")
    if not image.get("pushed") or not image.get("digest"):
        raise StoreError(f"the image of {target} was not pushed")
    odd = sorted({path.name for path in place.iterdir()} - {RECORD, image["sbom"]})
    if odd:
        raise StoreError(f"it also contains {', '.join(map(repr, odd[:5]))}")
    sbom = _json(place / image["sbom"])
    component = sbom.get("metadata", {}).get("component", {}) if isinstance(sbom.get("metadata"), dict) else {}
    if sbom.get("bomFormat") != "CycloneDX" or not isinstance(component, dict) or component.get("bom-ref") != image.get("image_id"):
        raise StoreError(f"{image['sbom']} is not the SBOM of {image.get('image_id')}")
    never = told.get("never_pushed")
    forbidden = {name for name in never if isinstance(name, str)} if isinstance(never, list) else set()
    return image, forbidden, (place / image["sbom"]).read_bytes()


def _json(path: Path) -> dict[str, Any]:
    """Read a plain JSON file that must contain a mapping.

    Raises:
        StoreError: it does not.
    """
    try:
        if path.is_symlink() or not path.is_file():
            raise StoreError(f"it has no {path.name}")
        if path.stat().st_size > _LARGEST:
            raise StoreError(f"{path.name} is too large")
        found = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise StoreError(f"{path.name} is not a mapping")
    return found


def _measured(database: Path) -> Mapping[str, set[str]]:
    """The ids of the images in the latest run's shards, by target."""
    with reading(database) as connection:
        rows = records(connection, "measured_images")
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["target"], set()).add(row["image_digest"])
    return found


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error}", advice="Free space, or name another folder.") from error
