"""A calibration for tests: the packaged coefficients, with ranges and errors that do not change when the package is recalibrated."""

from __future__ import annotations

import dataclasses

from hwmatrix.knowledge.calibration import Calibration, Errors, calibration
from hwmatrix.records import Dtype

RANGES = {"stored": (100.0, 600.0), "weights": (100.0, 600.0), "activations": (0.0, 29.0), "comparison": (0.0, 258.0)}
"""MiB. They include BERT, GPT-2 and ViT with one sample of 128 tokens, but no larger batch."""
MARGIN = 0.05


def fixed() -> Calibration:
    """For every backend: only float32, and 90 % of the estimates within 5 %."""
    errors = Errors(cells=7, median=0.01, p90=MARGIN, within_25=1.0)
    packaged = calibration()
    backends = {
        backend: dataclasses.replace(fitted, dtypes=(Dtype.FLOAT32,), ranges=RANGES, left_out=errors, held_out=None)
        for backend, fitted in packaged.backends.items()
    }
    return dataclasses.replace(packaged, backends=backends)
