"""Reads from ONNX Runtime's verbose log which node was placed on which execution provider."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from hwmatrix.records import Placement

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLACED: Final = re.compile(r"(?:All nodes|Node\(s\)) placed on \[(\w+?)(?:ExecutionProvider)?\]\. Number of nodes: (\d+)")
_CAPABLE: Final = re.compile(r"\b(\w+)ExecutionProvider::GetCapability, .*number of nodes supported by \w+: (\d+)")
"""A provider that fuses nodes is listed with its few fused nodes. Only this line says how many there were before."""
_NODE: Final = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]\s+(\w+) \(.*\)\s*$")
_SHOWN: Final = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nodes:
    """Nodes of the optimized graph by the short name of their provider ("WebGpu", "CPU"), and their operators.

    ``operators`` is known only if the runtime lists the nodes, which it does when it uses more than one provider.
    """

    counts: dict[str, int]
    operators: dict[str, Counter[str]]

    def share(self, provider: str) -> float:
        """The share of all nodes (0 to 1) on a provider; 0 if nothing is known."""
        total = sum(self.counts.values())
        return self.counts.get(provider, 0) / total if total else 0.0

    def placement(self, provider: str, *, about: str) -> Placement:
        """The placement as recorded in results. ``about`` describes the device on which the provider's nodes ran."""
        if not self.counts:
            return Placement(on_target=0.0, detail=f"the runtime's log names no placement; {about}")
        total = sum(self.counts.values())
        parts = [f"{name} {count} of {total}{self._shown(name, provider)}" for name, count in sorted(self.counts.items())]
        return Placement(on_target=self.share(provider), detail=f"nodes by ONNX Runtime's log: {', '.join(parts)}; {about}")

    def elsewhere(self, provider: str) -> tuple[str, ...]:
        """The operators that are not on a provider."""
        return tuple(sorted({operator for name, found in self.operators.items() if name != provider for operator in found}))

    def _shown(self, name: str, provider: str) -> str:
        if name == provider or name not in self.operators:
            return ""
        found = self.operators[name].most_common()
        shown = " ".join(f"{operator}x{count}" if count > 1 else operator for operator, count in found[:_SHOWN])
        return f" ({shown}{' ...' if len(found) > _SHOWN else ''})"


def combined(parts: Iterable[Nodes]) -> Nodes:
    """The nodes of several sessions together. Nothing is known if nothing is known of one."""
    counts: Counter[str] = Counter()
    operators: dict[str, Counter[str]] = {}
    for part in parts:
        if not part.counts:
            return part
        counts.update(part.counts)
        for provider, found in part.operators.items():
            operators.setdefault(provider, Counter()).update(found)
    return Nodes(counts=dict(counts), operators=operators)


def parse(lines: Iterable[str]) -> Nodes:
    """Parse the log of one session's creation. Subgraphs (of If and Loop) are logged separately, and counted too."""
    fused: dict[str, int] = {}
    counts: Counter[str] = Counter()
    operators: dict[str, Counter[str]] = {}
    provider: str | None = None
    for line in lines:
        capable = _CAPABLE.search(line)
        if capable:
            fused[capable[1]] = int(capable[2])
            continue
        placed = _PLACED.search(line)
        if placed:
            provider = placed[1]
            counts[provider] += int(placed[2])
            continue
        node = _NODE.search(line)
        if node and provider is not None:
            operators.setdefault(provider, Counter())[node[1]] += 1
    return Nodes(counts={name: fused.get(name, count) for name, count in counts.items()}, operators=operators)
