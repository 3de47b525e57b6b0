"""Limits from files in the format of the kernel, in a folder that simulates the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwmatrix.hardware import cgroups, memory

RECORDED = Path(__file__).parents[1] / "recorded" / "cgroups"
HOST_V2 = "31 23 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HOST_V1 = """\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
"""
UNLIMITED = "9223372036854771712\n"  # the value of version 1 for no limit
MIB = 2**20


def tree(root: Path, *, own: str = "", mounts: str = "", files: dict[str, str] | None = None) -> Path:
    """A root folder with this process's groups, the mounts, and files below /sys/fs/cgroup."""
    told = {"proc/self/cgroup": own, "proc/self/mountinfo": mounts} | {
        f"sys/fs/cgroup/{name}": text for name, text in (files or {}).items()
    }
    for name, text in told.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def test_a_recorded_container_of_version_1(tmp_path: Path) -> None:
    """Docker mounts the container's own group at the mount point, but /proc/self/cgroup has its path from the root."""
    files = {
        "cpu/cpu.cfs_quota_us": "150000\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "cpuset/cpuset.effective_cpus": "0-1\n",
        "memory/memory.limit_in_bytes": "536870912\n",
        "memory/memory.usage_in_bytes": "1499136\n",
        "memory/memory.stat": (RECORDED / "docker-v1-memory.stat").read_text(encoding="ascii"),
    }
    own, mounts = ((RECORDED / f"docker-v1-{name}").read_text(encoding="ascii") for name in ("cgroup", "mountinfo"))
    found = cgroups.limits(tree(tmp_path, own=own, mounts=mounts, files=files))
    left = (536870912 - (1499136 - 12288)) // MIB
    assert found == cgroups.Limits(cores=1.5, cpuset=2, memory_mb=512, left_mb=left)


def test_a_limit_above_that_a_container_cannot_see(tmp_path: Path) -> None:
    """Version 1 reports it in memory.stat: a pod's limit applies to its containers, which have no limit of their own."""
    own = (RECORDED / "kubepods-v1-cgroup").read_text(encoding="ascii")
    group = own.splitlines()[2].rpartition(":")[2]
    mounts = f"140 136 0:32 {group} /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n"
    files = {"memory/memory.limit_in_bytes": UNLIMITED, "memory/memory.stat": f"hierarchical_memory_limit {256 * MIB}\n"}
    found = cgroups.limits(tree(tmp_path, own=own, mounts=mounts, files=files))
    assert (found.memory_mb, found.left_mb) == (256, None)


@pytest.mark.parametrize("mounts", ["docker-v2-mountinfo", "podman-v2-mountinfo"])
def test_a_container_of_version_2(tmp_path: Path, mounts: str) -> None:
    files = {
        "cpu.max": "50000 100000\n",
        "cpuset.cpus.effective": "0-3,8,10-11\n",
        "memory.max": f"{1024 * MIB}\n",
        "memory.current": f"{300 * MIB}\n",
        "memory.stat": f"anon 1\ninactive_file {100 * MIB}\n",
        "memory.pressure": "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=3\n",
    }
    root = tree(tmp_path, own="0::/\n", mounts=(RECORDED / mounts).read_text(encoding="ascii"), files=files)
    found = cgroups.limits(root)
    assert (found.cores, found.cpuset, found.memory_mb, found.left_mb) == (0.5, 7, 1024, 824)
    facts = memory.facts(found, root)
    assert (facts["memory_stalled_percent"], facts["memory_all_stalled_percent"]) == (1.5, 0.5)
    assert facts["memory_left_mb"] == min(824, facts["available_memory_mb"])


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    """systemd's slices: the leaf has "max", so its parents' limits apply.

    The group with the least memory left is not always the one with the least limit.
    """
    files = {
        "user.slice/cpu.max": "max 100000\n",
        "user.slice/a.slice/cpu.max": "400000 100000\n",
        "user.slice/a.slice/b.scope/cpu.max": "800000 100000\n",
        "user.slice/memory.max": f"{4096 * MIB}\n",
        "user.slice/memory.current": f"{4000 * MIB}\n",
        "user.slice/a.slice/memory.max": f"{2048 * MIB}\n",
        "user.slice/a.slice/memory.current": f"{100 * MIB}\n",
        "user.slice/a.slice/b.scope/memory.max": "max\n",
        "memory.max": f"{MIB}\n",  # the root has none, but a limit there would apply too
    }
    root = tree(tmp_path, own="0::/user.slice/a.slice/b.scope\n", mounts=HOST_V2, files=files)
    (root / "sys/fs/cgroup/memory.max").unlink()
    found = cgroups.limits(root)
    assert (found.cores, found.memory_mb, found.left_mb) == (4.0, 2048, 96)


def test_groups_of_version_1_are_nested_too(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/batch/cpu.cfs_quota_us": "200000\n",
        "cpu,cpuacct/batch/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/batch/job/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/batch/job/cpu.cfs_period_us": "100000\n",
        "memory/batch/memory.limit_in_bytes": f"{512 * MIB}\n",
        "memory/batch/job/memory.limit_in_bytes": UNLIMITED,
        "cpuset/cpuset.effective_cpus": "0-63\n",
    }
    own = "5:cpu,cpuacct:/batch/job\n4:memory:/batch/job\n3:cpuset:/\n0::/batch/job\n"
    found = cgroups.limits(tree(tmp_path, own=own, mounts=HOST_V1, files=files))
    assert (found.cores, found.cpuset, found.memory_mb) == (2.0, 64, 512)


def test_both_versions_at_once(tmp_path: Path) -> None:
    """The hybrid layout: all controllers in version 1, and version 2 without any."""
    mounts = HOST_V1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    files = {"memory/job/memory.limit_in_bytes": f"{64 * MIB}\n", "unified/job/cgroup.procs": ""}
    found = cgroups.limits(tree(tmp_path, own="4:memory:/job\n0::/job\n", mounts=mounts, files=files))
    assert (found.memory_mb, found.cores) == (64, None)


@pytest.mark.parametrize(
    ("own", "mounts", "files"),
    [
        ("", "", {}),
        ("nonsense\n", "nonsense\n1 2 3\n", {}),
        ("0::/\n", HOST_V2, {"cpu.max": "max 100000\n", "memory.max": "max\n"}),
        ("0::/\n", HOST_V2, {"cpu.max": "100000 0\n", "memory.max": "\n", "cpuset.cpus.effective": "\n"}),
        ("0::/\n", HOST_V2, {"cpu.max": "5\n", "memory.max": "many\n", "cpuset.cpus.effective": "0-x\n"}),
        ("4:memory:/\n1:cpu:/\n", HOST_V1, {"memory/memory.limit_in_bytes": UNLIMITED, "cpu,cpuacct/cpu.cfs_quota_us": "-1\n"}),
    ],
)
def test_without_limits_there_are_none(tmp_path: Path, own: str, mounts: str, files: dict[str, str]) -> None:
    assert cgroups.limits(tree(tmp_path, own=own, mounts=mounts, files=files)) == cgroups.Limits()


def test_a_group_outside_the_mounted_hierarchy(tmp_path: Path) -> None:
    """Outside its namespace, a process's paths begin with /.., and only the mounted groups can be read."""
    root = tree(tmp_path, own="0::/../other\n", mounts=HOST_V2, files={"memory.max": f"{32 * MIB}\n"})
    (root / "sys/fs/other").mkdir()
    (root / "sys/fs/other/memory.max").write_text(f"{MIB}\n", encoding="ascii")
    assert cgroups.limits(root).memory_mb == 32


def test_mount_points_with_spaces(tmp_path: Path) -> None:
    root = tree(tmp_path, own="0::/\n", mounts="1 2 0:27 / /my\\040groups rw - cgroup2 cgroup2 rw\n")
    (root / "my groups").mkdir()
    (root / "my groups/memory.max").write_text(f"{8 * MIB}\n", encoding="ascii")
    assert cgroups.limits(root).memory_mb == 8


def test_more_is_used_than_the_limit_allows(tmp_path: Path) -> None:
    files = {"memory.max": f"{8 * MIB}\n", "memory.current": f"{9 * MIB}\n"}
    assert cgroups.limits(tree(tmp_path, own="0::/\n", mounts=HOST_V2, files=files)).left_mb == 0


def test_memory_pressure_of_the_machine(tmp_path: Path) -> None:
    """If the group has no pressure file, as in version 1, the machine's is used."""
    (tmp_path / "proc/pressure").mkdir(parents=True)
    recorded = Path(__file__).parents[1] / "recorded" / "pressure-memory"
    (tmp_path / "proc/pressure/memory").write_bytes(recorded.read_bytes())
    facts = memory.facts(cgroups.Limits(), tmp_path)
    assert (facts["memory_stalled_percent"], facts["memory_all_stalled_percent"]) == (70.24, 57.59)
    assert facts["memory_limit_mb"] is None
    assert facts["memory_left_mb"] == facts["available_memory_mb"]


@pytest.mark.parametrize(("level", "word"), [("1", "normal"), ("2", "warning"), ("4", "critical"), ("7", None), (None, None)])
def test_memory_pressure_of_a_mac(tmp_path: Path, level: str | None, word: str | None) -> None:
    facts = memory.facts(cgroups.Limits(), tmp_path, mac_level=level)
    assert facts["memory_pressure_level"] == word
    assert facts["memory_stalled_percent"] is None


def test_the_values_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "number").write_bytes(b" 42\n")
    (tmp_path / "text").write_bytes(b"\xff\n")
    assert (cgroups.number(tmp_path / "number"), cgroups.number(tmp_path / "text"), cgroups.number(tmp_path)) == (42, None, None)
    assert cgroups.read(tmp_path / "missing") is None
