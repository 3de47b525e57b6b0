"""ONNX exports of a bundle: created once in the reference image, and read by every target that executes ONNX.

There are two exporters, because neither exports every model: transformers' own, and ``torch.onnx.export``. The second is called where the
first made no graph, and where a target chooses between graphs or has refused the first (``runner/exports``). What each gave lies under
``<cache>/onnx/<bundle key>/<exporter>/``: ``model.onnx`` (and ``model.onnx.data`` where the weights do not fit into one protobuf file)
and ``manifest.json`` with the SHA-256 of every file; or a manifest that holds the failure. A failure of an exporter is as much a result
as a graph; but one that ran out of time has said nothing: that is on record for the cells of the same run, and the next run calls it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import json
import re
import shutil
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import BundleError, CellFailure, TimedOutError, UnsupportedError
from hwmatrix.models import folder, onnx_exporters
from hwmatrix.models.folder import MANIFEST
from hwmatrix.models.onnx_exporters import DATA_DEPENDENT, told_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hwmatrix.models.bundle import Bundle

ONNX_SCHEMA: Final = "hwmatrix/onnx/2"
ONNX_DIR: Final = "onnx"
MODEL_FILE: Final = "model.onnx"
EXPORTERS: Final = onnx_exporters.EXPORTERS
TIMED_OUT: Final = "ExporterTimedOut"
"""The ``error_type`` of the failure of an exporter that was ended because its time was over."""
_DIED: Final = "ExporterDied"
_TIMED_OUT_BEFORE: Final = "no end within "
"""How caches of hwmatrix 0.1 tell a timeout: by these words of a process that died."""
_PACKAGES: Final = ("torch", "transformers", "onnx", "onnxscript")
"""What decides how a graph looks, besides the model: another version makes another export."""
_MODULES: Final = (
    "networkx",
    "onnx.checker",
    "onnxscript.optimizer",
    "onnxscript.rewriter",
    "onnxscript.version_converter",
    "torch._dynamo.convert_frame",
    "torch._export.non_strict_utils",
    "torch._inductor.decomposition",
    "torch.onnx._internal.exporter._core",
    "torch.onnx._internal.exporter._onnx_program",
    "transformers.exporters.configs",
    "transformers.exporters.exporter_onnx",
)
"""What both exporters import when they are called (torch 2.13, transformers 5.23): some 2,200 modules."""
_NO_CONVERSION: Final = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")
"""How torch.onnx (2.13) names an operator that it cannot write as ONNX."""
_MARKS: Final = re.compile(r"^ +[~^]+\n", re.MULTILINE)
"""Lines of a traceback that only underline the one above: exporters go sixty frames deep."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnnxExport:
    """A verified export.

    ``inputs`` are the graph's inputs, each named as the bundle's (an exporter leaves out what the graph does not read). ``outputs``
    has, for each output of the graph in order, the reference's name of it, or None where the reference has no such output. ``fixed`` names
    what the graph holds as constants: inputs of the bundle that tell extents, and what the exporter computed from the inputs.
    """

    exporter: str
    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str | None, ...]
    opset: int
    seconds: float
    fixed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnnxFailure:
    """Why an exporter gave nothing: its exception's class, its message, its traceback (None where the process died)."""

    exporter: str
    error_type: str
    message: str
    traceback: str | None

    @property
    def timed_out(self) -> bool:
        """Whether its time was over. That says nothing of the model: on a machine with less to do it may be done in time."""
        return self.error_type == TIMED_OUT or (self.error_type == _DIED and self.message.startswith(_TIMED_OUT_BEFORE))


def preload() -> None:
    """Import what the exporters need, once for all processes that are forked from this one: each would take two seconds for it.

    What cannot be imported is left out: the exporter meets the same error, and there it is kept.
    """
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def export_all(bundle: Bundle, cache: Path) -> tuple[OnnxExport | OnnxFailure, ...]:
    """What every exporter makes of a bundle: from the cache where it is there and whole, else made now. Needs torch.

    Raises:
        BundleError: the cache cannot be written (``cache_not_writable``).
    """
    return tuple(export_one(bundle, cache, exporter) for exporter in EXPORTERS)


def export_one(bundle: Bundle, cache: Path, exporter: str) -> OnnxExport | OnnxFailure:
    """What one exporter makes of a bundle. Call it in a process that may die, and :func:`keep_failure` if it does.

    Memory that ran out is raised and not kept: with more of it, the same export may succeed. A timeout that is on record is forgotten.

    Raises:
        BundleError: the cache cannot be written (``cache_not_writable``).
        MemoryError: memory ran out.
    """
    with _held(bundle, cache, exporter):
        kept = _kept(bundle, cache, exporter)
        if isinstance(kept, OnnxFailure) and kept.timed_out:
            folder.discard(_place(bundle, cache, exporter))
            kept = None
        return kept if kept is not None else _make(bundle, cache, exporter)


def keep_failure(bundle: Bundle, cache: Path, failure: OnnxFailure) -> None:
    """Keep a failure that the exporter's process could not keep itself, because it died or was ended (:data:`TIMED_OUT`).

    Raises:
        BundleError: the cache cannot be written (``cache_not_writable``).
    """
    with _held(bundle, cache, failure.exporter):
        _publish(bundle, cache, failure.exporter, lambda _: _failure_fields(failure))


def is_kept(key: str, cache: Path, exporter: str, *, graph: bool = False) -> bool:
    """Whether the cache has what an exporter gave for a bundle: a graph, or, unless ``graph``, a failure that was no timeout."""
    try:
        failure = json.loads((cache / ONNX_DIR / key / exporter / MANIFEST).read_bytes())["failure"]
        return failure is None or not (graph or OnnxFailure(exporter=exporter, **failure).timed_out)
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):  # broken: whoever reads it says so
        return True


def read_all(bundle: Bundle, cache: Path, *, only: str | None = None) -> tuple[OnnxExport | OnnxFailure, ...]:
    """What the exporters gave that were called, every file verified, in their order, or what ``only`` one of them gave. Needs no torch.

    Raises:
        BundleError: an export is missing that no graph of an exporter before it makes dispensable (``onnx_missing``), is made of
            another bundle or by another version of hwmatrix (``bundle_version``), or damaged (``bundle_broken``).
    """
    if only is not None:
        return (_read(bundle, cache, only),)
    found: list[OnnxExport | OnnxFailure] = []
    for exporter in EXPORTERS:
        made = any(isinstance(export, OnnxExport) for export in found)
        if not made or is_kept(bundle.key, cache, exporter):
            found.append(_read(bundle, cache, exporter))
    return tuple(found)


def no_graph(failures: Sequence[OnnxFailure]) -> CellFailure:
    """What a cell fails with when no exporter made a graph: unsupported where the exporters name operators that ONNX lacks.

    The types are ``unsupported_operator``, ``data_dependent_export`` and ``export_failed``; ``export_timeout`` if any of them ran out of
    time, since that one might have made a graph. The exporters' tracebacks are its notes, in their order: they name the line of the model
    that no graph can hold.
    """
    failure = _no_graph(failures)
    for each in failures:
        if each.traceback is not None:
            failure.add_note(f"\nThe exporter by {each.exporter} failed:\n{each.traceback.rstrip()}")
    return failure


def _no_graph(failures: Sequence[OnnxFailure]) -> CellFailure:
    told = "; ".join(f"{failure.exporter}: {failure.error_type}: {failure.message}" for failure in failures)
    if any(failure.timed_out for failure in failures):
        return TimedOutError(f"an ONNX export ran out of time, which says nothing of the model: {told}", error_type="export_timeout")
    operators = tuple(dict.fromkeys(name for failure in failures for name in _NO_CONVERSION.findall(failure.message)))
    if operators and all(_NO_CONVERSION.search(failure.message) for failure in failures):
        return UnsupportedError(f"no exporter has an ONNX conversion for {', '.join(operators)}: {told}", needs=operators)
    error_type = "data_dependent_export" if all(DATA_DEPENDENT in failure.message for failure in failures) else "export_failed"
    return CellFailure(f"no exporter made an ONNX graph of this model: {told}", error_type=error_type)


def _place(bundle: Bundle, cache: Path, exporter: str) -> Path:
    return cache / ONNX_DIR / bundle.key / exporter


@contextlib.contextmanager
def _held(bundle: Bundle, cache: Path, exporter: str) -> Iterator[None]:
    """Only one process at a time makes an export."""
    with folder.locked(cache / ONNX_DIR, f"{bundle.key}-{exporter}"):
        yield


def _kept(bundle: Bundle, cache: Path, exporter: str) -> OnnxExport | OnnxFailure | None:
    """What is in the cache already, if it is whole and made by the versions that are installed here."""
    try:
        manifest = _manifest(bundle, cache, exporter)
        return _read(bundle, cache, exporter) if manifest["versions"] == _versions() else None
    except BundleError:
        return None


def _read(bundle: Bundle, cache: Path, exporter: str) -> OnnxExport | OnnxFailure:
    path, manifest = _place(bundle, cache, exporter), _manifest(bundle, cache, exporter)
    try:
        folder.check(path, manifest["files"])
        if manifest["failure"] is not None:
            return OnnxFailure(exporter=exporter, **manifest["failure"])
        return OnnxExport(
            exporter=exporter,
            path=path / MODEL_FILE,
            inputs=tuple(manifest["inputs"]),
            outputs=tuple(manifest["outputs"]),
            opset=manifest["opset"],
            seconds=manifest["seconds"],
            fixed=tuple(manifest["fixed"]),
        )
    except (KeyError, TypeError) as error:
        raise BundleError(f"{path / MANIFEST} is broken: {error!r}", error_type="bundle_broken") from error


def _manifest(bundle: Bundle, cache: Path, exporter: str) -> dict[str, Any]:
    """The manifest of an export of this very bundle."""
    file = _place(bundle, cache, exporter) / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(file.read_bytes())
        schema, digest, _ = manifest["schema"], manifest["bundle"], manifest["versions"]
    except FileNotFoundError as error:
        message = f"there is no ONNX export of this bundle by {exporter} at {file.parent}: exports are made with the bundles"
        raise BundleError(message, error_type="onnx_missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{file} is broken: {error!r}", error_type="bundle_broken") from error
    if schema != ONNX_SCHEMA or digest != bundle.digest:
        message = f"{file.parent} is of version {schema!r} and bundle {digest!r}; wanted: {ONNX_SCHEMA!r}, {bundle.digest!r}"
        raise BundleError(message, error_type="bundle_version")
    return manifest


def _make(bundle: Bundle, cache: Path, exporter: str) -> OnnxExport | OnnxFailure:
    """Export now. Whatever an exporter raises is data."""
    try:
        _publish(bundle, cache, exporter, lambda path: EXPORTERS[exporter](bundle, path / MODEL_FILE))
    except (BundleError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - exporters raise anything
        failure = OnnxFailure(
            exporter=exporter,
            error_type=f"{type(error).__module__}.{type(error).__qualname__}",
            message=told_of(error),
            traceback=_MARKS.sub("", "".join(traceback.format_exception(error))),
        )
        _publish(bundle, cache, exporter, lambda _: _failure_fields(failure))
    return _read(bundle, cache, exporter)


def _publish(bundle: Bundle, cache: Path, exporter: str, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Fill a folder aside, write its manifest, put it in place by one rename. Needs the lock."""
    place = _place(bundle, cache, exporter)
    partial = place.with_name(f".partial-{exporter}")
    begin = time.perf_counter()
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        filled = fill(partial)
        manifest = {
            "schema": ONNX_SCHEMA,
            "bundle": bundle.digest,
            "exporter": exporter,
            "versions": _versions(),
            "failure": None,
            "seconds": time.perf_counter() - begin,
            **filled,
            "files": folder.listing(partial),
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        folder.settle(partial)
        folder.discard(place)
        partial.rename(place)
        folder.sync_folder(place.parent)
    except OSError as error:
        message = f"cannot write the ONNX export under {place.parent}: {error}; free space there, or name another cache"
        raise BundleError(message, error_type="cache_not_writable") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _failure_fields(failure: OnnxFailure) -> dict[str, Any]:
    return {"failure": {"error_type": failure.error_type, "message": failure.message, "traceback": failure.traceback}}


def _versions() -> dict[str, str]:
    """The installed versions of what decides how a graph looks."""
    return {name: importlib.metadata.version(name) for name in _PACKAGES}
