"""The cores and memory that cgroups allow this process: v1, v2 and mixed, inside and outside a container.

The limit of any ancestor group applies, so every visible level is read. Formats: the kernel's documentation, admin-guide/cgroup-v1 (memory,
cpusets), scheduler/sched-bwc, admin-guide/cgroup-v2; mountinfo: proc(5).
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path("/")
_MIB: Final = 2**20
_LONGEST: Final = 20
"""Digits of the largest number that the kernel writes."""
_UNLIMITED: Final = 1 << 60
"""Version 1 writes a number near 2**63 for no limit."""
_V2: Final = ""
"""Version 2 has one hierarchy for all controllers, with an empty name in /proc/self/cgroup."""
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of this process's group and its ancestors; None means no limit.

    ``cores`` is the smallest quota, in cores; ``cpuset`` counts the processors of the group's set. ``memory_mb`` is the smallest limit in
    MiB. ``left_mb`` is the memory in MiB that may still be allocated: the limit minus the usage without reclaimable file pages, at the
    level where it is least. ``stalled`` is the text of the group's own memory.pressure.
    """

    cores: float | None = None
    cpuset: int | None = None
    memory_mb: int | None = None
    left_mb: int | None = None
    stalled: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Mount:
    """One mounted hierarchy: ``shown`` is the group that is visible at ``point``."""

    controllers: frozenset[str]
    shown: str
    point: str


def limits(root: Path = ROOT) -> Limits:
    """Read the limits. Never raises: an unreadable file counts as no limit."""
    own, mounts = _own_groups(root), _mounts(root)
    cpu, cpuset, memory = ([*_folders(own, mounts, name, root)] for name in ("cpu", "cpuset", "memory"))
    quotas = [quota for folder in cpu if (quota := _quota(folder)) is not None]
    sets = [count for folder in cpuset if (count := _cpuset(folder)) is not None]
    levels = [level for folder in memory for level in _memory(folder)]
    return Limits(
        cores=min(quotas, default=None),
        cpuset=min(sets, default=None),
        memory_mb=min((limit // _MIB for limit, _ in levels), default=None),
        left_mb=min((max(0, limit - used) // _MIB for limit, used in levels if used is not None), default=None),
        stalled=next((text for folder in memory if (text := read(folder / "memory.pressure"))), None),
    )


def read(path: Path) -> str | None:
    """Return a small file's text without surrounding white space; None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """Return the whole number in a file; None if it has none, or cannot be read."""
    return _whole(read(path))


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= _LONGEST else None


def _own_groups(root: Path) -> dict[str, str]:
    """The group of this process in each hierarchy, by controller, from lines such as ``4:memory:/a/b`` and ``0::/a/b``."""
    own: dict[str, str] = {}
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:  # noqa: PLR2004 - number, controllers, path
            own |= dict.fromkeys(parts[1].split(","), parts[2])
    return own


def _mounts(root: Path) -> list[_Mount]:
    """The mounted hierarchies, and the group that each shows at its mount point."""
    found = []
    for line in (read(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) < 5 or len(right) < 3 or right[0] not in {"cgroup", "cgroup2"}:  # noqa: PLR2004 - the fixed fields
            continue
        controllers = frozenset({_V2} if right[0] == "cgroup2" else right[2].split(","))
        found.append(_Mount(controllers=controllers, shown=_plain(left[3]), point=_plain(left[4])))
    return found


def _plain(field: str) -> str:
    """Decode a field of mountinfo, in which spaces and the like are octal escapes."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), field)


def _folders(own: dict[str, str], mounts: list[_Mount], controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and its ancestors, from the bottom up, that the controller may limit."""
    for mount in mounts:
        for name in {controller, _V2} & mount.controllers & own.keys():
            point = root / mount.point.lstrip("/")
            folder = point / _below(own[name], mount.shown)
            if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises if a name is too long
                folder = point
            yield folder
            yield from (parent for parent in folder.parents if parent == point or point in parent.parents)


def _below(group: str, shown: str) -> str:
    """Return a group's path relative to the group that a mount shows; empty outside of it (Docker shows a container its own group)."""
    base = shown.rstrip("/")
    inside = group == base or group.startswith(f"{base}/")
    relative = group[len(base) :].lstrip("/") if inside else ""
    return "" if ".." in relative.split("/") else relative


def _quota(folder: Path) -> float | None:
    """The quota in cores: CPU time per period, both in microseconds."""
    text = read(folder / "cpu.max")
    quota, period = (
        text.split(maxsplit=1) if text and " " in text else (read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us"))
    )
    most, within = _whole(quota), _whole(period)
    return None if most is None or not within else most / within  # "max" in version 2, -1 in version 1


def _cpuset(folder: Path) -> int | None:
    """The number of processors in a set such as ``0-3,8``."""
    text = read(folder / "cpuset.cpus.effective") or read(folder / "cpuset.effective_cpus")
    if not text:
        return None
    count = 0
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin, end = _whole(first), _whole(last if dash else first)
        if begin is None or end is None:
            return None
        count += end - begin + 1
    return count


def _memory(folder: Path) -> Iterator[tuple[int, int | None]]:
    """Yield the limits in bytes at this level, each with the usage that counts against it, if known.

    Version 1 also reports the limit of ancestors that a container cannot see, but not their usage.
    """
    told = dict(line.split(maxsplit=1) for line in (read(folder / "memory.stat") or "").splitlines() if " " in line.strip())
    for limit, usage, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = number(folder / limit), number(folder / usage)
        if most is not None and most < _UNLIMITED:
            yield most, None if now is None else max(0, now - (_whole(told.get(idle)) or 0))
    above = _whole(told.get("hierarchical_memory_limit"))
    if above is not None and above < _UNLIMITED:
        yield above, None
