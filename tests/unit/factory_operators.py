"""Invented operator tests and results, which need no ONNX package."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from hwmatrix.models.operator_tests import OperatorTest, Tensor
from hwmatrix.records import OperatorResult, Status


def tensor(values: Any, element: str = "float32") -> Tensor:
    """A tensor of a numpy type."""
    array = np.array(values, dtype=object if element == "string" else element)
    return Tensor(element=element, shape=array.shape, array=array)


def packed(element: str, shape: tuple[int, ...], *raw: int) -> Tensor:
    """A tensor of a type that numpy lacks, from its bytes."""
    return Tensor(element=element, shape=shape, array=np.array(raw, dtype=np.uint8))


def operator_test(name: str = "test_add", *outputs: Any, **changes: Any) -> OperatorTest:
    """A test with these outputs (one float32 tensor of 1, 2 by default)."""
    made = OperatorTest(
        name=name,
        operator="Add",
        domain="",
        opset=14,
        expanded=False,
        random=False,
        rtol=1e-3,
        atol=1e-7,
        model=b"graph",
        inputs=(("x", tensor([1.0, 2.0])),),
        outputs=tuple((f"y{index}", output) for index, output in enumerate(outputs or (tensor([1.0, 2.0]),))),
    )
    return dataclasses.replace(made, **changes)


def result(test: str = "test_add", operator: str = "Add", status: Status = Status.PASS, **changes: Any) -> OperatorResult:
    """The result of a test; by default it passed and ran wholly on the target."""
    made = OperatorResult(
        target="cpu",
        test=test,
        operator=operator,
        domain="",
        opset=14,
        expanded=False,
        status=status,
        on_target=1.0 if status is Status.PASS else None,
        wall_ms=1.5,
    )
    return dataclasses.replace(made, **changes)
