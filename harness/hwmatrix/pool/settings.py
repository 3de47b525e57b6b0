"""Settings of a resource pool: read once from the environment, passed in, or changed later."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

LOW_MEMORY_VARIABLE: Final = "RESOURCE_POOL_LOW_MEMORY"
TIMEOUT_VARIABLE: Final = "RESOURCE_POOL_TIMEOUT_MINS"
TIMER_VARIABLE: Final = "RESOURCE_POOL_TIMER"
LIMIT_VARIABLE: Final = "RESOURCE_POOL_MEMORY_LIMIT_PERCENT"
_RECOMMENDED: Final = {"low_memory_mode": "low_memory", "recommended_timeout_mins": "timeout_minutes"}
"""Setting names of ``get_optimal_resource_pool_config``, mapped to the names here."""
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})
_SHARE: Final = 0.8
"""The share of a memory that models may take. The rest is for activations and other programs."""
_LOW_SHARE: Final = 0.4
"""The share in low-memory mode: half."""
_ALL: Final = 100.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """``low_memory``: half the budget, one model loaded at a time, and unused models are not kept.

    ``timeout_minutes`` is how long an unused model is kept. ``timer``: a thread evicts it then, instead of the next request.
    ``budget_mb`` sets budgets (MiB) by memory: ``host``, ``cuda:0``, ``rocm:1``; other budgets are a share of the memory's size.
    If more than ``memory_limit_percent`` of a memory is in use, by any process, unused models are evicted; 100 switches that off.

    Raises:
        ConfigError: a timeout or a budget is not positive, a limit is above 100, or a switch is neither True nor False.
    """

    low_memory: bool = False
    timeout_minutes: float = 30.0
    timer: bool = True
    memory_limit_percent: float = 95.0
    budget_mb: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values."""
        numbers = {
            "timeout_minutes": self.timeout_minutes,
            "memory_limit_percent": self.memory_limit_percent,
            **{f"budget_mb[{place!r}]": value for place, value in self.budget_mb.items()},
        }
        problems = [
            Problem(where=where, what=f"{value!r} is not a positive number", hint="leave it out for the default")
            for where, value in numbers.items()
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or math.isnan(value)
        ]
        switches = {"low_memory": self.low_memory, "timer": self.timer}
        problems += [
            Problem(where=where, what=f"{value!r} is neither True nor False", hint="leave it out for the default")
            for where, value in switches.items()
            if not isinstance(value, bool)
        ]
        if not problems and self.memory_limit_percent > _ALL:
            what = f"{self.memory_limit_percent!r} is more than 100 percent"
            problems.append(Problem(where="memory_limit_percent", what=what, hint="100 switches the limit off"))
        if problems:
            raise ConfigError(problems)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The settings from environment variables.

        Raises:
            ConfigError: lists every variable with an invalid value.
        """
        readers: dict[str, tuple[str, Callable[[str, str], bool | float]]] = {
            LOW_MEMORY_VARIABLE: ("low_memory", _yes_or_no),
            TIMEOUT_VARIABLE: ("timeout_minutes", _number),
            TIMER_VARIABLE: ("timer", _yes_or_no),
            LIMIT_VARIABLE: ("memory_limit_percent", _number),
        }
        found: dict[str, Any] = {}
        problems: list[Problem] = []
        for variable, (name, read) in readers.items():
            word = environment.get(variable, "").strip().lower()
            try:
                if word:
                    found[name] = read(variable, word)
                    cls(**{name: found[name]})
            except ConfigError as error:
                problems += [dataclasses.replace(problem, where=variable) for problem in error.problems]
        if problems:
            raise ConfigError(problems)
        return cls(**found)

    def changed(self, **changes: Any) -> Self:
        """A copy with some settings changed, also under the names of ``get_optimal_resource_pool_config``.

        Raises:
            ConfigError: there is no such setting, one is given twice, or its value is invalid.
        """
        known = {field.name for field in dataclasses.fields(self)}
        problems = [
            Problem(where=name, what="is not a setting of the pool", hint=near_miss(name, known | set(_RECOMMENDED)))
            for name in changes
            if name not in known | set(_RECOMMENDED)
        ]
        problems += [
            Problem(where=name, what=f"it means {_RECOMMENDED[name]}, which is given as well", hint="leave one of them out")
            for name in changes
            if _RECOMMENDED.get(name) in changes
        ]
        if problems:
            raise ConfigError(problems)
        return dataclasses.replace(self, **{_RECOMMENDED.get(name, name): value for name, value in changes.items()})

    @property
    def share(self) -> float:
        """The share of a memory that models may take if no budget is set."""
        return _LOW_SHARE if self.low_memory else _SHARE


def _yes_or_no(variable: str, word: str) -> bool:
    if word not in _YES | _NO:
        hint = f"use 1 for yes, 0 for no; also: {', '.join(sorted((_YES | _NO) - {'0', '1'}))}"
        raise ConfigError([Problem(where=variable, what=f"{word!r} is neither yes nor no", hint=hint)])
    return word in _YES


def _number(variable: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError([Problem(where=variable, what=f"{word!r} is not a number", hint="leave it out for the default")]) from None
