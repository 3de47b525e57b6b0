"""A step of generation that ends the cell's process, or never ends: the parent knows the step, the component and the prompt."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import factory_plans as make
import numpy as np
import pytest

from hwmatrix.models.bundle import Bundle, Generation, GenerationPrompt
from hwmatrix.records import CellResult, Dtype, Limits, MeasureRule, Placement, Prepared, Role, Stage, Status, Tolerance
from hwmatrix.runner import cell, generating
from hwmatrix.runner.forked import run_forked
from hwmatrix.runner.job import CellJob
from hwmatrix.runner.results import result_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and process trees as Linux has them")
STEPS = 4
LIMITS = Limits(timeout_s=3.0, memory_mb=2048)


def prompt(name: str) -> GenerationPrompt:
    return GenerationPrompt(
        name=name,
        inputs={"input_ids": np.zeros((1, 5), np.int64)},
        tokens=np.zeros((1, STEPS), np.int64),
        logits=np.ones((STEPS, 1, 7), np.float32),
    )


class Bundled(Bundle):
    """A bundle without files that asks for two prompts."""

    def generation(self) -> Generation:
        return Generation(forced=(prompt("traced"), prompt("longer")), free=(), floors={})


class Failing:
    """A target that fails at a step of a prompt: by default, the second one."""

    reserves_address_space = False
    fail: Callable[[], None]
    at: int
    prompt = 2
    answers: Any = None
    """The logits of every step; None: those that the prompt expects."""

    def __init__(self, **_: Any) -> None:
        self._prompts = 0

    @staticmethod
    def preload(_: Any) -> None: ...

    def check(self) -> str:
        return "scripted"

    def load_generator(self, _: Any) -> int:
        return 1

    def prepare_generator(self, _: Any) -> Prepared:
        return Prepared(method="scripted")

    def precision(self) -> None: ...

    def device_use(self) -> None: ...

    def cache_mb(self) -> None: ...

    def placement(self) -> Placement:
        return Placement(on_target=1.0, detail="scripted")

    def generate(self, asked: GenerationPrompt, on_step: Callable[[int, Callable[[], Any]], None], *, forced: bool) -> None:
        assert forced
        self._prompts += 1
        for number in range(STEPS):
            if self._prompts == self.prompt and number == self.at:
                self.fail()
            logits = asked.logits if self.answers is None else self.answers
            on_step(number, lambda number=number, logits=logits: logits[number])  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fail", "at", "status", "stage"),
    [
        (lambda: time.sleep(60), 2, Status.TIMEOUT, Stage.DECODE),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), 3, Status.CRASH, Stage.DECODE),
        (lambda: os._exit(7), 0, Status.CRASH, Stage.PREFILL),
    ],
    ids=["hang", "segfault", "exit"],
)
def test_the_step_that_ends_a_cell_is_known(
    fail: Callable[[], None], at: int, status: Status, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = result_with(monkeypatch, fail=staticmethod(fail), at=at)
    assert (result.status, result.stage) == (status, stage)
    component = "decode" if at else "prefill"
    assert (result.failing_component, result.failing_step, result.failing_prompt) == (component, at, "longer")


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (lambda: time.sleep(60), "the cell's time limit ended the process"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV ended the process"),
        (lambda: os._exit(7), "the process exited with code 7"),
        (lambda: bytearray(2**62), "MemoryError: "),
    ],
    ids=["hang", "segfault", "exit", "memory"],
)
def test_a_verdict_stands_whatever_the_timing_ends_in(fail: Callable[[], None], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = result_with(monkeypatch, fail=staticmethod(fail), at=1, prompt=4)  # after the two, and the first once more
    assert (result.status, result.stage, result.error, result.timing_detail) == (Status.PASS, Stage.MEASURE, None, reason)


def test_wrong_logits_are_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.arange(STEPS * 7, dtype=np.float32).reshape(STEPS, 1, 7)
    asked = Generation(forced=tuple(dataclasses.replace(prompt(name), logits=logits) for name in ("traced", "longer")), free=(), floors={})
    monkeypatch.setattr(Bundled, "generation", lambda _bundle: asked)
    found = {
        role: result_with(monkeypatch, role=role, fail=None, at=STEPS, answers=logits).status for role in (Role.MODEL, Role.CANARY_WRONG)
    }
    assert found == {Role.MODEL: Status.PASS, Role.CANARY_WRONG: Status.MISMATCH}


def result_with(monkeypatch: pytest.MonkeyPatch, *, role: Role = Role.MODEL, **failing: Any) -> CellResult:
    """The result of a timed cell of such a target, in a process of its own."""
    kind = type("Failing", (Failing,), failing)
    monkeypatch.setattr(generating, "target_class", lambda _: kind)
    bundle = Bundled(path=Path(), key="key", digest="digest", manifest={"modalities": {"given": ["text"], "text_path_only": False}})
    monkeypatch.setattr(generating.bundles, "verify", lambda _: bundle)
    planned, target = make.cell_plan(), make.target_plan()
    planned = dataclasses.replace(planned, limits=LIMITS, settings=dataclasses.replace(planned.settings, new_tokens=STEPS))
    job = CellJob(
        cell=planned,
        model=dataclasses.replace(make.model_plan(), role=role),
        target=target,
        bundle=Path(),
        rule=MeasureRule(),
        tolerances={Dtype.FLOAT32: Tolerance(relative_error=1e-4, reason="as usual")},
    )

    def work(send: Callable[[dict[str, Any]], None]) -> None:
        faulthandler.disable()
        cell.execute(job, send)

    end = run_forked(work, limits=LIMITS)
    return result_of(end, cell=planned, model=make.model_plan(), target=target, started_at="2026-01-02T03:04:06")
