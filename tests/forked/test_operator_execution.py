"""Operator tests in real forked children: one that crashes, hangs or breaks what comes after it costs no other its verdict."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest
from factory_operators import operator_test, tensor

from hwmatrix.errors import CrashedError, UnavailableError, UnsupportedError
from hwmatrix.models.operator_tests import OperatorTests
from hwmatrix.records import Dtype, Status
from hwmatrix.runner import operator_execution as operators
from hwmatrix.runner.keeper import Keeper
from hwmatrix.runner.operator_execution import OperatorOrder
from hwmatrix.store.merge import merge
from hwmatrix.targets.protocol import Executed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hwmatrix.models.operator_tests import OperatorTest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forked children and alarms as Linux has them")


class Runner:
    """Does what a test's name says."""

    packages: tuple[str, ...] = ("numpy",)
    precision = Dtype.FLOAT32
    keeps_state = False
    reserves_address_space = False

    def __init__(self, *, options: Mapping[str, Any], service: Mapping[str, Any] | None = None) -> None:
        self._options = options
        self._broken = service is not None

    @staticmethod
    def preload() -> None:
        """Nothing."""

    @staticmethod
    def service(options: Mapping[str, Any]) -> None:
        """None."""

    def check(self) -> str:
        if self._options.get("missing"):
            raise UnavailableError("no such device", error_type="browser_missing")
        return "a device"

    def execute(self, test: OperatorTest) -> Executed:
        kind = test.name.removeprefix("test_")
        if kind == "crash" or (kind == "victim" and self._broken):
            faulthandler.disable()  # pytest's, which would print the crash on pytest's own terminal
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "hang":
            time.sleep(60)
        if kind == "lost":
            raise CrashedError("the browser has ended", error_type="browser_lost")
        if kind == "lacking":
            raise UnsupportedError("no kernel", needs=("Add",))
        if kind == "raising":
            raise NotImplementedError("not by us")
        if kind == "memory":
            raise MemoryError
        self._broken = self._broken or kind == "breaking"
        value = tensor([1.0, 2.5] if kind == "off" or (kind == "spoilt" and self._broken) else [1.0, 2.0])
        return Executed(outputs=(value,), on_target={"elsewhere": 0.0, "partly": 0.5}.get(kind, 1.0))


@pytest.fixture(autouse=True)
def runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "operators_class", lambda _backend: Runner)
    monkeypatch.setattr(operators, "TEST_S", 1.0)


@pytest.fixture
def order(tmp_path: Path) -> OperatorOrder:
    plan = make.plan(models=(), targets=("openvino",))
    folder = make.run_folder(tmp_path / "run", plan)
    return OperatorOrder(
        plan=plan,
        target=plan.targets[0],
        pattern="",
        cache=tmp_path,
        out=folder / "shards",
        host="f00d",
        image=None,
        image_digest=None,
    )


def run(order: OperatorOrder, *kinds: str) -> dict[str, Any]:
    batches = operators._Batches(order, Keeper(None))
    results = batches.run([operator_test(f"test_{kind}") for kind in kinds])
    assert [result.test for result in results] == [f"test_{kind}" for kind in kinds]
    return {result.test.removeprefix("test_"): result for result in results}


def test_every_end_has_its_own_status(order: OperatorOrder) -> None:
    kinds = ("fine", "off", "crash", "elsewhere", "hang", "partly", "lacking", "raising", "memory", "lost", "last")
    found = run(order, *kinds)
    assert {kind: result.status for kind, result in found.items()} == {
        "fine": Status.PASS,
        "off": Status.MISMATCH,
        "crash": Status.CRASH,
        "elsewhere": Status.FALLBACK,
        "hang": Status.TIMEOUT,
        "partly": Status.PASS,
        "lacking": Status.UNSUPPORTED,
        "raising": Status.ERROR,
        "memory": Status.OOM,
        "lost": Status.CRASH,
        "last": Status.PASS,
    }
    assert (found["partly"].on_target, found["elsewhere"].on_target, found["crash"].on_target) == (0.5, 0.0, None)
    assert found["lacking"].needs == ("Add",)
    assert found["off"].max_error == 0.5
    assert (found["crash"].message or "").startswith("SIGSEGV: ")
    assert found["crash"].error_type == "segmentation_fault"
    assert found["hang"].message == "timed out after 1 s"
    assert found["lost"].error_type == "browser_lost"


def test_a_test_that_another_one_broke_is_tried_alone(order: OperatorOrder) -> None:
    found = run(order, "breaking", "victim", "fine")
    assert {kind: result.status for kind, result in found.items()} == dict.fromkeys(("breaking", "victim", "fine"), Status.PASS)


@pytest.mark.parametrize(("keeps", "status"), [(True, Status.PASS), (False, Status.MISMATCH)])
def test_where_a_runtime_keeps_state_failures_are_tried_alone(
    order: OperatorOrder, monkeypatch: pytest.MonkeyPatch, *, keeps: bool, status: Status
) -> None:
    monkeypatch.setattr(Runner, "keeps_state", keeps)
    found = run(order, "breaking", "spoilt", "off", "fine")
    assert {kind: result.status for kind, result in found.items()} == {
        "breaking": Status.PASS,
        "spoilt": status,
        "off": Status.MISMATCH,
        "fine": Status.PASS,
    }


def put(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Have these tests, and no others, in the cache."""
    tests = tuple(operator_test(f"test_{kind}") for kind in kinds)
    monkeypatch.setattr(operators.operator_tests, "read", lambda _cache: OperatorTests(version="1.23.2", digest="ab" * 32, tests=tests))


def rows(order: OperatorOrder, tmp_path: Path, query: str) -> list[tuple[Any, ...]]:
    import duckdb

    database = tmp_path / "matrix.duckdb"
    assert merge([order.out.parent], database).rejected == ()
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(query).fetchall()


def test_a_shard_holds_the_tests_that_were_chosen(order: OperatorOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, "add", "off", "fine", *(f"more{n}" for n in range(operators.BATCH)))
    operators.run_operators(dataclasses.replace(order, pattern="^test_(more|off)"))
    assert rows(order, tmp_path, "SELECT canary_ok, canary_detail FROM shards") == [(True, "a device")]
    counted = rows(order, tmp_path, "SELECT status, count(*) FROM operator_results GROUP BY status ORDER BY status")
    assert counted == [("mismatch", 1), ("pass", operators.BATCH)]


def test_tests_that_are_finished_are_left_out(order: OperatorOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, "add", "off", "fine", "last")
    operators.run_operators(dataclasses.replace(order, pattern="f", finished=frozenset({"test_off"})))
    assert rows(order, tmp_path, "SELECT test FROM operators") == [("test_fine",)]


def test_a_target_that_is_not_here_leaves_its_reason(order: OperatorOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, "add", "fine")
    target = dataclasses.replace(order.target, options={"missing": True})
    operators.run_operators(dataclasses.replace(order, target=target))
    assert rows(order, tmp_path, "SELECT canary_ok, canary_detail FROM shards") == [(None, "no such device")]
    assert rows(order, tmp_path, "SELECT count(*) FROM operator_results") == [(0,)]


def test_a_target_that_finds_everything_right_is_not_believed(
    order: OperatorOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, "add", "fine")
    monkeypatch.setattr(operators, "_with_wrong_values", lambda test: test)
    operators.run_operators(order)
    ((ok, detail),) = rows(order, tmp_path, "SELECT canary_ok, canary_detail FROM shards")
    assert ok is False
    assert "test_add with a wrong expectation is pass, not mismatch" in detail
    assert rows(order, tmp_path, "SELECT count(*) FROM operator_results") == [(0,)]
