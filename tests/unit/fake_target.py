"""A target without a runtime, and cells of it that run in the test's own process."""

from __future__ import annotations

import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import factory_plans as make
import numpy as np

from hwmatrix.records import Dtype, MeasureRule, NoiseFloor, Placement, Prepared, Tolerance
from hwmatrix.runner import cell
from hwmatrix.runner.job import CellJob

if TYPE_CHECKING:
    import pytest

RULE = MeasureRule(warmup_s=0.0, warmup_iterations=1, min_s=0.0, min_samples=1, max_s=0.01)
TOLERANCES = {Dtype.FLOAT32: Tolerance(relative_error=1e-3, reason="a test")}


class FakeTarget:
    """Returns ones. ``failing`` are the calls that raise ``error``, by name and number: ``run 2`` is the second run."""

    failing: tuple[str, ...] = ()
    error: Exception = RuntimeError("it failed")

    def __init__(self, **_options: Any) -> None:
        self.calls: list[str] = []

    def called(self, name: str) -> None:
        """Count a call, and raise if it fails."""
        self.calls.append(name)
        if f"{name} {self.calls.count(name)}" in self.failing:
            raise self.error

    @staticmethod
    def preload(_model_classes: list[str]) -> None:
        """Import nothing."""

    def check(self) -> str:
        """A name."""
        self.called("check")
        return "fake"

    def load(self, _bundle: Any) -> int:
        """One parameter."""
        self.called("load")
        return 1

    def prepare(self, _inputs: Any) -> Prepared:
        """Nothing to prepare."""
        self.called("prepare")
        return Prepared(method="made by hand")

    def precision(self) -> None:
        """Not reported."""

    def feed(self, _inputs: Any) -> None:
        """Take any inputs."""

    def run(self) -> Any:
        """Ones."""
        self.called("run")
        return np.ones(2, dtype=np.float32)

    def elapsed_ns(self) -> int | None:
        """None: the host's clock is right."""
        return None

    def outputs(self, result: Any) -> dict[str, Any]:
        """One output."""
        self.called("outputs")
        return {"y": result}

    def placement(self) -> Placement:
        """All of it is here."""
        self.called("placement")
        return Placement(on_target=1.0, detail="fake")

    def device_use(self) -> Any:
        """Not known."""
        self.called("device_use")

    def trace(self, _bundle: Any) -> None:
        """Not possible."""
        self.called("trace")


def outcome_of(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The verdict that a cell's messages end with, and all facts."""
    verdict = [message for message in messages if "verdict" in message][-1]
    return {**verdict, "facts": [message["facts"] for message in messages if "facts" in message][-1]}


def executed(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any] = FakeTarget, *, expected: float = 1.0, timed: bool = False
) -> list[dict[str, Any]]:
    """The messages of a cell of such a target, whose reference returns ``expected``."""
    bundle = types.SimpleNamespace(
        digest="cd" * 32,
        kinds=("text",),
        text_path=False,
        input_arrays=dict,
        expected_arrays=lambda: {"y": np.full(2, expected, np.float32)},
        task_detail=None,
        held_out=lambda: None,
        floor=lambda _dtype: NoiseFloor(outputs=None, reason="made by hand"),
    )
    monkeypatch.setattr(cell, "target_class", lambda _backend: kind)
    monkeypatch.setattr(cell.bundles, "verify", lambda _path: bundle)
    job = CellJob(
        cell=make.cell_plan(),
        model=make.model_plan(),
        target=make.target_plan(),
        bundle=Path("none"),
        rule=RULE if timed else None,
        tolerances=TOLERANCES,
    )
    messages: list[dict[str, Any]] = []
    cell.execute(job, messages.append)
    return messages
