"""Collecting the targets' artifacts: valid shards are added, everything else is refused and named, and the rest continues."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import duckdb
import factory_plans as make
import pytest

from hwmatrix.cli import main
from hwmatrix.errors import StoreError
from hwmatrix.host import artifacts
from hwmatrix.host.artifacts import pack
from hwmatrix.host.github.collect import artifact_name, collect, read_states, write_states
from hwmatrix.host.github.jobs import Reached, State
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.store.merge import merge
from hwmatrix.store.sidecar import read_sidecar

if TYPE_CHECKING:
    from pathlib import Path

PLAN = make.plan(targets=("cpu", "openvino", "cuda"))
NO_RUNNER = Reached(state=State.UNCLAIMED, reason="no runner with the labels cuda took the job within 30 minutes")
STATES = {"cpu": Reached(state=State.DONE), "openvino": Reached(state=State.DONE), "cuda": NO_RUNNER}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(path=make.run_folder(tmp_path / "planned", PLAN))


def artifact_of(tmp_path: Path, target: str, name: str | None = None) -> Path:
    """The artifact of a target's job; with ``name``, under another target's name."""
    there = make.run_folder(tmp_path / f"on-{target}", PLAN)
    make.write_shard(there / "shards", PLAN, target, f"{target:a<12}")
    artifact = tmp_path / "arrived" / artifact_name(name or target, PLAN.run_id)
    pack(there, target, artifact / "shards.tar")
    return artifact


def statuses(tmp_path: Path, folder: RunFolder) -> dict[str, set[tuple[str, str | None]]]:
    merge([folder.path], tmp_path / "m.duckdb")
    found: dict[str, set[tuple[str, str | None]]] = {}
    with duckdb.connect(str(tmp_path / "m.duckdb"), read_only=True) as connection:
        for target, status, message in connection.execute("SELECT target, status, message FROM results").fetchall():
            found.setdefault(target, set()).add((status, message))
    return found


def test_shards_are_added_and_targets_without_a_runner_are_unavailable(tmp_path: Path, folder: RunFolder) -> None:
    artifact_of(tmp_path, "cpu")
    artifact_of(tmp_path, "openvino")
    found = collect(folder, tmp_path / "arrived", STATES)
    assert (set(found.shards), dict(found.unavailable), found.refused, dict(found.missing)) == (
        {"cpu", "openvino"},
        {"cuda": NO_RUNNER.reason},
        (),
        {},
    )
    assert statuses(tmp_path, folder) == {
        "cpu": {("pass", None)},
        "openvino": {("pass", None)},
        "cuda": {("unavailable", NO_RUNNER.reason)},
    }


def test_missing_shards_are_not_run_and_never_unavailable(tmp_path: Path, folder: RunFolder) -> None:
    artifact_of(tmp_path, "cpu")
    found = collect(folder, tmp_path / "arrived", {"openvino": Reached(state=State.FAILED, reason="its job ended with failure")})
    assert dict(found.missing) == {"openvino": "its job ended with failure", "cuda": "no shards arrived"}
    assert {target: {status for status, _ in each} for target, each in statuses(tmp_path, folder).items()} == {
        "cpu": {"pass"},
        "openvino": {"not_run"},
        "cuda": {"not_run"},
    }


def test_a_late_shard_counts_even_after_waiting_ended(tmp_path: Path, folder: RunFolder) -> None:
    artifact_of(tmp_path, "cuda")
    assert set(collect(folder, tmp_path / "arrived", STATES).shards) == {"cuda"}


def test_a_single_artifact_has_no_folder_of_its_own(tmp_path: Path, folder: RunFolder) -> None:
    """actions/download-artifact stores it this way, also with a pattern."""
    found = collect(folder, artifact_of(tmp_path, "openvino"), STATES)
    assert set(found.shards) == {"openvino"}
    assert found.refused == ()
    assert {target: {status for status, _ in each} for target, each in statuses(tmp_path, folder).items()} == {
        "cpu": {"not_run"},
        "openvino": {"pass"},
        "cuda": {"unavailable"},
    }


def test_a_single_artifact_of_several_targets_is_refused(tmp_path: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    there = make.run_folder(tmp_path / "both", PLAN)
    for target in ("cpu", "openvino"):
        make.write_shard(there / "shards", PLAN, target, f"{target:a<12}")
    with monkeypatch.context() as patch:  # pack itself accepts only the shards of one target
        patch.setattr(artifacts, "read_sidecar", lambda path: dataclasses.replace(read_sidecar(path), target="cpu"))
        pack(there, "cpu", tmp_path / "single" / "shards.tar")
    found = collect(folder, tmp_path / "single", STATES)
    (reason,) = found.refused
    assert reason.startswith("'single': ")
    assert reason.endswith("refused: it has shards of cpu, openvino")
    assert [path for path in folder.shards.iterdir() if "cuda" not in path.name] == []


def test_a_single_artifact_with_additional_files_is_refused(tmp_path: Path, folder: RunFolder) -> None:
    artifact = artifact_of(tmp_path, "openvino")
    (artifact / "setup.py").write_bytes(b"")
    (reason,) = collect(folder, artifact, STATES).refused
    assert "it contains 'setup.py', 'shards.tar' instead of shards.tar" in reason
    assert list(folder.shards.glob("*openvino*")) == []


def test_unexpected_artifacts_are_refused_and_named(tmp_path: Path, folder: RunFolder) -> None:
    artifact_of(tmp_path, "cpu")
    artifact_of(tmp_path, "openvino", name="cuda")  # another target's shards under this name
    arrived = tmp_path / "arrived"
    (arrived / "shards-tpu-of-another-run").mkdir()
    (arrived / "loose.duckdb").write_bytes(b"")
    more = arrived / artifact_name("openvino", PLAN.run_id)
    more.mkdir()
    (more / "shards.tar").write_bytes(b"no archive")
    (more / "setup.py").write_bytes(b"")
    found = collect(folder, arrived, STATES)
    assert set(found.shards) == {"cpu"}
    assert len(found.refused) == 4
    told = "\n".join(found.refused)
    for what in (
        "'loose.duckdb': no target of this run has an artifact with this name",
        "refused: it has shards of openvino",
        f"'{more.name}': it contains 'setup.py', 'shards.tar' instead of shards.tar",
        "'shards-tpu-of-another-run'",
    ):
        assert what in told
    assert {status for status, _ in statuses(tmp_path, folder)["openvino"]} == {"not_run"}


def test_a_changed_archive_is_refused(tmp_path: Path, folder: RunFolder) -> None:
    archive = artifact_of(tmp_path, "cpu") / "shards.tar"
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    found = collect(folder, tmp_path / "arrived", {})
    (reason,) = found.refused
    assert found.missing["cpu"] == "what arrived was refused"
    assert artifact_name("cpu", PLAN.run_id) in reason
    assert list(folder.shards.glob("*cpu*")) == []


def test_the_command_names_refused_artifacts_and_uses_the_rest(
    tmp_path: Path, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact_of(tmp_path, "cpu")
    (tmp_path / "arrived" / "x%0A::add-mask::\n::error::y").mkdir()
    write_states(STATES, tmp_path / "states.json")
    argv = ["collect", str(folder.path), "--arrived", str(tmp_path / "arrived"), "--states", str(tmp_path / "states.json")]
    assert main.main(argv) == 7
    printed = capsys.readouterr()
    assert "cpu: 1 shard" in printed.out
    assert "cuda: unavailable: no runner" in printed.out
    commands = [line for line in printed.out.splitlines() if line.lstrip().startswith("::")]
    assert len(commands) == 2
    assert all(line.startswith("::error title=shards::") for line in commands)
    assert "%250A" in commands[0]
    assert not [line for line in printed.err.splitlines() if line.lstrip().startswith("::")]
    assert len((folder.path / "collected.txt").read_text(encoding="utf-8").splitlines()) == 2


def test_without_artifacts(tmp_path: Path, folder: RunFolder) -> None:
    found = collect(folder, tmp_path / "nowhere", read_states(tmp_path / "no-states.json"))
    assert set(found.missing) == {"cpu", "openvino", "cuda"}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": "hwmatrix/job-states/2"}', '{"schema": "hwmatrix/job-states/1", "targets": {"a": {}}}']
)
def test_broken_states(tmp_path: Path, text: str) -> None:
    (tmp_path / "states.json").write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match=r"states\.json"):
        read_states(tmp_path / "states.json")


def test_states_are_restored_unchanged(tmp_path: Path) -> None:
    write_states(STATES, tmp_path / "states.json")
    assert read_states(tmp_path / "states.json") == STATES
    assert json.loads((tmp_path / "states.json").read_text(encoding="utf-8"))["schema"] == "hwmatrix/job-states/1"
