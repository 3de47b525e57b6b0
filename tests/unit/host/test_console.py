from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from hwmatrix.host.console import LiveView, PlainView, View, describe, view
from hwmatrix.records import Status


def cell(status: str = "pass", **changes: Any) -> dict[str, Any]:
    event = {
        "event": "cell",
        "role": "model",
        "key": "bert/tiny/cpu",
        "status": status,
        "stage": "measure",
        "p50_ms": 0.3812,
        "error": None,
    }
    return event | changes


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, height=30)


def printed(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def a_run(shown: View) -> None:
    with shown:
        shown.say("using containers")
        shown.detail("[cpu] Collecting torch")
        shown.begin("bundles", 2)
        shown.event("bundles", {"event": "bundle_started", "model": "bert", "size": "tiny"})
        shown.event("bundles", {"event": "bundle", "model": "bert", "size": "tiny", "ok": True, "message": None})
        shown.event("bundles", {"event": "bundle", "model": "odd", "size": "tiny", "ok": False, "message": "[bold]no inputs[/bold]"})
        shown.end("bundles")
        shown.begin("cpu", 2)
        shown.event("cpu", {"event": "shard", "target": "cpu", "cells": 2, "warm_up_ms": 3000.0})
        shown.event("cpu", {"event": "cell_started", "key": "canary-good", "role": "canary_good"})
        shown.event("cpu", cell(role="canary_good", key="canary-good"))
        shown.event("cpu", {"event": "cell_started", "key": "bert/tiny/cpu", "role": "model"})
        shown.event("cpu", cell())
        shown.event("cpu", cell("error", key="vit/tiny/cpu", stage="run", p50_ms=None, error="[red]boom[/red]\nsecond line"))
        shown.event("cpu", {"event": "sealed", "shard": "cpu-x.duckdb"})
        shown.end("cpu")


def test_a_cell_takes_one_line() -> None:
    assert describe(cell()) == "pass           0.381 ms  bert/tiny/cpu"
    assert describe(cell("timeout", p50_ms=None, stage="prepare", error="no end\nwithin")).endswith("bert/tiny/cpu  (prepare: no end)")
    assert describe(cell("unavailable", p50_ms=None, error="no such device")) == "unavailable              bert/tiny/cpu"
    assert len(describe(cell("error", error="x" * 1000))) < 200


@pytest.mark.parametrize("status", list(Status))
def test_every_status_can_be_shown(status: Status) -> None:
    shown = console(terminal=True)
    with LiveView(shown) as live:
        live.begin("cpu", 1)
        live.event("cpu", cell(status.value, error="why" if status is not Status.PASS else None))
    assert status.value in printed(shown)


def test_plain_lines_for_logs() -> None:
    shown = console(terminal=False)
    a_run(PlainView(shown, verbose=False))
    assert printed(shown).splitlines() == [
        "using containers",
        "bundles: 2 cells",
        "  no bundle for odd (tiny): [bold]no inputs[/bold]",
        "bundles: done",
        "cpu: 2 cells",
        "  [1/2] pass           0.381 ms  bert/tiny/cpu",
        "  [2/2] error                    vit/tiny/cpu  (run: [red]boom[/red])",
        "cpu: done",
    ]


def test_details_are_shown_with_verbose() -> None:
    shown = console(terminal=False)
    PlainView(shown, verbose=True).detail("Collecting torch")
    assert printed(shown) == "  Collecting torch\n"


def test_a_detail_is_shown_after_a_long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    shown = console(terminal=False)
    plain = PlainView(shown, verbose=False)
    plain.detail("early")
    now += 31
    plain.detail("late")
    plain.detail("right after")
    assert printed(shown) == "  late\n"


def test_a_long_line_stays_one_line() -> None:
    shown = console(terminal=False)
    PlainView(shown, verbose=False).say("x" * 500)
    assert printed(shown) == "x" * 500 + "\n"


def test_a_live_view_keeps_finished_cells() -> None:
    shown = console(terminal=True)
    a_run(LiveView(shown))
    text = printed(shown)
    assert "using containers" in text
    assert "no bundle for odd (tiny): [bold]no inputs[/bold]" in text
    assert "[red]boom[/red]" in text
    assert "2/2" in text
    assert "canary" not in text.replace("canary-good", "", 1)


def test_a_live_view_is_cleared_when_the_run_fails() -> None:
    shown = console(terminal=True)
    live = LiveView(shown)

    def broken() -> None:
        with live:
            live.begin("cpu", 3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert not live._live.is_started


def test_only_the_latest_details_are_shown() -> None:
    live = LiveView(console(terminal=True))
    for number in range(100):
        live.detail(f"line {number}")
    assert [line.plain.strip() for line in live._lines] == [f"line {number}" for number in range(92, 100)]


@pytest.mark.parametrize(
    ("terminal", "verbose", "kind"), [(True, False, LiveView), (True, True, PlainView), (False, False, PlainView), (False, True, PlainView)]
)
def test_the_view_suits_the_console(*, terminal: bool, verbose: bool, kind: type[View]) -> None:
    assert type(view(console(terminal=terminal), verbose=verbose)) is kind


def test_operator_tests_are_reported_in_batches(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainView(Console(width=120), verbose=False) as view:
        view.begin("qnn", 0, "operator tests")
        view.event("qnn", {"event": "operators", "done": 50, "total": 1884, "counts": {"pass": 49, "crash": 1}})
        view.event("qnn", {"event": "operators_refused", "unavailable": True, "message": "no such chip"})
    assert capsys.readouterr().out.splitlines() == [
        "qnn: operator tests",
        "  50/1884  49 pass, 1 crash",
        "  no operator tests on qnn: no such chip",
    ]


def test_on_github_a_target_is_a_group_and_no_text_is_a_command() -> None:
    shown = console(terminal=False)
    on_github = view(shown, on_github=True)
    on_github.begin("cpu", 1)
    on_github.begin("openvino", 1)  # GitHub does not support nested groups
    on_github.event("cpu", cell("error", error="::error::x"))
    on_github.event("openvino", {"event": "bundle", "model": "x", "size": "tiny", "ok": False, "message": "a\n::add-mask::b\n##[group]c"})
    on_github.end("openvino")
    on_github.end("cpu")
    on_github.begin("qnn", 0, "survey")
    lines = printed(shown).splitlines()
    assert [line for line in lines if line.lstrip().startswith("::") or "##[" in line] == [
        "::group::cpu: 1 cell",
        "::endgroup::",
        "::group::qnn: survey",
    ]
    assert "openvino: 1 cell" in lines
