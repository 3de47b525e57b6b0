"""Number formatting: three significant digits, no exponent, and a dash for missing values."""

# ruff: noqa: RUF001, RUF002 - typographic signs are meant
from __future__ import annotations

import math
from typing import Final

NOTHING: Final = "–"
_DIGITS: Final = 3


def number(value: float | None, digits: int = _DIGITS) -> str:
    """A number with this many significant digits: ``0.0312``, ``3.12``, ``31.2``, ``3,120``."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def interval(low: float | None, high: float | None) -> str:
    """A 95 % interval, with a digit more than a value has, since its ends are close to each other."""
    if low is None or high is None:
        return NOTHING
    return f"{number(low, _DIGITS + 1)} to {number(high, _DIGITS + 1)}"


def whole(value: float | None) -> str:
    """A number of MiB, parameters or samples, without decimals."""
    return NOTHING if value is None else f"{value:,.0f}"


def times(value: float | None) -> str:
    """A ratio: ``1.9×``; two digits below one: ``0.53×``."""
    if value is None:
        return NOTHING
    return f"{number(value, 2)}×"


def percent(share: float | None) -> str:
    """A share of one: ``80 %``. Rounded down, so that only a whole reads 100 %."""
    return NOTHING if share is None else f"{math.floor(share * 100)} %"


def scientific(value: float | None) -> str:
    """A small error: ``2.3e-07``."""
    if value is None:
        return NOTHING
    return f"{value:.1e}" if value else "0"


def plural(count: int, noun: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def by_position(ms: float | None, token: int | None, last: int) -> str | None:
    """How the time between tokens changes with the position: at ``token``, or gradually (None) until the ``last``. None: it does not."""
    if ms is None:
        return None
    if token is None:
        return f"the time per token {'grows' if ms > 0 else 'falls'} by {number(abs(ms))} ms from token 2 to token {last}"
    return f"from token {token} on, each takes {number(abs(ms))} ms {'longer' if ms > 0 else 'less'}"
