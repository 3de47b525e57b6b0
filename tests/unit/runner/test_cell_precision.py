"""The precision by which a cell is judged: the requested one, or the one that its runtime reports."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from factory_plans import cell_plan, model_plan, target_plan

pytest.importorskip("duckdb")

from hwmatrix.errors import UnsupportedError
from hwmatrix.records import Dtype, Tolerance
from hwmatrix.runner import job as jobs

TOLERANCES = {dtype: Tolerance(relative_error=1e-3, reason="a test") for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16)}


def judged_in(requested: Dtype, reported: Dtype | None) -> Dtype:
    plan = cell_plan()
    job = jobs.CellJob(
        cell=dataclasses.replace(plan, settings=dataclasses.replace(plan.settings, dtype=requested)),
        model=model_plan(),
        target=target_plan(),
        bundle=Path("none"),
        rule=None,
        tolerances=TOLERANCES,
    )
    return jobs.judged_in(job, reported)


@pytest.mark.parametrize(
    ("requested", "reported", "judged"),
    [
        (Dtype.FLOAT32, None, Dtype.FLOAT32),
        (Dtype.FLOAT32, Dtype.FLOAT32, Dtype.FLOAT32),
        (Dtype.DEFAULT, Dtype.BFLOAT16, Dtype.BFLOAT16),
        (Dtype.DEFAULT, Dtype.FLOAT32, Dtype.FLOAT32),
    ],
)
def test_the_reported_precision_decides(requested: Dtype, reported: Dtype | None, judged: Dtype) -> None:
    assert judged_in(requested, reported) is judged


@pytest.mark.parametrize(
    ("requested", "reported", "why"),
    [
        (Dtype.FLOAT32, Dtype.BFLOAT16, "float32 was requested, but the runtime computes in bfloat16 on this machine"),
        (Dtype.DEFAULT, None, "does not report the precision that it chooses by default"),
        (Dtype.DEFAULT, Dtype.FLOAT16, "computes in float16, for which matrix.yaml has no tolerance"),
    ],
)
def test_a_precision_that_cannot_be_judged_is_unsupported(requested: Dtype, reported: Dtype | None, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why) as caught:
        judged_in(requested, reported)
    assert (caught.value.error_type, caught.value.needs) == ("unsupported_dtype", (requested.value,))
