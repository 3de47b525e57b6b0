"""The graphs of prefill and decoding, as a manifest describes them: their arguments, their states, and the lengths that they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwmatrix.errors import UnsupportedError
from hwmatrix.models import generation_export

PAST = {"name": "input.past.keys", "own": "past.keys", "shape": [None, 4, None, 8], "dtype": "float32", "state": True}
IDS = {"name": "input_ids", "own": "input_ids", "shape": [None, None], "dtype": "int64", "state": False}
DECODE = {"file": "decode.onnx", "inputs": [IDS, PAST], "outputs": {"logits": "logits", "output.past.keys": "past.keys"}}
PREFILL = {"file": "prefill.onnx", "inputs": [IDS | {"shape": [None, 16]}], "outputs": {"logits": "logits", "past.keys": "past.keys"}}


def export(**graphs: Any) -> generation_export.GenerationExport:
    return generation_export.read(Path("/x"), {"graphs": graphs, "token": "input_ids", "method": "m", "preparation": [], "seconds": 1.0})


def test_one_graph_processes_prompts_with_an_empty_cache() -> None:
    one = export(decode=DECODE)
    assert one.graphs == (one.decode,) == (one.graph_of(0),) == (one.graph_of(1),)
    state = one.first_state(rows=3)
    assert {name: (array.shape, array.dtype) for name, array in state.items()} == {"past.keys": ((3, 4, 0, 8), np.float32)}
    assert one.states == {"past.keys"}


def test_a_graph_of_its_own_makes_the_first_state() -> None:
    two = export(prefill=PREFILL, decode=DECODE)
    assert [graph.path for graph in two.graphs] == [Path("/x/prefill.onnx"), Path("/x/decode.onnx")]
    assert [two.graph_of(step).component for step in (0, 1, 2)] == ["prefill", "decode", "decode"]
    assert two.first_state(rows=1) == {}


def test_a_step_gives_the_arguments_and_not_the_state() -> None:
    given = {"input_ids": np.zeros((1, 1), np.int64), "other": np.zeros(1)}
    assert set(export(decode=DECODE).decode.feed(given)) == {"input_ids"}


@pytest.mark.parametrize("shape", [(1, 8), (1, 16, 1)])
def test_a_length_that_tracing_fixed_is_refused_by_name(shape: tuple[int, ...]) -> None:
    prefill = export(prefill=PREFILL, decode=DECODE).graph_of(0)
    assert set(prefill.feed({"input_ids": np.zeros((5, 16), np.int64)})) == {"input_ids"}
    with pytest.raises(UnsupportedError, match=r"exported prefill takes input_ids of the shape \[None, 16\] only") as refused:
        prefill.feed({"input_ids": np.zeros(shape, np.int64)})
    assert refused.value.error_type == "shape_specialized"


def test_an_argument_that_a_step_lacks_is_named() -> None:
    with pytest.raises(UnsupportedError, match="exported decode takes input_ids, which this step does not have"):
        export(decode=DECODE).decode.feed({})


def test_a_manifest_without_decoding_is_broken() -> None:
    with pytest.raises(KeyError, match="decode"):
        export(prefill=PREFILL)
