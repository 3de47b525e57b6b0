"""Feeds everything that parses untrusted text with inputs that atheris varies, guided by coverage, and stops at the first fault.

    pip install atheris
    python tests/fuzz/fuzz.py messages -max_total_time=3600

Texts are varied by their words, too (``damages.damage``): bytes alone hardly ever give JSON or YAML that gets past the parser.

Each target says what may happen: an error of ours, or a result with certain properties. Everything else is a fault: atheris prints the
traceback and writes the input to ``crash-<sum>``; ``python tests/fuzz/fuzz.py messages crash-<sum>`` repeats it. Faults become tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import html.parser
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import atheris
import yaml
from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "unit"), str(ROOT / "tests" / "faults")]

with atheris.instrument_imports(include=["hwmatrix"]):
    import damages
    import factory_plans as make
    from factory_rows import Database

    from hwmatrix.basics import escape
    from hwmatrix.basics.json_text import read_json
    from hwmatrix.errors import CellFailure, HwmatrixError
    from hwmatrix.faults.catalogue import match
    from hwmatrix.faults.wording import normalized, site_of
    from hwmatrix.hardware import cgroups
    from hwmatrix.matrix.load import load
    from hwmatrix.models import bundle, folder, onnx_export, provenance
    from hwmatrix.records import Dtype, Status, plan_from_json, to_json
    from hwmatrix.report.markdown import errors_md, matrix_md
    from hwmatrix.report.rows import read
    from hwmatrix.report.write import rendered
    from hwmatrix.runner.forked import End, parse
    from hwmatrix.runner.results import result_of
    from hwmatrix.store.merge import merge
    from hwmatrix.store.shard import ShardWriter
    from hwmatrix.store.sidecar import read_sidecar, sidecar_path
    from hwmatrix.targets.browser import failures, log

if TYPE_CHECKING:
    from collections.abc import Callable

    Target = Callable[[bytes], None]

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - files that change a thousand times a second wear a disk
FOLDER: Final = "FUZZ_FOLDER"
"""The variable that names the folder of the process that fuzzes: libFuzzer ends it without cleaning up, so its parent does."""
WORK: Final = Path(os.environ.get(FOLDER, ROOT))
PLAN: Final = make.plan()
HARMLESS: Final = "a message"


def messages(data: bytes) -> None:
    """Whatever a child sends, its cell has a result, and that can be stored."""
    parsed, refused = parse(data)
    end = End(messages=parsed, refused=refused, exit_code=0, signal=None, timed_out=False, oom_killed=False, log="", wall_ms=1.0)
    target, model = PLAN.targets[0], PLAN.models[0]
    result = result_of(end, cell=PLAN.cells[0], model=model, target=target, started_at="2026-01-02T03:04:06")
    if result.status is not Status.CRASH:
        for left in WORK.glob("cpu-*"):
            left.unlink()
        with ShardWriter(WORK, PLAN, make.identity()) as shard:
            shard.add_cell(result, command="fuzz")


def matrix_yaml(data: bytes) -> None:
    """A matrix.yaml is loaded, or refused with an error of ours."""
    if not (WORK / "images").exists():
        (WORK / "images").symlink_to(ROOT / "images")
    (WORK / "matrix.yaml").write_bytes(data)
    try:
        load(WORK / "matrix.yaml")
    except HwmatrixError:
        return


def plan(data: bytes) -> None:
    """A plan is read, and written again it is the same; or it is refused."""
    try:
        read_plan = plan_from_json(data, where="fuzz")
    except HwmatrixError:
        return
    assert plan_from_json(to_json(read_plan).encode(), where="fuzz") == read_plan


def shard(data: bytes) -> None:
    """A file of any content beside its correct checksum is merged or rejected; the other shard is merged."""
    run = WORK / PLAN.run_id
    if not run.exists():
        make.run_folder(WORK, PLAN)
        make.write_shard(run / "shards", PLAN, "openvino")
        make.write_shard(run / "shards", PLAN, "cpu", shard_id="000000000000")
    file = run / "shards" / "cpu-000000000000.duckdb"
    file.write_bytes(data)
    described = json.loads(sidecar_path(file).read_bytes())
    sidecar_path(file).write_text(json.dumps(described | {"sha256": hashlib.sha256(data).hexdigest()}), encoding="utf-8")
    done = merge([run], WORK / "merged.duckdb", fresh=True)
    assert "0123456789ab" in done.merged
    assert len(done.merged) + len(done.rejected) == 2


def sidecar(data: bytes) -> None:
    """A sidecar is read, or refused with an error of ours."""
    sidecar_path(WORK / "cpu-0.duckdb").write_bytes(data)
    try:
        read_sidecar(WORK / "cpu-0.duckdb")
    except HwmatrixError:
        return


def manifest(data: bytes) -> None:
    """A manifest with a correct checksum, as a hostile model can write it, is read and used, or refused with an error of ours."""
    try:
        found = read_json(data)
    except ValueError:
        return
    if not isinstance(found, dict):
        return
    places = (WORK / "bundle", *(WORK / onnx_export.ONNX_DIR / MADE.key / name for name in onnx_export.EXPORTS))
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        for name in GRAPHS if place.name in onnx_export.GENERATION else ():
            (place / name).touch()
        forged = found | ({"key": bundle._key_of(found["identity"])} if "identity" in found else {})
        forged |= {"checksum": folder._checksum(forged)}
        (place / folder.MANIFEST).write_text(json.dumps(forged), encoding="utf-8")
    with contextlib.suppress(CellFailure):
        used(bundle.verify(places[0]))
    for name in onnx_export.EXPORTS:
        assert onnx_export.is_kept(MADE.key, WORK, name) in {True, False}
        with contextlib.suppress(CellFailure):
            read = onnx_export.read_one(MADE, WORK, name)
            if isinstance(read, onnx_export.OnnxFailure):
                assert onnx_export.no_graph([read]).error_type


def used(found: bundle.Bundle) -> None:
    """Use whatever a bundle's manifest says."""
    assert isinstance(found.model_class + "".join(found.kinds) + str(found.task_detail), str)
    assert found.parameters >= 0
    for dtype in Dtype:
        assert found.floor(dtype).overflows in {True, False}
    with contextlib.suppress(KeyError):  # what its caller expects of an identity of another version
        assert bundle.is_of(found, PLAN.models[0]) in {True, False}


MADE: Final = bundle.Bundle(path=WORK / "key", key="key", digest="digest", manifest={})
GRAPHS: Final = ("prefill.onnx", "decode.onnx")
EMPTY: Final = {"size": 0, "sha256": hashlib.sha256().hexdigest()}


def manifests() -> list[bytes]:
    """Whole manifests: of a bundle, a graph, graphs that generate, and an export that failed."""
    inputs = [{"name": "input_ids", "shape": [1, 16], "dtype": "int64"}]
    answers = {"kind": "tokens", "outputs": ["logits"], "blank": None, "own": False}
    floors = {"float32": {"outputs": {"logits": 1e-7}}, "float16": {"outputs": None, "reason": "none", "overflows": True}}
    of_bundle = {
        "files": {},
        "identity": json.loads(bundle.plan_part(PLAN.models[0])) | {"weights": "recipe", "made_by": provenance.made_by()},
        "model_class": "BertModel",
        "parameters": 7,
        "inputs": inputs,
        "expected": inputs,
        "floors": floors,
        "modalities": {"given": ["text"], "takes": ["text"], "text_path_only": False},
        "training": {"task": "copy", "detail": "task copy", "answers": answers},
        "samples": {"reason": "random inputs"},
        "generation": {"prompts": ["short"], "free": [], "irregular": [], "floors": floors},
    }
    export = {"files": {}, "key": MADE.key, "bundle": MADE.digest, "seconds": 1.5}
    past = {"name": "input.past", "own": "past", "shape": [None, 4, None, 8], "dtype": "float32", "state": True}
    graphs = {name: {"file": f"{name}.onnx", "inputs": [past], "outputs": {"logits": "logits"}} for name in ("prefill", "decode")}
    forward = {"failure": None, "inputs": ["input_ids"], "outputs": ["logits", None], "opset": 20, "fixed": []}
    listed = {"files": dict.fromkeys(GRAPHS, EMPTY)}
    generating = listed | {"failure": None, "graphs": graphs, "token": "input_ids", "method": "transformers"}
    failed = {"failure": {"error_type": "builtins.KeyError", "message": "'x'", "traceback": None}}
    return [json.dumps(each).encode() for each in (of_bundle, export | forward, export | generating, export | failed)]


def matrices() -> list[bytes]:
    """matrix.yaml, and short ones with one of its entries each: a change of those is more likely to matter."""
    whole = yaml.safe_load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
    model = {"bert": whole["models"]["bert"]}
    short = {"version": whole["version"], "images": whole["images"], "targets": {"cpu": whole["targets"]["cpu"]}, "models": model}
    found = [short | {"targets": {name: target}} for name, target in whole["targets"].items()]
    found += [short | {"models": model | {name: given}} for name, given in whole["models"].items()]
    found += [short | {"expect": [each]} for each in whole["expect"]] + [short | {"suites": {"smoke": whole["suites"]["smoke"]}}]
    found += [short | {name: whole[name]} for name in ("sizes", "measure", "tolerances")]
    return [yaml.safe_dump(each, sort_keys=False).encode() for each in found]


def recorded() -> list[bytes]:
    """The error messages that the catalogue's tests know."""
    files = sorted((ROOT / "tests" / "unit" / "recorded" / "errors").glob("*.yaml"))
    return [each["message"].encode() for file in files for each in yaml.safe_load(file.read_text(encoding="utf-8"))["messages"]]


def logs(data: bytes) -> None:
    """Logs of ONNX Runtime in a browser give a share between 0 and 1; whatever error a page answers has a type."""
    text = data.decode(errors="replace")
    nodes = log.parse(text.splitlines())
    assert 0 <= nodes.share("WebGpu") <= 1
    nodes.placement("WebGpu", about="fuzz")
    for lost in (None, text):
        assert failures.failure_of({"error": text, "lost": lost, "log": text.splitlines()}).error_type


def catalogue(data: bytes) -> None:
    """Every message has a type and a normalized first line, and every traceback a place or none."""
    text = data.decode(errors="replace")
    for hardware in ("cpu", "cuda", "openvino", "webgpu", "qnn"):
        assert match(text, hardware=hardware).type
    assert len(normalized(text).splitlines()) <= 1
    site_of(text)


def groups(data: bytes) -> None:
    """Whatever the kernel's files say, there are limits, or there are none."""
    files = data.split(b"\x00", 5)
    for name, content in zip(
        ("proc/self/cgroup", "proc/self/mountinfo", "sys/fs/cgroup/cpu.max", "sys/fs/cgroup/memory.max"), files, strict=False
    ):
        path = WORK / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    cgroups.limits(WORK / "root")


def markdown(data: bytes) -> None:
    """Escaped text is shown as it is, in a paragraph and in a table: no link, no HTML, no other cell."""
    text = data.decode(errors="replace")
    for escaped in (escape.md(text), escape.code(text)):
        reader = MarkdownIt("commonmark").enable("table")
        tokens = reader.parse(f"| a | b |\n| --- | --- |\n| {escaped} | end |\n")
        cells = [token for token in tokens if token.type == "inline"]
        assert [token.content for token in cells[:2]] == ["a", "b"], tokens
        assert cells[-1].content == "end", tokens
        assert len(cells) == 4, tokens
        assert not [child for token in cells for child in token.children or () if child.type in FOREIGN and child.content not in OURS], (
            tokens
        )


FOREIGN: Final = {"link_open", "image", "html_inline", "softbreak", "hardbreak"}
OURS: Final = {"<code>", "</code>"}


class Tags(html.parser.HTMLParser):
    """The tags of a page, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attributes)))


def tags(page: str) -> list[tuple[str, tuple[str, ...]]]:
    reader = Tags()
    reader.feed(page)
    return reader.found


def report(data: bytes) -> None:
    """A cell's message and traceback never add a tag to the page, nor a heading to the Markdown."""
    text = data.decode(errors="replace")
    page, errors = written(text)
    if not EXPECTED:
        EXPECTED.extend(written(HARMLESS))
    assert tags(page) == tags(EXPECTED[0])
    assert headings(errors) == headings(EXPECTED[1])


EXPECTED: Final[list[str]] = []


def headings(text: str) -> int:
    return sum(token.type == "heading_open" for token in MarkdownIt("commonmark").enable("table").parse(text))


def written(text: str) -> tuple[str, str]:
    """The page and errors.md of a run with one failed cell."""
    path = WORK / "report.duckdb"
    path.unlink(missing_ok=True)
    with Database(path) as database:
        database.run()
        database.shard("s", "cpu")
        planned = database.plan("bert", "cpu")
        database.cell(planned, "s", status="error", stage="run", message=text, traceback=text, error_type="unmatched", severity="error")
    rows = read(path)
    matrix_md(rows)
    texts, _ = rendered(path, WORK, beside=False)
    return texts["index.html"], errors_md(rows)


TARGETS: Final[dict[str, Target]] = {
    each.__name__: each for each in (messages, matrix_yaml, plan, shard, sidecar, manifest, logs, catalogue, groups, markdown, report)
}


def seeds(name: str) -> Path:
    """A folder with inputs to begin with."""
    place = WORK / "seeds"
    place.mkdir()
    given: dict[str, Callable[[], list[bytes]]] = {
        "messages": lambda: [damages.messages()],
        "matrix_yaml": matrices,
        "plan": lambda: [to_json(PLAN).encode()],
        "manifest": manifests,
        "logs": lambda: [
            b"Node(s) placed on [WebGpuExecutionProvider]. Number of nodes: 7\nVerifyEachNodeIsAssignedToAnEp]  Add (Add_1)\n"
        ],
        "catalogue": recorded,
        "markdown": lambda: [b"*a* `b` [c](d) <e> | f \\ https://g.h @i #1"],
        "report": lambda: [b"</script><script>alert(1)</script>\n# a\n```\n"],
        "groups": lambda: [b"0::/a\n\x0029 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n\x00150000 100000\n\x00max\n"],
        "shard": lambda: [shard_file().read_bytes()],
        "sidecar": lambda: [sidecar_path(shard_file()).read_bytes()],
    }
    for number, content in enumerate(given[name]()):
        (place / str(number)).write_bytes(content)
    return place


def shard_file() -> Path:
    """A whole shard with its sidecar."""
    return make.write_shard(make.run_folder(WORK / "of-seeds", PLAN) / "shards", PLAN, "cpu", shard_id="000000000000")


BINARY: Final = frozenset({"shard"})


def varied(name: str) -> Callable[[bytes, int, int], bytes]:
    """The mutator of a target: of texts, four of five changes are those of words."""

    def vary(data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)  # noqa: S311 - libFuzzer's seed repeats the case
        if data and name not in BINARY and chance.random() < 0.8:
            return damages.damage(data, chance, text=True)[:most]
        changed: bytes = atheris.Mutate(data, most)
        return changed

    return vary


def main() -> None:
    if len(sys.argv) == 1 or sys.argv[1] not in TARGETS:
        raise SystemExit(f"usage: fuzz.py TARGET [libFuzzer options]; targets: {', '.join(TARGETS)}")
    if FOLDER not in os.environ:
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
            command = [sys.executable, __file__, *sys.argv[1:]]
            raise SystemExit(subprocess.run(command, env=os.environ | {FOLDER: folder}, check=False).returncode)
    name = sys.argv.pop(1)
    repeated = any(Path(argument).is_file() for argument in sys.argv[1:])
    longest = 2**20 if name == "shard" else 2**16
    arguments = sys.argv if repeated else [*sys.argv, str(seeds(name)), f"-max_len={longest}", "-timeout=30", "-rss_limit_mb=4096"]
    atheris.Setup(arguments, TARGETS[name], custom_mutator=varied(name))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
