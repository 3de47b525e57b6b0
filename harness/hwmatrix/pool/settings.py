"""Settings of a resource pool: read once from the environment, passed in, or changed later."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Self

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, Problem

LOW_MEMORY_VARIABLE: Final = "RESOURCE_POOL_LOW_MEMORY"
TIMEOUT_VARIABLE: Final = "RESOURCE_POOL_TIMEOUT_MINS"
_RECOMMENDED: Final = {"low_memory_mode": "low_memory", "recommended_timeout_mins": "timeout_minutes"}
"""Setting names of ``get_optimal_resource_pool_config``, mapped to the names here."""
_SWITCH: Final = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False, "": False}
_SHARE: Final = 0.8
"""The share of a memory that models may take. The rest is for activations and other programs."""
_LOW_SHARE: Final = 0.4
"""The share in low-memory mode: half."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """``low_memory``: half the budget, and unused models are not kept. ``timeout_minutes`` is how long an unused model is kept.

    ``budget_mb`` sets budgets (MiB) by memory: ``host``, ``cuda:0``, ``rocm:1``; other budgets are a share of the memory's size.

    Raises:
        ConfigError: a timeout or a budget is not positive, or the switch is neither True nor False.
    """

    low_memory: bool = False
    timeout_minutes: float = 30.0
    budget_mb: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values."""
        hint = "leave it out for the default"
        numbers = {"timeout_minutes": self.timeout_minutes, **{f"budget_mb[{place!r}]": mb for place, mb in self.budget_mb.items()}}
        problems = [
            Problem(where=where, what=f"{value!r} is not a positive number", hint=hint)
            for where, value in numbers.items()
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0
        ]
        if self.low_memory not in (True, False):
            problems.append(Problem(where="low_memory", what=f"{self.low_memory!r} is neither True nor False", hint=hint))
        if problems:
            raise ConfigError(problems)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The settings from environment variables.

        Raises:
            ConfigError: lists every variable with an invalid value.
        """
        low, minutes = environment.get(LOW_MEMORY_VARIABLE, "").strip().lower(), environment.get(TIMEOUT_VARIABLE, "").strip()
        problems = []
        if low not in _SWITCH:
            hint = f"use 1 for yes, 0 for no; also: {', '.join(sorted(_SWITCH.keys() - {'', '0', '1'}))}"
            problems.append(Problem(where=LOW_MEMORY_VARIABLE, what=f"{low!r} is neither yes nor no", hint=hint))
        try:
            settings = cls(low_memory=_SWITCH.get(low, False), timeout_minutes=float(minutes) if minutes else cls.timeout_minutes)
        except (ValueError, ConfigError):
            what = f"{minutes!r} is not a positive number"
            problems.append(Problem(where=TIMEOUT_VARIABLE, what=what, hint="leave it out for the default"))
        if problems:
            raise ConfigError(problems)
        return settings

    def changed(self, **changes: Any) -> Self:
        """A copy with some settings changed, also under the names of ``get_optimal_resource_pool_config``.

        Raises:
            ConfigError: there is no such setting, or its value is invalid.
        """
        known = {field.name for field in dataclasses.fields(self)}
        renamed = {_RECOMMENDED.get(name, name): value for name, value in changes.items()}
        problems = [
            Problem(where=name, what="is not a setting of the pool", hint=near_miss(name, known | set(_RECOMMENDED)))
            for name in renamed
            if name not in known
        ]
        if problems:
            raise ConfigError(problems)
        return dataclasses.replace(self, **renamed)

    @property
    def share(self) -> float:
        """The share of a memory that models may take if no budget is set."""
        return _LOW_SHARE if self.low_memory else _SHARE
