"""ONNX exports of a bundle: made once in the reference image, and read by every target that executes ONNX.

There are two exporters, because neither exports every model: transformers' own, and ``torch.onnx.export``. The second is called if the
first made no graph, and if a target chooses between graphs or rejected the first (``runner/exports``). Each result is stored under
``<cache>/onnx/<bundle key>/<exporter>/``, whose key says what made both (:mod:`hwmatrix.models.provenance`): ``model.onnx`` (and
``model.onnx.data`` if the weights do not fit into one protobuf file) and ``manifest.json`` with the SHA-256 of every file; or a manifest
with the failure. ``generation/`` and ``generation-openvino/`` hold the graphs of a cell that generates
(:mod:`hwmatrix.models.generation_export`), ``openvino/`` the graph that OpenVINO converted (:mod:`hwmatrix.models.openvino_conversion`). A
failure is a result like a graph. Running out of time or memory is not: it is recorded for the cells of the same run, and the next run calls
the exporter again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import BundleError, CellFailure, FactoryError, OutOfMemoryError, TimedOutError, UnmakableError, UnsupportedError
from hwmatrix.faults.catalogue import MEMORY, classify
from hwmatrix.models import folder, generation_export, manifests, onnx_exporters, openvino_conversion, openvino_graph, provenance
from hwmatrix.models.folder import MANIFEST
from hwmatrix.models.generation_export import GenerationExport
from hwmatrix.models.onnx_exporters import DATA_DEPENDENT, told_of
from hwmatrix.models.openvino_conversion import OpenVinoExport
from hwmatrix.records import Preparation, Prepared, Status
from hwmatrix.records.vocabulary import exported_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hwmatrix.models.bundle import Bundle

ONNX_DIR: Final = "onnx"
_OWN: Final = ".own-"
"""The beginning of the name of a folder in which another process makes an export."""
MODEL_FILE: Final = "model.onnx"
EXPORTERS: Final = onnx_exporters.EXPORTERS
FOR_OPENVINO: Final = "generation-openvino"
GENERATION: Final = {"generation": generation_export.make_onnx, FOR_OPENVINO: generation_export.make_openvino}
"""The exports for cells that generate: prefill and decode, made by transformers' exporters, in ONNX and for OpenVINO."""
OPENVINO: Final = "openvino"
"""The export of a forward pass for OpenVINO."""
EXPORTS: Final = (*EXPORTERS, *GENERATION, OPENVINO)
"""Every export that a bundle may have, by the name of its folder."""
TIMED_OUT: Final = "ExporterTimedOut"
"""The ``error_type`` of an exporter that was killed because it ran out of time."""
OUT_OF_MEMORY: Final = "ExporterOutOfMemory"
"""The same for one that ran out of memory."""
_OWN_LIMITS: Final = frozenset(f"{kind.__module__}.{kind.__qualname__}" for kind in (FactoryError, UnmakableError))
_NO_CONVERSION: Final = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")
"""How torch.onnx (2.13) reports an operator that it cannot convert to ONNX."""
_UNDERLINES: Final = re.compile(r"^ +[~^]+\n", re.MULTILINE)
"""Lines of a traceback that only underline the line above. They are dropped, since exporters' tracebacks have sixty frames."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnnxExport:
    """A verified export.

    ``inputs`` are the graph's inputs, named as in the bundle; inputs that the graph does not read are left out. ``outputs`` has the
    reference's name of each output of the graph in order, or None if the reference has no such output. ``fixed`` names the constants of the
    graph that were inputs: inputs of the bundle that describe sizes, and values that the exporter computed from the inputs. ``changed``
    says how the graph was made if it is no longer that of the exporter.
    """

    exporter: str
    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str | None, ...]
    opset: int
    seconds: float
    fixed: tuple[str, ...] = ()
    changed: Prepared | None = None

    @property
    def prepared(self) -> Prepared:
        """How the graph was made."""
        if self.changed is not None:
            return self.changed
        constant = (Preparation.CONSTANT_INPUTS,) if self.fixed else ()
        steps = (exported_by(self.exporter), Preparation.FIXED_SHAPES, *constant)
        return Prepared(method=f"{self.exporter} ONNX export, opset {self.opset}", preparation=steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnnxFailure:
    """Why an exporter made no graph: the exception's class, message and traceback (None if the process died)."""

    exporter: str
    error_type: str
    message: str
    traceback: str | None

    @property
    def of_the_machine(self) -> bool:
        """Whether time or memory ran out. That says nothing about the model: on another machine the export may succeed."""
        return self.error_type in {TIMED_OUT, OUT_OF_MEMORY}

    @property
    def of_hwmatrix(self) -> bool:
        """Whether it is a limit of hwmatrix, such as a model whose passes are no steps of a graph."""
        return self.error_type in _OWN_LIMITS


Export = OnnxExport | GenerationExport | OpenVinoExport
"""The result of one of :data:`EXPORTS` that made a graph."""


def export_all(bundle: Bundle, cache: Path) -> tuple[OnnxExport | OnnxFailure, ...]:
    """The result of every exporter for a bundle: from the cache if it is there and intact, else made now. Needs torch.

    Raises:
        BundleError: the cache cannot be written (``cache_not_writable``).
    """
    found = (export_one(bundle, cache, exporter) for exporter in EXPORTERS)
    return tuple(each for each in found if isinstance(each, OnnxExport | OnnxFailure))


def export_one(bundle: Bundle, cache: Path, exporter: str) -> Export | OnnxFailure:
    """The result of one of :data:`EXPORTS` for a bundle. Call it in a child process, by :func:`find_or_take`.

    Running out of memory is raised and not recorded: with more memory, the same export may succeed. If it was recorded for an earlier run,
    or that time ran out, that is discarded.

    Raises:
        BundleError: the cache cannot be written (``cache_not_writable``).
        OutOfMemoryError: memory ran out, whatever the exporter made of that.
    """
    with locked(bundle.key, cache, exporter):
        kept = _kept(bundle, cache, exporter)
        return kept if kept is not None else _export_now(bundle, cache, exporter)


def find_or_take(bundle: Bundle, cache: Path, exporter: str, make: Callable[[Path], OnnxFailure | None]) -> OnnxFailure | None:
    """Find the result of one of :data:`EXPORTS` in the cache, or take it from another process that cannot write there.

    ``make`` has it made by :func:`export_one` in a cache of its own, a new folder that it gets; if that process died, it returns the
    failure to keep (:data:`TIMED_OUT` and others). What was made is verified, and moved into this cache. Exceptions of ``make`` propagate.

    Returns:
        The failure that is now in the cache; None if there is a graph.

    Raises:
        BundleError: what was made is no export of this bundle, or the cache cannot be written (``cache_not_writable``).
    """
    with locked(bundle.key, cache, exporter):
        found = _kept(bundle, cache, exporter)
        if found is None:
            _remove_leftovers(cache / ONNX_DIR)
            own = cache / ONNX_DIR / f"{_OWN}{bundle.key}-{exporter}"
            with folder.writing(cache, "the ONNX export"), folder.fresh(own):
                found = make(own)
                if found is None:
                    found = read_one(bundle, own, exporter)
                    folder.make_folder(cache / ONNX_DIR / bundle.key)
                    folder.put(_folder_of(bundle, own, exporter), _folder_of(bundle, cache, exporter))
                else:
                    failed = found
                    _publish(bundle, cache, exporter, lambda _: _failure_fields(failed))
        return found if isinstance(found, OnnxFailure) else None


def _remove_leftovers(exports: Path) -> None:
    """Remove what interrupted exports have left. A running one holds the lock of its name."""
    for own in exports.glob(f"{_OWN}*"):
        with folder.unlocked(exports, own.name.removeprefix(_OWN)) as free:
            if free:
                shutil.rmtree(own, ignore_errors=True)


def _kept(bundle: Bundle, cache: Path, exporter: str) -> Export | OnnxFailure | None:
    """The result in the cache. Anything else there is discarded, so that it is not read if making it again fails. Needs the lock."""
    with contextlib.suppress(BundleError):
        kept = read_one(bundle, cache, exporter)
        if not (isinstance(kept, OnnxFailure) and kept.of_the_machine):
            return kept
    folder.discard(_folder_of(bundle, cache, exporter))
    return None


def is_kept(key: str, cache: Path, exporter: str, *, graph: bool = False) -> bool:
    """Whether the cache has an exporter's result for a bundle: a graph or, unless ``graph``, a failure of the model."""
    try:
        file = cache / ONNX_DIR / key / exporter / MANIFEST
        manifest = read_json(file.read_bytes())
        manifests.check(manifest, manifests.ExportManifest, file)
        failure = manifest["failure"]
        return failure is None or not (graph or OnnxFailure(exporter=exporter, **failure).of_the_machine)
    except FileNotFoundError:
        return False
    except (ValueError, BundleError):  # broken: reading it reports that
        return True


@contextlib.contextmanager
def locked(key: str, cache: Path, exporter: str) -> Iterator[None]:
    """Let only one process at a time write an export of the bundle with this key.

    Raises:
        BundleError: the cache cannot be written (``cache_not_writable``).
    """
    with folder.locked(cache / ONNX_DIR, f"{key}-{exporter}"):
        yield


def read_all(bundle: Bundle, cache: Path, *, only: str | None = None) -> tuple[OnnxExport | OnnxFailure, ...]:
    """The recorded results of the exporters in order, or of ``only`` one, every file verified. Does not need torch.

    A missing result is skipped if an earlier exporter made a graph.

    Raises:
        BundleError: an export is missing (``onnx_missing``), belongs to another bundle or version of hwmatrix (``bundle_version``),
            or is damaged (``bundle_broken``).
    """
    if only is not None:
        return (_read_forward(bundle, cache, only),)
    found: list[OnnxExport | OnnxFailure] = []
    for exporter in EXPORTERS:
        made = any(isinstance(export, OnnxExport) for export in found)
        if not made or is_kept(bundle.key, cache, exporter):
            found.append(_read_forward(bundle, cache, exporter))
    return tuple(found)


def read_generation(bundle: Bundle, cache: Path, export: str) -> GenerationExport:
    """One of :data:`GENERATION`, every file verified. Does not need torch.

    Raises:
        BundleError: as :func:`read_all`.
        CellFailure: there are no graphs; the failure is that of :func:`no_graph`.
    """
    found = read_one(bundle, cache, export)
    if isinstance(found, OnnxFailure):
        raise no_graph([found])
    assert isinstance(found, GenerationExport)  # noqa: S101 - by its name
    return found


def read_openvino(bundle: Bundle, cache: Path) -> OpenVinoExport | None:
    """The graph that OpenVINO converted, every file verified; None if it was not made, or could not be. Does not need torch.

    Raises:
        BundleError: as :func:`read_all`, but not if it is missing.
    """
    if not is_kept(bundle.key, cache, OPENVINO, graph=True):
        return None
    found = read_one(bundle, cache, OPENVINO)
    assert isinstance(found, OpenVinoExport)  # noqa: S101 - by its name
    return found


def no_graph(failures: Sequence[OnnxFailure]) -> CellFailure:
    """The failure of a cell if no exporter made a graph: unsupported if the exporters name operators that they cannot convert.

    The types are ``unsupported_operator``, ``data_dependent_export`` and ``export_failed``; ``export_timeout`` or ``export_out_of_memory``
    if an exporter ran out of time or memory, since it might have made a graph; ``no_generation`` if hwmatrix itself cannot make one. The
    exporters' tracebacks are added as notes, in order: they name the line of the model that cannot be exported.
    """
    failure = _combined_failure(failures)
    for each in failures:
        if each.traceback is not None:
            failure.add_note(f"\nThe exporter by {each.exporter} failed:\n{each.traceback.rstrip()}")
    return failure


def _combined_failure(failures: Sequence[OnnxFailure]) -> CellFailure:
    told = "; ".join(f"{failure.exporter}: {failure.error_type}: {failure.message}" for failure in failures)
    kind = "an OpenVINO" if any(OPENVINO in failure.exporter for failure in failures) else "an ONNX"
    if any(failure.error_type == TIMED_OUT for failure in failures):
        return TimedOutError(f"{kind} export ran out of time, which says nothing about the model: {told}", error_type="export_timeout")
    if any(failure.error_type == OUT_OF_MEMORY for failure in failures):
        message = f"{kind} export ran out of memory, which says nothing about the model: {told}"
        return OutOfMemoryError(message, error_type="export_out_of_memory")
    if any(failure.of_hwmatrix for failure in failures):
        return UnmakableError(f"hwmatrix makes no such graph of this model: {told}", error_type="no_generation")
    named = [_without_conversion(failure) for failure in failures]
    operators = tuple(dict.fromkeys(name for names in named for name in names))
    if operators and all(named):
        return UnsupportedError(f"no exporter has {kind} conversion for {', '.join(operators)}: {told}", needs=operators)
    error_type = "data_dependent_export" if all(DATA_DEPENDENT in failure.message for failure in failures) else "export_failed"
    return CellFailure(f"no exporter made {kind} graph of this model: {told}", error_type=error_type)


def _without_conversion(failure: OnnxFailure) -> list[str]:
    """The operators that an exporter says it cannot convert."""
    found = _NO_CONVERSION.findall(failure.message)
    if found or OPENVINO not in failure.exporter:
        return found
    listed = openvino_graph.MISSING.search(failure.message)
    return sorted(set(re.split(r",\s*", listed[1].strip()))) if listed else []


def _folder_of(bundle: Bundle, cache: Path, exporter: str) -> Path:
    return cache / ONNX_DIR / bundle.key / exporter


def _read_forward(bundle: Bundle, cache: Path, exporter: str) -> OnnxExport | OnnxFailure:
    found = read_one(bundle, cache, exporter)
    assert isinstance(found, OnnxExport | OnnxFailure)  # noqa: S101 - by its name
    return found


def read_one(bundle: Bundle, cache: Path, exporter: str) -> Export | OnnxFailure:
    """One of a bundle's :data:`EXPORTS`, every file verified. Does not need torch.

    Raises:
        BundleError: as :func:`read_all`.
    """
    path, manifest = _folder_of(bundle, cache, exporter), _manifest(bundle, cache, exporter)
    try:
        failed = manifest["failure"]
        folder.check(path, manifest, _manifest_of(exporter) if failed is None else manifests.ExportManifest)
        if failed is not None:
            return OnnxFailure(exporter=exporter, **failed)
        if exporter in GENERATION:
            return generation_export.read(path, manifest)
        if exporter == OPENVINO:
            return openvino_conversion.read(path, manifest)
        return OnnxExport(
            exporter=exporter,
            path=path / MODEL_FILE,
            inputs=tuple(manifest["inputs"]),
            outputs=tuple(manifest["outputs"]),
            opset=manifest["opset"],
            seconds=manifest["seconds"],
            fixed=tuple(manifest["fixed"]),
        )
    except KeyError as error:
        raise BundleError(f"{path / MANIFEST} is broken: {error!r}", error_type="bundle_broken") from error


def _manifest_of(exporter: str) -> type[manifests.ExportManifest]:
    """The kind of manifest of an export's graph."""
    if exporter in GENERATION:
        return manifests.GenerationManifest
    return manifests.OpenVinoManifest if exporter == OPENVINO else manifests.ForwardManifest


def _manifest(bundle: Bundle, cache: Path, exporter: str) -> dict[str, Any]:
    """The manifest of an export, checked to belong to this bundle."""
    file = _folder_of(bundle, cache, exporter) / MANIFEST
    try:
        manifest: dict[str, Any] = read_json(file.read_bytes())
        made_for = manifest["key"], manifest["bundle"]
    except FileNotFoundError as error:
        message = f"there is no ONNX export of this bundle by {exporter} at {file.parent}: exports are made with the bundles"
        raise BundleError(message, error_type="onnx_missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{file} is broken: {error!r}", error_type="bundle_broken") from error
    if made_for != (bundle.key, bundle.digest):
        raise BundleError(f"{file.parent} was made for another bundle than {bundle.path}: make it again", error_type="bundle_version")
    return manifest


def _export_now(bundle: Bundle, cache: Path, exporter: str) -> Export | OnnxFailure:
    """Export now. An exporter's error is recorded, not raised."""
    if bundle.manifest["identity"]["made_by"] != provenance.made_by():
        message = f"{bundle.path} was made with other packages than those installed here: make it again"
        raise BundleError(message, error_type="bundle_version")

    def fill(path: Path) -> dict[str, Any]:
        if exporter in EXPORTERS:
            return EXPORTERS[exporter](bundle, path / MODEL_FILE)
        return openvino_conversion.make(bundle, path) if exporter == OPENVINO else GENERATION[exporter](bundle, path)

    try:
        _publish(bundle, cache, exporter, fill)
    except BundleError:
        raise
    except Exception as error:
        if classify(error).status is Status.OOM:
            raise OutOfMemoryError(told_of(error), error_type=MEMORY) from error
        failure = OnnxFailure(
            exporter=exporter,
            error_type=f"{type(error).__module__}.{type(error).__qualname__}",
            message=told_of(error),
            traceback=_UNDERLINES.sub("", "".join(traceback.format_exception(error))),
        )
        _publish(bundle, cache, exporter, lambda _: _failure_fields(failure))
    return read_one(bundle, cache, exporter)


def _publish(bundle: Bundle, cache: Path, exporter: str, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Fill a temporary folder, write its manifest and rename it into place. Needs the lock."""
    begin = time.perf_counter()
    with folder.replacing(_folder_of(bundle, cache, exporter), "the ONNX export") as partial:
        filled = fill(partial)
        facts = {
            "key": bundle.key,
            "bundle": bundle.digest,
            "exporter": exporter,
            "failure": None,
            "seconds": time.perf_counter() - begin,
        }
        folder.describe(partial, facts | filled)


def _failure_fields(failure: OnnxFailure) -> dict[str, Any]:
    return {"failure": {"error_type": failure.error_type, "message": failure.message, "traceback": failure.traceback}}
