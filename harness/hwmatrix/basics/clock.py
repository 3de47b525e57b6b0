"""The current time in UTC, in the formats of the database and of documents."""

from __future__ import annotations

import datetime as dt


def now() -> dt.datetime:
    """Now, in UTC."""
    return dt.datetime.now(dt.UTC)


def utc_now() -> str:
    """Now as the database stores it: ISO 8601 to the microsecond, without an offset."""
    return now().replace(tzinfo=None).isoformat(timespec="microseconds")


def stamp() -> str:
    """Now as documents print it: ISO 8601 to the second, with its offset."""
    return now().isoformat(timespec="seconds")
