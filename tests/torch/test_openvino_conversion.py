"""Conversion to OpenVINO: what the exporter adds and renames, proved by running the graph; what is told when nothing converts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from hwmatrix.models.openvino_graph import fit_inputs
from hwmatrix.targets.openvino.target import OpenVino

pytest.importorskip("openvino")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def parameter(name: str) -> Any:
    from openvino import opset13

    made = opset13.parameter([3], np.float32, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


def program(parameters: list[Any], result: Any) -> Any:
    import openvino

    return openvino.Model([result], parameters, "graph")


def run(graph: Any, feed: dict[str, Any]) -> list[float]:
    import openvino

    compiled = openvino.compile_model(graph, "CPU")
    return list(compiled(feed)[0])


X = torch.tensor([1.0, 2.0, 3.0])


def test_what_the_exporter_computed_in_advance_is_a_constant() -> None:
    from openvino import opset13

    taken, positions = parameter("pixel_values"), parameter("position_ids")
    graph = program([taken, positions], opset13.add(taken, positions))
    fit_inputs(graph, {"pixel_values": X}, {"position_ids": torch.tensor([10.0, 20.0, 30.0])})
    assert [port.get_any_name() for port in graph.inputs] == ["pixel_values"]
    assert run(graph, {"pixel_values": X.numpy()}) == [11, 22, 33]


def test_an_input_gets_its_own_name_again() -> None:
    from openvino import opset13

    taken = parameter("input.height")
    graph = program([taken], opset13.add(taken, taken))
    fit_inputs(graph, {"height": X}, {})
    assert run(graph, {"height": X.numpy()}) == [2, 4, 6]


def test_an_input_that_nothing_reads_goes() -> None:
    from openvino import opset13

    taken, number = parameter("x"), parameter("max_seqlen")
    graph = program([taken, number], opset13.add(taken, taken))
    fit_inputs(graph, {"x": X}, {})
    assert [port.get_any_name() for port in graph.inputs] == ["x"]


def test_an_input_that_nobody_can_set_is_refused() -> None:
    from openvino import opset13

    taken, cache = parameter("x"), parameter("cache")
    graph = program([taken, cache], opset13.add(taken, cache))
    with pytest.raises(ValueError, match="inputs that the model does not have: cache"):
        fit_inputs(graph, {"x": X}, {})


CONVERSIONS = """
import openvino
import torch
from hwmatrix.errors import UnsupportedError
from hwmatrix.models.openvino_conversion import by_exporter, convert


class Bessel(torch.nn.Module):
    def forward(self, x):
        return {"y": torch.special.bessel_j0(x) if bool((x > 0).any()) else x}


try:
    convert(Bessel(), {"x": torch.ones(3)})
except UnsupportedError as error:
    print(error.needs, error)


class Repeated(torch.nn.Module):
    def forward(self, x, sizes):
        for _ in range(int(sizes[0])):
            x = x + x
        return {"y": x}


inputs = {"x": torch.arange(2.0), "sizes": torch.tensor([3])}
for way in (by_exporter, convert):
    converted = way(Repeated(), inputs)
    compiled = openvino.Core().compile_model(converted.program, "CPU")
    ports = [port.get_any_name() for port in compiled.inputs]
    print(converted.prepared.method, converted.output_names, ports, compiled([inputs["x"].numpy()])[0])
"""
"""A model that depends on its data, which an export cannot follow and a trace does, with an operator that OpenVINO lacks; and one that
depends on its sizes alone."""


@pytest.fixture(scope="module")
def conversions() -> str:
    """What a process of its own, as a cell is, prints: converters set the root logger up anew, and leave threads behind."""
    return subprocess.run([sys.executable, "-c", CONVERSIONS], check=True, capture_output=True, text=True, timeout=300).stdout


def test_a_model_that_depends_on_its_sizes_is_exported_with_the_sizes_held(conversions: str) -> None:
    told = "transformers OpenVINO exporter, with constant sizes ('y',) ['x'] [0. 8.]"
    assert conversions.splitlines()[-2:] == [told, told]


def test_an_operator_that_a_trace_lacks_is_told_with_what_the_exporter_had_failed_with(conversions: str) -> None:
    operator = "aten::special_bessel_j0"
    assert f"('{operator}',) OpenVINO has no conversion for {operator} in a trace; transformers' exporter had failed: " in conversions
    assert "data-dependent" in conversions


def test_conversions_are_reported_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)
    OpenVino.preload(())
    with pytest.raises(ImportError):
        import openvino_telemetry  # noqa: F401
