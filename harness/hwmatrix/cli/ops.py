"""``hwmatrix ops``: the ONNX standard's operator tests on every target that executes ONNX."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import workshop_of
from hwmatrix.app.operator_tests import OperatorRequest, run_operator_tests
from hwmatrix.cli.options import (
    DEFAULT_OUTPUT,
    BaseImage,
    Isolating,
    IsolationChoice,
    Matrix,
    Output,
    Targets,
    Verbose,
    progress,
)
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.plan import Selection, check_selection
from hwmatrix.matrix.shipped import harness_source, shipped_root
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Sequence


_PAGE = Path("docs") / "operators.md"


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("ops")(ops_command)


def ops_command(
    *,
    targets: Targets = None,
    tests: Annotated[str, typer.Option("--tests", help="Only tests whose name matches this regular expression.", metavar="PATTERN")] = "",
    isolation: Isolating = IsolationChoice.AUTO,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the last run of operator tests: only what is missing.")] = False,
    write_docs: Annotated[bool, typer.Option("--write-docs", help="Also write docs/operators.md beside matrix.yaml.")] = False,
    output_dir: Output = DEFAULT_OUTPUT,
    matrix: Matrix = Path("matrix.yaml"),
    base_image: BaseImage = None,
    verbose: Verbose = False,
) -> None:
    """Run the ONNX standard's operator tests: which operators each target supports, and whether they run on the target itself.

    Without --targets, on every target that executes ONNX. Examples:

        hwmatrix ops

        hwmatrix ops --targets openvino onnxruntime --tests '^test_attention'

        hwmatrix ops --resume
    """
    environment, loaded, output = read_environment(), load(matrix), output_dir.absolute()
    if write_docs and matrix.parent == shipped_root() and harness_source() is None:
        what = "there is no matrix.yaml here, beside which docs/ could be written"
        raise ConfigError([Problem(where="--write-docs", what=what, hint="hwmatrix init writes one")])
    names = _chosen(loaded, targets or ())
    _check_pattern(tests)
    if resume:
        _refuse_with_resume(targets, tests, isolation)
    request = OperatorRequest(
        loaded=loaded,
        targets=tuple(names),
        pattern=tests,
        isolation=isolation.value,
        resume=resume,
        output=output,
        page=loaded.path.absolute().parent / _PAGE if write_docs else None,
    )
    with progress(verbose=verbose) as view:
        run_operator_tests(request, workshop_of(loaded, environment, base_image, view), environment, view)


def _refuse_with_resume(targets: Sequence[str] | None, tests: str, isolation: IsolationChoice) -> None:
    if targets or tests or isolation is not IsolationChoice.AUTO:
        what = "the last run is continued as it was planned"
        raise ConfigError([Problem(where="--resume", what=what, hint="leave out --targets, --tests and --isolation")])


def _chosen(loaded: LoadedMatrix, targets: Sequence[str]) -> list[str]:
    """The requested targets, or all that execute ONNX.

    Raises:
        ConfigError: a target is not in matrix.yaml, or does not execute ONNX.
    """
    check_selection(loaded, Selection(targets=tuple(targets)))
    able = [name for name, target in loaded.spec.targets.items() if descriptor_of(target.backend).operators is not None]
    problems = [
        Problem(where="--targets", what=f"{name!r} executes no ONNX graphs", hint=f"one or more of: {', '.join(able)}")
        for name in targets
        if name not in able
    ]
    if problems:
        raise ConfigError(problems)
    return list(targets) or able


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError([Problem(where="--tests", what=f"{pattern!r} is not a valid regular expression: {error}")]) from error
