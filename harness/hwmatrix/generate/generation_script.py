"""Scripts of cells that generate text. They read the model, or its exported graphs, and the prompts from a folder beside them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import BundleError, ConfigError, Problem
from hwmatrix.models.build import eager_attention
from hwmatrix.models.bundle import find_or_build
from hwmatrix.models.folder import GENERATION
from hwmatrix.models.generation import TRACED
from hwmatrix.models.generation_export import LOGITS, GenerationExport
from hwmatrix.models.onnx_export import Export, OnnxFailure, read_one
from hwmatrix.records import Status
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from hwmatrix.knowledge.measured_cell import MeasuredCell
    from hwmatrix.models.bundle import Bundle

EXPORT: Final = "export"
"""The template for a model of which no graphs can be made."""
_SHORTER: Final = "shorter"
_REPEATED: Final = "repeated"
_EXPORTERS: Final = {"generation": ("Onnx", "OnnxExporter"), "generation-openvino": ("OpenVINO", "OpenVINOExporter")}
_EXPORT_ONE: Final = """
import sys
from pathlib import Path
from hwmatrix.models import bundle, onnx_export

onnx_export.export_one(bundle.verify(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3])
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What a script needs: its template, the values that the template gets, and the files of its folder by their names there.

    ``digest`` is that of the model's bundle.
    """

    template: str
    values: dict[str, Any]
    data: Mapping[str, Path]
    digest: str

    @property
    def described(self) -> str:
        """What the folder has, in words."""
        what = "the exported graphs" if self.values["graphs"] else "the model"
        return f"{what}, the prompts with their continuations, and the logits of the reference"


def check(cell: MeasuredCell) -> None:
    """Check that a script can reproduce a cell that generates text.

    Raises:
        ConfigError: the reference cannot generate with the model, or hwmatrix has no template for the target.
    """
    if cell.status is Status.FACTORY_ERROR:
        raise _no_script(f"the reference cannot generate with {cell.model.name}: {cell.message}")
    descriptor, where = descriptor_of(cell.target.backend), f"{cell.model.name} on {cell.target.name}"
    if not descriptor.generation_script or descriptor.compiling(cell.target.options):
        raise _no_script(f"no script can reproduce the generation of {where}: its backend {descriptor.name} has no template for that")


def parts_of(cell: MeasuredCell, cache: Path) -> Parts:
    """Find out what the script of a checked cell needs. Bundle and graphs come from ``cache``, a folder of bundles, or are made here.

    Raises:
        ConfigError: the model's passes are no steps of a graph.
        FactoryError: the model cannot be made here, or cannot generate here.
        BundleError: the cache cannot be written.
    """
    descriptor = descriptor_of(cell.target.backend)
    bundle = find_or_build(cell.model, cache)
    bundle.generation()  # raises if the reference cannot generate here
    prompts = {GENERATION: bundle.path / GENERATION}
    model = {str(file.relative_to(bundle.path)): file for file in sorted(bundle.model_dir.iterdir()) if file.is_file()}
    values: dict[str, Any] = {"prompts": _prompts(cell), "graphs": None, "attention": _attention(cell, bundle)}
    if descriptor.generation_export is None:
        return Parts(template="torch", values=values, data=model | prompts, digest=bundle.digest)
    made = _exported(bundle, cache, descriptor.generation_export)
    if isinstance(made, OnnxFailure):
        if made.of_hwmatrix:
            raise _no_script(f"there is no graph of a step for {cell.model.name} on {cell.target.name}: {made.message}")
        values |= _export_values(bundle, descriptor.generation_export, with_attention=descriptor.script != "openvino")
        return Parts(template=EXPORT, values=values, data=model | prompts, digest=bundle.digest)
    assert isinstance(made, GenerationExport)  # noqa: S101 - by its name
    graphs = {file.name: file for graph in made.graphs for file in sorted(graph.path.parent.glob(f"{graph.component}.*"))}
    return Parts(template=str(descriptor.script), values=values | _graph_values(made), data=graphs | prompts, digest=bundle.digest)


def _exported(bundle: Bundle, cache: Path, export: str) -> Export | OnnxFailure:
    """The graphs of a bundle, or why there are none. A process of its own looks for them, and makes them: exporters print, and may crash.

    Raises:
        ConfigError: the process ended without a result.
    """
    ended = subprocess.run(
        [sys.executable, "-c", _EXPORT_ONE, str(bundle.path), str(cache), export], capture_output=True, text=True, check=False
    )
    try:
        return read_one(bundle, cache, export)
    except BundleError as error:
        last = ended.stderr.strip().splitlines()[-1:]
        raise _no_script(f"no graphs could be made of it here (exit code {ended.returncode}): {''.join(last) or error}") from error


def _no_script(what: str) -> ConfigError:
    return ConfigError([Problem(where="--reproduce", what=what, hint="rerun the cell: the report has its command")])


def _prompts(cell: MeasuredCell) -> tuple[str, ...]:
    """The prompts to run: the one that exporters see, then the one that fails."""
    failing = cell.failing_prompt
    if failing == _REPEATED:
        return (TRACED, _SHORTER, TRACED)
    return (TRACED,) if failing in {None, TRACED} else (TRACED, str(failing))


def _attention(cell: MeasuredCell, bundle: Bundle) -> str | dict[str, str] | None:
    chosen = cell.target.options.get("attention")
    return eager_attention(bundle.model_dir) if chosen == "eager" else chosen


def _graph_values(export: GenerationExport) -> dict[str, Any]:
    needed = export.states | {LOGITS}
    described = {
        graph.component: {
            "inputs": {each.name: each.own for each in graph.inputs if not each.state},
            "states": {each.name: each.own for each in graph.inputs if each.state},
            "outputs": {name: own for name, own in graph.outputs.items() if own in needed},
        }
        for graph in export.graphs
    }
    empty = {own: (array.shape[1:], array.dtype.name) for own, array in export.first_state(1).items()}
    return {"graphs": described, "empty": empty}


def _export_values(bundle: Bundle, export: str, *, with_attention: bool) -> dict[str, Any]:
    """What the script of a failing export needs: the exporter, and whether one graph was to process prompts and tokens."""
    from hwmatrix.models import onnx_exporters
    from hwmatrix.models.generation_export import samples_of

    model: Any = onnx_exporters.loaded(bundle, cache=True)
    config, exporter = _EXPORTERS[export]
    return {
        "exporter": config,
        "exporter_class": exporter,
        "joint": samples_of(model, bundle).prefill is None,
        "attention": eager_attention(bundle.model_dir) if with_attention else None,
        "encoder_decoder": bool(model.config.is_encoder_decoder),
    }
