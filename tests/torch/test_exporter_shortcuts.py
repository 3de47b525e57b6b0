"""The exporters' shortcuts for real: the same files without them, less work with them, and nothing left of them afterwards."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from hwmatrix.matrix.load import load  # noqa: E402 - after the check that its package is there
from hwmatrix.matrix.plan import RunFacts, Selection, make_plan  # noqa: E402 - as above
from hwmatrix.models import bundle as bundles  # noqa: E402 - as above
from hwmatrix.models import exporter_shortcuts, onnx_export  # noqa: E402 - as above
from hwmatrix.models.onnx_exporters import TORCH, TRANSFORMERS  # noqa: E402 - as above
from hwmatrix.records import Isolation, Size  # noqa: E402 - as above

if TYPE_CHECKING:
    from hwmatrix.models.bundle import Bundle

pytestmark = pytest.mark.torch
MATRIX = load(Path(__file__).parents[2] / "matrix.yaml")
IN_CHILDREN = """
import contextlib, os, pathlib, sys
from hwmatrix.models import bundle, exporter_imports, exporter_shortcuts, onnx_export

made, folder = (pathlib.Path(each) for each in sys.argv[1:])
made = bundle.verify(made)
exporter_imports.for_openvino()
left_out = []

def none():
    left_out.append(True)
    return contextlib.nullcontext()

for name in ("short", "long"):
    if name == "long":
        exporter_shortcuts.of_tracing = none
    child = os.fork()
    if not child:
        found = [onnx_export.export_one(made, folder / name, exporter) for exporter in ("openvino", "generation-openvino")]
        failed = any(isinstance(one, onnx_export.OnnxFailure) for one in found)
        os._exit(failed or len(left_out) != (2 if name == "long" else 0))
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def gpt2(shared_cache: Path) -> Bundle:
    facts = RunFacts(run_id="r", created_at="", command="", hwmatrix_version="", commit=None, isolation=Isolation.NONE)
    plan = make_plan(MATRIX, Selection(models=("gpt2",), targets=("cpu",), size=Size.TINY), facts)
    return bundles.find_or_build(plan.models[0], shared_cache / "bundles")


def files(folder: Path, *suffixes: str) -> dict[str, bytes]:
    """The contents of the files with these endings, by path."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.suffix in suffixes}
    assert found
    return found


@pytest.mark.parametrize("exporter", [TRANSFORMERS, TORCH, "generation"])
def test_the_graphs_are_the_same_without_shortcuts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpt2: Bundle, exporter: str) -> None:
    short = onnx_export.export_one(gpt2, tmp_path / "short", exporter)
    assert not isinstance(short, onnx_export.OnnxFailure), short
    left_out: list[bool] = []

    def none() -> contextlib.nullcontext[None]:
        left_out.append(True)
        return contextlib.nullcontext()

    monkeypatch.setattr(exporter_shortcuts, "of_onnx", none)
    onnx_export.export_one(gpt2, tmp_path / "long", exporter)
    assert left_out, "the exporter takes them"
    assert files(tmp_path / "long", ".onnx") == files(tmp_path / "short", ".onnx")


def test_openvino_s_graphs_are_the_same_without_shortcuts(tmp_path: Path, gpt2: Bundle) -> None:
    """In new processes, since OpenVINO numbers the nodes of a process."""
    pytest.importorskip("openvino")
    subprocess.run([sys.executable, "-c", IN_CHILDREN, str(gpt2.path), str(tmp_path)], check=True, timeout=300)
    assert files(tmp_path / "long", ".xml", ".bin") == files(tmp_path / "short", ".xml", ".bin")


def test_a_graph_is_compiled_when_it_is_called_or_its_code_is_read_and_not_when_it_changes() -> None:
    with exporter_shortcuts.compiling_what_is_read():
        module = torch.fx.symbolic_trace(torch.nn.ReLU())
        assert "_code" not in vars(module)
        assert module(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
        (node,) = [node for node in module.graph.nodes if node.op == "call_function"]
        node.target = torch.neg
        node.kwargs = {}
        module.recompile()
        assert "_code" not in vars(module)
        assert "neg" in module.code
        assert module(torch.tensor([-1.0, 2.0])).tolist() == [1.0, -2.0]
        module.recompile()
    assert module(torch.tensor([-1.0, 2.0])).tolist() == [1.0, -2.0], "also later"


def test_a_graph_without_code_has_the_arguments_of_the_traced_function() -> None:
    import inspect

    class Model(torch.nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return input_ids * attention_mask

    with exporter_shortcuts.compiling_what_is_read():
        module = torch.fx.symbolic_trace(Model())
        assert "_code" not in vars(module)
        assert list(inspect.signature(module.forward).parameters) == ["input_ids", "attention_mask"]
    assert "_code" in vars(module), "reading the method compiled it"


def test_rules_are_tried_where_their_operator_is_and_the_graph_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_ir = pytest.importorskip("onnx_ir")
    import onnx
    from onnxscript.optimizer import optimize_ir
    from onnxscript.rewriter import RewriteRule
    from onnxscript.rewriter._matcher import SimplePatternMatcher

    text = """<ir_version: 10, opset_import: ["" : 18]>
    agraph (float[4, 8] x, int64[4] ids) => (float[4, 8] y, float[8, 4] z) {
        wide = Cast <to = 1> (ids)
        one = Transpose <perm = [1, 0]> (x)
        back = Transpose <perm = [1, 0]> (one)
        y = Sigmoid (back)
        shape = Constant <value_ints = [4, 1]> ()
        column = Reshape (wide, shape)
        sum = Add (x, column)
        z = Transpose <perm = [1, 0]> (sum)
    }"""
    match, tried = SimplePatternMatcher.match, list[str]()

    def counted(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        tried.append(node.op_type)
        return match(self, model, graph, node, **options)

    def optimized() -> str:
        tried.clear()
        model = onnx_ir.serde.deserialize_model(onnx.parser.parse_model(text))
        optimize_ir(model)
        return onnx.printer.to_text(onnx_ir.serde.serialize_model(model))

    monkeypatch.setattr(SimplePatternMatcher, "match", counted)
    long, all_tried = optimized(), list(tried)
    own = RewriteRule.try_rewrite
    with exporter_shortcuts.trying_rules_of_the_operator():
        assert optimized() == long
    assert "one" not in long, "a rule was applied: two transpositions became none"
    assert 0 < len(tried) < len(all_tried) / 4
    assert {"Transpose", "Reshape"} <= set(tried)
    assert RewriteRule.try_rewrite is own, "as it was"


def test_other_versions_of_the_packages_work_without_shortcuts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    from onnxscript.rewriter import RewriteRule
    from torch.fx import traceback

    class Rule(RewriteRule):  # type: ignore[misc, unused-ignore]  # without types where onnxscript has none
        def __init__(self) -> None:
            """Without a pattern under the name that is known here."""

    monkeypatch.delattr(traceback, "NodeSource")
    monkeypatch.setattr(RewriteRule, "try_rewrite", lambda *_, **__: "tried")
    with exporter_shortcuts.of_onnx():
        assert Rule().try_rewrite(None, None, None) == "tried"
