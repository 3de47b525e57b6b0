"""torch.compile for real: graphs, graph breaks with their places, recompilations. Each model in an interpreter of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.targets.inductor.compiler import found

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.skipif(found() is None, reason="no C++ compiler is installed here")]

SCRIPT = """
import dataclasses, json, sys
import torch
from hwmatrix.errors import CellFailure
from hwmatrix.targets.torch.compiling import Compiled

calls = []

kinds = [type(f"Kind{{number}}", (), {{"size": number}})() for number in range(12)]

def plus(x, kind):
    torch._dynamo.graph_break()
    return x + kind.size

class Model(torch.nn.Module):
    def forward(self, x):
        {body}

made = Compiled(Model())

def run():
    with torch.inference_mode():
        return made(x=torch.ones(2, 3)).tolist()

told = {{}}
try:
    made.compile(run)
    told = {{"result": run(), "first": dataclasses.asdict(made.compilation(None))}}
    for _ in range({runs}):
        run()
    told["again"] = dataclasses.asdict(made.compilation(run))
except CellFailure as failure:
    told["failure"] = [failure.error_type, str(failure)]
print(json.dumps(told))
"""


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Compile a model with this body of its function of ``x``, with an empty cache, and run it a few times."""

    def compile_it(body: str, *, runs: int = 1) -> dict[str, Any]:
        path = tmp_path / "model_code.py"
        path.write_text(SCRIPT.format(body=body, runs=runs), encoding="utf-8")
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    return compile_it


def test_a_plain_model_is_one_graph_and_its_cache_is_faster(compiled: Callable[..., dict[str, Any]]) -> None:
    told = compiled("return (x.sin() + 1).sum(-1)")
    assert told["result"] == pytest.approx([3 * (1 + 0.8414709848)] * 2)
    compile_ms = told["first"]["compile_ms"]
    counted = {"graphs": 1, "graph_breaks": 0, "break_reasons": [], "recompilations": 0}
    assert told["first"] == counted | {"compile_ms": compile_ms, "cached_compile_ms": None}
    assert told["again"] == told["first"] | {"cached_compile_ms": told["again"]["cached_compile_ms"]}
    assert 0 < told["again"]["cached_compile_ms"] < compile_ms, "the first one called a C++ compiler"


def test_a_graph_break_has_its_place_and_reason(compiled: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    told = compiled("return x * x.sum().item()")["first"]
    line = SCRIPT.splitlines().index("        {body}") + 1
    assert told["graph_breaks"] >= 1
    (reason,) = told["break_reasons"]
    assert reason.startswith(f"{tmp_path.name}/model_code.py:{line} in forward: ")
    assert "Tensor.item()" in reason


def test_a_model_that_changes_compiles_again_until_that_is_refused(compiled: Callable[..., dict[str, Any]]) -> None:
    told = compiled("calls.append(1); return x * len(calls)", runs=10)
    assert told["first"]["recompilations"] == 1
    error_type, message = told["failure"]
    assert error_type == "recompile_limit"
    assert message.startswith("each run compiled the model again, until torch.compile gave up after 8 graphs: ")
    assert "calls" in message, "what changes is named"


@pytest.mark.long
def test_a_function_for_too_many_kinds_of_objects_runs_uncompiled(compiled: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Such as the convolutions of EnCodec, whose weights' norms give each a class of its own."""
    told = compiled("for kind in kinds: x = plus(x, kind)\n        return x", runs=2)
    assert told["result"] == [[1 + sum(range(12))] * 3] * 2
    assert told["again"]["recompilations"] == 0, "later runs use what the first one compiled, though each says again what it did not"
    line = SCRIPT.splitlines().index("    torch._dynamo.graph_break()") + 1
    broken, uncompiled = told["first"]["break_reasons"]
    assert told["first"]["graph_breaks"] == 2
    assert broken.startswith(f"{tmp_path.name}/model_code.py:{line} in plus: Call to `torch._dynamo.graph_break()`")
    place = re.escape(f"{tmp_path.name}/model_code.py:{line} in torch_dynamo_resume_in_plus_at_{line}")
    found = re.fullmatch(rf"{place}: not compiled again after 8 times: (.*)", uncompiled)
    assert found is not None, uncompiled
    assert found[1].startswith("___check_type_id(kind), type=<class '__main__.Kind"), "what differs is named, without an address"
