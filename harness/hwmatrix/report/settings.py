"""The settings of a cell in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hwmatrix.records import Dtype, Size


class HasSettings(Protocol):
    """A record of a cell with its settings."""

    @property
    def size(self) -> Size:
        """The size of its model."""

    @property
    def dtype(self) -> Dtype:
        """The precision."""

    @property
    def batch(self) -> int:
        """The number of samples."""

    @property
    def sequence_length(self) -> int:
        """The number of tokens that the model is given."""

    @property
    def threads(self) -> int:
        """The number of threads."""

    @property
    def new_tokens(self) -> int:
        """The number of tokens that are generated; 0: one forward pass."""


def short(cell: HasSettings) -> str:
    """All settings: ``tiny float32 b1 s16 t1``, and ``n8`` if eight tokens are generated."""
    generated = f" n{cell.new_tokens}" if cell.new_tokens else ""
    threads = f" t{cell.threads}" if cell.threads else ""  # else the runtime chooses
    return f"{cell.size.value} {cell.dtype.value} b{cell.batch} s{cell.sequence_length}{threads}{generated}"


def tokens(cell: HasSettings) -> str:
    """The tokens that go in and come out: ``16 tokens``, or ``16 + 8 tokens`` if eight are generated."""
    return f"{cell.sequence_length} + {cell.new_tokens} tokens" if cell.new_tokens else f"{cell.sequence_length} tokens"
