"""Intermediate values of a model: a target's own and those of a reference, step by step.

The package's ``__init__`` does not import this module: code that only detects hardware must not load numpy, which starts threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A node of a graph, or a layer of a model, with the names of its inputs and outputs.

    ``operator`` is a node's operator (``TopK``), or a layer's class (``LlamaAttention``).
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """One run with the values of its steps kept.

    ``steps`` are in an executable order. ``values`` are the target's values by name, ``expected`` the same values from the reference that
    ``against`` names. A value that is missing in either cannot be compared and is skipped. ``results`` maps the reference's names of the
    model's outputs to the names of the values that hold them.
    """

    steps: tuple[Step, ...]
    values: Mapping[str, np.ndarray[Any, Any]]
    expected: Mapping[str, np.ndarray[Any, Any]]
    results: Mapping[str, str]
    against: str
