"""Number formatting: three significant digits, no exponent, and a dash for missing values."""

# ruff: noqa: RUF001, RUF002 - typographic signs are meant
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.text import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def over_cpu(row: Mapping[str, Any]) -> str:
    """The speed over cpu of a row of ``report_speeds``, with what cpu ran too: ``1.8× (5 faster, 1 slower, 2 not told apart)``."""
    words = {"faster": "faster", "slower": "slower", "alike": "not told apart", "disturbed": "disturbed, not counted"}
    counted = [f"{row[name]} {word}" for name, word in words.items() if row[name]]
    return f"{times(row['speed_up'])} ({', '.join(counted)})" if counted else NOTHING


def over_own(row: Mapping[str, Any]) -> str:
    """The speed over the target's own float32 of a row of ``report_speeds``: ``1.4× (3 models)``."""
    return f"{times(row['own_speed_up'])} ({plural(row['own_compared'], 'model')})" if row["own_compared"] else NOTHING


def by_position(ms: float | None, token: int | None, last: int) -> str | None:
    """How the time between tokens changes with the position: at ``token``, or gradually (None) until the ``last``. None: it does not."""
    if ms is None:
        return None
    if token is None:
        return f"the time per token {'grows' if ms > 0 else 'falls'} by {number(abs(ms))} ms from token 2 to token {last}"
    return f"from token {token} on, each takes {number(abs(ms))} ms {'longer' if ms > 0 else 'less'}"
