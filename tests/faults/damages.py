"""Damages files that hwmatrix reads, at random, and checks what becomes of them: refused, or read as if they were whole, nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import factory_plans as make

from hwmatrix.basics.files import sha256_of
from hwmatrix.errors import CellFailure, HwmatrixError
from hwmatrix.host import bundle_archive
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.matrix.load import load
from hwmatrix.models import onnx_export
from hwmatrix.models.bundle import find_or_build, verify
from hwmatrix.models.canary import canary_plans
from hwmatrix.records import Stage, Status
from hwmatrix.records.bundle_index import INDEX
from hwmatrix.report.write import rendered
from hwmatrix.runner.forked import End, parse
from hwmatrix.runner.results import result_of
from hwmatrix.store.merge import merge
from hwmatrix.store.sidecar import sidecar_path

if TYPE_CHECKING:
    from hwmatrix.models.bundle import Bundle
    from hwmatrix.records import Plan

Check = Callable[[Path], str]
ROOT: Final = Path(__file__).parents[2]
REFUSED: Final = "refused"
UNCHANGED: Final = "unchanged"
CONFIG: Final = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT: Final = make.model_plan("bert", config=CONFIG)
PLAN: Final = make.plan(("bert", "gpt2", "vit"), ("cpu", "openvino"))
OF_BUNDLE: Final = dataclasses.replace(make.plan(), models=(BERT,), cells=(make.cell_plan("bert"),))
CELLS: Final = "SELECT COLUMNS(* EXCLUDE (cell_id, shard_id)) FROM {table} WHERE role = 'model' ORDER BY cell_key"
RESULTS: Final = "SELECT COLUMNS(* EXCLUDE (cell_id)) FROM results ORDER BY cell_key"
SAMPLES: Final = "SELECT cell_key, n, wall_ns, cpu_ns FROM samples JOIN cells USING (cell_id) ORDER BY ALL"
SOME: Final = (b"{}", b"null", b"[]", b'""', b"-1", b"1e999", b"9" * 40, b"\xff\xfe", b"\x00", b"NaN", b": ", b"\n")
"""What replaces a part of a text: JSON and YAML of other types, huge numbers, bytes that are no UTF-8."""
TOKEN: Final = re.compile(rb'"[^"\n]*"|[A-Za-z_]+|-?[0-9.]+|[{}\[\]:,]')


class SilentError(AssertionError):
    """A damaged file was read, and gave something else than the whole one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """Something that can be damaged: a folder with it, its files, and what reads it.

    ``check`` gets a copy of the folder and returns :data:`REFUSED` or :data:`UNCHANGED`. ``text``: its parts can be replaced, too.
    """

    folder: Path
    files: tuple[str, ...]
    check: Check
    text: bool = False
    after: Callable[[Path, random.Random], None] | None = None


def damage(data: bytes, chance: random.Random, *, text: bool) -> bytes:
    """Change some bytes: flipped bits, an end cut off, zeros, two blocks exchanged, a block doubled; in a text also other words."""
    size = len(data)
    at, length = chance.randrange(size), chance.randint(1, max(1, min(size, 4096)))
    ways = ["flip", "cut", "zero", "swap", "double"] + (["replace"] * 5 if text else [])
    way = chance.choice(ways)
    if way == "cut":
        return data[:at]
    if way == "zero":
        return data[:at] + bytes(min(length, size - at)) + data[at + length :]
    if way == "double":
        return data[: at + length] + data[at:]
    if way == "swap":
        other = chance.randrange(size)
        first, second = sorted((at, other))
        length = min(length, second - first, size - second)
        one, two = data[first : first + length], data[second : second + length]
        return data[:first] + two + data[first + length : second] + one + data[second + length :]
    if way == "replace":
        tokens = list(TOKEN.finditer(data))
        token = chance.choice(tokens) if tokens else None
        begin, end = token.span() if token else (at, at)
        return data[:begin] + chance.choice((*SOME, *(each[0] for each in chance.sample(tokens, min(3, len(tokens)))))) + data[end:]
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 8))):
        changed[chance.randrange(size)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def case(format_: Format, work: Path, seed: str) -> str:
    """Damage one file in a copy, and read it in a process of its own. Return the outcome, or how it failed."""
    chance = random.Random(seed)  # noqa: S311 - a seed repeats the case
    place = work / "case"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(format_.folder, place)
    file = place / chance.choice(format_.files)
    before = file.read_bytes()
    after = damage(before, chance, text=format_.text)
    if after == before:
        return UNCHANGED
    file.write_bytes(after)
    if format_.after is not None:
        format_.after(file, chance)
    return in_child(format_.check, place)


def in_child(check: Check, place: Path) -> str:
    """What a check returns in a child. A child that dies or raises says so: a damaged file must do neither."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        signal.alarm(60)
        try:
            said = check(place)
        except (HwmatrixError, CellFailure):
            said = REFUSED
        except BaseException:  # noqa: BLE001 - it is told
            said = traceback.format_exc()
        os.write(writing, said.encode(errors="replace")[-60_000:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return said if os.WIFEXITED(status) and said else f"the process ended with wait status {status}"


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(query).fetchall()


def formats(folder: Path) -> dict[str, Format]:
    """The formats of results and of inputs, each with a whole example."""
    run = make.run_folder(folder, PLAN)
    for target in ("cpu", "openvino"):
        make.write_shard(run / "shards", PLAN, target, shard_id=target[:1] * 12)
    merge([run], folder / "matrix.duckdb")
    shard = next((run / "shards").glob("cpu-*.duckdb"))
    whole = Whole(
        cells=rows(folder / "matrix.duckdb", CELLS.format(table="cells")),
        results=rows(folder / "matrix.duckdb", RESULTS),
        samples=rows(folder / "matrix.duckdb", SAMPLES),
    )
    (folder / "database").mkdir()
    shutil.copyfile(folder / "matrix.duckdb", folder / "database" / "matrix.duckdb")
    reported, _ = rendered(folder / "matrix.duckdb", folder, beside=False)
    (folder / "yaml").mkdir()
    shutil.copyfile(ROOT / "matrix.yaml", folder / "yaml" / "matrix.yaml")
    (folder / "yaml" / "images").symlink_to(ROOT / "images")
    (folder / "told").mkdir()
    (folder / "told" / "messages").write_bytes(messages())
    return {
        "shard": Format(folder=run, files=(f"shards/{shard.name}",), check=whole.merges),
        "shard with a forged checksum": Format(folder=run, files=(f"shards/{shard.name}",), check=whole.merges, after=forge),
        "sidecar": Format(folder=run, files=(f"shards/{sidecar_path(shard).name}",), check=whole.merges, text=True),
        "plan": Format(folder=run, files=("plan.json",), check=whole.merges, text=True),
        "database": Format(folder=folder / "database", files=("matrix.duckdb",), check=Reported(reported)),
        "matrix.yaml": Format(folder=folder / "yaml", files=("matrix.yaml",), check=loads, text=True),
        "messages": Format(folder=folder / "told", files=("messages",), check=hears, text=True),
    }


def forge(file: Path, _chance: random.Random) -> None:
    """Write the checksum of the damaged shard into its sidecar."""
    sidecar = json.loads(sidecar_path(file).read_bytes())
    sidecar_path(file).write_text(json.dumps(sidecar | {"sha256": sha256_of(file)}), encoding="utf-8")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole:
    """What the whole run gives."""

    cells: list[tuple[Any, ...]]
    results: list[tuple[Any, ...]]
    samples: list[tuple[Any, ...]]

    def merges(self, run: Path) -> str:
        """Merge a run with a damaged file: what is merged must be whole, and what is not must be told; the other shard is not affected."""
        database = run / "merged.duckdb"
        done = merge([run], database)
        cells = rows(database, CELLS.format(table="cells"))
        for name, got, expected in (
            ("cells", cells, self.cells),
            ("samples", rows(database, SAMPLES), self.samples),
        ):
            if not set(map(repr, got)) <= set(map(repr, expected)):
                raise SilentError(f"{name}: {[row for row in map(repr, got) if row not in set(map(repr, expected))][:2]}")
        for row in rows(database, RESULTS):
            if repr(row) not in set(map(repr, self.results)) and Status.NOT_RUN.value not in row:
                raise SilentError(f"results: {row}")
        if len(done.merged) + len(done.rejected) != 2:
            raise SilentError(f"{len(done.merged)} merged, {len(done.rejected)} rejected")
        if len(done.merged) == 2 and len(cells) != len(self.cells):
            raise SilentError(f"{len(cells)} cells of two merged shards")
        return REFUSED if done.rejected else UNCHANGED


class Reported:
    """Reports of a damaged database: refused, or those of the whole one."""

    def __init__(self, expected: dict[str, str]) -> None:
        self._expected = expected

    def __call__(self, folder: Path) -> str:
        found, _ = rendered(folder / "matrix.duckdb", folder, beside=False)
        different = [name for name in self._expected if _plain(found[name]) != _plain(self._expected[name])]
        if different:
            raise SilentError(f"other reports: {different}")
        return UNCHANGED


def _plain(text: str) -> str:
    """A report without the names of folders."""
    return re.sub(r"/[^\s\"']*/", "", text)


def loads(folder: Path) -> str:
    """A matrix.yaml is loaded or refused with an error of ours."""
    load(folder / "matrix.yaml")
    return UNCHANGED


def messages() -> bytes:
    """What a child sends while a cell passes."""
    stages = (Stage.LOAD, Stage.PREPARE, Stage.RUN, Stage.COMPARE, Stage.MEASURE)
    facts = {"stages": {"load": 1.5}, "load_ms": 1.5, "parameters": 7, "method": "eager", "on_target": 1.0, "samples_wall_ns": [1, 2, 3]}
    lines = [{"stage": stage.value, "facts": facts} for stage in stages]
    ends = [{"verdict": "pass", "facts": facts, "error": None}]
    return b"".join(json.dumps(line).encode() + b"\n" for line in [*lines, *ends])


def hears(folder: Path) -> str:
    """Whatever a child sends, its cell has a result that can be stored."""
    parsed, refused = parse((folder / "messages").read_bytes())
    end = End(messages=parsed, refused=refused, exit_code=0, signal=None, timed_out=False, oom_killed=False, log="", wall_ms=1.0)
    target, model = PLAN.targets[0], PLAN.models[0]
    result = result_of(end, cell=PLAN.cells[0], model=model, target=target, started_at="2026-01-02T03:04:06")
    make.write_shard(folder, PLAN, results=[result])
    return REFUSED if result.status is not Status.PASS else UNCHANGED


def cached(folder: Path) -> dict[str, Format]:
    """A bundle, an export and an archive of both. Needs torch."""
    cache = folder / "cache"
    found = [find_or_build(model, cache) for model in (*canary_plans(), BERT)]
    bundle = found[-1]
    exported = onnx_export.export_one(bundle, cache, "torch")
    if not isinstance(exported, onnx_export.OnnxExport):
        raise SystemExit(f"no export: {exported}")
    there = RunFolder.create(folder / "there", OF_BUNDLE)
    entries = [
        {
            "model": model.name,
            "size": model.size.value,
            "batch": model.batch,
            "sequence_length": model.sequence_length,
            "key": each.key,
            "digest": each.digest,
        }
        for model, each in zip((*canary_plans(), BERT), found, strict=True)
    ]
    (there.bundles / INDEX).write_text(json.dumps({"schema": "hwmatrix/bundle-index/2", "bundles": entries}))
    (folder / "packed").mkdir()
    bundle_archive.pack(there, cache, folder / "packed" / "bundles.tar")
    own = folder / "bundles"
    shutil.copytree(bundle.path, own / bundle.key)
    exports = folder / "exports"
    shutil.copytree(cache / onnx_export.ONNX_DIR, exports / onnx_export.ONNX_DIR)
    shutil.copytree(bundle.path, exports / bundle.key)
    return {
        "bundle": Format(folder=own, files=_files(own), check=Verified(bundle)),
        "export": Format(folder=exports, files=_files(exports / onnx_export.ONNX_DIR, exports), check=Exported(bundle)),
        "archive of bundles": Format(folder=folder / "packed", files=("bundles.tar",), check=Unpacked(bundle, OF_BUNDLE)),
    }


def _files(folder: Path, below: Path | None = None) -> tuple[str, ...]:
    return tuple(sorted(str(path.relative_to(below or folder)) for path in folder.rglob("*") if path.is_file() and path.stat().st_size))


class Verified:
    """A damaged bundle is refused."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def __call__(self, folder: Path) -> str:
        found = verify(folder / self._bundle.key)
        if found.digest != self._bundle.digest:
            raise SilentError("another bundle is accepted under its key")
        return UNCHANGED


class Exported:
    """A damaged export is refused."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._expected = _described(onnx_export.read_one(bundle, bundle.path.parent, "torch"))

    def __call__(self, folder: Path) -> str:
        if _described(onnx_export.read_one(self._bundle, folder, "torch")) != self._expected:
            raise SilentError("another export is accepted")
        return UNCHANGED


def _described(export: object) -> dict[str, Any]:
    assert isinstance(export, onnx_export.OnnxExport)
    return dataclasses.asdict(export) | {"path": sha256_of(export.path)}


class Unpacked:
    """Nothing of a damaged archive reaches the cache; if it is accepted, its bundles are whole."""

    def __init__(self, bundle: Bundle, plan: Plan) -> None:
        self._bundle = bundle
        self._plan = plan

    def __call__(self, folder: Path) -> str:
        cache = folder / "cache"
        try:
            bundle_archive.unpack(folder / "bundles.tar", RunFolder.create(folder / "here", self._plan), self._plan, cache)
        except HwmatrixError:
            if cache.exists() and any(path.is_file() for path in cache.rglob("manifest.json")):
                raise SilentError("a part of a refused archive is in the cache") from None
            return REFUSED
        if verify(cache / self._bundle.key).digest != self._bundle.digest:
            raise SilentError("another bundle is accepted under its key")
        return UNCHANGED
