"""Generates the smallest script that reproduces a failing cell without hwmatrix, for a bug report to the failing library or runtime."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.cache_folder import bundles_folder, needed_cache_folder
from hwmatrix.errors import ConfigError, NothingSelectedError, Problem
from hwmatrix.faults.belonging import PRECISION_LOSS, belongs_to
from hwmatrix.generate import generation_script
from hwmatrix.generate.model_code import ModelCode, model_code
from hwmatrix.generate.rendering import render
from hwmatrix.knowledge.measured_cell import MeasuredCell, find_cell
from hwmatrix.models.build import RECIPE
from hwmatrix.records import RUNTIME_S_THREADS, Backend, Dtype, Execution, Preparation, Size, Status
from hwmatrix.records.backends import Memory, OnnxUse, descriptor_of
from hwmatrix.records.groups import GROUP_SIZES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwmatrix.records import TargetPlan

_PACKAGES: Final = {
    "torch": ("torch", "transformers"),
    "openvino": ("torch", "transformers", "openvino"),
    "onnxruntime": ("torch", "transformers", "onnx", "onnxscript", "onnxruntime"),
    "qnn": ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "onnxruntime-qnn"),
    "browser": ("torch", "transformers", "onnx", "onnxscript"),
    "executorch": ("torch", "transformers", "executorch"),
}
_BUILDING: Final = ("torch", "transformers")
_OF_GRAPHS: Final = {"openvino": ("openvino", "numpy", "safetensors"), "onnxruntime": ("onnxruntime", "numpy", "safetensors")}
"""The packages of scripts that read exported graphs."""
_OPENVINO_PRECISION: Final = {Dtype.FLOAT32: "f32", Dtype.BFLOAT16: "bf16"}
"""The hint for a precision; there is none for ``default``."""
_REDUCED: Final = frozenset({Dtype.FLOAT16, Dtype.INT8, Dtype.INT4, Dtype.INT4_FLOAT16, Dtype.INT8_DYNAMIC, Dtype.A8W8})
"""The precisions in which a target that compiles a float32 graph reduces it first."""
_TORCHAO: Final = {Dtype.INT8: "Int8WeightOnlyConfig", Dtype.INT8_DYNAMIC: "Int8DynamicActivationInt8WeightConfig"}
"""What torchao calls the precisions in which it rounds the weights of a PyTorch model."""
_REDUCING: Final = {
    **dict.fromkeys((("torch", dtype) for dtype in _TORCHAO), "torchao"),
    **dict.fromkeys((("openvino", dtype) for dtype in (Dtype.INT8, Dtype.INT4, Dtype.A8W8)), "nncf"),
    ("executorch", Dtype.A8W8): "torchao",
    **dict.fromkeys((("browser", dtype) for dtype in _REDUCED), "onnxruntime"),
}
"""The package, by template and precision, that reduces a graph or a model."""
_BROWSER_FLAGS: Final = {"software": "--enable-unsafe-webgpu --use-webgpu-adapter=swiftshader"}
_NOT_OUTPUTS: Final = ("past_key_values", "past_buckets_states", "cache_params", "mems", "loss")
MARK: Final = "# Measured by hwmatrix "
"""The start of a line that every such script has."""
_CRASHED: Final = "The process of the cell died: expect a signal to kill this script."
_MESSAGE_LIMIT: Final = 1200
_QNN_SOC_MODEL: Final = 57
_CALIBRATION_SAMPLES: Final = 8
_WITHOUT_GRAPH: Final = frozenset(
    {"export_failed", "export_timeout", "export_out_of_memory", "data_dependent_export", "unsupported_operator"}
)
"""Error types of cells for which no exporter made a graph."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A script, and the cell that it reproduces.

    ``data`` are files to copy into a folder beside the script, with its name without ``.py``; empty for most scripts. ``described`` says
    what they are.
    """

    cell: MeasuredCell
    script: str
    data: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    described: str = "the trained model and its inputs"


def reproduce(
    model: str,
    target: str,
    *,
    database: Path,
    dtype: Dtype | None = None,
    size: Size | None = None,
    generation: bool | None = None,
    force: bool = False,
    cache: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Reproduction:
    """The script of the newest failing cell of a model on a target in ``database``. Needs torch and transformers here.

    The script builds the model and its inputs from the same recipe as the run, prepares it in the same way (exporter, changes to the
    graph, quantization), and does not need hwmatrix. A model that was made from its type alone is built here once, by the rules of
    this hwmatrix and the installed transformers, and its configuration is written into the script. A model that hwmatrix trained comes from
    its bundle in ``cache`` (by default the user's), where it is trained again if it is missing: the script reads it from files beside it.
    ``force`` also allows a cell that passes, that fails only because its precision costs the model too much, or whose kernels differ only
    from its own rounded weights. ``say`` gets a message before anything is built, which takes a while.

    Raises:
        ConfigError: no such model or target on record, it was never executed, scripts lack its precision, the packages that make the inputs
            are not installed here, or a model made from its type cannot be expressed as code.
        NothingSelectedError: the cell passes, or its target is right.
        FactoryError: the model cannot be made here.
        StoreError: the database cannot be read.
    """
    cell = find_cell(database, model, target, dtype=dtype, size=size, generation=generation, passing=force)
    if cell.error_type == PRECISION_LOSS and not force:
        message = f"{cell.model.name} on {cell.target.name} in {cell.precision} is no error of the target: {cell.message}"
        raise NothingSelectedError(message, advice="Choose a more precise --dtype. To write the script anyway, add --force.")
    kind = "torch" if cell.status is Status.FACTORY_ERROR else _template(cell.target)
    if cell.kernels_alone and not force:
        where = f"{cell.model.name} on {cell.target.name} in {cell.precision}"
        what = f"a script cannot show what fails for {where}: its kernels differ too much from the same rounded weights in float32, but a "
        what += "script compares with the reference, and that error is allowed"
        raise ConfigError([Problem(where="--dtype", what=what, hint="rerun the cell (the report has its command), or add --force")])
    bundles = cache or bundles_folder(needed_cache_folder(os.environ))
    missing = [name for name in _BUILDING if importlib.util.find_spec(name) is None]
    if missing:
        what = f"{' and '.join(missing)} must be installed to build {cell.model.name} and its inputs"
        raise ConfigError([Problem(where="--reproduce", what=what, hint=install_line(cell))])
    if cell.settings.new_tokens:
        generation_script.check(cell)
    if say is not None:
        say(f"building {cell.model.name}, its inputs and what {cell.target.name} gets of it: this takes a minute or two")
    if cell.settings.new_tokens:
        return _of_generation(cell, bundles)
    code = model_code(cell.model, bundles)
    reducing = _REDUCING.get((kind, cell.settings.dtype))
    packages = (*_PACKAGES[kind], *(["diffusers"] if code.diffuser else []), *([reducing] if reducing else []))
    script = render(
        f"reproduce/{kind}.py.j2",
        **_common(cell, packages, _notes(cell, kind, code)),
        model=cell.model,
        recipe=cell.model.weights == RECIPE and not cell.model.trained and code.diffuser is None,
        code=code,
        eager=_eager(code),
        not_outputs=_NOT_OUTPUTS,
        samples=_CALIBRATION_SAMPLES,
        **_RUNTIMES[kind](cell, code),
    )
    return Reproduction(cell=cell, script=script, data=code.data)


def install_line(cell: MeasuredCell) -> str:
    """The command that installs what builds a cell's model, in the versions that the cell was measured with."""
    descriptor = descriptor_of(cell.target.backend)
    exporter = _PACKAGES[descriptor.script][2:] if descriptor.script in _PACKAGES and cell.settings.new_tokens else ()
    diffusers = [name for name in cell.reference_versions if name not in _BUILDING]
    return f"pip install {' '.join(_pinned(name, cell) for name in (*_BUILDING, *diffusers, *exporter))}"


def _of_generation(cell: MeasuredCell, cache: Path) -> Reproduction:
    """The script of a cell that generates text.

    Raises:
        ConfigError: there is no such script.
        FactoryError: the model cannot be made here.
    """
    kind, found = _template(cell.target), generation_script.parts_of(cell, cache)
    reducing = _REDUCING.get((found.template, cell.settings.dtype))
    needed = _OF_GRAPHS.get(found.template) or _PACKAGES[kind]
    packages = (*needed, *([reducing] if reducing else []))
    values = found.values
    if found.template == "torch":
        values |= _torch_values(cell)
    elif found.template == "openvino":
        values |= _plugin_values(cell)
    notes = [f"The folder beside this script has what it reads: {found.described}."]
    if found.digest != cell.bundle:
        notes.append("The model was built anew, and may differ in its last digits from that of the run.")
    if cell.status is Status.CRASH:
        notes.append(_CRASHED)
    script = render(f"reproduce/generation/{found.template}.py.j2", **_common(cell, packages, notes), **values)
    return Reproduction(cell=cell, script=script, data=found.data, described=found.described)


def _common(cell: MeasuredCell, packages: Sequence[str], notes: Sequence[str]) -> dict[str, Any]:
    """The values that every template gets."""
    return {
        "title": _title(cell),
        "cell": cell,
        "facts": _facts(cell),
        "tolerance": cell.allowed_error,
        "packages": packages,
        "requirements": [_pinned(name, cell) for name in packages],
        "notes": notes,
        "limit_mb": cell.limits.memory_mb if cell.status is Status.OOM and _limits_host_memory(cell) else None,
        "timeout_s": cell.limits.timeout_s if cell.status is Status.TIMEOUT else None,
        "external": cell.model.size is Size.FULL,
        "reduced": cell.settings.dtype.value if cell.settings.dtype in _REDUCED else None,
        "group_sizes": GROUP_SIZES,
    }


def _template(target: TargetPlan) -> str:
    """The template for a backend.

    Raises:
        ConfigError: there is none for it.
    """
    script = descriptor_of(target.backend).script
    if script is None:
        what = f"no script can reproduce a cell of {target.name}: its backend {target.backend} has no template"
        raise ConfigError([Problem(where="--target", what=what, hint="rerun the cell: the report has its command")])
    return script


def _limits_host_memory(cell: MeasuredCell) -> bool:
    """Whether a cell's memory limit applies to address space: not for browsers, which are separate processes, or device memory."""
    descriptor = descriptor_of(cell.target.backend)
    return descriptor.memory is Memory.HOST and not descriptor.in_browser


def _title(cell: MeasuredCell) -> str:
    what = "passes" if not cell.failed else cell.status.value.replace("_", " ")
    return f"{cell.model.name} ({cell.model.size.value}) on {cell.target.name}, {cell.precision}: {what}"


def _facts(cell: MeasuredCell) -> dict[str, str]:
    """What was measured, in words, without missing values."""
    message = cell.message or ""
    facts = {
        "status": f"{cell.status.value} at stage {cell.stage}" + (f", {cell.error_type}" if cell.error_type else ""),
        "message": message[:_MESSAGE_LIMIT] + ("..." if len(message) > _MESSAGE_LIMIT else ""),
        "prepared by": cell.method,
        "placement": cell.placement,
        "execution": cell.target.execution.value if cell.target.execution is not Execution.HARDWARE else None,
        "versions": ", ".join(f"{name} {version}" for name, version in (cell.reference_versions | cell.versions).items()),
        "weights, inputs and reference outputs": cell.bundle and f"bundle {cell.bundle}",
        "image": cell.image,
        "to rerun with hwmatrix": cell.again,
        "belongs to": belongs_to(status=cell.status, error_type=cell.error_type, preparation=cell.preparation, target=cell.target.name),
        "other cells that fail": "; ".join(cell.also_failing),
    }
    return {name: value for name, value in facts.items() if value}


def _eager(code: ModelCode) -> str | dict[str, str]:
    """The attention to request for eager: ``eager``, or another implementation if the model's own eager one is wrong."""
    return "eager" if code.built is None else code.built.attention


def _attention(cell: MeasuredCell, code: ModelCode) -> str | dict[str, str] | None:
    chosen = cell.target.options.get("attention")
    return _eager(code) if chosen == "eager" else chosen


def _notes(cell: MeasuredCell, kind: str, code: ModelCode) -> list[str]:
    notes = []
    if code.data:
        whose = "those of the run" if code.digest == cell.bundle else "from another training, and may differ in their last digits"
        notes.append(f"hwmatrix trained this tiny model on a small task. The folder beside this script has it: its weights are {whose}.")
    if code.built is not None:
        notes.append(
            "The smallest model of its type that hwmatrix could make: its configuration and inputs are synthetic, its weights random."
        )
    if code.diffuser is not None and cell.model.weights != RECIPE:
        notes.append("A tiny model of its class: its configuration and inputs are synthetic, its weights random.")
    if kind == "browser":
        notes.append(
            "The runtime comes from npm: npm install onnxruntime-web. The script serves a page and waits until a browser has run it."
        )
    if any(Preparation(step).changes_model for step in cell.preparation or ()):
        notes.append("hwmatrix changed the model before it ran it, as the target's option `rewrite` says; this script does not.")
    if cell.status is Status.CRASH:
        notes.append(_CRASHED)
    if cell.model.weights != RECIPE and code.built is None and code.diffuser is None and not cell.model.hub_id:
        notes.append("The weights are a local checkpoint: attach it, or use one that others have.")
    return notes


def _pinned(package: str, cell: MeasuredCell) -> str:
    """A requirement with the version on record, without the build's suffix (+cpu): other machines need other builds."""
    version = (cell.reference_versions | cell.versions).get(package)
    return f"{package}=={version.partition('+')[0]}" if version else package


def _torch(cell: MeasuredCell, code: ModelCode) -> dict[str, Any]:
    if cell.status is Status.FACTORY_ERROR:
        return {"device": "cpu", "attention": _eager(code), "compiled": False, "rounded": None, "dtype": "float32"}
    compiled = descriptor_of(cell.target.backend).compiling(cell.target.options)
    return {**_torch_values(cell), "attention": _attention(cell, code), "compiled": compiled}


def _torch_values(cell: MeasuredCell) -> dict[str, Any]:
    descriptor = descriptor_of(cell.target.backend)
    number = int(cell.target.options.get("device", 0)) if descriptor.several else 0
    rounded = _TORCHAO.get(cell.settings.dtype)
    return {
        "device": descriptor.torch_name(number),
        "rounded": rounded,
        "dtype": "float32" if rounded else cell.settings.dtype.value,
    }


def _openvino(cell: MeasuredCell, code: ModelCode) -> dict[str, Any]:
    converted = Preparation.TRACE in (cell.preparation or ()) or cell.error_type == "unsupported_operator"
    return {**_plugin_values(cell), "attention": _attention(cell, code), "exporter": "openvino" if converted else "transformers"}


def _plugin_values(cell: MeasuredCell) -> dict[str, Any]:
    device = str(cell.target.options.get("device", "CPU"))
    hinted = bool(cell.target.options.get("precision_hints", True))
    if cell.settings.threads == RUNTIME_S_THREADS:  # nothing was set
        return {"device": device, "hinted": hinted, "config": {}}
    config = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
    if cell.settings.dtype in _OPENVINO_PRECISION:
        config["INFERENCE_PRECISION_HINT"] = _OPENVINO_PRECISION[cell.settings.dtype]
    elif cell.settings.dtype in _REDUCED and hinted:
        config["INFERENCE_PRECISION_HINT"] = "f16" if cell.settings.dtype is Dtype.FLOAT16 else "f32"
    if device == "CPU":
        config["INFERENCE_NUM_THREADS"] = str(cell.settings.threads)
    return {"device": device, "hinted": hinted, "config": config}


def _export(cell: MeasuredCell) -> str:
    """Which exporter made the graph. If none made an ONNX graph, torch's own, which most people know."""
    descriptor = descriptor_of(cell.target.backend)
    chosen = descriptor.export_of(cell.preparation) or cell.target.options.get("export")
    no_graph = descriptor.onnx is not OnnxUse.NONE and cell.error_type in _WITHOUT_GRAPH
    return str(chosen or ("torch" if no_graph else "transformers"))


def _onnxruntime(cell: MeasuredCell, _code: ModelCode) -> dict[str, Any]:
    return {"exporter": _export(cell)}


def _qnn(cell: MeasuredCell, _code: ModelCode) -> dict[str, Any]:
    return {
        "exporter": _export(cell),
        "soc_model": int(cell.target.options.get("soc_model", _QNN_SOC_MODEL)),
        "quantized": cell.settings.dtype in {Dtype.A16W8, Dtype.A8W8},
        "activations": "QUInt16" if cell.settings.dtype is Dtype.A16W8 else "QUInt8",
    }


def _executorch(cell: MeasuredCell, _code: ModelCode) -> dict[str, Any]:
    constant = cell.preparation is None or Preparation.CONSTANT_INPUTS in cell.preparation
    return {"exporter": _export(cell), "attention": None, "constant": constant}


def _browser(cell: MeasuredCell, code: ModelCode) -> dict[str, Any]:
    if cell.target.backend == Backend.WEBGPU:
        flags = _BROWSER_FLAGS.get(str(cell.target.options.get("adapter", "software")), "--enable-unsafe-webgpu")
        return {**_onnxruntime(cell, code), "provider": {"name": "webgpu"}, "flags": flags}
    provider = {"name": "webnn", "deviceType": str(cell.target.options.get("device", "cpu"))}
    return {**_onnxruntime(cell, code), "provider": provider, "flags": "--enable-features=WebMachineLearningNeuralNetwork"}


_RUNTIMES: Final = {
    "torch": _torch,
    "openvino": _openvino,
    "onnxruntime": _onnxruntime,
    "qnn": _qnn,
    "browser": _browser,
    "executorch": _executorch,
}
