"""Faults planted in kernels that multiply by rounded weights: how many the verdict finds.

    python tests/bench/rounded_faults.py             print the table
    python tests/bench/rounded_faults.py --write     put it into docs/precision-measured.md

A kernel's fault is imitated in the graph that it gets: the quantizer's graph stays intact, and is the one that is read back as float32
numbers, while the runtime executes a copy in which one weight is wrong. Every cell goes through ``runner.cell``, as in a run. The clean
repeats are the same cells without a fault. Bundles and ONNX exports come from the cache, or are made. ``--models`` and
``--targets`` and ``--dtypes`` run a part.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np
from sections import put

import hwmatrix
from hwmatrix.app.environment import read_environment
from hwmatrix.basics.clock import utc_now
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import RunFacts, Selection, make_plan
from hwmatrix.models import onnx_export
from hwmatrix.models.bundle import find_or_build
from hwmatrix.records import Dtype, Isolation, Limits, Status
from hwmatrix.runner.cell import execute
from hwmatrix.runner.forked import run_forked
from hwmatrix.runner.job import CellJob
from hwmatrix.targets.protocol import target_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hwmatrix.records import CellPlan, Plan

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "precision-measured.md"
LIMITS: Final = Limits(timeout_s=600.0, memory_mb=8192)
MODELS: Final = ("bert", "llama", "vit", "whisper", "t5")
CLEAN: Final = "none"
LARGER: Final = 1.25
"""How much larger a wrong scale is."""
FAULTS: Final = {
    "zero_point": "the zero point of a weight matrix is off by one",
    "scale": "one scale is a quarter too large",
    "nibbles": "the two 4-bit numbers of each byte change places",
    "group": "groups are read as groups of twice as many",
}
PLANTED: Final = {
    ("openvino", Dtype.INT4): tuple(FAULTS),
    ("openvino", Dtype.INT8): ("zero_point", "scale"),
    ("openvino", Dtype.A8W8): ("zero_point", "scale"),
    ("onnxruntime", Dtype.INT4): tuple(FAULTS),
    ("onnxruntime", Dtype.INT8_DYNAMIC): ("zero_point", "scale"),
    ("onnxruntime", Dtype.A8W8): ("zero_point", "scale"),
}
"""The faults of each target and precision. 8 bits have no nibbles and no groups."""


def wrong_integers(integers: np.ndarray[Any, Any], fault: str) -> np.ndarray[Any, Any]:
    """The integers of a weight as a faulty kernel reads them. A zero point that is one too large takes one off each."""
    if fault == "zero_point":
        return integers - 1
    if fault == "nibbles":
        return integers.reshape(-1, 2)[:, ::-1].reshape(integers.shape)
    return integers


def wrong_scales(scales: np.ndarray[Any, Any], fault: str) -> np.ndarray[Any, Any]:
    """The scales of a weight, (rows, groups), as a faulty kernel reads them."""
    changed = scales.copy()
    if fault == "scale":
        changed[len(changed) // 2, 0] *= LARGER
    elif fault == "group":
        changed = changed[:, np.arange(changed.shape[1]) // 2]
    return changed


def faulty_openvino(program: Any, fault: str) -> Any:
    """A copy of a graph by NNCF, in which the middle one of the weights of products has a fault."""
    import openvino

    from hwmatrix.targets.openvino import weights

    copy = program.clone()
    rounded = [pair for pair in weights._rounded(copy) if "MatMul" in _uses(pair[1]) and _has(fault, pair[0].get_output_shape(0))]
    weight, convert = rounded[len(rounded) // 2]
    integers = weights.integers(weight)
    kind, shape = weight.get_element_type(), openvino.Shape(list(integers.shape))
    low, high = {"u8": (0, 255), "i8": (-128, 127), "i4": (-8, 7)}[kind.get_type_name()]
    wrong = np.clip(wrong_integers(integers, fault), low, high).reshape(-1).tolist()
    weight.output(0).replace(openvino.op.Constant(kind, shape, wrong).output(0))
    at = convert
    while at.get_type_name() != "Multiply":
        at = next(iter(at.output(0).get_target_inputs())).get_node()
    scale = at.input_value(1).get_node()
    values = np.asarray(scale.data)
    changed = wrong_scales(values.reshape(values.shape[0], -1), fault).reshape(values.shape)
    form = openvino.Shape(list(values.shape))
    scale.output(0).replace(openvino.op.Constant(scale.get_element_type(), form, changed.astype(float).reshape(-1).tolist()).output(0))
    copy.validate_nodes_and_infer_types()
    return copy


def _has(fault: str, shape: Sequence[int]) -> bool:
    """Whether a weight of OpenVINO, (rows, groups, weights of a group), can have the fault: one group for each row cannot be read wrong."""
    return fault != "group" or (len(shape) == 3 and shape[1] > 1)


def _uses(operation: Any) -> list[str]:
    """The operators behind a weight, up to the product."""
    found: list[str] = []
    while operation.output(0).get_target_inputs() and len(found) < 6:
        operation = next(iter(operation.output(0).get_target_inputs())).get_node()
        found.append(operation.get_type_name())
    return found


def faulty_onnx(path: Path, fault: str) -> Path:
    """A copy of a graph by ONNX Runtime's tools, in which the middle one of the weights of products has a fault."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type in {"MatMulNBits", "MatMulInteger"} or _restores(node, known)]
    if fault == "group":  # one group for each row cannot be read wrong
        sizes = [{attribute.name: attribute.i for attribute in node.attribute} for node in products]
        products = [node for node, size in zip(products, sizes, strict=True) if size["K"] > size["block_size"]]
    node = products[len(products) // 2]

    def put_in(name: str, values: np.ndarray[Any, Any]) -> None:
        known[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), name))

    if node.op_type == "MatMulInteger":
        if fault == "zero_point":
            point = numpy_helper.to_array(known[node.input[3]])
            put_in(node.input[3], (point + 1).astype(point.dtype))
        else:
            scale = node.input[3].replace("zero_point", "scale")
            put_in(scale, (numpy_helper.to_array(known[scale]) * LARGER).astype(np.float32))
    elif node.op_type == "DequantizeLinear":
        scale, point = (numpy_helper.to_array(known[name]) for name in node.input[1:])
        if fault == "zero_point":
            put_in(node.input[2], np.asarray(point + 1).astype(point.dtype))
        else:
            put_in(node.input[1], np.asarray(scale * LARGER).astype(np.float32))
    else:
        packed = numpy_helper.to_array(known[node.input[1]])
        integers = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.int16)
        wrong = np.clip(wrong_integers(integers, fault), 0, 15).astype(np.uint8)
        put_in(node.input[1], wrong[..., 0] | (wrong[..., 1] << 4))
        scales = numpy_helper.to_array(known[node.input[2]])
        put_in(node.input[2], wrong_scales(scales.reshape(packed.shape[0], -1), fault).reshape(scales.shape))
    made = path.with_name("faulty.onnx")
    onnx.save(model, made)
    return made


def _restores(node: Any, known: dict[str, Any]) -> bool:
    """Whether a node restores the rounded weights of a product."""
    return node.op_type == "DequantizeLinear" and node.input[0] in known and len(known[node.input[0]].dims) > 1


@contextlib.contextmanager
def planted(fault: str) -> Iterator[None]:
    """While this lasts, the runtimes execute faulty copies of rounded graphs, and the intact ones are read back."""
    from hwmatrix.targets.onnx import in_float as onnx_in_float
    from hwmatrix.targets.onnx import onnxruntime as onnx_target
    from hwmatrix.targets.onnx import weights as onnx_weights
    from hwmatrix.targets.openvino import target as openvino_target
    from hwmatrix.targets.openvino import weights as openvino_weights

    intact: list[Any] = []

    def program(*arguments: Any) -> tuple[Any, str]:
        made, how = openvino_weights.reduced(*arguments)
        intact.append(made)
        return faulty_openvino(made, fault), how

    def graph(*arguments: Any) -> onnx_weights.ReducedGraph:
        made = onnx_weights.reduced(*arguments)
        intact.append(made.path)
        return dataclasses.replace(made, path=faulty_onnx(made.path, fault))

    with contextlib.ExitStack() as patches:
        if fault != CLEAN:
            for module, made, reader, in_float32 in (
                (openvino_target, program, openvino_target, openvino_weights.in_float32),
                (onnx_target, graph, onnx_in_float, onnx_weights.in_float32),
            ):
                patches.enter_context(mock.patch.object(module, "reduced", made))
                reads = functools.partial(lambda read, _, *more: read(intact[-1], *more), in_float32)
                patches.enter_context(mock.patch.object(reader, "in_float32", reads))
        yield


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The verdict on one cell."""

    fault: str
    model: str
    target: str
    dtype: Dtype
    verdict: str
    relative_error: float
    loss: float
    excess: float

    @property
    def found(self) -> bool:
        """Whether the target is called wrong. A ``precision_loss`` blames the precision instead."""
        return self.verdict == "mismatch"


def outcome(plan: Plan, cell: CellPlan, fault: str, cache: Path) -> Outcome:
    """Run one cell with a fault, in a child of its own."""
    end = run_forked(functools.partial(_run, plan, cell, fault, cache), limits=LIMITS)
    last = next((message for message in reversed(end.messages) if "verdict" in message), None)
    if last is None or last["verdict"] not in {Status.PASS, Status.MISMATCH}:
        raise SystemExit(f"{fault} in {cell.key}: {last or end.messages[-1:]} {end.log}")
    facts = last["facts"]
    return Outcome(
        fault=fault,
        model=cell.model,
        target=cell.target,
        dtype=cell.settings.dtype,
        verdict=(last["error"] or {}).get("type") or last["verdict"],
        relative_error=facts["relative_error"],
        loss=facts["loss"],
        excess=facts["excess"],
    )


def _run(plan: Plan, cell: CellPlan, fault: str, cache: Path, send: Callable[[dict[str, Any]], None]) -> None:
    bundle = find_or_build(plan.model_of(cell), cache)
    if cell.target == "onnxruntime":
        onnx_export.export_one(bundle, cache, next(iter(onnx_export.EXPORTERS)))
    with planted(fault):
        job = CellJob(
            cell=cell,
            model=plan.model_of(cell),
            target=plan.target(cell.target),
            bundle=bundle.path,
            rule=None,
            tolerances=plan.tolerances,
        )
        execute(job, send)


def plan_of(matrix: Path, models: tuple[str, ...], targets: tuple[str, ...]) -> Plan:
    """The plan of the models on both targets in the precisions that round weights."""
    facts = RunFacts(
        run_id="planted",
        created_at=utc_now(),
        command="rounded_faults",
        hwmatrix_version=hwmatrix.__version__,
        commit=None,
        isolation=Isolation.NONE,
    )
    return make_plan(load(matrix), Selection(suite="precisions", models=models, targets=targets), facts)


def table(found: list[Outcome]) -> str:
    """The Markdown table: a row for each target and precision."""
    rows = ["| target | precision | planted | found | least excess of those | clean repeats | called wrong | largest excess of those |"]
    rows.append("|---" * 8 + "|")
    for target, dtype in dict.fromkeys((each.target, each.dtype) for each in found):
        here = [each for each in found if (each.target, each.dtype) == (target, dtype)]
        bad, clean = [each for each in here if each.fault != CLEAN], [each for each in here if each.fault == CLEAN]
        least = min((each.excess for each in bad if each.found), default=0.0)
        most = max((each.excess for each in clean), default=0.0)
        counts = [f"{len(bad)} | {sum(each.found for each in bad)} | {least:,.3g}"]
        counts.append(f"{len(clean)} | {sum(each.found for each in clean)} | {most:,.3g}")
        rows.append(f"| {target} | {dtype.value} | {' | '.join(counts)} |")
    missed = [each for each in found if each.fault != CLEAN and not each.found]
    named = "; ".join(f"{FAULTS[each.fault]} ({each.model}, {each.target}, {each.dtype.value})" for each in missed)
    return "\n".join([*rows, "", f"Not found: {named or 'none'}."])


def main() -> int:
    """Run all cells; print or write the table. Return 1 if a fault is not found, or a clean cell is called wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/precision-measured.md")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--targets", nargs="+", default=tuple(dict.fromkeys(target for target, _ in PLANTED)))
    parser.add_argument("--dtypes", nargs="+", type=Dtype, default=tuple(dict.fromkeys(dtype for _, dtype in PLANTED)))
    parser.add_argument("--matrix", type=Path, default=ROOT / "matrix.yaml")
    parser.add_argument("--cache", type=Path, help="a cache of bundles [default: that of hwmatrix]")
    arguments = parser.parse_args()
    cache = arguments.cache or read_environment().cache / "bundles"
    plan, found = plan_of(arguments.matrix, tuple(arguments.models), tuple(arguments.targets)), []
    for target in plan.targets:
        target_class(target.backend).preload(sorted({model.model_class for model in plan.models}))
    for cell in plan.cells:
        dtype = cell.settings.dtype
        faults = PLANTED.get((cell.target, dtype)) if dtype in arguments.dtypes else None
        for fault in (*faults, CLEAN) if faults else ():
            each = outcome(plan, cell, fault, cache)
            found.append(each)
            sys.stdout.write(f"{cell.key} {fault}: {each.verdict}, error {each.relative_error:.3g}, excess {each.excess:.3g}\n")
            sys.stdout.flush()
    sys.stdout.write(f"\n{table(found)}\n")
    if arguments.write:
        put(PAGE, "rounded-faults", table(found))
    return int(any(each.found is (each.fault == CLEAN) for each in found))


if __name__ == "__main__":
    sys.exit(main())
