"""Conversion of a PyTorch model to an OpenVINO graph: by transformers' exporter, or by a trace."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from hwmatrix.errors import UnsupportedError
from hwmatrix.models.onnx_graph import INPUT_PREFIX, OUTPUT_PREFIX
from hwmatrix.models.outputs import call_options, flatten_outputs
from hwmatrix.targets.openvino.descriptor import TRACE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_MISSING: Final = re.compile(r"(?:No conversion rule found for operations|Conversion is failed for): *(.+)")
"""Matches the summary of OpenVINO's conversion failures: names such as ``aten::linalg_inv_ex``, separated by commas."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Converted:
    """An OpenVINO model, the reference's name of each of its outputs (None: not compared), and how it was made."""

    program: Any
    output_names: tuple[str | None, ...]
    method: str


def convert(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, only: str | None = None) -> Converted:
    """Convert by transformers' exporter, or by tracing if that fails. The second failure's message includes the first.

    ``only`` selects one of the two: ``transformers`` or ``trace``.

    Raises:
        UnsupportedError: both failed, and OpenVINO named the operators that it lacks.
    """
    if only == TRACE:
        return _trace(model, inputs, because="")
    if only is not None:
        return _export(model, inputs)
    try:
        return _export(model, inputs)
    except MemoryError:  # tracing needs just as much memory, and would hide the cause behind an error of its own
        raise
    except Exception as first:  # noqa: BLE001 - whatever an exporter raises, tracing is tried
        because = f"{type(first).__name__}: {_first_line(first)}"
        try:
            return _trace(model, inputs, because=f" (exporter failed: {because})")
        except Exception as second:
            second.add_note(f"transformers' exporter had failed before: {type(first).__name__}: {first}")
            operators = missing_operators(second) or missing_operators(first)
            if operators:
                told = f"OpenVINO has no conversion for {', '.join(operators)}"
                if missing_operators(second) and not missing_operators(first):
                    told += f" in a trace; transformers' exporter had failed: {because}"
                raise UnsupportedError(told, needs=operators) from second
            raise


def _export(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Converted:
    from transformers.exporters.configs import OpenVINOConfig
    from transformers.exporters.exporter_openvino import OpenVINOExporter
    from transformers.exporters.utils import get_leaf_tensors

    _without_cache(model)
    exporter: Any = OpenVINOExporter
    sample = dict(inputs)  # the exporter adds to it what it computes in advance
    program = exporter().export(model, sample, OpenVINOConfig(stateful=False)).program
    fit_inputs(program, inputs, {name: tensor for name, tensor in get_leaf_tensors(sample).items() if name not in inputs})
    names = tuple(next(iter(port.get_names()), None) for port in program.outputs)
    outputs = tuple(name.removeprefix(OUTPUT_PREFIX) if name is not None else None for name in names)
    return Converted(program=program, output_names=outputs, method="transformers OpenVINO exporter")


def fit_inputs(
    program: Any, inputs: Mapping[str, torch.Tensor], prepared: Mapping[str, torch.Tensor], states: Collection[str] = ()
) -> None:
    """Give inputs the bundle's names, and replace values that the exporter prepared by constants: an unset input holds arbitrary data.

    ``states`` are further inputs, which keep their names.

    Raises:
        ValueError: an input is not in the bundle and was not prepared.
    """
    from openvino import opset13

    for parameter in program.get_parameters():
        port = parameter.output(0)
        names = port.get_names()
        own = {name.removeprefix(INPUT_PREFIX) for name in names} & inputs.keys()
        if names & inputs.keys() or any(name.removeprefix(INPUT_PREFIX) in states for name in names):
            continue
        if own:
            port.get_tensor().set_names(own)
        elif found := names & prepared.keys():
            value = prepared[found.pop()].numpy().astype(port.get_element_type().to_dtype(), copy=False)
            port.replace(opset13.constant(value).output(0))
            program.remove_parameter(parameter)
        elif not port.get_target_inputs():  # a plain number, which the trace has inlined already
            program.remove_parameter(parameter)
        else:
            raise ValueError(f"the exported graph has inputs that the model does not have: {', '.join(sorted(names))}")


def _without_cache(model: torch.nn.Module) -> None:
    """Disable the cache for a next token, as in the reference. The exporter reads this from the configurations."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False


def _trace(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, because: str) -> Converted:
    """Convert with OpenVINO's own converter on a TorchScript trace. The outputs are a flat tuple in the order of the reference's names."""
    import openvino

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
    return Converted(program=program, output_names=tuple(names), method=f"openvino.convert_model{because}")


def input_names(program: Any) -> set[str]:
    """The names of a program's inputs."""
    return {name for port in program.inputs for name in port.get_names()}


def tensor(array: np.ndarray[Any, Any], port: Any) -> Any:
    """An array as a tensor of the element type of an input."""
    import openvino

    return openvino.Tensor(np.ascontiguousarray(array.astype(port.get_element_type().to_dtype(), copy=False)))


def missing_operators(error: BaseException) -> tuple[str, ...]:
    """Return the operators named by OpenVINO's own conversion failure; none for any other kind of exception.

    Only the first list counts: operators without a rule come before those whose conversion failed, often as a consequence.
    """
    if not any(kind.__name__ == "OpConversionFailure" for kind in type(error).__mro__):
        return ()
    found = _MISSING.search(str(error))
    return tuple(sorted(set(re.split(r",\s*", found[1].strip())))) if found else ()


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else "no message"
