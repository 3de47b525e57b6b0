"""Finds the entry of a list of models that a name refers to: users write hub ids, their last parts, and short forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def entry_for(name: str, hub_ids: Mapping[str, str | None]) -> str | None:
    """The entry that a name refers to. Entries' names take precedence over hub ids, and those over their last parts.

    ``hub_ids`` are the entries' hub ids, None if an entry has none. Case is ignored, and ``-`` and ``_`` are equal.
    """
    wanted, folded = _folded(name), _of_entries(hub_ids)
    spellings = (
        {_folded(entry): entry for entry in hub_ids},
        {hub_id: entry for entry, hub_id in folded.items()},
        {hub_id.rpartition("/")[2]: entry for entry, hub_id in folded.items()},
    )
    return next((table[wanted] for table in spellings if wanted in table), None)


def abbreviated_entry(name: str, hub_ids: Mapping[str, str | None]) -> str | None:
    """The only entry whose hub id, with or without its owner, begins with the name and a hyphen; None if there are several."""
    beginning = f"{_folded(name)}-"
    found = [
        entry
        for entry, hub_id in _of_entries(hub_ids).items()
        if hub_id.startswith(beginning) or hub_id.rpartition("/")[2].startswith(beginning)
    ]
    return found[0] if len(found) == 1 else None


def _of_entries(hub_ids: Mapping[str, str | None]) -> dict[str, str]:
    return {entry: _folded(hub_id) for entry, hub_id in hub_ids.items() if hub_id}


def _folded(name: str) -> str:
    return name.lower().replace("_", "-")
