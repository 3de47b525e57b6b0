"""The SQL of the reports: one file a query, in ``store/queries``."""

from __future__ import annotations

import functools
import importlib.resources


@functools.cache
def query(name: str) -> str:
    """The text of ``store/queries/<name>.sql``.

    Raises:
        FileNotFoundError: there is no such query.
    """
    return (importlib.resources.files("hwmatrix.store") / "queries" / f"{name}.sql").read_text(encoding="utf-8")


def names() -> tuple[str, ...]:
    """The names of all queries."""
    folder = importlib.resources.files("hwmatrix.store") / "queries"
    return tuple(sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql")))
