from __future__ import annotations

import pytest

from hwmatrix import errors
from hwmatrix.errors import (
    CellFailure,
    CommandError,
    ConfigError,
    EngineError,
    GateError,
    HwmatrixError,
    ImageBuildError,
    NoTargetAvailableError,
    NothingSelectedError,
    Problem,
    StoreError,
)
from hwmatrix.records import Status

CONTRACT = {
    ConfigError: 2,
    NothingSelectedError: 3,
    ImageBuildError: 4,
    EngineError: 5,
    NoTargetAvailableError: 6,
    StoreError: 7,
    GateError: 8,
}


def test_an_exception_that_was_raised_from_itself_is_one_link_of_its_chain() -> None:
    first, second = RuntimeError("first"), ValueError("second")
    second.__cause__ = first
    first.__cause__ = second
    assert list(errors.chain_of(second)) == [second, first]
    first.__cause__ = first
    assert list(errors.chain_of(first)) == [first]


def below(kind: type[Exception]) -> list[type[Exception]]:
    return [found for child in kind.__subclasses__() for found in (child, *below(child))]


def test_exit_codes_are_as_documented() -> None:
    """CommandError is only a base class: its subclasses have the exit codes."""
    own = {kind for kind in below(HwmatrixError) if kind.__module__ == errors.__name__ and kind is not CommandError}
    assert {kind: kind.exit_code for kind in own} == CONTRACT  # type: ignore[attr-defined]
    assert HwmatrixError.exit_code == CommandError.exit_code == 1


def test_exit_codes_are_unique() -> None:
    codes = list(CONTRACT.values())
    assert len(set(codes)) == len(codes)
    assert not {0, 1} & set(codes)


@pytest.mark.parametrize("kind", below(CellFailure))
def test_a_failing_cell_has_a_status(kind: type[CellFailure]) -> None:
    assert Status(kind.status) is not Status.PASS


def test_only_our_own_error_means_unsupported() -> None:
    assert [kind for kind in below(CellFailure) if kind.status == "unsupported"] == [errors.UnsupportedError]  # type: ignore[attr-defined]


def test_a_failing_cell_does_not_end_the_program() -> None:
    assert not issubclass(CellFailure, HwmatrixError)


def test_advice_follows_the_message() -> None:
    assert str(StoreError("broken", advice="Delete it.")) == "broken\nDelete it."
    assert str(StoreError("broken")) == "broken"


def test_all_problems_are_reported() -> None:
    error = ConfigError([Problem(where="a:1", what="wrong", hint="allowed: x"), Problem(where="b:2", what="missing")])
    assert str(error) == "a:1: wrong (allowed: x)\nb:2: missing"
    assert len(error.problems) == 2


def test_a_failed_command_is_shown_with_the_end_of_its_output() -> None:
    output = "\n".join(f"line {number}" for number in range(100))
    text = str(ImageBuildError("no image", command=("docker", "build", "."), code=7, output=output, advice="Look."))
    assert text.splitlines()[:2] == ["no image (exit code 7)", "command: docker build ."]
    assert "line 80" in text
    assert "line 79" not in text
    assert text.endswith("Look.")
