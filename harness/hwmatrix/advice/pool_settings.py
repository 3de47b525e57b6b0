"""How a resource pool behaves: read once from the environment, and handed in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Final, Self

from hwmatrix.errors import ConfigError, Problem

LOW_MEMORY_VARIABLE: Final = "RESOURCE_POOL_LOW_MEMORY"
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"", "0", "false", "no", "off"})
_SHARE: Final = 0.8
"""The part of a memory that models may take. The rest is for activations and for whatever else works there."""
_LOW_SHARE: Final = 0.4
"""Half of it in low-memory mode."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """``low_memory``: half the budget, one model loaded at a time, and nothing kept that nobody uses.

    ``timeout_minutes`` is how long an unused model is kept. ``budget_mb`` sets budgets (MiB) by memory: ``host``, ``cuda:0``,
    ``rocm:1``; others are a share of what there is.

    Raises:
        ConfigError: a time-out or a budget that is no positive number.
    """

    low_memory: bool = False
    timeout_minutes: float = 30.0
    budget_mb: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        numbers = {"timeout_minutes": self.timeout_minutes, **{f"budget_mb[{place!r}]": value for place, value in self.budget_mb.items()}}
        problems = [
            Problem(where=where, what=f"{value!r} is no positive number", hint="leave it out for the default")
            for where, value in numbers.items()
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or math.isnan(value)
        ]
        if problems:
            raise ConfigError(problems)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The settings that variables ask for.

        Raises:
            ConfigError: ``RESOURCE_POOL_LOW_MEMORY`` is neither yes nor no.
        """
        word = environment.get(LOW_MEMORY_VARIABLE, "").strip().lower()
        if word not in _YES | _NO:
            hint = f"use 1 for yes, 0 for no; also: {', '.join(sorted((_YES | _NO) - {'', '0', '1'}))}"
            raise ConfigError([Problem(where=LOW_MEMORY_VARIABLE, what=f"{word!r} is neither yes nor no", hint=hint)])
        return cls(low_memory=word in _YES)

    @property
    def share(self) -> float:
        """The part of a memory that models may take where no budget is set."""
        return _LOW_SHARE if self.low_memory else _SHARE
