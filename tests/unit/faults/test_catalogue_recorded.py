"""The catalogue against recorded messages: each real one gets its type, and similar ones stay unmatched."""

from __future__ import annotations

import ast
import functools
import importlib.resources
from pathlib import Path
from re import _constants, _parser  # Python's only parser of regular expressions
from typing import TYPE_CHECKING, Any, Final

import pytest
from recorded_errors import NEGATIVE, POSITIVE, name_of, recorded

from hwmatrix.faults.catalogue import UNMATCHED, catalogue, entry_for, match, severity_of
from hwmatrix.records import Severity, Stage, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST: Final = 120
KEYS: Final = frozenset({"type", "hardware", "source", "message", "status", "stage", "exception", "not_type", "quotes"})


def recognized(entry: dict[str, Any]) -> str:
    return match(
        entry["message"],
        hardware=entry["hardware"],
        status=Status(entry["status"]) if "status" in entry else None,
        stage=Stage(entry["stage"]) if "stage" in entry else None,
        exception=entry.get("exception"),
    ).type


@pytest.mark.parametrize("entry", POSITIVE, ids=name_of)
def test_a_real_message_is_recognized(entry: dict[str, Any]) -> None:
    assert recognized(entry) == entry["type"]
    assert entry_for(entry["type"], entry["hardware"]).type == entry["type"]


@pytest.mark.parametrize("entry", NEGATIVE, ids=name_of)
def test_a_similar_message_is_not_recognized(entry: dict[str, Any]) -> None:
    assert recognized(entry) == UNMATCHED


def test_there_are_enough_messages_each_with_its_source_and_only_known_keys() -> None:
    assert len(POSITIVE) >= LEAST
    assert len(NEGATIVE) >= 30
    for entry in POSITIVE:
        assert len(entry["source"]) > 5
        assert len(entry["message"]) < 500, "quotations must be short"
    for entry in (*POSITIVE, *NEGATIVE, *recorded(program=True)):
        assert entry.keys() <= KEYS | {"file"}


def test_no_message_is_recorded_twice() -> None:
    seen = [(entry["hardware"], entry["message"], entry.get("status"), entry.get("exception")) for entry in (*POSITIVE, *NEGATIVE)]
    assert len(seen) == len(set(seen))


def test_every_type_has_a_message() -> None:
    known = {entry["type"] for entry in (*POSITIVE, *recorded(program=True))}
    assert {entry.type for entry in catalogue()} - {UNMATCHED} == known


@pytest.mark.parametrize("entry", [entry for entry in catalogue() if entry.when], ids=lambda entry: f"{entry.type}-{entry.hardware}")
def test_every_entry_with_rules_is_reached_by_a_message(entry: Any) -> None:
    """An entry without a recorded message is hidden by an earlier one, or has no real message."""
    reached = [found for found in POSITIVE if found["type"] == entry.type and entry_for(entry.type, found["hardware"]) == entry]
    assert reached, f"record a message for {entry.type} on {entry.hardware}"


@pytest.mark.parametrize("entry", recorded(program=True), ids=name_of)
def test_recorded_messages_of_our_own_are_in_the_source(entry: dict[str, Any]) -> None:
    constants = [found for path, found in literals().items() if f'"{entry["type"]}"' in sources()[path]]
    assert constants, f"nothing sets {entry['type']}"
    if not entry.get("quotes"):
        assert any(len(chunk) >= 6 and chunk in entry["message"] for found in constants for chunk in found)
    assert recognized(entry) in {entry["type"], UNMATCHED}, "the program and the catalogue disagree"


def test_every_type_without_rules_is_set_by_the_program() -> None:
    everything = "\n".join(sources().values())
    unset = [entry.type for entry in catalogue() if not entry.when and entry.type != UNMATCHED and f'"{entry.type}"' not in everything]
    assert unset == []


def test_specific_entries_come_before_general_ones() -> None:
    """A message that matches two types gets the more specific one."""
    nested = "OCI runtime create failed: runc create failed: pipe2: too many open files: unknown"
    assert match(nested, hardware="cpu").type == "too_many_files"
    memory = "Non-zero status code returned while running Expand node. Failed to allocate memory for requested buffer of size 4"
    assert match(memory, hardware="onnxruntime").type == "memory_pressure"
    provider = "Failed to load library libonnxruntime_providers_cuda.so with error: libcudnn.so.9: cannot open shared object file"
    assert match(provider, hardware="onnxruntime").type == "onnx_provider_missing"
    kernel = "terminate called after throwing an instance of 'c10::Error'\n  what(): CUDA error: an illegal memory access was encountered"
    assert match(kernel, hardware="cuda", status=Status.CRASH).type == "gpu_illegal_access"
    assert match(kernel, hardware="cpu", status=Status.CRASH).type == "abort"


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: f"{entry.type}-{entry.hardware}")
def test_every_entry_has_advice_without_duplicates(entry: Any) -> None:
    assert entry.recommendations
    assert all(line.strip() for line in entry.recommendations)
    assert len(set(entry.recommendations)) == len(entry.recommendations)


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: f"{entry.type}-{entry.hardware}")
def test_no_pattern_grows_faster_than_the_message(entry: Any) -> None:
    """Models and runtimes control the messages. A nested repetition takes exponential time, three in a row take cubic time."""
    for rule in entry.when:
        if rule.message is not None:
            depths = unbounded(rule.message.pattern)
            assert max(depths, default=1) == 1, rule.message.pattern
            assert len(depths) <= 2, rule.message.pattern


def test_slow_patterns_are_detected() -> None:
    assert max(unbounded(r"(a+b)*c")) == 2
    assert len(unbounded(r"a.*b.+c\d*")) == 3
    assert unbounded(r"a{2,9}(b|c)?") == []


def unbounded(pattern: str) -> list[int]:
    """The nesting depth of each unbounded repetition in a pattern, counting itself."""
    return list(_unbounded(_parser.parse(pattern), 1))


def _unbounded(part: Any, depth: int) -> Iterator[int]:
    if isinstance(part, tuple) and len(part) == 2 and part[0] in {_constants.MAX_REPEAT, _constants.MIN_REPEAT}:
        _, most, repeated = part[1]
        if most is _constants.MAXREPEAT:
            yield depth
            depth += 1
        yield from _unbounded(repeated, depth)
    elif isinstance(part, _parser.SubPattern | tuple | list):
        for each in part:
            yield from _unbounded(each, depth)


def test_severities_are_the_four_and_all_are_used() -> None:
    assert {entry.severity for entry in catalogue()} == set(Severity)
    assert severity_of("gpu_memory_error", "cuda") is Severity.CRITICAL
    assert severity_of("gpu_no_driver", "cuda") is Severity.INFO


@functools.cache
def sources() -> dict[Path, str]:
    package = Path(str(importlib.resources.files("hwmatrix")))
    return {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}


@functools.cache
def literals() -> dict[Path, tuple[str, ...]]:
    """The constant strings of every module, and the constant parts of its f-strings."""
    return {
        path: tuple(
            node.value.strip() for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        for path, text in sources().items()
    }
