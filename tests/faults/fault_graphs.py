"""ONNX exports of models that misbehave: the graph of a good one, amended, lost or damaged.

Targets that execute exports never run a model's own code in a cell, so that what goes wrong there must stand in the graph.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hwmatrix.models import folder
from hwmatrix.models.folder import MANIFEST
from hwmatrix.models.onnx_export import MODEL_FILE, ONNX_DIR
from hwmatrix.records.bundle_index import INDEX, read_index

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onnx import GraphProto, NodeProto

OUTPUT: Final = "last_hidden_state"
HIDDEN: Final = "hidden_before_the_fault"
"""What the model computes before its fault: (1, 16, 16), float32."""
TOO_MANY: Final = 1_072_500_000
"""So many float32 take 4.29 GB, which is less than 2 to the 32: a size that WebAssembly knows, and cannot have beside itself."""
ENDLESS: Final = 2**62
SIDE: Final = 4096
PRODUCTS: Final = 200
"""Matrix products of 4096 by 4096: 27 TFLOP, minutes on any processor, and 64 MiB for each matrix."""


def never_ends(graph: GraphProto) -> None:
    """A loop over integers, which no accelerator takes: the thread that runs the session does nothing else any more."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Add", ["count", "one"], ["counted"])],
        "body",
        [_scalar("turn", TensorProto.INT64), _scalar("go", TensorProto.BOOL), _scalar("count", TensorProto.INT64)],
        [_scalar("go_on", TensorProto.BOOL), _scalar("counted", TensorProto.INT64)],
        [_constant("one", np.int64(1))],
    )
    loop = helper.make_node("Loop", ["turns", "always", "first"], ["count_at_last"], body=body)
    _extend(graph, [loop], turns=np.int64(ENDLESS), always=np.array(1, dtype=bool), first=np.int64(0))
    _output_plus(graph, "count_at_last")


def computes_for_minutes(graph: GraphProto) -> None:
    """Products of large matrices, which accelerators take as a whole."""
    nodes = [
        helper.make_node("Reshape", [HIDDEN, "tall"], ["column"]),
        helper.make_node("Reshape", [HIDDEN, "flat"], ["row"]),
        helper.make_node("MatMul", ["column", "row"], ["square"]),
        helper.make_node("Tile", ["square", "times"], ["product_0"]),
        *(helper.make_node("MatMul", [f"product_{n}", f"product_{n}"], [f"product_{n + 1}"]) for n in range(PRODUCTS)),
        helper.make_node("ReduceMean", [f"product_{PRODUCTS}"], ["mean"], keepdims=0),
    ]
    shapes = {"tall": np.array([256, 1]), "flat": np.array([1, 256]), "times": np.array([SIDE // 256, SIDE // 256])}
    _extend(graph, nodes, **shapes)
    _output_plus(graph, "mean")


def wants_too_much(graph: GraphProto) -> None:
    """A tensor of 4.29 GB, whose size is not known before the model runs."""
    nodes = [
        helper.make_node("ReduceMin", ["input_ids"], ["least"], keepdims=0),
        helper.make_node("Mul", ["least", "no"], ["nothing"]),
        helper.make_node("Add", ["nothing", "many"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("ReduceMax", ["zeros"], ["most"], keepdims=0),
    ]
    _extend(graph, nodes, no=np.array([0]), many=np.array([TOO_MANY]))
    _output_plus(graph, "most")


def lacks_a_kernel(graph: GraphProto) -> None:
    """ImageDecoder: an operator of the standard for which no build of ONNX Runtime that is tested has a kernel."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["bytes"], to=TensorProto.UINT8),
        helper.make_node("Reshape", ["bytes", "flat"], ["file"]),
        helper.make_node("ImageDecoder", ["file"], ["image"]),
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels"], ["mean"], keepdims=0),
    ]
    _extend(graph, nodes, flat=np.array([-1]))
    _output_plus(graph, "mean")


def uses_det(graph: GraphProto) -> None:
    """A determinant: ONNX Runtime has it on processors only."""
    _extend(graph, [helper.make_node("Det", [HIDDEN], ["determinant"])])
    _output_plus(graph, "determinant")


def adds_a_half(graph: GraphProto) -> None:
    """Numbers that are wrong before any target: a half more than the model's."""
    _extend(graph, [helper.make_node("Add", [HIDDEN, "half"], [OUTPUT])], half=np.float32(0.5))


def amended(change: Callable[[GraphProto], None]) -> Callable[[Path], None]:
    """What gives an export's folder a changed graph, and a manifest that is right again."""

    def amend(export: Path) -> None:
        model = onnx.load(export / MODEL_FILE)
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [HIDDEN if name == OUTPUT else name for name in names]
        change(model.graph)
        onnx.checker.check_model(model)
        onnx.save(model, export / MODEL_FILE)
        manifest = json.loads((export / MANIFEST).read_bytes())
        folder.describe(export, manifest)

    return amend


def described_otherwise(name: str, change: Callable[[dict[str, str]], dict[str, str]]) -> Callable[[Path], None]:
    """What changes the own names of the outputs of the graphs with which a model generates: the export with this name."""

    def amend(export: Path) -> None:
        if export.name != name:
            return
        manifest = json.loads((export / MANIFEST).read_bytes())
        for graph in manifest["graphs"].values():
            graph["outputs"] = change(graph["outputs"])
        folder.describe(export, manifest)

    return amend


def lost(export: Path) -> None:
    """Nothing says any more that there is an export."""
    (export / MANIFEST).unlink()


def damaged(export: Path) -> None:
    """Another file than the one that was made."""
    (export / MODEL_FILE).write_bytes(b"not a graph")


def add_variants(bundles: Path, cache: Path, of: str, variants: dict[str, Callable[[Path], None] | None]) -> None:
    """Add models to the index of bundles that are the model ``of``, but for what is done to each of its exports (None: nothing).

    A variant has a folder of its own in the cache, with a copy of the bundle and of its exports.
    """
    entries = list(read_index(bundles / INDEX).values())
    (good,) = [entry for entry in entries if entry.model == of]
    assert good.key is not None
    for number, (name, change) in enumerate(variants.items()):
        place = f"variant-{number}"
        shutil.copytree(cache / good.key, cache / place / good.key)
        shutil.copytree(cache / ONNX_DIR / good.key, cache / place / ONNX_DIR / good.key)
        exports = sorted(path for path in (cache / place / ONNX_DIR / good.key).iterdir() if path.is_dir())
        assert exports
        for export in exports if change is not None else ():
            change(export)
        entries.append(dataclasses.replace(good, model=name, key=f"{place}/{good.key}"))
    index = json.loads((bundles / INDEX).read_bytes())
    (bundles / INDEX).write_text(json.dumps(index | {"bundles": [dataclasses.asdict(entry) for entry in entries]}), encoding="utf-8")


def _extend(graph: GraphProto, nodes: list[NodeProto], **constants: Any) -> None:
    graph.node.extend(nodes)
    graph.initializer.extend(_constant(name, value) for name, value in constants.items())


def _output_plus(graph: GraphProto, name: str) -> None:
    """The output is what the model computes, and nought times a value: the numbers stay right where they come out at all."""
    nodes = [
        helper.make_node("Cast", [name], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["as_float", "nought"], ["nothing_at_all"]),
        helper.make_node("Add", [HIDDEN, "nothing_at_all"], [OUTPUT]),
    ]
    _extend(graph, nodes, nought=np.float32(0))


def _constant(name: str, value: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def _scalar(name: str, element: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, ())
