"""Transfers the bundles of a run to the machines of its targets, so that all of them test the same ones: one archive per run."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import BundleError, FactoryError, StoreError
from hwmatrix.host import archive as archives
from hwmatrix.host.archive import PLAN, Limits, refused
from hwmatrix.models import bundle as bundles
from hwmatrix.models import folder as folders
from hwmatrix.models import onnx_export
from hwmatrix.models.canary import canary_plans
from hwmatrix.records.bundle_index import INDEX, read_index, write_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hwmatrix.host.run_folder import RunFolder
    from hwmatrix.records import ModelKey, ModelPlan, Plan
    from hwmatrix.records.bundle_index import BundleEntry

LIMITS: Final = Limits(file_bytes=32 * 2**30, total_bytes=128 * 2**30, files=200_000)
"""All types of transformers have about 20,000 files; the largest weights that one file can hold are those of a model in full size."""
_KEY: Final = "[0-9a-f]{64}"
_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_BUNDLE_FILE: Final = re.compile(rf"(?P<key>{_KEY})(/{_NAME}){{1,8}}")
_EXPORT_FILE: Final = re.compile(rf"{onnx_export.ONNX_DIR}/(?P<key>{_KEY})/(?P<exporter>{'|'.join(onnx_export.EXPORTS)})/{_NAME}")


def pack(folder: RunFolder, cache: Path, archive: Path) -> int:
    """Write the bundles of a run and their exports into an archive, with the run's plan and the index. Return the number of bundles.

    Raises:
        StoreError: the run has no index of bundles, the cache lacks one of them, or the archive cannot be written.
    """
    files = {PLAN: folder.path / PLAN, INDEX: folder.bundles / INDEX}
    keys = sorted({entry.key for entry in read_index(folder.bundles / INDEX).values() if entry.key is not None})
    for key in keys:
        if not (cache / key / folders.MANIFEST).is_file():
            raise StoreError(f"{cache}: it lacks the bundle {key}", advice="Make the bundles again, and let nothing prune the cache.")
        files |= _files_of(cache, cache / key)
        for exporter in onnx_export.EXPORTS:
            files |= _files_of(cache, cache / onnx_export.ONNX_DIR / key / exporter)
    archives.write(archive, files)
    return len(keys)


def unpack(
    archive: Path, folder: RunFolder, plan: Plan, cache: Path, *, limits: Limits = LIMITS, failures: bool = False
) -> frozenset[ModelKey]:
    """Check an archive, and put its bundles and exports into the cache. Return the models of the plan that now have a bundle.

    Nothing of a rejected archive is put into the cache. Other bundles of the same models in the cache are replaced. The index
    of the run's folder then lists the bundles of the archive. Models whose bundle could not be built elsewhere are left out, so that this
    machine tries, too; with ``failures``, the index has them with the reason, and they count as models that have one.

    Raises:
        StoreError: the archive is not an archive, contains anything but what :func:`pack` writes, exceeds a limit, is from another
            run, or has a bundle that is damaged or not of a model of the plan. The message says which.
    """
    models = {model.key: model for model in (*canary_plans(), *plan.models)}
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".unpack-") as temporary:
            into = Path(temporary)
            names = archives.extract(archive, into, plan, limits, large=_is_large)
            listed = _checked_entries(archive, into, models)
            keys = {entry.model_key: entry.key for entry in listed if entry.key is not None}
            found = {key: _checked_bundle(archive, into / key) for key in keys.values()}
            stray = {_key_of(name) for name in names} - {None, *found}
            if stray:
                raise refused(archive, f"its index does not list the bundle {min(filter(None, stray))}")
            for model, key in keys.items():
                _check_model(archive, found[key], models[model])
            exports = list(_checked_exports(archive, into, found))
            for key in found:
                with folders.locked(cache, key):
                    if _move(into / key, cache / key):  # the exports there were made for the other bundle
                        shutil.rmtree(cache / onnx_export.ONNX_DIR / key, ignore_errors=True)
            for key, exporter in exports:
                with onnx_export.locked(key, cache, exporter):
                    _move(*(place / onnx_export.ONNX_DIR / key / exporter for place in (into, cache)))
            handed_over = [entry for entry in listed if failures or entry.key is not None]
            write_index(folder.bundles / INDEX, handed_over)
    except OSError as error:
        raise StoreError(f"{cache}: cannot be written: {error}", advice="Free disk space, or set another HWMATRIX_CACHE.") from error
    return frozenset(entry.model_key for entry in handed_over)


def _is_large(name: str) -> bool | None:
    if _BUNDLE_FILE.fullmatch(name) or _EXPORT_FILE.fullmatch(name):
        return True
    return False if name == INDEX else None


def _key_of(name: str) -> str | None:
    found = _BUNDLE_FILE.fullmatch(name) or _EXPORT_FILE.fullmatch(name)
    return found["key"] if found else None


def _files_of(cache: Path, folder: Path) -> dict[str, Path]:
    return {str(file.relative_to(cache)): file for file in sorted(folder.rglob("*")) if file.is_file()}


def _checked_entries(archive: Path, into: Path, models: dict[ModelKey, ModelPlan]) -> list[BundleEntry]:
    """The index's entries. Each must be of a model of the run, and every canary must have a bundle."""
    if not (into / INDEX).is_file():
        raise refused(archive, f"it has no {INDEX}")
    try:
        entries = read_index(into / INDEX)
    except StoreError as error:
        raise refused(archive, str(error)) from error
    unknown = sorted(
        f"{name} ({size.value}, batch {batch}, length {length})" for name, size, batch, length in entries.keys() - models.keys()
    )
    if unknown:
        raise refused(archive, f"its index has models that the run does not have: {', '.join(unknown[:3])}")
    made = {model for model, entry in entries.items() if entry.key is not None}
    lacking = [canary.name for canary in canary_plans() if canary.key not in made]
    if lacking:
        raise refused(archive, f"it lacks the bundle of {lacking[0]}")
    return list(entries.values())


def _checked_bundle(archive: Path, path: Path) -> bundles.Bundle:
    try:
        found = bundles.verify(path)
    except BundleError as error:
        raise refused(archive, str(error)) from error
    if found.key != path.name:
        raise refused(archive, f"{path.name} holds the bundle {found.key}")
    return found


def _check_model(archive: Path, found: bundles.Bundle, model: ModelPlan) -> None:
    try:
        same = bundles.is_of(found, model)
    except (FactoryError, KeyError) as error:
        raise refused(archive, f"the bundle {found.key}: {error}") from error
    if not same:
        raise refused(archive, f"the bundle {found.key} is not of {model.name} ({model.size.value})")


def _checked_exports(archive: Path, into: Path, found: dict[str, bundles.Bundle]) -> Iterator[tuple[str, str]]:
    for key, bundle in found.items():
        for exporter in onnx_export.EXPORTS:
            if (into / onnx_export.ONNX_DIR / key / exporter).is_dir():
                try:
                    onnx_export.read_one(bundle, into, exporter)
                except BundleError as error:
                    raise refused(archive, str(error)) from error
                yield key, exporter


def _move(folder: Path, place: Path) -> bool:
    """Move a verified folder into the cache, instead of another one there; whether there was another one. Needs the lock.

    A bundle that this machine made under the same key may have other weights: training on another kind of processor rounds differently.
    """
    manifest = place / folders.MANIFEST
    same = manifest.is_file() and manifest.read_bytes() == (folder / folders.MANIFEST).read_bytes()
    if not same:
        place.parent.mkdir(parents=True, exist_ok=True)
        folders.put(folder, place)
    return not same
