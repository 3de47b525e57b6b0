"""Compares openvino's cells with int8 weights with NNCF's own recipe, and writes the section `int8-weights` of docs/benchmarks.md.

    python tests/bench/int8_weights.py --models bert gpt2 vit --cache FOLDER

A model of matrix.yaml in full size, with its own inputs: as the target openvino prepares it, and as the documentation of NNCF and OpenVINO
says: `openvino.convert_model` with an example input, `nncf.compress_weights`, `compile_model`. The last once with the properties of a cell,
and once with the plugin's own, which may round activations too. Each has a process of its own, since a graph's speed depends on what was
compiled before it. They run in turns, since a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "bench")]

from sections import put  # noqa: E402 - it lies beside, in no package

from hwmatrix.hardware.cpu import cpuinfo  # noqa: E402 - as above
from hwmatrix.matrix.load import load  # noqa: E402 - as above
from hwmatrix.matrix.plan import model_plan  # noqa: E402 - as above
from hwmatrix.models.build import load_model  # noqa: E402 - as above
from hwmatrix.models.bundle import find_or_build, verify  # noqa: E402 - as above
from hwmatrix.records import Dtype, Settings, Size  # noqa: E402 - as above
from hwmatrix.targets.openvino.target import OpenVino  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from hwmatrix.models.bundle import Bundle

OURS: Final = "hwmatrix"
RECIPE: Final = "NNCF, a cell's properties"
DEFAULTS: Final = "NNCF, the plugin's own properties"
ROUNDS: Final = 15
BLOCK_S: Final = 1.0
PAUSE_S: Final = 0.2
GOAL: Final = 0.03
"""By how much a cell may be slower than NNCF's recipe with the same properties: what two runs of one graph differ by."""

_program: Callable[[], object]
"""The program of a process."""


def main() -> int:
    """Measure, and write the section. Returns 1 if a ratio misses its goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["bert", "gpt2", "vit"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="a folder that keeps the bundles")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    spec, before = load(ROOT / "matrix.yaml").spec, os.getloadavg()[0]
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="hwmatrix-int8-") as folder:
        cache = arguments.cache or Path(folder)
        cache.mkdir(exist_ok=True)
        for name in arguments.models:
            found[name] = measured(find_or_build(model_plan(name, spec, Size.FULL), cache), arguments.threads)
    section, good = section_of(found, arguments.threads, before)
    sys.stdout.write(f"{section}\n")
    put(arguments.output, "int8-weights", section)
    return 0 if good else 1


def measured(bundle: Bundle, threads: int) -> dict[str, list[float]]:
    """By program, the median milliseconds of a forward pass in each turn. The order changes with every turn."""
    spawn = multiprocessing.get_context("spawn")
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with contextlib.ExitStack() as stack:
        pools = {
            name: stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn, initializer=_prepare, initargs=(name, bundle.path, threads)))
            for name in PROGRAMS
        }
        for pool in pools.values():
            pool.submit(_time, BLOCK_S).result()
        for turn in range(ROUNDS):
            names = list(PROGRAMS)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                time.sleep(PAUSE_S)
                found[name].append(pools[name].submit(_time, BLOCK_S).result())
    return found


def _prepare(name: str, path: Path, threads: int) -> None:
    global _program  # noqa: PLW0603 - a process has one, made once
    torch.set_num_threads(threads)
    _program = PROGRAMS[name](verify(path), threads)


def _time(seconds: float) -> float:
    times, end = [], time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        _program()
        times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times)


def of_a_cell(bundle: Bundle, threads: int) -> Callable[[], object]:
    """The target openvino with int8 weights."""
    target = _target(Dtype.INT8, threads)
    target.check()
    target.load(bundle)
    target.prepare(bundle.input_arrays())
    return target.run


def by_nncf(bundle: Bundle, threads: int) -> Callable[[], object]:
    """NNCF's recipe, compiled with the properties of a cell."""
    target = _target(Dtype.INT8, threads)
    target.check()
    return _recipe(bundle, target._config())


def by_nncf_and_defaults(bundle: Bundle, threads: int) -> Callable[[], object]:
    """NNCF's recipe, compiled as by a user who only chooses the threads."""
    return _recipe(bundle, {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(threads)})


PROGRAMS: Final = {OURS: of_a_cell, RECIPE: by_nncf, DEFAULTS: by_nncf_and_defaults}


def _target(dtype: Dtype, threads: int) -> OpenVino:
    return OpenVino(settings=Settings(dtype=dtype, batch=1, sequence_length=16, threads=threads), options={"device": "CPU"})


def _recipe(bundle: Bundle, config: dict[str, str]) -> Callable[[], object]:
    import nncf
    import openvino

    inputs: dict[str, np.ndarray[Any, Any]] = dict(bundle.input_arrays())
    model = load_model(bundle.model_dir, bundle.model_class, Dtype.FLOAT32)
    model.config.use_cache = False
    program = openvino.convert_model(model, example_input={name: torch.from_numpy(array) for name, array in inputs.items()})
    program.reshape({port: list(_given(inputs, port).shape) for port in program.inputs})
    compiled = openvino.Core().compile_model(nncf.compress_weights(program, mode=nncf.CompressWeightsMode.INT8_ASYM), "CPU", config)
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        request.set_tensor(port, openvino.Tensor(_given(inputs, port)))
    return lambda: request.infer()  # noqa: PLW0108 - not the bound method: as a user calls it


def _given(inputs: dict[str, np.ndarray[Any, Any]], port: Any) -> np.ndarray[Any, Any]:
    """The input of a port. It may have names of the traced program besides."""
    (name,) = port.get_names() & inputs.keys()
    return inputs[name]


def section_of(found: dict[str, dict[str, list[float]]], threads: int, before: float) -> tuple[str, bool]:
    """The section, and whether every ratio meets its goal."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("openvino", "nncf", "torch", "transformers"))
    lines = [
        "## int8 weights on openvino, beside NNCF's own recipe",
        "",
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {cpuinfo().get('model name', platform.processor())}, {threads} thread(s), load average",
        f"{before:.1f} before; {versions}.",
        "Full size, batch 1, the inputs of matrix.yaml; milliseconds of a forward pass: the median of",
        f"{ROUNDS} turns. A ratio is the median of the turns' ratios, with the quarter above and below it.",
        "With its own properties, the plugin may compute in bfloat16 and round activations where the processor gains from that,",
        "as in a target with",
        "[`precision_hints: false`](targets/openvino.md#precision).",
        "",
        f"| model | {OURS} | {RECIPE} | ratio | {DEFAULTS} | ratio |",
        "|---|---|---|---|---|---|",
    ]
    good = True
    for model, times in found.items():
        row = [model, f"{statistics.median(times[OURS]):.1f}"]
        for name in (RECIPE, DEFAULTS):
            ratios = [mine / other for mine, other in zip(times[OURS], times[name], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            row += [f"{statistics.median(times[name]):.1f}", f"{middle:.2f} ({low:.2f} to {high:.2f})"]
            good &= name != RECIPE or middle <= 1 + GOAL
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", f"Goal: at most {1 + GOAL:.2f} times NNCF's recipe with a cell's properties: {'yes' if good else '**no**'}."]
    return "\n".join(lines), good


if __name__ == "__main__":
    sys.exit(main())
