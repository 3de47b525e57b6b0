"""Conversion of a PyTorch model to an OpenVINO graph: by transformers' exporter, or by a trace.

:func:`make` stores the graph as an export of its bundle (``models/onnx_export.py``), once for the cells of all precisions.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import UnsupportedError
from hwmatrix.faults.catalogue import classify
from hwmatrix.models import onnx_extents, openvino_graph
from hwmatrix.models.onnx_exporters import DATA_DEPENDENT, told_of, with_extents
from hwmatrix.models.onnx_graph import OUTPUT_PREFIX
from hwmatrix.records import Dtype, Preparation, Prepared, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from hwmatrix.models.bundle import Bundle

MODEL_FILE: Final = "model.xml"
_BY_EXPORTER: Final = "transformers OpenVINO exporter"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Converted:
    """An OpenVINO model, the reference's name of each of its outputs (None: not compared), and how it was made."""

    program: Any
    output_names: tuple[str | None, ...]
    prepared: Prepared


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenVinoExport:
    """A verified graph in a file. ``outputs`` and ``prepared`` are as in :class:`Converted`."""

    path: Path
    outputs: tuple[str | None, ...]
    prepared: Prepared
    seconds: float


def make(bundle: Bundle, folder: Path) -> dict[str, Any]:
    """Convert a bundle's model, with transformers' default attention as users run it. Write the graph, and return its manifest fields.

    Raises:
        UnsupportedError: as :func:`convert`.
        ValueError: the graph that is read back has other outputs.
    """
    import openvino
    import torch

    from hwmatrix.models.build import load_model

    openvino_graph.without_telemetry()
    torch.set_num_threads(1)
    converted = convert(load_model(bundle.model_dir, bundle.model_class, Dtype.FLOAT32, attention=None), bundle.load_inputs())
    file = folder / MODEL_FILE
    openvino.save_model(converted.program, file, compress_to_fp16=False)
    if _outputs(converted.program) != _outputs(openvino.Core().read_model(file)):
        raise ValueError("the saved graph has other outputs than the converted one")
    return {
        "outputs": list(converted.output_names),
        "method": converted.prepared.method,
        "preparation": list(converted.prepared.preparation),
    }


def _outputs(program: Any) -> list[tuple[set[str], str, str]]:
    return [(port.get_names(), str(port.get_element_type()), str(port.get_partial_shape())) for port in program.outputs]


def read(folder: Path, manifest: Mapping[str, Any]) -> OpenVinoExport:
    """The graph of a verified folder.

    Raises:
        KeyError: the manifest lacks something.
    """
    outputs = tuple(manifest["outputs"])
    prepared = Prepared(method=manifest["method"], preparation=tuple(map(Preparation, manifest["preparation"])))
    return OpenVinoExport(path=folder / MODEL_FILE, outputs=outputs, prepared=prepared, seconds=manifest["seconds"])


def convert(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Converted:
    """Convert by transformers' exporter, or by tracing if that fails. The second failure's message includes the first.

    Raises:
        UnsupportedError: both failed, and OpenVINO named the operators that it lacks.
    """
    try:
        return by_exporter(model, inputs)
    except Exception as first:
        if classify(first).status is Status.OOM:  # tracing needs just as much memory, and would hide the cause behind an error of its own
            raise
        because = f"{type(first).__name__}: {_first_line(first)}"
        try:
            return by_trace(model, inputs, because=f" (exporter failed: {because})")
        except Exception as second:
            second.add_note(f"transformers' exporter had failed before: {type(first).__name__}: {first}")
            operators = missing_operators(second) or missing_operators(first)
            if operators:
                told = f"OpenVINO has no conversion for {', '.join(operators)}"
                if missing_operators(second) and not missing_operators(first):
                    told += f" in a trace; transformers' exporter had failed: {because}"
                raise UnsupportedError(told, needs=operators) from second
            raise


def by_exporter(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Converted:
    """Convert by transformers' exporter. If it meets a data-dependent value, convert again with the inputs that describe sizes held."""
    try:
        return _exported(model, inputs, fixed=())
    except Exception as error:
        fixed = onnx_extents.extents(inputs)
        if not fixed or DATA_DEPENDENT not in told_of(error):
            raise
        first = told_of(error)
    # Outside the handler, so that the first attempt's error does not become the cause of the second's.
    try:
        return _exported(model, inputs, fixed=fixed)
    except Exception as second:
        second.add_note(f"The first attempt, without held sizes, had failed: {first}")
        raise


def _exported(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, fixed: Sequence[str]) -> Converted:
    from transformers.exporters.configs import OpenVINOConfig
    from transformers.exporters.exporter_openvino import OpenVINOExporter
    from transformers.exporters.utils import get_leaf_tensors

    _without_cache(model)
    exporter: Any = OpenVINOExporter
    sample = dict(inputs)  # the exporter adds to it what it computes in advance
    with with_extents(model, sample, fixed):
        program = exporter().export(model, sample, OpenVINOConfig(stateful=False)).program
    openvino_graph.fit_inputs(program, inputs, {name: tensor for name, tensor in get_leaf_tensors(sample).items() if name not in inputs})
    names = tuple(openvino_graph.name_of(port) if port.get_names() else None for port in program.outputs)
    outputs = tuple(name.removeprefix(OUTPUT_PREFIX) if name is not None else None for name in names)
    prepared = Prepared(method=_BY_EXPORTER, preparation=(Preparation.TRANSFORMERS_EXPORT,))
    if fixed:
        prepared = prepared.then(f"with constant {', '.join(fixed)}", Preparation.CONSTANT_INPUTS)
    return Converted(program=program, output_names=outputs, prepared=prepared)


def _without_cache(model: torch.nn.Module) -> None:
    """Disable the cache for a next token, as in the reference. The exporter reads this from the configurations."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False


def by_trace(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, because: str = "") -> Converted:
    """Convert with OpenVINO's own converter on a TorchScript trace. The outputs are a flat tuple in the order of the reference's names.

    ``because`` is added to how it was made: why another way had failed.
    """
    import openvino
    import torch

    from hwmatrix.models.outputs import call_options, flatten_outputs

    names: list[str] = []
    options = call_options(model)

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            outputs = flatten_outputs(self.inner(**dict(zip(inputs, tensors, strict=True)), **options))
            names[:] = list(outputs)
            return tuple(outputs.values())

    with torch.no_grad():
        program = openvino.convert_model(Flat().eval(), example_input=tuple(inputs.values()))
    for port, name in zip(program.inputs, inputs, strict=True):
        port.get_tensor().set_names({name})
    prepared = Prepared(method=f"openvino.convert_model{because}", preparation=(Preparation.TRACE,))
    return Converted(program=program, output_names=tuple(names), prepared=prepared)


def missing_operators(error: BaseException) -> tuple[str, ...]:
    """Return the operators named by OpenVINO's own conversion failure; none for any other kind of exception.

    Only the first list counts: operators without a rule come before those whose conversion failed, often as a consequence.
    """
    if not any(kind.__name__ == "OpConversionFailure" for kind in type(error).__mro__):
        return ()
    found = openvino_graph.MISSING.search(str(error))
    return tuple(sorted(set(re.split(r",\s*", found[1].strip())))) if found else ()


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else "no message"
