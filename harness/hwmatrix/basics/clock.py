"""The current time in UTC, in the formats of the database and of documents."""

from __future__ import annotations

import datetime as dt


def now() -> dt.datetime:
    """Return the current time in UTC."""
    return dt.datetime.now(dt.UTC)


def utc_now() -> str:
    """Return the current time as the database stores it: ISO 8601 with microseconds, in UTC, without an offset."""
    return now().replace(tzinfo=None).isoformat(timespec="microseconds")


def stamp() -> str:
    """Return the current time as documents print it: ISO 8601 with seconds and the offset."""
    return now().isoformat(timespec="seconds")
