"""The steps in docs/architecture.md, section "The path of one cell", match the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

PROJECT: Final = Path(__file__).parents[3]
PACKAGE: Final = PROJECT / "harness" / "hwmatrix"
MOST_STEPS: Final = 16
_ROW: Final = re.compile(r"^\| (\d+) \| `([^`]+)` `([^`]+)` \| .+? \| (.+) \|$", re.MULTILINE)


class Step(NamedTuple):
    number: int
    file: Path
    function: str
    caller: str


def _steps() -> list[Step]:
    page = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## The path of one cell")[2].partition("\n## ")[0]
    return [Step(int(number), PACKAGE / file, function, caller) for number, file, function, caller in _ROW.findall(section)]


STEPS: Final = _steps()


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def names_called(file: Path) -> set[str]:
    """The names that a file calls, and those that it passes on as arguments."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    called = {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}
    handed_on = {
        argument.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for value in (*node.args, *(keyword.value for keyword in node.keywords))
        for argument in ast.walk(value)
        if isinstance(argument, ast.Name)
    }
    return called | handed_on


def test_the_table_has_every_step_in_order() -> None:
    assert [step.number for step in STEPS] == list(range(1, len(STEPS) + 1))
    assert 1 < len(STEPS) <= MOST_STEPS


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.number}-{step.function}")
def test_a_step_exists_and_is_called_by_its_caller(step: Step) -> None:
    assert step.function in functions(step.file)
    if step.caller.isdecimal():
        caller = STEPS[int(step.caller) - 1]
        assert caller.number < step.number
        assert step.function in names_called(caller.file)
    elif step.number > 1:
        module = re.search(r"`(hwmatrix\.runner)` that (\d+) starts", step.caller)
        assert module is not None, step.caller
        caller = STEPS[int(module[2]) - 1]
        constants = {node.value for node in ast.walk(ast.parse(caller.file.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)}
        assert module[1] in constants
        assert step.file == PACKAGE / "runner" / "__main__.py"
