"""The inputs of a run, and its outcome."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hwmatrix.errors import HwmatrixError
from hwmatrix.host.cache_limit import DEFAULT_GB
from hwmatrix.host.executors import Executor
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.host.stale import StaleRule
from hwmatrix.records import ModelKey, Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOrder:
    """A run that is ready to start: its folder and plan, where it runs, and how many targets run at a time.

    ``stale`` says which verdicts to renew; without it, all existing ones stand. ``cache_limit_gb`` is the limit of the bundle cache between
    the waves of a run, in GiB. ``handed_over`` are the keys of the models whose bundles were made elsewhere and are in the cache.
    ``memory_mb`` is the memory in MiB that it may use; None: the machine's.
    """

    folder: RunFolder
    plan: Plan
    executor: Executor
    reference: str
    cache: Path
    workers: int
    stale: StaleRule | None = None
    cache_limit_gb: float = DEFAULT_GB
    handed_over: frozenset[ModelKey] = frozenset()
    memory_mb: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The outcome: targets that failed as a whole, with the errors that decide the exit code."""

    failed: dict[str, HwmatrixError]

    def raise_first(self) -> None:
        """Raise the first failure, after everything else is done and reported.

        Raises:
            HwmatrixError: a target's image, engine or store failed.
        """
        for error in self.failed.values():
            raise error
