"""Generation in a page: what each step takes and keeps. The page is a double that counts what it was asked."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwmatrix.errors import UnsupportedError
from hwmatrix.models.bundle import GenerationPrompt
from hwmatrix.models.generation_export import GenerationExport, Graph, GraphInput
from hwmatrix.records import Prepared
from hwmatrix.targets.browser.cell import CellPage
from hwmatrix.targets.browser.generator import PageGenerator

TOKEN = 3
PLACED = ("Node(s) placed on [WebGpuExecutionProvider]. Number of nodes: 4", "Node(s) placed on [CPUExecutionProvider]. Number of nodes: 1")


def argument(own: str, *shape: int | None, state: bool = False, dtype: str = "float32") -> GraphInput:
    return GraphInput(name=f"in.{own}", own=own, shape=shape, dtype=dtype, state=state)


CACHE = argument("keys", 1, None, 2, state=True)
DECODE = Graph(
    component="decode",
    path=Path("decode.onnx"),
    inputs=(argument("input_ids", 1, None, dtype="int64"), CACHE, argument("encoder_outputs.h", 1, 4, state=True)),
    outputs={"out.logits": "logits", "out.keys": "keys", "out.unused": "unused"},
)
PREFILL = Graph(
    component="prefill",
    path=Path("prefill.onnx"),
    inputs=(argument("input_ids", 1, None, dtype="int64"),),
    outputs={"p.logits": "logits", "p.keys": "keys", "p.h": "encoder_outputs.h"},
)
PROMPT = GenerationPrompt(
    name="traced",
    inputs={},
    tokens=np.zeros((1, 3), np.int64),
    logits=np.zeros((3, 1, 7), np.float32),
    steps=({"input_ids": np.array([[5, 6]])}, {"input_ids": np.array([[7]])}, {"input_ids": np.array([[8]])}),
)


class Page(CellPage):
    """A page that prefers the same token at every step."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None, assets=folder, threads=1)
        self.called: list[tuple[str, dict[str, Any]]] = []

    def call(self, command: str, *, timeout_s: float | None = None, **argument: Any) -> Any:
        assert timeout_s is None
        self.called.append((command, argument))
        answers: dict[str, Any] = {
            "create": {"log": PLACED, "device": None, "graphs": []},
            "step": {"ms": 2.5, "tokens": [TOKEN]},
            "logits": [base64.b64encode(np.full(7, argument.get("step", 0), np.float32).tobytes()).decode()],
            "state": [
                {"name": "keys", "location": "gpu-buffer", "bytes": 2**20},
                {"name": "values", "location": "cpu", "bytes": 2**19},
                {"name": "encoder_outputs.h", "location": "gpu-buffer", "bytes": 2**22},
            ],
        }
        return answers.get(command)

    def asked(self, command: str) -> list[dict[str, Any]]:
        return [argument for name, argument in self.called if name == command]


def generator(folder: Path, *, prefill: Graph | None, place: str = "gpu-buffer") -> tuple[PageGenerator, Page]:
    page = Page(folder)
    graphs = [
        Graph(component=graph.component, path=folder / graph.path, inputs=graph.inputs, outputs=graph.outputs)
        for graph in (prefill, DECODE)
        if graph is not None
    ]
    argument = "input_ids"
    export = GenerationExport(
        prefill=graphs[0] if prefill else None, decode=graphs[-1], token=argument, prepared=Prepared(method="a test"), seconds=1.0
    )
    return PageGenerator(page, export, {"name": "webgpu"}, place=place), page


def ids(step: dict[str, Any]) -> list[int]:
    return list(np.frombuffer(base64.b64decode(step["inputs"]["in.input_ids"]["data"]), np.int64))


def test_only_what_the_next_step_needs_stays_on_the_device(tmp_path: Path) -> None:
    _, page = generator(tmp_path, prefill=PREFILL)
    kept = {each["name"]: each["kept"] for each in page.asked("create")}
    assert kept == {"prefill": {"p.keys": "gpu-buffer", "p.h": "gpu-buffer"}, "decode": {"out.keys": "gpu-buffer"}}
    _, page = generator(tmp_path, prefill=PREFILL, place="cpu")
    assert [each["kept"] for each in page.asked("create")] == [{}, {}]


def test_a_step_takes_the_state_of_the_last_one(tmp_path: Path) -> None:
    made, page = generator(tmp_path, prefill=PREFILL)
    kept: list[np.ndarray[Any, Any]] = []
    times = made.generate(PROMPT, lambda _, logits: kept.append(logits()), forced=True)
    steps = page.asked("step")
    assert page.asked("begin") == [{"first": {}}]
    assert [step["name"] for step in steps] == ["prefill", "decode", "decode"]
    assert [step["taken"] for step in steps] == [{}, *[{"in.keys": "keys", "in.encoder_outputs.h": "encoder_outputs.h"}] * 2]
    assert steps[1]["outputs"] == {"out.logits": "logits", "out.keys": "keys"}
    assert [ids(step) for step in steps] == [[5, 6], [7], [8]]
    assert times == (2_500_000,) * 3
    assert [float(logits[0, 0]) for logits in kept] == [0, 1, 2]


def test_free_generation_continues_with_the_preferred_token(tmp_path: Path) -> None:
    made, page = generator(tmp_path, prefill=PREFILL)
    made.generate(PROMPT, lambda *_: None, forced=False)
    assert [ids(step) for step in page.asked("step")] == [[5, 6], [TOKEN], [TOKEN]]


def test_without_a_prefill_each_prompt_begins_with_an_empty_cache(tmp_path: Path) -> None:
    made, page = generator(tmp_path, prefill=None)
    for _ in range(2):
        made.generate(PROMPT, lambda *_: None, forced=True)
    shapes = [{name: value["shape"] for name, value in begin["first"].items()} for begin in page.asked("begin")]
    assert shapes == [{"keys": [1, 0, 2], "encoder_outputs.h": [1, 4]}] * 2


def test_the_cache_is_counted_without_the_encoder_and_with_its_place(tmp_path: Path) -> None:
    made, _ = generator(tmp_path, prefill=PREFILL)
    assert made.cache_mb() == 1.5
    assert made.where() == "tensors of the cache: 1 of 2 in cpu, 1 of 2 in gpu-buffer"


def test_the_placement_is_that_of_both_sessions(tmp_path: Path) -> None:
    made, _ = generator(tmp_path, prefill=PREFILL)
    assert made.session.nodes.counts == {"WebGpu": 8, "CPU": 2}


def test_a_prompt_that_the_graph_does_not_take_is_unsupported(tmp_path: Path) -> None:
    fixed = Graph(component="prefill", path=PREFILL.path, inputs=(argument("input_ids", 1, 9, dtype="int64"),), outputs=PREFILL.outputs)
    made, page = generator(tmp_path, prefill=fixed)
    with pytest.raises(UnsupportedError) as caught:
        made.generate(PROMPT, lambda *_: None, forced=True)
    assert caught.value.error_type == "shape_specialized"
    assert page.asked("step") == []
