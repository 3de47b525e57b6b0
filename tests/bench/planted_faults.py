"""Faults planted in trained models: how many the verdict finds, and what the fixed limit alone would have found.

    python tests/bench/planted_faults.py             print the table
    python tests/bench/planted_faults.py --write     put it into docs/precision-measured.md

Each fault is planted while a target loads the model of an intact bundle, whose reference outputs and held-out answers stay right: the
target's export or graph has the fault, as if its exporter or kernel were wrong. Every cell goes through ``runner.cell``, as in a run. The
clean repeats are the same cells without a fault. The models and tolerances are those of matrix.yaml. openvino and onnxruntime take 7
minutes, qnn another 20.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from sections import put

import hwmatrix
from hwmatrix.basics.clock import utc_now
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import RunFacts, Selection, make_plan
from hwmatrix.models import build, onnx_export
from hwmatrix.models.bundle import find_or_build, verify
from hwmatrix.records import Dtype, Isolation, Limits, Status
from hwmatrix.records.backends import OnnxUse
from hwmatrix.runner.cell import execute
from hwmatrix.runner.forked import run_forked
from hwmatrix.runner.job import CellJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from hwmatrix.records import CellPlan, Plan

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "precision-measured.md"
LIMITS: Final = Limits(timeout_s=600.0, memory_mb=8192)
FAULTS: Final = {
    "scale": ("a weight matrix is 5 % too large", ("bert", "llama", "t5", "vit", "whisper")),
    "heads": ("two attention heads are swapped", ("bert", "gpt2", "t5", "vit", "whisper")),
    "epsilon": ("the epsilon of all norms is 1e-3", ("bert", "llama", "t5", "vit", "whisper")),
    "position": ("one position is off by one", ("bert", "gpt2", "llama", "mixtral", "whisper")),
    "bias": ("a bias is dropped", ("bert", "gpt2", "vit", "wav2vec2", "whisper")),
    "mask": ("the causal mask is ignored", ("gpt2", "llama", "mixtral", "t5", "whisper")),
}
"""Six kinds of faults, each with the five models in which it is planted."""
CLEAN: Final = "none"
GOAL: Final = 28 / 30
"""The share of faults that must be found in float32."""
POSITION: Final = 5
"""The position that is off by one: within the sequence of every model."""
_OUTPUT_OF_ATTENTION: Final = re.compile(r"(o_proj|out_proj|attn\.c_proj|attention\.output\.dense|SelfAttention\.o)$")
_MLP: Final = re.compile(r"(intermediate\.dense|mlp\.c_fc|fc1|up_proj|intermediate_dense|DenseReluDense\.wi)$")


def _last(model: torch.nn.Module, pattern: re.Pattern[str]) -> torch.nn.Module:
    """The last module whose name matches."""
    return [module for name, module in model.named_modules() if pattern.search(name)][-1]


def _scale(model: Any) -> None:
    _last(model, _MLP).weight.mul_(1.05)


def _heads(model: Any) -> None:
    """Swap what the first two heads contribute: the inputs of the attention's output projection."""
    projection = _last(model, _OUTPUT_OF_ATTENTION)
    heads = next(getattr(model.config, name) for name in ("num_attention_heads", "n_head", "num_heads") if hasattr(model.config, name))
    weight = projection.weight if type(projection).__name__ == "Conv1D" else projection.weight.T  # by rows of inputs
    width = weight.shape[0] // heads
    weight[: 2 * width] = weight[: 2 * width].roll(width, 0)


def _epsilon(model: Any) -> None:
    changed = 0
    for module in model.modules():
        for name in ("eps", "variance_epsilon", "epsilon"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 1e-3)
                changed += 1
    assert changed, "no norm has an epsilon"


def _position(model: Any) -> None:
    """Give one position the rotation, or the row of the table, of the next."""
    rotary = [module for name, module in model.named_modules() if name.endswith("rotary_emb")]
    for module in rotary:
        module.forward = functools.partial(_rotated, module.forward)
    if not rotary:
        table = next(module for name, module in model.named_modules() if re.search(r"(position_embeddings|wpe|embed_positions)$", name))
        table.weight[POSITION] = table.weight[POSITION + 1].clone()


def _rotated(forward: Callable[..., Any], x: torch.Tensor, position_ids: torch.Tensor, *arguments: Any, **options: Any) -> Any:
    import torch

    one = (torch.arange(position_ids.shape[-1]) == POSITION).to(position_ids.dtype)
    return forward(x, position_ids + one, *arguments, **options)


def _bias(model: Any) -> None:
    _last(model, _MLP).bias.zero_()


PLANTED: Final[dict[str, Callable[[Any], None]]] = {
    "scale": _scale,
    "heads": _heads,
    "epsilon": _epsilon,
    "position": _position,
    "bias": _bias,
    "mask": lambda _: None,  # not in the model: see _without_mask
    CLEAN: lambda _: None,
}


@contextlib.contextmanager
def planted(fault: str, model_type: str) -> Iterator[None]:
    """While this lasts, every model that is loaded has the fault."""
    import torch

    plain = build.load_model

    def load_faulty(*arguments: Any, **options: Any) -> torch.nn.Module:
        model = plain(*arguments, **options)
        with torch.no_grad():
            PLANTED[fault](model)
        return model

    with contextlib.ExitStack() as patches:
        for module in ("hwmatrix.models.build", "hwmatrix.targets.openvino.target", "hwmatrix.targets.torch.device"):
            patches.enter_context(mock.patch.object(importlib.import_module(module), "load_model", load_faulty))
        if fault == "mask":
            patches.enter_context(_without_mask(model_type))
        yield


@contextlib.contextmanager
def _without_mask(model_type: str) -> Iterator[None]:
    """Let every token see all others. Without any mask, some implementations of attention are causal by themselves."""
    import torch

    code = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")

    def zeros(*, inputs_embeds: torch.Tensor, **_: Any) -> torch.Tensor:
        batch, length = inputs_embeds.shape[:2]
        return torch.zeros(batch, 1, length, length, dtype=inputs_embeds.dtype)

    with mock.patch.object(code, "create_causal_mask", zeros):
        yield


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The verdict on one cell, and whether its error exceeds the fixed limit."""

    fault: str
    model: str
    target: str
    dtype: Dtype
    status: str
    error_type: str | None
    relative_error: float | None
    excess: float | None
    limit: float
    message: str | None

    @property
    def found(self) -> bool:
        """Whether the target is called wrong. A ``precision_loss`` blames the precision instead."""
        return self.status == Status.MISMATCH and self.error_type != "precision_loss"

    @property
    def found_by_limit(self) -> bool:
        """Whether the fixed limit alone would have called it a mismatch."""
        return self.relative_error is None or not self.relative_error <= self.limit


def outcome(plan: Plan, cell: CellPlan, fault: str, cache: Path) -> Outcome:
    """Run one cell with a fault, in a child of its own."""
    model, target = plan.model_of(cell), plan.target(cell.target)
    end = run_forked(functools.partial(_run, plan, cell, fault, cache), limits=LIMITS)
    last = next((message for message in reversed(end.messages) if "verdict" in message), None)
    if last is None:
        raise SystemExit(f"{fault} in {model.name} on {target.name} ended without a verdict: {end.messages[-1:]} {end.log}")
    error, facts = last["error"] or {}, last["facts"]
    if last["verdict"] not in {Status.PASS, Status.MISMATCH}:
        raise SystemExit(f"{fault} in {model.name} on {target.name}: {last['verdict']}: {error}")
    tolerance = plan.tolerances[Dtype(facts.get("precision", cell.settings.dtype))]
    return Outcome(
        fault=fault,
        model=model.name,
        target=target.name,
        dtype=cell.settings.dtype,
        status=last["verdict"],
        error_type=error.get("type"),
        relative_error=facts.get("relative_error"),
        excess=facts.get("excess"),
        limit=tolerance.relative_error,
        message=error.get("message"),
    )


def _run(plan: Plan, cell: CellPlan, fault: str, cache: Path, send: Callable[[dict[str, Any]], None]) -> None:
    model, target = plan.model_of(cell), plan.target(cell.target)
    intact = find_or_build(model, cache)
    with planted(fault, model.architecture), tempfile.TemporaryDirectory(prefix="hwmatrix-planted-") as folder:
        path = shutil.copytree(intact.path, Path(folder) / intact.path.name)
        if target.onnx_use is not OnnxUse.NONE:
            for exporter in onnx_export.EXPORTERS:
                if isinstance(onnx_export.export_one(verify(path), Path(folder), exporter), onnx_export.OnnxExport):
                    break
        execute(CellJob(cell=cell, model=model, target=target, bundle=path, rule=None, tolerances=plan.tolerances), send)


def cells_of(targets: tuple[str, ...], matrix: Path) -> Plan:
    """The plan of the models on these targets."""
    facts = RunFacts(
        run_id="planted",
        created_at=utc_now(),
        command="planted_faults",
        hwmatrix_version=hwmatrix.__version__,
        commit=None,
        isolation=Isolation.NONE,
    )
    models = tuple(sorted({name for _, where in FAULTS.values() for name in where}))
    return make_plan(load(matrix), Selection(models=models, targets=targets, generation=False), facts)


def outcomes(plan: Plan, cache: Path, *, repeats: int) -> Iterator[Outcome]:
    """All faults in their models on every target and precision of the plan, and clean repeats of the same cells."""
    for fault, (_, models) in FAULTS.items():
        for cell in plan.cells:
            if cell.model in models:
                yield outcome(plan, cell, fault, cache)
    for cell in plan.cells:
        for _ in range(repeats):
            yield outcome(plan, cell, CLEAN, cache)


def table(found: list[Outcome]) -> str:
    """The Markdown table: a row for each target and precision."""
    rows = ["| target | precision | planted | found | by the fixed limit | clean repeats | called wrong | by the fixed limit |"]
    rows.append("|---" * 8 + "|")
    for target, dtype in dict.fromkeys((each.target, each.dtype) for each in found):
        here = [each for each in found if (each.target, each.dtype) == (target, dtype)]
        bad, clean = [each for each in here if each.fault != CLEAN], [each for each in here if each.fault == CLEAN]
        counts = [len(bad), sum(each.found for each in bad), sum(each.found_by_limit for each in bad)]
        counts += [len(clean), sum(each.found for each in clean), sum(each.found_by_limit for each in clean)]
        rows.append(f"| {target} | {dtype.value} | {' | '.join(map(str, counts))} |")
    missed = Counter(each.fault for each in found if each.fault != CLEAN and not each.found)
    rows += ["", "Not found: " + ("none." if not missed else "; ".join(f"{FAULTS[fault][0]}: {count}" for fault, count in missed.items()))]
    return "\n".join(rows)


def main() -> int:
    """Run all cells; print or write the table. Return 1 if fewer than 28 of 30 faults are found, or a clean cell is called wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/precision-measured.md")
    parser.add_argument("--targets", nargs="+", default=["openvino", "onnxruntime", "qnn"], help="targets of matrix.yaml that can run here")
    parser.add_argument("--matrix", type=Path, default=ROOT / "matrix.yaml")
    parser.add_argument("--cache", type=Path, help="a cache of bundles")
    parser.add_argument("--repeats", type=int, default=4, help="clean repeats of each cell")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="hwmatrix-planted-") as folder:
        plan = cells_of(tuple(arguments.targets), arguments.matrix)
        for each in outcomes(plan, arguments.cache or Path(folder), repeats=arguments.repeats):
            found.append(each)
            error = "not comparable" if each.relative_error is None else f"error {each.relative_error:.2g}"
            excess = "" if each.excess is None else f", excess {each.excess:.3g}"
            verdict = each.error_type or each.status
            sys.stdout.write(f"{each.target} {each.dtype.value} {each.model} {each.fault}: {verdict}, {error}{excess}\n")
            sys.stdout.flush()
    sys.stdout.write(f"\n{table(found)}\n")
    if arguments.write:
        put(PAGE, "planted-faults", table(found))
    in_float32 = [each.found for each in found if each.fault != CLEAN and each.dtype is Dtype.FLOAT32]
    missed = sum(in_float32) < GOAL * len(in_float32)
    return int(missed or any(each.found for each in found if each.fault == CLEAN))


if __name__ == "__main__":
    sys.exit(main())
