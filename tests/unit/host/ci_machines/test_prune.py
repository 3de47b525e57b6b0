"""Pruning: what is listed as ours, what is removed first, and what must never be removed."""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest

import hwmatrix
from hwmatrix.cli import main
from hwmatrix.host.base_image import MADE_TAG
from hwmatrix.host.ci_machines import checking, pruning
from hwmatrix.host.ci_machines.pruning import Item, Kind
from hwmatrix.host.run_folder import RunFolder, locked
from hwmatrix.host.venvs import LAYERS, MARKER
from hwmatrix.models.folder import LOCKS, MANIFEST
from hwmatrix.models.onnx_export import EXPORTERS, ONNX_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
OLD = dt.timedelta(days=90)
EXPORTER = next(iter(EXPORTERS))
KEYS = [f"{number:064x}" for number in range(3)]
TITLED = {pruning.TITLE: "hwmatrix cpu"}
EVERYTHING: dict[str, Any] = {"older_than": None, "keep_bytes": 0, "now": NOW}


def image(tags: list[str] | None, *, name: str = "sha256:1", labels: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    given = {"Id": name, "RepoTags": tags, "Labels": TITLED if labels is None else labels, "Size": 100, "SharedSize": 60, "Created": 1}
    return given | changes


def aged(path: Path, days: float) -> None:
    then = (NOW - dt.timedelta(days=days)).timestamp()
    os.utime(path, (then, then))


def bundle(cache: Path, key: str, days: float) -> Path:
    folder = cache / "bundles" / key
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    (folder / MANIFEST).write_text("{}")
    for file in folder.iterdir():
        aged(file, days)
    return folder


def item(name: str, days: float, size: int = 10, **changes: Any) -> Item:
    given: dict[str, Any] = {"kind": Kind.BUNDLE, "name": name, "places": (name,), "size": size, "used_at": NOW - dt.timedelta(days=days)}
    return Item(**(given | changes))


def names(items: list[Item]) -> list[str]:
    return [each.name for each in items]


# Recognizing our own files


def test_an_image_of_others_is_not_listed() -> None:
    assert pruning.images([image(["python:3.11"], labels={})]) == []
    assert pruning.images([image(None, labels={})]) == []
    assert pruning.images([image(None, labels={pruning.TITLE: "hwmatrixish"})]) == []


def test_another_project_s_image_built_on_ours_is_not_listed() -> None:
    assert pruning.images([image(["mine/app:1"]), image(["hwmatrix/cpu:0.0.1", "mine/cpu:1"])]) == []


def test_our_untagged_and_older_images_can_be_removed() -> None:
    listed = pruning.images([image(None), image(["<none>:<none>"], name="sha256:2"), image(["hwmatrix/cpu:0.0.1"], labels={})])
    assert [(each.kept, each.size) for each in listed] == [(None, 40)] * 3


@pytest.mark.parametrize(
    "tags",
    [
        [f"hwmatrix/cpu:{hwmatrix.__version__}"],
        [f"hwmatrix/base-torch-cpu:{hwmatrix.__version__}", "hwmatrix/base-torch-cpu:0.0.1"],
        [MADE_TAG],
    ],
)
def test_a_current_image_stays(tags: list[str]) -> None:
    (listed,) = pruning.images([image(tags)])
    assert listed.kept == f"{tags[0]} is current"
    assert pruning.choose([listed], **EVERYTHING) == []


def test_only_folders_that_are_provably_ours_are_listed(tmp_path: Path) -> None:
    bundle(tmp_path, KEYS[0], 90)
    (tmp_path / "bundles" / "notes").mkdir()
    (tmp_path / "bundles" / KEYS[1]).mkdir()  # no manifest: an unfinished bundle, or anything else
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bundles" / KEYS[2]).symlink_to(tmp_path / "elsewhere")
    (tmp_path / pruning.VENVS / "mine").mkdir(parents=True)  # without our marker
    (tmp_path / "bundles" / ONNX_DIR / KEYS[0] / "mine").mkdir(parents=True)  # not one of our exporters
    assert names(pruning.bundles(tmp_path)) == [KEYS[0]]
    assert pruning.environments(tmp_path) == []


def test_only_checkpoints_in_our_own_cache_are_listed(tmp_path: Path) -> None:
    assert pruning.checkpoints(tmp_path) == []
    snapshot = tmp_path / "models--me--bert" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(b"x" * 500)
    (tmp_path / "models--me--bert" / "refs").mkdir()
    (tmp_path / "models--me--bert" / "refs" / "main").write_text("a" * 40)
    bundle(tmp_path, KEYS[0], 1)
    (found,) = pruning.checkpoints(tmp_path)
    assert (found.name, found.size) == ("models--me--bert", 540)
    assert pruning.remove(found, None) is None
    assert not (tmp_path / "models--me--bert").exists()


# The order of removal


def test_the_least_recently_used_is_removed_first_until_the_size_is_reached() -> None:
    items = [item("new", 1), item("oldest", 90), item("older", 50), item("kept", 99, kept="in use")]
    assert names(pruning.choose(items, older_than=None, keep_bytes=25, now=NOW)) == ["oldest", "older"]
    assert names(pruning.choose(items, older_than=None, keep_bytes=40, now=NOW)) == []
    assert names(pruning.choose(items, older_than=dt.timedelta(days=60), keep_bytes=None, now=NOW)) == ["oldest"]
    assert names(pruning.choose(items, older_than=dt.timedelta(days=10), keep_bytes=30, now=NOW)) == ["oldest"]


def environment(cache: Path, name: str, days: float, *below: str) -> Path:
    folder = cache / pruning.VENVS / name
    site = folder / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (folder / MARKER).write_text("key")
    if below:
        lines = [str(cache / pruning.VENVS / other / "lib/python3.11/site-packages") for other in below]
        (site / LAYERS).write_text("\n".join(lines) + "\n")
    aged(folder / MARKER, days)
    return folder


def test_an_environment_that_others_depend_on_stays(tmp_path: Path) -> None:
    environment(tmp_path, "base", 90)
    environment(tmp_path, "old-harness", 80, "base")
    environment(tmp_path, "new-harness", 1, "base")
    items = pruning.environments(tmp_path)
    assert names(pruning.choose(items, older_than=dt.timedelta(days=30), keep_bytes=None, now=NOW)) == ["old-harness"]
    assert names(pruning.choose(items, **EVERYTHING)) == ["old-harness", "new-harness"]


# What must never be removed


def test_a_locked_bundle_stays(tmp_path: Path) -> None:
    folder = bundle(tmp_path, KEYS[0], 90)
    lock = tmp_path / "bundles" / LOCKS / KEYS[0]
    lock.parent.mkdir()
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "locked" in str(pruning.remove(pruning.bundles(tmp_path)[0], None))
        assert (folder / MANIFEST).is_file()
    assert pruning.remove(pruning.bundles(tmp_path)[0], None) is None
    assert not folder.exists()


def test_an_environment_or_an_export_that_is_being_made_stays(tmp_path: Path) -> None:
    venv = environment(tmp_path, "base", 90)
    export = tmp_path / "bundles" / ONNX_DIR / KEYS[0] / EXPORTER
    export.mkdir(parents=True)
    locks = [venv.parent / LOCKS / "base", tmp_path / "bundles" / ONNX_DIR / LOCKS / f"{KEYS[0]}-{EXPORTER}"]
    items = [*pruning.environments(tmp_path), *pruning.bundles(tmp_path)]
    for each, lock in zip(items, locks, strict=True):
        lock.parent.mkdir(exist_ok=True)
        with lock.open("ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert pruning.remove(each, None) is not None
        assert Path(each.places[0]).is_dir()
        assert pruning.remove(each, None) is None
        assert not Path(each.places[0]).exists()


def run(output: Path, number: int) -> RunFolder:
    folder = RunFolder.create(output, make.plan(run_id=f"2026010{number}T000000Z-aaaaaa"))
    aged(folder.path / "plan.json", 90)
    return folder


def test_the_latest_run_and_an_active_one_stay(tmp_path: Path) -> None:
    folders = [run(tmp_path, number) for number in (1, 2, 3)]
    with locked(folders[0]):
        listed = {each.name: each.kept for each in pruning.runs(tmp_path)}
    assert listed[folders[0].path.name] == f"process {os.getpid()} works in it"
    assert listed[folders[1].path.name] is None
    assert listed[folders[2].path.name] == "it is the latest"
    free = next(each for each in pruning.runs(tmp_path) if each.name == folders[1].path.name)
    with locked(folders[1]):  # another process locks it between the listing and the removal
        assert "works in it" in str(pruning.remove(free, None))
    assert pruning.remove(free, None) is None
    assert not folders[1].path.exists()
    assert pruning.runs(tmp_path)[0].kept is None


def test_a_folder_that_is_not_a_run_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert pruning.runs(tmp_path) == []


@pytest.mark.parametrize(
    ("command", "work"),
    [
        (["/usr/bin/hwmatrix", "matrix", "--suite", "smoke"], True),
        (["/usr/bin/python3", "/venv/bin/hwmatrix", "run", "plan.json"], True),
        (["python", "-m", "hwmatrix.cli.main", "matrix"], True),
        (["python", "-m", "hwmatrix.runner", "run", "--cache", "/cache"], True),
        (["python", "-m", "hwmatrix.cli.main", "runner", "check"], False),
        (["/usr/bin/python3", "/venv/bin/hwmatrix", "runner", "prune", "--yes"], False),
        (["/usr/bin/python3.11", "-I", "/venv/bin/hwmatrix", "ops"], True),
        (["hwmatrix", "cluster", "worker", "tls://box1:8786"], True),
        (["hwmatrix", "cluster", "scheduler"], False),
        (["hwmatrix", "cluster", "members", "tls://box1:8786"], False),
        (["hwmatrix", "matrix", "--engine", "cluster", "--local", "2"], True),
        (["hwmatrix", "matrix", "--engine", "cluster", "--scheduler", "tls://box1:8786"], False),
        (["vim", "docs/hwmatrix"], False),
        (["python", "-m", "pytest"], False),
        (["grep", "-r", "x", "hwmatrix"], False),
    ],
)
def test_active_processes_are_recognized(command: list[str], work: bool) -> None:  # noqa: FBT001 - a column of the table
    assert pruning.is_work(command) == work


class Engine:
    """A fake docker client with a few images, which records what is removed."""

    def __init__(self, images: set[str], running: tuple[str, ...] = ()) -> None:
        self.known, self.running, self.removed = images, running, list[str]()
        self.images = self.containers = self

    def list(self, **_: Any) -> Iterator[Any]:
        return iter([type("Container", (), {"name": name})() for name in self.running])

    def get(self, name: str) -> Any:
        from docker.errors import ImageNotFound

        if name not in self.known:
            raise ImageNotFound(name)
        return type("Image", (), {"tags": ["mine/now:1"] if name == "sha256:tagged" else []})()

    def remove(self, name: str, *, force: bool) -> None:
        from docker.errors import APIError, ImageNotFound

        assert not force
        if name not in self.known:
            raise ImageNotFound(name)
        if name == "sha256:used":
            raise APIError("conflict", explanation="image is being used by running container 1")
        self.removed.append(name)


def old_image(*places: str) -> Item:
    return item("hwmatrix cpu", 90, kind=Kind.IMAGE, places=places)


def test_an_image_that_a_container_uses_stays() -> None:
    engine: Any = Engine({"sha256:1", "sha256:used", "sha256:tagged", "hwmatrix/a:0", "hwmatrix/b:0"})
    assert pruning.remove(old_image("sha256:1"), engine) is None
    assert "being used" in str(pruning.remove(old_image("sha256:used"), engine))
    assert pruning.remove(old_image("sha256:tagged"), engine) == "it was tagged meanwhile"
    assert pruning.remove(old_image("sha256:gone"), engine) is None
    assert pruning.remove(old_image("hwmatrix/a:0", "hwmatrix/b:0"), engine) is None
    assert engine.removed == ["sha256:1", "hwmatrix/a:0", "hwmatrix/b:0"]
    assert pruning.remove(old_image("sha256:1"), None) == "no engine answers"


def test_running_containers_and_commands_are_work() -> None:
    engine: Any = Engine(set(), running=("hwmatrix-cpu-1",))
    assert pruning.busy(engine, []) == "the container hwmatrix-cpu-1 is running"
    assert pruning.busy(None, [(7, ["hwmatrix", "matrix"])]) == "process 7 (hwmatrix matrix) is working"
    assert pruning.busy(None, [(7, ["hwmatrix", "runner", "check"])]) is None


# The command


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with an old and a new bundle, an old and a newer run, and no engine."""
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checking, "connected", lambda *_, **__: (None, "no engine", "start one"))
    monkeypatch.setattr(pruning, "others", lambda: iter(()))
    bundle(tmp_path / "cache", KEYS[0], 90)
    os.utime(bundle(tmp_path / "cache", KEYS[1], 0) / MANIFEST)
    run(tmp_path / "out", 1)
    run(tmp_path / "out", 2)
    for file in (tmp_path / "out").rglob("*"):
        aged(file, 90)
    return tmp_path


def left(place: Path) -> set[str]:
    return {path.name for path in (*(place / "cache" / "bundles").iterdir(), *(place / "out" / "runs").iterdir()) if path.name[0] != "."}


def test_without_yes_nothing_is_removed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = left(place)
    assert main.main(["runner", "prune", "--output-dir", str(place / "out")]) == 0
    told = capsys.readouterr()
    assert "would be removed" in told.out
    assert "images are skipped: no engine" in told.err
    assert left(place) == before


def test_with_yes_old_data_is_removed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["runner", "prune", "--output-dir", str(place / "out"), "--yes"]) == 0
    assert "2 of 4 removed" in capsys.readouterr().out
    assert left(place) == {KEYS[1], "20260102T000000Z-aaaaaa"}
    plan = json.loads((place / "out" / "runs" / "20260102T000000Z-aaaaaa" / "plan.json").read_text())
    assert plan["run_id"] == "20260102T000000Z-aaaaaa"


def test_while_another_command_runs_only_runs_are_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "others", lambda: iter([(7, ["hwmatrix", "matrix"])]))
    assert main.main(["runner", "prune", "--output-dir", str(place / "out"), "--yes"]) == 0
    assert left(place) == {KEYS[0], KEYS[1], "20260102T000000Z-aaaaaa"}


def test_a_limit_below_zero_is_refused(place: Path) -> None:
    assert main.main(["runner", "prune", "--keep-gb", "-1", "--output-dir", str(place / "out"), "--yes"]) == 2
    assert len(left(place)) == 4
