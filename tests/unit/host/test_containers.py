from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_engine import engine

pytest.importorskip("docker")

from hwmatrix.basics.processes import living, own_mark
from hwmatrix.errors import EngineError
from hwmatrix.host import containers
from hwmatrix.host.containers import Limits, Mount, RunningContainer

if TYPE_CHECKING:
    from collections.abc import Iterable

TMP = "/tmp"  # noqa: S108 - of the container
LIMITS = Limits(memory_mb=512, pids=64, cpus=1.5, cpuset="0-1", tmp_mb=32)


class FakeContainer:
    name = "fake"

    def wait(self, **_: Any) -> dict[str, int]:
        return {"StatusCode": 3}


def started(*chunks: tuple[bytes | None, bytes | None]) -> RunningContainer:
    stream: Iterable[tuple[bytes | None, bytes | None]] = iter(chunks)
    return RunningContainer(FakeContainer(), stream)  # type: ignore[arg-type]


def test_lines_are_assembled_from_chunks() -> None:
    container = started((b"on", None), (b"e\ntw", b"warning\n"), (b"o\n\n", None), (b"\xff last", b"end"))
    assert list(container.lines()) == ["one", "two", "", "\ufffd last"]
    assert container.stderr_tail == "warning\nend"
    assert container.wait() == 3


def test_waiting_reads_the_remaining_output() -> None:
    container = started((None, b"x" * 100_000), (b"unread\n", b"the end"))
    assert container.wait() == 3
    assert len(container.stderr_tail) == containers.STDERR_TAIL_BYTES
    assert container.stderr_tail.endswith("the end")


def test_output_without_a_newline_is_limited() -> None:
    half = b"x" * (containers.LINE_BYTES // 2 + 1)
    assert [len(line) for line in started((half, None), (half, None), (b"y", None)).lines()] == [2 * len(half), 1]


def test_a_container_has_minimal_privileges(tmp_path: Path) -> None:
    mounts = (Mount(source=tmp_path, target="/out", read_only=False), Mount(source=tmp_path, target="/in"))
    options = containers._options(engine(), limits=LIMITS, mounts=mounts, devices=(), gpus=False)
    assert options["network_mode"] == "none"
    assert options["read_only"] is True
    assert options["cap_drop"] == ["ALL"]
    assert options["security_opt"] == ["no-new-privileges:true"]
    assert options["mem_limit"] == options["memswap_limit"] == "512m"
    assert options["pids_limit"] == 64
    assert options["nano_cpus"] == 1_500_000_000
    assert options["cpuset_cpus"] == "0-1"
    assert "noexec" in options["tmpfs"][TMP]
    assert "size=32m" in options["tmpfs"][TMP]
    assert [(mount["Target"], mount["ReadOnly"]) for mount in options["mounts"]] == [("/out", False), ("/in", True)]
    assert options["devices"] == []
    assert "privileged" not in options


def test_only_a_target_that_compiles_can_execute_what_it_wrote() -> None:
    limits = dataclasses.replace(LIMITS, executable_tmp=True)
    options = containers._options(engine(), limits=limits, mounts=(), devices=(), gpus=False)
    assert options["tmpfs"][TMP].split(",")[:4] == ["rw", "nosuid", "nodev", "exec"]


def test_a_device_comes_with_its_group() -> None:
    options = containers._options(engine(), limits=LIMITS, mounts=(), devices=("/dev/null",), gpus=True)
    assert options["device_requests"] == [{"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}]
    assert options["devices"] == ["/dev/null:/dev/null:rwm"]
    assert options["group_add"] == [str(Path("/dev/null").stat().st_gid)]


def test_a_folder_of_devices_comes_with_the_groups_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "by-path").mkdir()
    os.chown(tmp_path, -1, os.getgid())
    for node in ("card0", "renderD128"):
        (tmp_path / node).touch()
    assert containers._groups((str(tmp_path), "/dev/null")) == sorted({str(os.getgid()), str(Path("/dev/null").stat().st_gid)})
    (tmp_path / "card0").unlink()
    (tmp_path / "renderD128").unlink()
    assert containers._groups((str(tmp_path),)) == []


def test_a_mount_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="gone"):
        containers._options(engine(), limits=LIMITS, mounts=(Mount(source=tmp_path / "gone", target="/in"),), devices=(), gpus=False)


@pytest.mark.parametrize(("uid", "rootless", "user"), [(0, False, "10001:10001"), (1000, False, "1000:1000"), (1000, True, "0:0")])
def test_no_container_runs_as_the_machine_s_root(monkeypatch: pytest.MonkeyPatch, uid: int, *, rootless: bool, user: str) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(os, "getgid", lambda: uid)
    assert containers.container_user(engine(rootless=rootless)) == user


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The owners that root gives, by path. Names are relative to an open folder, and no link is followed."""
    given: dict[str, int] = {}

    def chown(path: Any, uid: int, _gid: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        folder = "" if dir_fd is None else f"{Path(f'/proc/self/fd/{dir_fd}').readlink()}/"
        assert dir_fd is None or not follow_symlinks
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        given[f"{folder}{path}"] = uid

    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    return given


def test_a_writable_folder_belongs_to_the_containers_user(tmp_path: Path, owned: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    (out / "deep").mkdir(parents=True)
    (out / "deep/file").touch()
    (out / "link").symlink_to("/etc")
    assert containers.prepare_writable(out, engine()) == out
    assert owned == dict.fromkeys([str(out / "deep/file"), str(out / "deep"), str(out / "link"), str(out)], 10001)
    assert list(owned)[-1] == str(out), "last: before, no container can write in it"
    owned.clear()
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    containers.prepare_writable(tmp_path / "new/folder", engine())
    assert (tmp_path / "new/folder").is_dir()
    assert owned == {}


def test_what_vanishes_from_a_shared_folder_is_left_out(tmp_path: Path, owned: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/file").touch()
    whole = os.fwalk

    def walk(*words: Any, **options: Any) -> Any:
        for here, folders, files, descriptor in whole(*words, **options):
            yield here, folders, [*files, "gone"], descriptor

    monkeypatch.setattr(os, "fwalk", walk)
    containers.prepare_writable(tmp_path, engine())
    assert set(owned) == {str(tmp_path), str(tmp_path / "bundle"), str(tmp_path / "bundle/file")}


def test_an_owner_is_a_process_and_not_only_its_number() -> None:
    assert living(own_mark()) == os.getpid()
    assert living(f"{os.getpid()}:12.00") is None
    assert living("not a number") is None
    assert living("") is None
