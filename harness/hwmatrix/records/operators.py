"""The result of one operator test on one target."""

from __future__ import annotations

import dataclasses

from hwmatrix.records.vocabulary import Status


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorResult:
    """One test of the ONNX standard, executed on a target.

    It tests ``operator`` of ``domain`` (empty: the standard's own) in the version of ``opset``; ``expanded`` says that its definition
    in terms of other operators was executed instead. ``on_target`` is the share of the graph's nodes (0 to 1) that the target itself
    executed, ``max_error`` the largest absolute error; None if nothing was executed or compared.
    """

    target: str
    test: str
    operator: str
    domain: str
    opset: int
    expanded: bool
    status: Status
    on_target: float | None = None
    max_error: float | None = None
    error_type: str | None = None
    message: str | None = None
    needs: tuple[str, ...] = ()
    wall_ms: float | None = None
