"""The lines that a runner prints, by a model as well: none ends a run, none reaches the terminal with control characters."""

from __future__ import annotations

import io
import json
import unicodedata
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from hwmatrix.host import events
from hwmatrix.host.console import LiveView, PlainView
from hwmatrix.host.events import BadEventError, read_event
from hwmatrix.host.executors import Ended, Job, follow

if TYPE_CHECKING:
    from collections.abc import Sequence

CELL = {"event": "cell", "key": "bert/tiny/cpu", "role": "model", "status": "pass", "stage": "measure", "p50_ms": 0.5, "error": None}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["pass", "model", "run", "tiny", "[/b]", "\x1b[2J"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
NAMES = sorted({field for fields in events._FIELDS.values() for field in fields})
EVENTS = st.builds(
    lambda name, fields: {**fields, "event": name},
    st.sampled_from(sorted(events._FIELDS)) | VALUES,
    st.dictionaries(st.sampled_from(NAMES) | st.text(), VALUES, max_size=6),
)
CHANGES = st.dictionaries(st.sampled_from(NAMES), VALUES)
LINES = st.text() | st.builds(json.dumps, EVENTS) | st.builds(lambda changes: json.dumps(CELL | changes), CHANGES)


class Printing:
    """An executor whose job prints these lines."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines

    def run(self, _job: Job, on_line: Any) -> Ended:
        for line in self.lines:
            on_line(line)
        return Ended(code=0, output="", oom_killed=False)


@settings(deadline=None)
@given(lines=st.lists(LINES, max_size=5), terminal=st.booleans())
def test_no_line_ends_a_run_or_controls_the_terminal(lines: list[str], *, terminal: bool) -> None:
    shown = Console(file=io.StringIO(), force_terminal=False, width=100)
    view = LiveView(shown) if terminal else PlainView(shown, verbose=True)
    view.begin("cpu", 9)
    ended = follow(Printing([*lines, json.dumps(CELL)]), None, view, "cpu")  # type: ignore[arg-type]
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "bert/tiny/cpu" in text
    assert not {character for character in text + ended.output if unicodedata.category(character) == "Cc"} - {"\n", "\t"}
    assert len(ended.output) < 1_000_000


def test_a_missing_field_and_an_unknown_word_are_invalid() -> None:
    assert read_event(json.dumps(CELL)) == CELL
    assert read_event("a library's words") is read_event('["event"]') is read_event("{}") is None
    for line in (
        '{"event": "failed"}',
        '{"event": "cell"}',
        json.dumps(CELL | {"status": "banana"}),
        '{"event": "unknown"}',
        '{"event": []}',
    ):
        with pytest.raises(BadEventError):
            read_event(line)


def test_an_invalid_event_is_said_once_and_kept_as_a_reason() -> None:
    shown = Console(file=io.StringIO(), width=200)
    view = PlainView(shown, verbose=False)
    ended = follow(Printing(['{"event": "cell"}'] * 1000), None, view, "cpu")  # type: ignore[arg-type]
    assert shown.file.getvalue().count("\n") == 1  # type: ignore[attr-defined]
    assert ended.output.count("invalid line") == 1
