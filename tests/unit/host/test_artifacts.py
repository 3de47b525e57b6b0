"""Archives of shards: packed shards are unpacked unchanged elsewhere, and nothing else is ever unpacked."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import tarfile
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest

from hwmatrix.cli import main
from hwmatrix.errors import ConfigError, StoreError
from hwmatrix.host.archive import Limits
from hwmatrix.host.artifacts import pack, unpack
from hwmatrix.store.merge import merge

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLAN = make.plan()


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The run folder of a machine with two shards of cpu."""
    folder = make.run_folder(tmp_path / "there", PLAN)
    make.write_shard(folder / "shards", PLAN, "cpu", "aaaaaaaaaaaa")
    make.write_shard(folder / "shards", PLAN, "openvino", "bbbbbbbbbbbb")
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The run folder of the collecting machine."""
    return make.run_folder(tmp_path / "here", PLAN)


def files(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}


def write(archive: Path, entries: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    """An archive of these files, as an attacker would write it."""
    with tarfile.open(archive, "w") as tar:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for info in more:
            tar.addfile(info)
    return archive


def content(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_packed_shards_are_unpacked_elsewhere(there: Path, here: Path, tmp_path: Path) -> None:
    for target in ("cpu", "openvino"):
        names = pack(there, target, tmp_path / "out" / f"{target}.tar")
        assert len(names) == 3
        assert len(unpack(tmp_path / "out" / f"{target}.tar", here)) == 1
    assert content(here / "shards") == content(there / "shards")
    merged = merge([here], tmp_path / "m.duckdb")
    assert (len(merged.merged), merged.rejected) == (2, ())


def test_the_same_shards_give_the_same_archive(there: Path, tmp_path: Path) -> None:
    pack(there, "cpu", tmp_path / "a.tar")
    pack(there, "cpu", tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_shards_that_cannot_be_packed(there: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the run has no target 'gpu'"):
        pack(there, "gpu", tmp_path / "a.tar")
    with pytest.raises(StoreError, match="cannot be read"):
        pack(tmp_path / "nowhere", "cpu", tmp_path / "a.tar")
    for path in (there / "shards").iterdir():
        path.unlink()
    with pytest.raises(StoreError, match="no complete shard of cpu"):
        pack(there, "cpu", tmp_path / "a.tar")
    assert not (tmp_path / "a.tar").exists()


def link(kind: bytes, name: str, to: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def renamed(entries: dict[str, bytes], name: str) -> dict[str, bytes]:
    """Rename the shard."""
    shard = next(each for each in entries if each.endswith(".duckdb"))
    return {(name if each == shard else each): data for each, data in entries.items()}


def other_plan(entries: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    return entries | {"plan.json": json.dumps(json.loads(entries["plan.json"]) | changes).encode()}


def sidecar(entries: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    name = next(each for each in entries if each.endswith(".duckdb.json"))
    return entries | {name: json.dumps(json.loads(entries[name]) | changes).encode()}


def without(entries: dict[str, bytes], end: str) -> dict[str, bytes]:
    return {name: data for name, data in entries.items() if not name.endswith(end)}


HOSTILE: dict[str, tuple[Callable[[dict[str, bytes]], dict[str, bytes]], str]] = {
    "above": (lambda e: renamed(e, "../../evil.duckdb"), r"'../../evil.duckdb' does not belong in it"),
    "absolute": (lambda e: renamed(e, "/etc/evil.duckdb"), "does not belong in it"),
    "within": (lambda e: renamed(e, "shards/../../evil.duckdb"), "does not belong in it"),
    "deeper": (lambda e: renamed(e, "shards/a/evil.duckdb"), "does not belong in it"),
    "hidden": (lambda e: renamed(e, "shards/.evil.duckdb"), "does not belong in it"),
    "newline": (lambda e: renamed(e, "shards/a\nb.duckdb"), "does not belong in it"),
    "script": (lambda e: e | {"run.sh": b"#!/bin/sh"}, "'run.sh' does not belong in it"),
    "log": (lambda e: e | {"shards/cpu.duckdb.wal": b"x"}, "does not belong in it"),
    "no_plan": (lambda e: without(e, "plan.json"), "it has no plan.json"),
    "no_shard": (lambda e: without(without(e, ".duckdb"), ".duckdb.json"), "it has no shard"),
    "no_sidecar": (lambda e: without(e, ".duckdb.json"), "a shard without its sidecar"),
    "plan_broken": (lambda e: e | {"plan.json": b"{"}, "refused"),
    "other_run": (lambda e: other_plan(e, run_id="another"), "it is from another run: another"),
    "other_matrix": (lambda e: other_plan(e, matrix_sha256="00"), "it is from another matrix.yaml"),
    "other_version": (lambda e: other_plan(e, hwmatrix_version="9"), "it is from another version of hwmatrix"),
    "sidecar_of_another_run": (lambda e: sidecar(e, run_id="another"), "is from run another"),
    "sidecar_of_another_target": (lambda e: sidecar(e, target="gpu"), "target gpu"),
    "sidecar_of_another_shard": (lambda e: sidecar(e, sha256="0" * 64), "does not match the checksum in its sidecar"),
    "sidecar_broken": (lambda e: sidecar(e, counts={"cells": "many"}), "its sidecar is broken"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_inconsistent_archive_is_refused_completely(there: Path, here: Path, tmp_path: Path, name: str) -> None:
    change, why = HOSTILE[name]
    pack(there, "cpu", tmp_path / "good.tar")
    bad = write(tmp_path / "bad.tar", change(files(tmp_path / "good.tar")))
    before = content(tmp_path)
    with pytest.raises(StoreError, match=r"bad\.tar: ") as caught:
        unpack(bad, here)
    assert why in caught.value.message
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    "entry",
    [
        link(tarfile.SYMTYPE, "shards/evil.duckdb", "/etc/passwd"),
        link(tarfile.LNKTYPE, "shards/evil.duckdb", "plan.json"),
        link(tarfile.CHRTYPE, "shards/evil.duckdb", ""),
        link(tarfile.FIFOTYPE, "shards/evil.duckdb", ""),
        link(tarfile.DIRTYPE, "shards/", ""),
    ],
    ids=["symlink", "hard link", "device", "pipe", "folder"],
)
def test_only_regular_files_are_accepted(there: Path, here: Path, tmp_path: Path, entry: tarfile.TarInfo) -> None:
    pack(there, "cpu", tmp_path / "good.tar")
    with pytest.raises(StoreError, match="is not a regular file"):
        unpack(write(tmp_path / "bad.tar", files(tmp_path / "good.tar"), entry), here)
    assert content(here) == {"plan.json"}


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_that_would_fill_the_memory_is_refused(there: Path, here: Path, tmp_path: Path, kind: bytes) -> None:
    pack(there, "cpu", tmp_path / "bad.tar")
    entry = link(kind, "x", "")
    entry.size = 3 * 2**30
    with (tmp_path / "bad.tar").open("r+b") as file:
        file.write(entry.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(StoreError, match="the header of a file is too large"):
        unpack(tmp_path / "bad.tar", here)


def test_headers_without_end_are_refused(there: Path, here: Path, tmp_path: Path) -> None:
    pack(there, "cpu", tmp_path / "bad.tar")
    more = tarfile.TarInfo("x" * 150).tobuf(tarfile.PAX_FORMAT)[:1024]
    (tmp_path / "bad.tar").write_bytes(more * 2000 + (tmp_path / "bad.tar").read_bytes())
    with pytest.raises(StoreError, match="cannot be read as an archive"):
        unpack(tmp_path / "bad.tar", here)


def test_attributes_that_tarfile_cannot_read_are_refused(here: Path, tmp_path: Path) -> None:
    entry = tarfile.TarInfo("plan.json")
    entry.pax_headers = {"GNU.sparse.map": "a,b"}
    with tarfile.open(tmp_path / "bad.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(entry)
    with pytest.raises(StoreError, match="cannot be read as an archive"):
        unpack(tmp_path / "bad.tar", here)


def test_a_duplicate_name_is_refused(there: Path, here: Path, tmp_path: Path) -> None:
    pack(there, "cpu", tmp_path / "good.tar")
    again = tarfile.TarInfo("plan.json")
    with pytest.raises(StoreError, match=r"'plan\.json' appears in it twice"):
        unpack(write(tmp_path / "bad.tar", files(tmp_path / "good.tar"), again), here)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(file_bytes=100), "is too large"),
        (Limits(total_bytes=100), "is too large"),
        (Limits(files=2), "more than 2 files"),
    ],
)
def test_limits(there: Path, here: Path, tmp_path: Path, limits: Limits, why: str) -> None:
    pack(there, "cpu", tmp_path / "a.tar")
    with pytest.raises(StoreError, match=why):
        unpack(tmp_path / "a.tar", here, limits=limits)


def test_a_shard_is_never_replaced(there: Path, here: Path, tmp_path: Path) -> None:
    pack(there, "cpu", tmp_path / "a.tar")
    unpack(tmp_path / "a.tar", here)
    before = {path.name: path.read_bytes() for path in (here / "shards").iterdir()}
    with pytest.raises(StoreError, match="already exists"):
        unpack(tmp_path / "a.tar", here)
    assert {path.name: path.read_bytes() for path in (here / "shards").iterdir()} == before


@pytest.mark.parametrize("data", [b"", b"text", b"\x1f\x8b\x08\x00" + b"\x00" * 100])
def test_a_file_that_is_not_an_archive(here: Path, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(StoreError, match=r"cannot be read as an archive|it has no"):
        unpack(tmp_path / "a.tar", here)
    with pytest.raises(StoreError, match="cannot be read as an archive"):
        unpack(tmp_path / "missing.tar", here)


def test_a_truncated_archive(there: Path, here: Path, tmp_path: Path) -> None:
    pack(there, "cpu", tmp_path / "a.tar")
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(data[: len(data) // 2])
    with pytest.raises(StoreError):
        unpack(tmp_path / "a.tar", here)
    assert content(here) == {"plan.json"}


def test_a_plan_with_a_part_of_the_cells_belongs_to_the_run(here: Path, tmp_path: Path) -> None:
    """A machine's plan has only its cells, and its own facts about its targets."""
    part = dataclasses.replace(
        PLAN, targets=PLAN.targets[:1], cells=tuple(cell for cell in PLAN.cells if cell.target == PLAN.targets[0].name)
    )
    folder = make.run_folder(tmp_path / "part", part)
    make.write_shard(folder / "shards", part, "cpu", "cccccccccccc")
    pack(folder, "cpu", tmp_path / "a.tar")
    assert len(unpack(tmp_path / "a.tar", here)) == 1


def test_the_artifacts_command(there: Path, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main.main(["artifacts", "pack", str(there), "cpu", str(tmp_path / "a.tar")]) == 0
        assert "with 3 files" in capsys.readouterr().out
        assert main.main(["artifacts", "unpack", str(here), str(tmp_path / "a.tar")]) == 0
        assert "1 shard" in capsys.readouterr().out
        assert main.main(["artifacts", "unpack", str(here), str(tmp_path / "a.tar")]) == 7
        assert main.main(["artifacts", "pack", str(there), "gpu", str(tmp_path / "a.tar")]) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
