from __future__ import annotations

import ast
import importlib.resources
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from hwmatrix.faults.catalogue import UNMATCHED, Match, Rule, advice_for, catalogue, entry_for, match, severity_of
from hwmatrix.records import Dtype, Severity, Stage, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

OPENVINO_INPUT = (
    "Exception from src/inference/src/cpp/infer_request.cpp:117:\nCan't set the input tensor with index: 0, because the model input "
    "(shape=[2,3]) and the tensor (shape=(5.5)) are incompatible"
)


@pytest.mark.parametrize("message", ["", "nobody has ever seen this", "list index out of range"])
def test_an_unknown_message_is_not_guessed(message: str) -> None:
    assert match(message, hardware="cpu", status=Status.ERROR, stage=Stage.RUN) == Match(type=UNMATCHED, severity=Severity.ERROR)


def test_an_entry_for_other_hardware_is_not_used() -> None:
    assert match(OPENVINO_INPUT, hardware="cpu", status=Status.ERROR, stage=Stage.RUN).type == UNMATCHED


def test_base_classes_of_an_exception_count() -> None:
    class ArrayMemoryError(MemoryError):
        pass

    assert match("", hardware="cpu", exception=ArrayMemoryError()).type == "memory_pressure"
    assert match("", hardware="cpu", exception=ArrayMemoryError).type == "memory_pressure"


def test_advice_for_the_hardware_comes_before_advice_for_any() -> None:
    assert advice_for("memory_pressure", "cuda") != advice_for("memory_pressure", "cpu")
    assert any("Split the model over several GPUs" in line for line in advice_for("memory_pressure", "cuda"))
    assert severity_of("memory_pressure", "cuda") is Severity.CRITICAL
    assert severity_of("memory_pressure", "cpu") is Severity.ERROR


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("batch", [1, 4, None])
def test_no_advice_repeats_what_the_cell_already_did(dtype: Dtype, batch: int | None) -> None:
    for entry in catalogue():
        lines = entry.for_cell(dtype=dtype, batch=batch)
        assert lines, (entry.type, dtype, batch)
        for line in lines:
            advised = re.match(r"(?:Try|Compute|Run it) in ([\w, ]+?)(?:,|\.| to | where | if | instead )", line)
            assert advised is None or dtype.value not in re.split(r"\W+", advised.group(1)), (entry.type, line)
            assert batch != 1 or "smaller batch" not in line, (entry.type, line)


def test_a_cell_in_half_precision_is_not_told_to_halve_it() -> None:
    told = advice_for("memory_pressure", "cpu", dtype=Dtype.FLOAT16, batch=1)
    assert not any("float16" in line or "batch" in line for line in told)
    assert any("float16" in line for line in advice_for("memory_pressure", "cpu", dtype=Dtype.FLOAT32, batch=1))
    assert any("smaller batch" in line for line in advice_for("memory_pressure", "cpu", dtype=Dtype.FLOAT16, batch=8))


def test_an_unknown_type_gets_the_advice_for_unmatched() -> None:
    assert entry_for("no_such_type", "cpu").type == UNMATCHED
    assert advice_for("no_such_type", "cpu") == advice_for(UNMATCHED, "cpu")


def test_every_entry_is_complete_and_unique() -> None:
    seen = set()
    for entry in catalogue():
        assert entry.recommendations
        assert all(line.strip().endswith(".") for line in entry.recommendations)
        assert entry.summary.endswith(".")
        assert (entry.type, entry.hardware) not in seen
        seen.add((entry.type, entry.hardware))
    assert UNMATCHED in {entry.type for entry in catalogue()}


def test_every_rule_is_reachable() -> None:
    """An entry for specific hardware must come before the one of the same type for any hardware; otherwise it would never be used."""
    general: set[str] = set()
    for entry in catalogue():
        assert entry.hardware == "any" or entry.type not in general
        if entry.hardware == "any":
            general.add(entry.type)


def test_a_rule_without_conditions_is_refused() -> None:
    with pytest.raises(ValueError, match="a rule needs"):
        Rule()


def test_patterns_are_fast_on_long_messages() -> None:
    """A pattern's time must not grow faster than the message, because models control the messages."""
    found = match("outputs " * 20_000 + "x" * 200_000, hardware="openvino", status=Status.MISMATCH, stage=Stage.COMPARE)
    assert found.type == "mismatch"


def test_every_type_that_the_program_sets_is_in_the_catalogue() -> None:
    package = Path(str(importlib.resources.files("hwmatrix")))
    known = {entry.type for entry in catalogue()}
    used = {(path.name, name) for path in package.rglob("*.py") for name in types_set_in(ast.parse(path.read_text(encoding="utf-8")))}
    assert len(used) > 50
    assert {each for each in used if each[1] not in known} == set()


def types_set_in(tree: ast.AST) -> Iterator[str]:
    """The constants that are passed or assigned as ``error_type``. Class names do not count."""
    for node in ast.walk(tree):
        by_keyword = isinstance(node, ast.keyword) and node.arg == "error_type"
        assigned = isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "error_type" for target in node.targets
        )
        if by_keyword or assigned:
            yield from (name for name in constants_of(node.value) if name[0].islower())  # type: ignore[attr-defined]


def constants_of(value: ast.AST) -> Iterator[str]:
    """A constant, or both constants of a conditional expression, but not those in its condition."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from constants_of(value.body)
        yield from constants_of(value.orelse)


def test_every_type_is_documented_correctly() -> None:
    page = (Path(__file__).parents[3] / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.partition("## The types")[2].splitlines()
        if line.startswith("| `")
    ]
    wanted = [
        [f"`{entry.type}`", entry.hardware if entry.hardware == "any" else ", ".join(entry.hardware), entry.severity.value, entry.summary]
        for entry in catalogue()
    ]
    assert rows == wanted, "docs/errors.md must list the types in the catalogue's order, with its summaries"


def test_the_file_contains_only_known_keys() -> None:
    raw = yaml.safe_load((importlib.resources.files("hwmatrix.faults") / "catalogue.yaml").read_text(encoding="utf-8"))
    assert set(raw) == {"version", "errors"}
    assert len(raw["errors"]) == len(catalogue())
