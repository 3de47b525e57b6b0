"""Feeds everything that parses untrusted text with inputs that atheris varies, guided by coverage, and stops at the first fault.

    pip install atheris
    python tests/fuzz/fuzz.py messages -max_total_time=3600

Each target says what may happen: an error of ours, or a result with certain properties. Everything else is a fault: atheris prints the
traceback and writes the input to ``crash-<sum>``; ``python tests/fuzz/fuzz.py messages crash-<sum>`` repeats it. Faults become tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import html.parser
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import atheris
from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "unit")]

with atheris.instrument_imports(include=["hwmatrix"]):
    import factory_plans as make
    from factory_rows import Database

    from hwmatrix.basics import escape
    from hwmatrix.errors import CellFailure, HwmatrixError
    from hwmatrix.faults.catalogue import match
    from hwmatrix.faults.wording import normalized, site_of
    from hwmatrix.hardware import cgroups
    from hwmatrix.matrix.load import load
    from hwmatrix.models import bundle, generation_export
    from hwmatrix.records import Status, plan_from_json, to_json
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
    """A manifest of a bundle or of graphs that generate is read, or refused with an error that its readers expect."""
    (WORK / "bundle").mkdir(exist_ok=True)
    (WORK / "bundle" / "manifest.json").write_bytes(data)
    with contextlib.suppress(CellFailure):
        bundle.verify(WORK / "bundle")
    try:
        generation_export.read(WORK, json.loads(data))
    except (KeyError, TypeError, ValueError):  # what onnx_export.read_one turns into a broken export
        return


def logs(data: bytes) -> None:
    """Logs of ONNX Runtime in a browser give a share between 0 and 1; whatever a page answers is a failure with a type."""
    text = data.decode(errors="replace")
    nodes = log.parse(text.splitlines())
    assert 0 <= nodes.share("WebGpu") <= 1
    nodes.placement("WebGpu", about="fuzz")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(answer, dict):
        assert failures.failure_of(answer).error_type


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
    folder = WORK / "seeds"
    folder.mkdir()
    end: dict[str, Any] = {"verdict": "pass", "facts": {"stages": {"load": 1.5}, "load_ms": 1.5}, "error": None}
    given: dict[str, list[bytes]] = {
        "messages": [json.dumps({"stage": "load", "facts": {"stages": {}}}).encode() + b"\n" + json.dumps(end).encode() + b"\n"],
        "matrix_yaml": [(ROOT / "matrix.yaml").read_bytes()],
        "plan": [to_json(PLAN).encode()],
        "shard": [],
        "logs": [b"Node(s) placed on [WebGpuExecutionProvider]. Number of nodes: 7\nVerifyEachNodeIsAssignedToAnEp]  Add (Add_1)\n"],
        "markdown": [b"*a* `b` [c](d) <e> | f \\ https://g.h @i #1"],
        "report": [b"</script><script>alert(1)</script>\n# a\n```\n"],
        "groups": [b"0::/a\n\x0029 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n\x00150000 100000\n\x00max\n"],
    }
    make_shard = WORK / "of-seeds"
    if name in {"shard", "sidecar"}:
        path = make.write_shard(make.run_folder(make_shard, PLAN) / "shards", PLAN, "cpu", shard_id="000000000000")
        given |= {"shard": [path.read_bytes()], "sidecar": [sidecar_path(path).read_bytes()]}
    for number, content in enumerate(given.get(name, [b"{}"])):
        (folder / str(number)).write_bytes(content)
    return folder


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
    atheris.Setup(arguments, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
