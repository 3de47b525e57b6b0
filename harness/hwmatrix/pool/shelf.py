"""The models in a pool, with the memory that each uses. Callers must hold the pool's lock.

Whether somebody uses a model is known by letting go of it: the pool drops its own reference, and if a weak one still finds the
model, somebody else has it; then it is taken back. So nobody has to say that they are done with a model.
"""

from __future__ import annotations

import collections
import dataclasses
import weakref
from typing import TYPE_CHECKING, Any

from hwmatrix.pool.devices import Device

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hwmatrix.pool.memory import Footprint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """What makes two requests ask for the same object."""

    family: str
    name: str
    device: Device
    dtype: str | None

    def is_like(self, asked: Key) -> bool:
        """Whether this is what was asked for, where any GPU of a kind will do."""
        return asked.device.index is None and dataclasses.replace(self, device=dataclasses.replace(self.device, index=None)) == asked

    def __str__(self) -> str:
        return f"{self.family}/{self.name} on {self.device}" + (f" in {self.dtype}" if self.dtype else "")


class Entry:
    """One model. ``leases`` counts those who said how long they need it; ``retired`` ones are kept by their users alone.

    ``shares`` says how much of which memory it takes (MiB): of the device's, or of the host's what has not moved there; of several
    GPUs where it is split. What is not known is 0 there, and None in ``footprint``.
    ``given_out`` says that somebody has it who did not say for how long. Some objects (tuples, numbers) cannot be watched: these
    count as in use from then on.
    """

    def __init__(self, key: Key, model: Any, footprint: Footprint, shares: Mapping[str, float], now: float) -> None:
        self.key = key
        self.footprint = footprint
        self.shares = dict(shares)
        self.created = self.last_used = now
        self.uses = 0
        self.leases = 0
        self.retired = False
        self.given_out = False
        self._held: Any = model
        self._watched: weakref.ref[Any] | None = None
        self._dead: collections.deque[Entry] | None = None

    def watch(self, dead: collections.deque[Entry]) -> None:
        """Note in ``dead`` when the model is gone."""
        this = weakref.ref(self)
        self._dead = dead

        def note(_reference: object) -> None:
            entry = this()
            if entry is not None:
                dead.append(entry)  # no lock: this may run wherever a reference is dropped, also under the pool's lock

        try:
            self._watched = weakref.ref(self._held, note)
        except TypeError:
            self._watched = None

    @property
    def can_be_watched(self) -> bool:
        """Whether its end can be noticed."""
        return self._watched is not None

    @property
    def is_held(self) -> bool:
        """Whether the pool itself keeps it."""
        return self._held is not None

    def find(self) -> Any:
        """The model, or None if it is gone."""
        return self._held if self._held is not None or self._watched is None else self._watched()

    def hold(self) -> bool:
        """Keep it from now on. False if it is gone."""
        self._held = self.find()
        return self._held is not None

    def let_go(self) -> bool:
        """Drop the pool's own reference, unless somebody has the model whose letting go would not be noticed. True if it is gone."""
        if self._watched is not None:
            self._held = None
            return self._watched() is None
        if self.given_out or self.leases or self._dead is None:
            return False
        self._held = None
        self._dead.append(self)
        return True


class Shelf:
    """Entries by key, the least recently used first."""

    def __init__(self) -> None:
        self._entries: collections.OrderedDict[Key, Entry] = collections.OrderedDict()
        self._dead: collections.deque[Entry] = collections.deque()

    def __iter__(self) -> Iterator[Entry]:
        """Entries whose model is there, the least recently used first."""
        self.sweep()
        return iter(list(self._entries.values()))

    def sweep(self) -> list[Entry]:
        """Forget the entries whose model is gone, and give them."""
        swept = []
        while self._dead:
            entry = self._dead.popleft()
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
                swept.append(entry)
        return swept

    def add(self, key: Key, model: Any, footprint: Footprint, shares: Mapping[str, float], now: float) -> Entry:
        """A new entry, held. Its key is free: there is one construction a key."""
        entry = Entry(key, model, footprint, shares, now)
        entry.watch(self._dead)
        self._entries[key] = entry
        return entry

    def get(self, key: Key) -> Entry | None:
        """The entry of a key, if its model is there."""
        self.sweep()
        return self._entries.get(key)

    def like(self, asked: Key) -> Entry | None:
        """An entry that is what was asked for on any GPU of its kind, the most recently used first."""
        return next((entry for entry in reversed(list(self)) if entry.key.is_like(asked)), None)

    def copies(self, key: Key) -> Iterator[Entry]:
        """The entries of the same model in the same precision, on whichever device."""
        return (entry for entry in self if dataclasses.replace(entry.key, device=key.device) == key)

    def touch(self, entry: Entry, now: float) -> None:
        """It is used now."""
        entry.last_used = now
        self._entries.move_to_end(entry.key)

    def remove(self, entry: Entry) -> None:
        """Forget it."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]

    def used_mb(self, memory: str) -> float:
        """What the models take of a memory, in MiB. Those of unknown size are not in it."""
        return sum(entry.shares.get(memory, 0.0) for entry in self)
