"""Adapts a graph of transformers' OpenVINO exporter to the arguments of its model, as :mod:`hwmatrix.models.onnx_graph` does for ONNX."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.models.onnx_graph import INPUT_PREFIX, OUTPUT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch

MISSING: Final = re.compile(r"(?:No conversion rule found for operations|Conversion is failed for): *(.+)")
"""Matches the summary of OpenVINO's conversion failures: names such as ``aten::linalg_inv_ex``, separated by commas."""


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
        plain = {name.removeprefix(INPUT_PREFIX) for name in names}
        if names & inputs.keys() or plain & set(states):
            continue
        if own := plain & inputs.keys():
            port.get_tensor().set_names(own)
        elif found := plain & prepared.keys():
            value = prepared[found.pop()].numpy().astype(port.get_element_type().to_dtype(), copy=False)
            port.replace(opset13.constant(value).output(0))
            program.remove_parameter(parameter)
        elif not port.get_target_inputs():  # a plain number, which the trace has inlined already
            program.remove_parameter(parameter)
        else:
            raise ValueError(f"the exported graph has inputs that the model does not have: {', '.join(sorted(names))}")


def name_of(port: Any) -> str:
    """The name of an input or an output, that of the exporter if it has others too: a port's names are in no order.

    Raises:
        ValueError: it has no name.
    """
    return min(port.get_names(), key=lambda name: (not name.startswith((INPUT_PREFIX, OUTPUT_PREFIX)), name))  # type: ignore[no-any-return]


def without_telemetry() -> None:
    """Make the package openvino_telemetry unavailable, which OpenVINO can do without.

    It reports every conversion to its makers, from processes that it forks: that takes as long as converting a tiny model.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # None refuses the import
