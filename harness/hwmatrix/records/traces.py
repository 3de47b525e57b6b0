"""Intermediate values of a model: a target's own and those of a reference, step by step.

The package does not import this module: what only looks at hardware has no use for numpy, which starts threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A node of a graph, or a layer of a model, with the names of the values that it is given and gives.

    ``operator`` is a node's operator (``TopK``), or a layer's class (``LlamaAttention``).
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """One run with the values of its steps kept.

    ``steps`` are in an order in which they can be executed. ``values`` are the target's by name, ``expected`` those of what ``against``
    names; a value that either lacks cannot be compared, and is looked through. ``results`` are the names of the values that are the
    model's outputs, by the reference's names of these.
    """

    steps: tuple[Step, ...]
    values: Mapping[str, np.ndarray[Any, Any]]
    expected: Mapping[str, np.ndarray[Any, Any]]
    results: Mapping[str, str]
    against: str
