"""Compares the times of generation cells with those of other programs, and writes the section `generation` of docs/benchmarks.md.

Run it with ``nox -s bench_generation`` on an idle machine; the load average is recorded with the numbers. A model of matrix.yaml in full
size generates from the same weights: with the generators of the targets cpu, openvino and onnxruntime, with `generate` of transformers, in
plain loops over the same graphs, in ONNX Runtime GenAI, and in OpenVINO GenAI, which reports its own times (PerfMetrics). Each program has
a process of its own, since a graph's speed in a process with several depends on which was compiled first. A program and the target that
it is compared with run one right after the other, since a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import onnxruntime
import openvino
import torch

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "bench")]

from sections import put  # noqa: E402 - it lies beside, in no package

from hwmatrix.hardware.cpu import cpuinfo  # noqa: E402 - as above
from hwmatrix.matrix.load import load  # noqa: E402 - as above
from hwmatrix.matrix.plan import model_plan  # noqa: E402 - as above
from hwmatrix.models import onnx_export  # noqa: E402 - as above
from hwmatrix.models.bundle import GenerationPrompt, find_or_build, verify  # noqa: E402 - as above
from hwmatrix.models.generation_export import BEAMS, LOGITS, GenerationExport  # noqa: E402 - as above
from hwmatrix.models.onnx_export import FOR_OPENVINO  # noqa: E402 - as above
from hwmatrix.models.onnx_graph import INPUT_PREFIX, OUTPUT_PREFIX  # noqa: E402 - as above
from hwmatrix.records import Dtype, Settings, Size  # noqa: E402 - as above
from hwmatrix.targets.onnx.generator import OnnxGenerator  # noqa: E402 - as above
from hwmatrix.targets.openvino.generator import OpenVinoGenerator  # noqa: E402 - as above
from hwmatrix.targets.torch.cpu import TorchCpu  # noqa: E402 - as above

if TYPE_CHECKING:
    from hwmatrix.models.bundle import Bundle

Times = tuple[float, float]
"""The time to the first token and the time per further token, in milliseconds."""
Pair = tuple[Times, Times]
"""The times of a target, and those of another program right before or after it."""
Generated = tuple[Times, list[int]]
"""The times, and the tokens."""
Program = Callable[[GenerationPrompt], Generated]
ONNX: Final = "generation"
PLAIN: Final = "plain loop"
EXPORTS: Final = (ONNX, FOR_OPENVINO)
GENERATED: Final = 24
"""New tokens after each prompt."""
ROUNDS: Final = 16
PAUSE_S: Final = 0.3
GOAL: Final = 0.03
GOAL_OF_BEST: Final = 0.05
"""How much longer a token of the fastest target may take than one of the fastest other program."""
_ORDINARY: Final = range(1, 255)
"""Tokens of the prompts: any but the model's special one."""


def main() -> int:
    """Measure, and write the section. Returns 1 if a ratio misses its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama", help="a decoder of matrix.yaml whose cache is keys and values")
    parser.add_argument("--prompts", nargs="+", type=int, default=[16, 128], help="tokens of the prompts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=Path, help="a folder that keeps the bundle and its exports")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="hwmatrix-generation-") as folder:
        cache = arguments.cache or Path(folder) / "cache"
        cache.mkdir(exist_ok=True)
        plan = model_plan(arguments.model, load(ROOT / "matrix.yaml").spec, Size.FULL)
        bundle = find_or_build(dataclasses.replace(plan, new_tokens=4), cache)  # else there is nothing to export for
        for export in EXPORTS:
            exported(bundle, cache, export)
        with contextlib.ExitStack() as stack:
            given = (bundle.path, Path(folder), arguments.threads)
            programs = {name: stack.enter_context(Worker(name, *given)) for name in PROGRAMS}
            found = {length: measured(programs, length) for length in arguments.prompts}
    section, good = section_of(arguments, bundle, found, before)
    sys.stdout.write(f"{section}\n")
    put(arguments.output, "generation", section)
    return 0 if good else 1


class Worker:
    """A process with one program."""

    def __init__(self, name: str, bundle: Path, folder: Path, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, name, bundle, folder, threads), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def __call__(self, length: int) -> Generated:
        """What follows a prompt of this length, generated for the second time in a row."""
        self._pipe.send(length)
        while not self._pipe.poll(1):
            if not self._process.is_alive():
                raise SystemExit(f"{self._process.name} ended with {self._process.exitcode}")
        made: Generated = self._pipe.recv()
        return made


def serve(pipe: Any, name: str, path: Path, folder: Path, threads: int) -> None:
    """Make a program, and answer lengths of prompts with times and tokens."""
    program = PROGRAMS[name](verify(path), folder, threads)
    while True:
        prompt = prompt_of(pipe.recv())
        program(prompt)
        pipe.send(program(prompt))


def exported(bundle: Bundle, cache: Path, export: str) -> GenerationExport:
    """An export that generates, of one graph.

    Raises:
        SystemExit: there is none.
    """
    made = onnx_export.export_one(bundle, cache, export)
    if not isinstance(made, GenerationExport) or len(made.graphs) > 1:
        raise SystemExit(f"{export}: there is no single graph that generates: {made}")
    return made


def config_of(threads: int) -> dict[str, str]:
    """OpenVINO's properties in a cell."""
    return {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": str(threads)}


def session_of(path: Path, threads: int) -> Any:
    """A session as in a cell."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def cpu_target(bundle: Bundle, _: Path, threads: int) -> Program:
    """The generator of the target cpu."""
    torch.set_num_threads(threads)
    target = TorchCpu(settings=Settings(dtype=Dtype.FLOAT32, batch=1, sequence_length=16, threads=threads), options={})
    target.load_generator(bundle)
    target.prepare_generator(prompt_of(1))
    return lambda prompt: timed(target, prompt)


def transformers_generate(bundle: Bundle, _: Path, threads: int) -> Program:
    """`generate` of transformers with a streamer, as a user would time it. It gets the prompt first, then each token."""
    import transformers

    torch.set_num_threads(threads)
    model = getattr(transformers, bundle.model_class).from_pretrained(bundle.model_dir, dtype=torch.float32).eval()
    # As an argument, it would take what it lacks from the model's own.
    model.generation_config = transformers.GenerationConfig(max_new_tokens=GENERATED, do_sample=False, eos_token_id=None, pad_token_id=0)

    class Stamps(transformers.generation.streamers.BaseStreamer):
        def __init__(self) -> None:
            self.at: list[int] = []
            self.tokens: list[int] = []

        def put(self, value: torch.Tensor) -> None:
            self.at.append(time.perf_counter_ns())
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            """Nothing is left to do."""

    def generate(prompt: GenerationPrompt) -> Generated:
        ids = torch.from_numpy(prompt.steps[0]["input_ids"])
        stamps = Stamps()
        begin = time.perf_counter_ns()
        with torch.inference_mode():
            model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), streamer=stamps)
        return times_of(begin, stamps.at[1:]), stamps.tokens[ids.numel() :]

    return generate


def openvino_target(bundle: Bundle, _: Path, threads: int) -> Program:
    """The generator of the target openvino."""
    core = openvino.Core()
    made = exported(bundle, bundle.path.parent, FOR_OPENVINO)
    generator = OpenVinoGenerator(made, lambda path: core.compile_model(path, "CPU", config_of(threads)))
    return lambda prompt: timed(generator, prompt)


def onnxruntime_target(bundle: Bundle, _: Path, threads: int) -> Program:
    """The generator of the target onnxruntime."""
    generator = OnnxGenerator(exported(bundle, bundle.path.parent, ONNX), lambda path: session_of(path, threads))
    return lambda prompt: timed(generator, prompt)


def timed(generator: OpenVinoGenerator | OnnxGenerator | TorchCpu, prompt: GenerationPrompt) -> Generated:
    """What a generator of hwmatrix makes, timed as in a cell."""
    begin, steps = time.perf_counter_ns(), []
    generator.generate(prompt, lambda _, logits: steps.append((time.perf_counter_ns(), logits)), forced=False)
    return times_of(begin, [at for at, _ in steps]), [int(logits().argmax()) for _, logits in steps]


def times_of(begin: int, at: list[int]) -> Times:
    """From the times of the tokens, in nanoseconds."""
    return (at[0] - begin) / 1e6, (at[-1] - at[0]) / (len(at) - 1) / 1e6


def openvino_loop(bundle: Bundle, _: Path, threads: int) -> Program:
    """A loop over a stateful graph, as a user would write it."""
    made = exported(bundle, bundle.path.parent, FOR_OPENVINO)
    request = openvino.Core().compile_model(made.decode.path, "CPU", config_of(threads)).create_infer_request()

    def loop(prompt: GenerationPrompt) -> Generated:
        request.reset_state()
        beams = np.zeros(1, np.int32)
        begin, at, tokens, token = time.perf_counter_ns(), [], [], None
        for step in prompt.steps:
            own = step if token is None else step | {"input_ids": token}
            request.infer({BEAMS: beams, **own})
            token = request.get_tensor(LOGITS).data[:, -1].argmax(-1)[:, None]
            at.append(time.perf_counter_ns())
            tokens.append(int(token.item()))
        return times_of(begin, at), tokens

    return loop


def onnxruntime_loop(bundle: Bundle, _: Path, threads: int) -> Program:
    """A loop whose outputs stay in ONNX Runtime and are its next inputs."""
    export = exported(bundle, bundle.path.parent, ONNX)
    session = session_of(export.decode.path, threads)
    outputs = [value.name for value in session.get_outputs()]
    states = {each.own: each.name for each in export.decode.inputs if each.state}
    fed = {own: states[export.decode.outputs[own]] for own in outputs if export.decode.outputs.get(own) in states}
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    first = {states[own]: array for own, array in export.first_state(1).items() if own in states}

    def loop(prompt: GenerationPrompt) -> Generated:
        cache = {name: value(array) for name, array in first.items()}
        begin, at, tokens, token = time.perf_counter_ns(), [], [], None
        for step in prompt.steps:
            own = step if token is None else step | {"input_ids": token}
            given = {name: value(array) for name, array in own.items()} | cache
            made = dict(zip(outputs, session.run_with_ort_values(outputs, given), strict=True))
            cache = {fed[name]: made[name] for name in fed}
            token = made[LOGITS].numpy()[:, -1].argmax(-1)[:, None]
            at.append(time.perf_counter_ns())
            tokens.append(int(token.item()))
        return times_of(begin, at), tokens

    return loop


def onnxruntime_genai(bundle: Bundle, place: Path, threads: int) -> Program:
    """ONNX Runtime GenAI on the same graph: its configuration names the inputs and outputs."""
    import onnxruntime_genai as og

    folder = place / "onnxruntime-genai"
    folder.mkdir()
    export = exported(bundle, bundle.path.parent, ONNX)
    for path in export.decode.path.parent.glob(f"{export.decode.path.name}*"):
        shutil.copyfile(path, folder / path.name)
    config = json.loads((bundle.model_dir / "config.json").read_text(encoding="utf-8"))
    heads = config["num_attention_heads"]
    layer = "past_key_values.layers.%d"
    decoder = {
        "session_options": {"intra_op_num_threads": threads, "provider_options": []},
        "filename": export.decode.path.name,
        "head_size": config.get("head_dim") or config["hidden_size"] // heads,
        "hidden_size": config["hidden_size"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "num_hidden_layers": config["num_hidden_layers"],
        "inputs": {
            **{name: name for name in ("input_ids", "attention_mask", "position_ids")},
            "past_key_names": f"{INPUT_PREFIX}{layer}.keys",
            "past_value_names": f"{INPUT_PREFIX}{layer}.values",
        },
        "outputs": {
            "logits": LOGITS,
            "present_key_names": f"{OUTPUT_PREFIX}{layer}.keys",
            "present_value_names": f"{OUTPUT_PREFIX}{layer}.values",
        },
    }
    most = config["max_position_embeddings"]
    model = {
        "type": "llama",
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
        "vocab_size": config["vocab_size"],
        "context_length": most,
        "decoder": decoder,
    }
    search = {"do_sample": False, "num_beams": 1, "max_length": most, "past_present_share_buffer": False}
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": search}), encoding="utf-8")
    loaded = og.Model(str(folder))

    def generate(prompt: GenerationPrompt) -> Generated:
        ids = prompt.steps[0]["input_ids"]
        wanted = ids.shape[1] + GENERATED
        begin, at, tokens = time.perf_counter_ns(), [], []
        parameters = og.GeneratorParams(loaded)
        parameters.set_search_options(max_length=wanted, min_length=wanted)
        generator = og.Generator(loaded, parameters)
        generator.append_tokens(ids)
        while len(at) < GENERATED:
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            at.append(time.perf_counter_ns())
        return times_of(begin, at), tokens

    return generate


def openvino_genai(bundle: Bundle, place: Path, threads: int) -> Program:
    """OpenVINO GenAI on a folder with the same graph. It wants a tokenizer, which the prompts here do not need."""
    import openvino_genai as ov_genai
    from openvino_tokenizers import convert_tokenizer
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = place / "openvino-genai"
    folder.mkdir()
    export = exported(bundle, bundle.path.parent, FOR_OPENVINO)
    for suffix in (".xml", ".bin"):
        shutil.copyfile(export.decode.path.with_suffix(suffix), folder / f"openvino_model{suffix}")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    letters = {letter: number for number, letter in enumerate(["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    bytewise = Tokenizer(models.BPE(vocab=letters, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, **dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<s>"))
    for model, name in zip(convert_tokenizer(tokenizer, with_detokenizer=True), ("tokenizer", "detokenizer"), strict=True):
        openvino.save_model(model, folder / f"openvino_{name}.xml")
    pipeline = ov_genai.LLMPipeline(folder, "CPU", **config_of(threads), ATTENTION_BACKEND="SDPA")
    wanted = ov_genai.GenerationConfig(max_new_tokens=GENERATED, ignore_eos=True, do_sample=False, eos_token_id=0)

    def generate(prompt: GenerationPrompt) -> Generated:
        ids = prompt.steps[0]["input_ids"]
        given = ov_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        made = pipeline.generate(given, wanted)
        return (made.perf_metrics.get_ttft().mean, made.perf_metrics.get_tpot().mean), list(made.tokens[0])

    return generate


def prompt_of(length: int) -> GenerationPrompt:
    """A prompt of random tokens, and the steps of a decoder."""
    ids = np.random.default_rng(0).choice(_ORDINARY, (1, length)).astype(np.int64)
    steps = [{"input_ids": ids, "attention_mask": np.ones((1, length), np.int64), "position_ids": np.arange(length)[None]}]
    for place in range(length, length + GENERATED - 1):
        mask = np.ones((1, place + 1), np.int64)
        steps.append({"input_ids": np.zeros((1, 1), np.int64), "attention_mask": mask, "position_ids": np.array([[place]])})
    nothing = np.zeros((GENERATED, 1, 1), np.float32)
    inputs = {name: steps[0][name] for name in ("input_ids", "attention_mask")}
    return GenerationPrompt(name="bench", inputs=inputs, tokens=np.zeros((1, GENERATED), np.int64), logits=nothing, steps=tuple(steps))


PROGRAMS: Final = {
    "cpu": cpu_target,
    "cpu, generate of transformers": transformers_generate,
    "openvino": openvino_target,
    f"openvino, {PLAIN}": openvino_loop,
    "openvino, OpenVINO GenAI": openvino_genai,
    "onnxruntime": onnxruntime_target,
    f"onnxruntime, {PLAIN}": onnxruntime_loop,
    "onnxruntime, ONNX Runtime GenAI": onnxruntime_genai,
}
"""By name. The first of each group is a target of hwmatrix."""
OWN_LOOP: Final = frozenset({"cpu, generate of transformers", "onnxruntime, ONNX Runtime GenAI"})
"""Programs that do more or less around the graph than a target, so that only the fastest target has to keep up with them."""


def measured(programs: dict[str, Worker], length: int) -> dict[str, list[Pair]]:
    """By the name of each other program, the times of its target and its own, one right after the other, in turns.

    The order of the two changes with every turn. A pause before each lets the threads of the one before come to rest.

    Raises:
        SystemExit: a program did not generate the tokens of its target, so that it did not do the same work.
    """
    found: dict[str, list[Pair]] = {name: [] for name in programs if target_of(name) != name}
    for turn in range(ROUNDS):
        for name, pairs in found.items():
            both: dict[str, Generated] = {}
            for each in (target_of(name), name)[:: 1 if turn % 2 else -1]:
                time.sleep(PAUSE_S)
                both[each] = programs[each](length)
            (mine, tokens), (other, made) = both[target_of(name)], both[name]
            if made != tokens or len(made) != GENERATED:
                raise SystemExit(f"{name} generated other tokens after {length}: {made}, not {tokens}")
            pairs.append((mine, other))
    return found


def target_of(name: str) -> str:
    """The target that a program is compared with."""
    return name.partition(",")[0]


def section_of(arguments: argparse.Namespace, bundle: Bundle, found: dict[int, dict[str, list[Pair]]], before: float) -> tuple[str, bool]:
    """The section, and whether all ratios reach their goals."""
    size = f"{bundle.parameters / 1e6:.0f} million parameters"
    how = (
        f"Written by `nox -s bench_generation`: `{arguments.model}` in full size ({size}), float32, {arguments.threads} threads, "
        f"{GENERATED} new tokens, each program in its own process. A program and the target of hwmatrix that it is compared with run one "
        f"right after the other, {ROUNDS} times; times and ratios (hwmatrix over the other program) are medians over these pairs. The "
        "two of a pair generate the same tokens."
    )
    lines = [
        "## Generation beside other programs",
        "",
        how,
        "",
        "| Prompt | Target | Other program | First token | Other | Ratio | Per output token | Other | Ratio |",
        "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    same, best = True, []
    for length, programs in found.items():
        for name, pairs in programs.items():
            ratios = [ratio_of(pairs, at) for at in range(2)]
            same = same and (name in OWN_LOOP or all(abs(ratio - 1) <= GOAL for ratio in ratios))
            target, _, other = name.partition(", ")
            columns = (
                f"{median_of(pairs, 0, at):.{2 - (at == 0)}f} ms | {median_of(pairs, 1, at):.{2 - (at == 0)}f} ms | {ratios[at]:.3f}"
                for at in range(2)
            )
            lines.append(f"| {length} | {target} | {other} | {' | '.join(columns)} |")
        best.append(best_of(programs))
    where = (
        f"{dt.datetime.now(dt.UTC).date()}, {cpuinfo().get('model name', platform.machine())}, {os.cpu_count()} cores; openvino "
        f"{openvino.__version__.split('-')[0]}, onnxruntime {onnxruntime.__version__}; load {before:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after."
    )
    tokens = "; ".join(f"after {length} {told}" for length, (_, told) in zip(found, best, strict=True))
    fast = all(ratio <= 1 + GOAL_OF_BEST for ratio, _ in best)
    own = " and ".join(sorted(name.partition(", ")[2] for name in OWN_LOOP))
    whether = f"Goal: a token of the fastest target takes at most {GOAL_OF_BEST:.0%} longer than one of the fastest other program: "
    lines += [
        "",
        f"Goal: every ratio within {GOAL:.0%} of 1, but for {own}, which have loops of their own: {'yes' if same else 'no'}.",
        "",
        f"{whether}{'yes' if fast else 'no'} ({tokens}).",
        "",
        where,
    ]
    return "\n".join(lines), same and fast


def median_of(pairs: list[Pair], which: int, at: int) -> float:
    """The median time to the first token (``at`` 0) or per further token (1) of the target (``which`` 0) or the other program (1)."""
    return statistics.median(pair[which][at] for pair in pairs)


def ratio_of(pairs: list[Pair], at: int) -> float:
    """The median ratio of the two times of a pair."""
    return statistics.median(mine[at] / other[at] for mine, other in pairs)


def best_of(programs: dict[str, list[Pair]]) -> tuple[float, str]:
    """The time per token of the fastest target over that of the fastest other program, and which they are.

    Plain loops are no such programs: they only check the generators' own cost. If the two were a pair, its ratio counts.
    """
    rivals = {name: median_of(pairs, 1, 1) for name, pairs in programs.items() if PLAIN not in name}
    targets = {target_of(name): median_of(pairs, 0, 1) for name, pairs in programs.items()}
    target, rival = min(targets, key=targets.__getitem__), min(rivals, key=rivals.__getitem__)
    ratio = ratio_of(programs[rival], 1) if target_of(rival) == target else targets[target] / rivals[rival]
    return ratio, f"{target} to {rival.partition(', ')[2]} {ratio:.3f}"


if __name__ == "__main__":
    sys.exit(main())
