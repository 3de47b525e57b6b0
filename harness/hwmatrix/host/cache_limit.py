"""Keeps the bundle cache below its limit between the waves of a run: removes the least recently used, but none still needed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.clock import now
from hwmatrix.basics.json_text import read_json
from hwmatrix.host.ci_machines import pruning
from hwmatrix.host.ci_machines.pruning import GIB
from hwmatrix.models.bundle import plan_part
from hwmatrix.models.canary import canary_plans
from hwmatrix.models.folder import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hwmatrix.host.ci_machines.pruning import Item
    from hwmatrix.records import ModelPlan

DEFAULT_GB: Final = 20.0
_NEEDED: Final = "this run needs it"


def keep_under(limit_gb: float, bundles: Path, later: Sequence[ModelPlan]) -> str | None:
    """Remove the least recently used bundles and exports until the size is below the limit in GiB. Keep the bundles of ``later`` models.

    ``bundles`` is the cache's folder of bundles. Nothing is removed while another hwmatrix command works on this machine, because it
    chooses bundles by name long before it opens them. Returns a description of what was done, or None if nothing was to do.
    """
    items = pruning.bundles(bundles.parent)
    size = sum(item.size for item in items)
    limit = limit_gb * GIB
    if size <= limit:
        return None
    told = f"the cache has {size / GIB:.1f} GiB of bundles, and the limit is {limit_gb:g}"
    reason = pruning.busy(None, pruning.others())
    if reason is not None:
        return f"{told}: nothing is removed, since {reason}"
    needed = {plan_part(model) for model in (*canary_plans(), *later)}
    marked = [_marked(item, bundles, needed) for item in items]
    chosen = pruning.choose(marked, older_than=None, keep_bytes=int(limit), now=now())
    problems = [(item, pruning.remove(item, None)) for item in chosen]
    gone = [item.size for item, problem in problems if problem is None]
    failures = [problem for _, problem in problems if problem is not None]
    left = (size - sum(gone)) / GIB
    told += f": removed {len(gone)} of them, {left:.1f} GiB are left"
    return told if not failures else f"{told}; {len(failures)} could not be removed ({failures[0]})"


def _marked(item: Item, bundles: Path, needed: set[str]) -> Item:
    """Mark an item as kept if its bundle is of a needed model. An unreadable item is not marked."""
    try:
        identity = _read(bundles / item.name.partition("/")[0] / MANIFEST)["identity"]
        of = plan_part(identity) if isinstance(identity, dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return item
    return dataclasses.replace(item, kept=_NEEDED) if of in needed else item


def _read(file: Path) -> Any:
    """Read a manifest without changing its access time, which tells when a bundle was last used: this read is not a use."""
    status = file.stat()
    content = file.read_bytes()
    with contextlib.suppress(PermissionError):  # another user's file
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return read_json(content)
