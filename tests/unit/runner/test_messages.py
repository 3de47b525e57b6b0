"""Whatever a child sends on its pipe, its parent gets a result that can be stored, and continues."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import factory_plans as make
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmatrix.faults.catalogue import catalogue
from hwmatrix.measure import parity
from hwmatrix.measure.parity import parity_of
from hwmatrix.records import CellResult, Column, Divergence, Limits, Origin, OutputRecord, Stage, Status, measured_columns
from hwmatrix.runner import child
from hwmatrix.runner.bundles import _entry_of_end
from hwmatrix.runner.endings import describe
from hwmatrix.runner.forked import End, parse
from hwmatrix.runner.job import Progress
from hwmatrix.runner.messages import BadMessageError, TestTold, detections_told, read
from hwmatrix.runner.results import result_of
from hwmatrix.store.shard import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOAD = {"stage": "load", "facts": {"stages": {}}}
RUN = {"stage": "run", "facts": {"stages": {"load": 1.5}, "load_ms": 1.5, "parameters": 7}}
PASS: dict[str, Any] = {"verdict": "pass", "facts": {"stages": {"load": 1.5}, "load_ms": 1.5}, "error": None, "final": True}
ERROR = {"type": "mismatch", "message": "a message", "traceback": None, "severity": None}
PLAN = make.plan()


def end_of(received: bytes, **changes: Any) -> End:
    messages, refused = parse(received)
    plain: dict[str, Any] = {"exit_code": 0, "signal": None, "timed_out": False, "oom_killed": False, "log": "", "wall_ms": 130.0}
    return End(messages=messages, refused=refused, **(plain | changes))


def lines(*messages: object) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def result(received: bytes) -> CellResult:
    target, model = PLAN.targets[0], PLAN.models[0]
    return result_of(end_of(received), cell=PLAN.cells[0], model=model, target=target, started_at="2026-01-02T03:04:06")


def passing(**facts: Any) -> dict[str, Any]:
    return PASS | {"facts": PASS["facts"] | facts}


OUTPUT = {"name": "logits", "shape": [1, 2], "dtype": "float32", "parity": None}
BAD: dict[str, tuple[bytes, str]] = {
    "nothing in it": (lines({}), "line 2: "),
    "unknown stage": (lines({"stage": "dream", "facts": {}}), "line 2: .*stage"),
    "unknown status": (lines(PASS | {"verdict": "splendid"}), "line 2: .*verdict"),
    "status of what never ran": (lines(PASS | {"verdict": "not_run", "error": ERROR}), "cannot report not_run"),
    "failure without a reason": (lines(PASS | {"verdict": "crash"}), "crash without an error"),
    "pass with an error": (lines(PASS | {"error": ERROR}), "pass with an error"),
    "error without a message": (lines(PASS | {"verdict": "error", "error": {"type": "mismatch"}}), r"error\.message"),
    "error without a type": (lines(PASS | {"verdict": "error", "error": ERROR | {"type": None}}), r"error\.type"),
    "error type that is none": (lines(PASS | {"verdict": "error", "error": ERROR | {"type": "<b>"}}), r"error\.type"),
    "unknown fact": (lines(passing(weather="fine")), r"facts\.weather"),
    "text for a number": (lines(passing(load_ms="1.5")), r"facts\.load_ms"),
    "number for a text": (lines(passing(method=3)), r"facts\.method"),
    "negative time": (lines(passing(load_ms=-1.0)), r"facts\.load_ms"),
    "facts that are a list": (lines(PASS | {"facts": []}), "facts"),
    "number without end": (lines(PASS)[:-2] + b', "x": 1e400}\n', "line 2: "),
    "time without end": (b'{"stage": "load", "facts": {"load_ms": 1e400}}\n', "line 2: "),
    "no number": (b'{"stage": "load", "facts": {"load_ms": NaN}}\n', "NaN is not a valid JSON number"),
    "more parameters than are counted": (lines(passing(parameters=2**63)), r"facts\.parameters"),
    "number of too many digits": (b'{"stage": "load", "facts": {"parameters": ' + b"9" * 10_000 + b"}}\n", "line 2 is not JSON"),
    "shape below zero": (lines(passing(outputs=[OUTPUT | {"shape": [-1]}])), "a shape has an invalid size"),
    "shape of too much": (lines(passing(outputs=[OUTPUT | {"shape": [2**40]}])), "a shape has an invalid size"),
    "times of one prompt length too many": (
        lines(passing(lengths=[16, 128], lengths_ttft_ms=[1.0, 2.0], lengths_tpot_ms=[1.0, 2.0, 3.0])),
        "the numbers of prompt lengths and of their values differ",
    ),
    "prompt lengths without their times": (lines(passing(lengths=[16, 128])), "the numbers of prompt lengths and of their values differ"),
    "CPU times without wall times": (lines(passing(samples_cpu_ns=[1, 2])), "the numbers of CPU times and wall times differ"),
    "half a character": (lines(passing(method="\ud800")), r"line 2: "),
    "a megabyte of message": (lines(PASS | {"verdict": "error", "error": ERROR | {"message": "x" * 2**20}}), r"error\.message"),
    "junk": (b"Segmentation fault\n", "line 2 is not JSON"),
    "bytes": (b"\xff\xfe\n", "line 2 is not JSON"),
    "empty line": (b"\n", "line 2 is not JSON"),
    "list": (b"[1]\n", r"line 2 is not a JSON object: '\[1\]'"),
    "brackets without end": (b"[" * 200_000 + b"\n", "line 2 is not JSON"),
    "objects without end": (b'{"stage":' * 100_000 + b"1" + b"}" * 100_000 + b"\n", "line 2"),
    "divergence before a verdict": (lines({"divergence": {"origin": "unknown"}}), "line 2: "),
}
AFTER: dict[str, bytes] = {
    "another verdict": lines(PASS | {"verdict": "error", "error": ERROR}),
    "a verdict that is not final": lines(PASS | {"verdict": "error", "error": ERROR, "final": False}),
    "divergence that is none": lines({"divergence": {"origin": "nowhere"}}),
    "facts that are none": lines({"stage": "measure", "facts": {"load_ms": -1.0}}),
    "junk": b"Segmentation fault\n",
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_makes_a_crash_that_says_why(tmp_path: Path, kind: str) -> None:
    received, why = BAD[kind]
    found = result(lines(RUN) + received)
    assert (found.status, found.stage) == (Status.CRASH, Stage.RUN)
    assert found.parameters == 7 or "verdict" in received.decode(errors="replace")  # earlier messages still count
    assert found.error is not None
    assert found.error.type == "bad_message"
    assert found.error.type in {entry.type for entry in catalogue()}
    assert found.error.message.startswith("the process sent an invalid message: line ")
    assert len(found.error.message) < 1000
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found.error.message)
    keep(tmp_path, found)


@pytest.mark.parametrize("kind", AFTER)
@pytest.mark.parametrize("verdict", [PASS, PASS | {"verdict": "mismatch", "error": ERROR}])
def test_a_bad_line_after_the_final_verdict_does_not_change_it(kind: str, verdict: dict[str, Any]) -> None:
    before = result(lines(RUN, verdict))
    found = result(lines(RUN, verdict) + AFTER[kind])
    assert (found.status, found.stage, found.error, found.load_ms) == (before.status, before.stage, before.error, 1.5)


def sent(*messages: dict[str, Any]) -> bytes:
    """What the messages of a child are on its pipe."""
    reading, writing = os.pipe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "_limit", lambda *_args, **_kwargs: None)
        patch.setattr(child.os, "_exit", lambda _code: None)

        def work(send: Callable[[dict[str, Any]], None]) -> None:
            for message in messages:
                send(message)

        with concurrent.futures.ThreadPoolExecutor(1) as pool, open(reading, "rb") as stream:  # noqa: PTH123 - a pipe has no path
            received = pool.submit(stream.read)
            child.work_and_exit(work, writing, limits=make.LIMITS, reserves_address_space=False)
            os.close(writing)
            return received.result()


def of_progress(**facts: Any) -> CellResult:
    """The result of a cell with these findings that fails with the longest texts, and whose search for the cause ends so."""
    messages: list[dict[str, Any]] = []
    progress = Progress(messages.append)
    progress.enter(Stage.COMPARE)
    progress.found(**facts)
    long = "x" * 3_000_000
    progress.end(Status.MISMATCH, error={"type": "mismatch", "message": long, "traceback": long, "needs": [long]})
    progress.diverges(Divergence(origin=Origin.UNKNOWN, detail=long, relative_error=math.nan, inputs_error=math.inf))
    return result(sent(*messages))


def test_the_longest_texts_arrive_with_the_verdict() -> None:
    names = [f"the logits of step {step} after the {prompt * 20} prompt" for prompt in "abcdefgh" for step in range(33)]
    outputs = tuple(OutputRecord(name=name, shape=(1, 2), dtype="float32", parity=None) for name in names)
    texts = [column.name for column in measured_columns() if column.domain == "VARCHAR"]
    found = of_progress(outputs=outputs, break_reasons=("y" * 10**6,), **dict.fromkeys(texts, "z" * 10**6))
    assert (found.status, len(found.outputs), found.origin) == (Status.MISMATCH, len(names), Origin.UNKNOWN)
    assert found.error is not None
    assert found.error.traceback is not None
    assert len(found.error.message) < 10_000 < len(found.error.traceback)


FLOATS = {"Number", "Amount", "Mebibytes", "Share", "Amounts"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [each for each in measured_columns() if each.domain in FLOATS], ids=lambda each: each.name)
def test_a_number_that_is_not_finite_costs_no_verdict(column: Column, value: float) -> None:
    several = column.domain == "Amounts"
    found = of_progress(**{column.name: (1.0, value) if several else value})
    assert found.status is Status.MISMATCH
    assert getattr(found, column.name) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_output_that_is_not_finite_costs_no_verdict(value: float) -> None:
    compared = parity.compare({"y": np.full(3, value, np.float32)}, {"y": np.ones(3, np.float32)})
    assert of_progress(outputs=tuple(compared.outputs)).status is Status.MISMATCH


def keep(folder: Path, *results: CellResult) -> None:
    """Check that all can be stored."""
    with ShardWriter(folder, PLAN, make.identity()) as shard:
        shard.set_canaries(ok=True, detail=None)
        for number, each in enumerate(results):
            shard.add_cell(dataclasses.replace(each, key=f"cell {number}"), command="a test")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=12)
    | st.sampled_from(["pass", "load", "run", "error", "mismatch", "step", "\ud800", "\x00", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.sampled_from(["message", "origin"]), inner, max_size=3)
    ),
    max_leaves=6,
)
keys = st.sampled_from(["stage", "facts", "verdict", "error", "divergence", "extra"])
facts = st.dictionaries(
    st.sampled_from(
        ["load_ms", "stages", "outputs", "cosine", "on_target", "peak_mb", "origin", "samples_wall_ns", "inputs", "method", "parameters"]
    ),
    json_values,
    max_size=3,
)
mutated = st.builds(
    lambda base, changes: base | changes, st.sampled_from([LOAD, RUN, PASS]), st.dictionaries(keys, json_values | facts, max_size=2)
)
raw_lines = st.one_of(
    mutated.map(lambda message: json.dumps(message).encode()),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=40),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(raw_lines, min_size=1, max_size=4))
def test_no_message_of_a_child_raises(received: list[bytes]) -> None:
    found = result(b"".join(line + b"\n" for line in received))
    assert found.status in set(Status) - {Status.NOT_RUN}
    assert (found.error is None) is (found.status is Status.PASS)
    for value in (found.load_ms, found.prepare_ms, found.first_ms, found.yardstick_ms, *found.stages.values()):
        assert value is None or (math.isfinite(value) and value >= 0)


def test_every_result_can_be_stored(tmp_path: Path) -> None:
    kept: list[CellResult] = []

    @settings(max_examples=150, deadline=None)
    @given(st.lists(raw_lines, min_size=1, max_size=3))
    def collect(received: list[bytes]) -> None:
        kept.append(result(b"".join(line + b"\n" for line in received)))

    collect()
    extremes = passing(
        method="\x00\u2028\U0001f600", parameters=2**63 - 1, load_ms=sys.float_info.max, outputs=[OUTPUT | {"shape": [2**31 - 1]}]
    )
    kept.append(result(lines(extremes)))
    assert kept[-1].status is Status.PASS
    keep(tmp_path, *kept[-40:])


@settings(max_examples=200, deadline=None)
@given(raw_lines)
def test_other_kinds_of_children_cannot_end_their_parent_either(line: bytes) -> None:
    end = end_of(line + b"\n")
    entry = _entry_of_end(make.model_plan(), end, make.LIMITS, again=False)
    assert (entry.key is None) is not (entry.message is None)
    assert describe(end, Limits(timeout_s=1.0, memory_mb=1))
    with contextlib.suppress(BadMessageError):
        for number, message in enumerate(end.messages, 1):
            read(TestTold, message, number)
    with contextlib.suppress(BadMessageError):
        detections_told(end)


@pytest.mark.parametrize("key", ["../../etc", "ab", "AB" * 32, "cd" * 32 + "\n"])
def test_a_bundle_s_path_must_be_in_the_bundle_folder(key: str) -> None:
    entry = _entry_of_end(make.model_plan(), end_of(lines({"key": key, "digest": "cd" * 32})), make.LIMITS, again=False)
    assert entry.key is None
    assert entry.message is not None
    assert "the process sent an invalid message: line 1" in entry.message


def test_values_beyond_the_range_become_the_largest() -> None:
    largest = np.asarray([sys.float_info.max])
    apart = parity_of(-largest, largest, logits=False)
    assert apart.max_error == sys.float_info.max
    found = result(lines(passing(**dataclasses.asdict(apart))))
    assert found.status is Status.PASS
    assert (found.relative_error, found.max_error, found.cosine, found.top1) == dataclasses.astuple(apart)
