"""Intermediate values of an OpenVINO graph on a device, compared with those of the same graph computed without a plugin."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.errors import TraceError
from hwmatrix.records.traces import Step, Trace
from hwmatrix.targets.openvino.reference import NOT_COMPUTED, Reference, as_tensor, source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Array = np.ndarray[Any, Any]

MOST_BYTES: Final = 2**30
"""The limit in bytes for the values of one of the two runs. A cell's memory is limited, and its verdict does not need them."""

_THREADS: Final = "INFERENCE_NUM_THREADS"


def trace_graph(  # noqa: PLR0917 - all settings a target compiles with
    core: Any, device: str, config: Mapping[str, Any], program: Any, names: Sequence[str | None], inputs: Mapping[str, Array]
) -> Trace:
    """Run a graph on a device with all values as outputs, and compute it without a plugin.

    Args:
        core: the runtime.
        device: one of its devices.
        config: the properties that the target compiles with.
        program: the graph with the shapes of ``inputs``; it is modified.
        names: the reference's name of each output of the graph; None if it is not compared.
        inputs: arrays by the names of the graph's inputs.

    Raises:
        TraceError: the values take more than ``MOST_BYTES``.
        RuntimeError: the device fails on the graph, with OpenVINO's message.
    """
    nodes = [node for node in program.get_ordered_ops() if node.get_type_name() not in NOT_COMPUTED]
    ports = [port for node in nodes for port in node.outputs() if _comparable(port)]
    if sum(map(_bytes, ports)) > MOST_BYTES:
        raise TraceError(f"the values of all operators take more than {MOST_BYTES // 2**20} MiB")
    results = {name: _value(source(result.input(0))) for name, result in zip(names, program.get_results(), strict=True) if name}
    steps = tuple(_step(node, place) for place, node in enumerate(nodes))
    values = _on_device(core, device, config, program, ports, inputs)
    made = [(port.get_node().get_name(), port.get_index()) for port in ports]
    shapes = {each: values[_value(each)].shape for each in made}
    reference = Reference(inputs, shapes, lambda node, taken: _run_alone(core, device, node, taken))
    reference.run(program.get_ordered_ops())
    expected = {name: _array(reference.values[port.get_node().get_name(), port.get_index()]) for name, port in _named(ports).items()}
    borrowed = ", ".join(f"{count} {kind}" for kind, count in sorted(reference.borrowed.items()))
    against = "the same graph, operator by operator: OpenVINO's reference implementations, and PyTorch's where it has none"
    return Trace(
        steps=steps,
        values=values,
        expected=expected,
        results={name: value for name, value in results.items() if value in values},
        against=f"{against}; {borrowed} by the device alone" if borrowed else against,
    )


def _on_device(  # noqa: PLR0917 - as trace_graph
    core: Any, device: str, config: Mapping[str, Any], program: Any, ports: Sequence[Any], inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the value of every port, from one inference with all of them as outputs."""
    program.add_outputs(list(ports))  # ports that are outputs already are not added again
    made = [_value(source(result.input(0))) for result in program.get_results()]
    compiled = core.compile_model(program, device, _with_second_thread(config, program))
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        name = next(name for name in port.get_names() if name in inputs)
        request.set_tensor(name, as_tensor(inputs[name], port))
    request.infer()
    wanted = _named(ports)
    return {name: _array(request.get_output_tensor(number)) for number, name in enumerate(made) if name in wanted}


def _with_second_thread(config: Mapping[str, Any], program: Any) -> dict[str, Any]:
    """Return the properties, with a second thread if the graph is dynamic.

    With one thread, OpenVINO 2026.4's CPU plugin drops exceptions raised while a dynamic graph runs, and leaves stale data in the outputs.
    """
    threads = config.get(_THREADS)
    return {**config, _THREADS: str(max(2, int(threads)))} if threads is not None and program.is_dynamic() else dict(config)


def _run_alone(core: Any, device: str, node: Any, taken: Sequence[Any]) -> list[Any]:
    """Run one operator alone on the device, in float32, so that nothing can be fused with it."""
    import openvino

    arguments, parameters, given = [], [], []
    for port, tensor in zip(node.inputs(), taken, strict=True):
        made = port.get_source_output()
        if made.get_node().get_type_name() == "Constant":
            arguments.append(made)
            continue
        parameter = openvino.opset13.parameter(list(tensor.shape), tensor.element_type)
        arguments.append(parameter.output(0))
        parameters.append(parameter)
        given.append(tensor)
    node.set_arguments(arguments)
    compiled = core.compile_model(openvino.Model(node.outputs(), parameters, "alone"), device, {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    request.infer(given)
    return [openvino.Tensor(np.array(request.get_output_tensor(number).data)) for number in range(len(node.outputs()))]


def _bytes(port: Any) -> int:
    """The size of a value in bytes; 0 if it is only known at run time."""
    shape = port.get_partial_shape()
    return int(math.prod(shape.to_shape())) * int(port.get_element_type().size) if shape.is_static else 0


def _comparable(port: Any) -> bool:
    kind = port.get_element_type().to_string()
    return kind not in {"string", "dynamic"}


def _step(node: Any, place: int) -> Step:
    """Describe a node. An unnamed one gets its operator and position, since its default name counts all nodes of the process."""
    named = node.get_friendly_name()
    return Step(
        name=named if named != node.get_name() else f"{node.get_type_name()}_{place}",
        operator=node.get_type_name(),
        inputs=tuple(_value(source(port)) for port in node.inputs()),
        outputs=tuple(_value((node.get_name(), port.get_index())) for port in node.outputs()),
    )


def _named(ports: Sequence[Any]) -> dict[str, Any]:
    return {_value((port.get_node().get_name(), port.get_index())): port for port in ports}


def _value(made: tuple[str, int]) -> str:
    return f"{made[0]}:{made[1]}"


def _array(tensor: Any) -> Array:
    data = np.array(tensor.data)
    return data.astype(np.float32) if np.issubdtype(data.dtype, np.floating) else data
