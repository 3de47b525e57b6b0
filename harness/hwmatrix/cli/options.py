"""Options that several commands share, and the progress display."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

import hwmatrix
from hwmatrix.basics.near_miss import near_miss
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import ConfigError, Problem, StoreError
from hwmatrix.matrix.shipped import MATRIX_FILE, shipped_root
from hwmatrix.records import Axes, Size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from hwmatrix.host.console import View
    from hwmatrix.matrix.spec import MatrixSpec
    from hwmatrix.report.rows import CellRow

DEFAULT_OUTPUT: Final = Path("reports/latest")
DEFAULT_MATRIX: Final = Path(MATRIX_FILE)
LIMIT_VARIABLE: Final = "HWMATRIX_CACHE_LIMIT"


class Format(enum.StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


class IsolationChoice(enum.StrEnum):
    """The values of ``--isolation``. ``auto`` uses containers if an engine is running, else virtual environments."""

    AUTO = "auto"
    CONTAINER = "container"
    VENV = "venv"
    NONE = "none"


class EngineChoice(enum.StrEnum):
    """The values of ``--engine``: which machines run the cells."""

    HERE = "here"
    CLUSTER = "cluster"


class Priority(enum.StrEnum):
    """Which models of matrix.yaml to use: those of its first suite, or all."""

    HIGH = "high"
    ALL = "all"


class Across(enum.StrEnum):
    """In which setting two compared cells differ."""

    DTYPE = "dtype"


AcrossOption = Annotated[Across | None, typer.Option("--across", help="Compare each cell with the same one in other precisions.")]
FormatOption = Annotated[Format, typer.Option("--format", help="A table, or JSON.")]


def matrix_or_shipped(path: Path) -> Path:
    """The file itself. If it is the default and does not exist: the packaged one, with a message."""
    if path != DEFAULT_MATRIX or path.exists():
        return path
    note = f"no {path} here: using the one that comes with hwmatrix {hwmatrix.__version__} (hwmatrix init writes one for your own models)"
    echo(note, err=True)
    return shipped_root() / MATRIX_FILE


def _unless_named(context: typer.Context, parameter: typer.CallbackParam, path: Path) -> Path:
    """Fall back to the packaged matrix.yaml, unless a file was named explicitly."""
    source = context.get_parameter_source(parameter.name or "")
    return matrix_or_shipped(path) if source is not None and source.name == "DEFAULT" else path


OwnMatrix = Annotated[Path, typer.Option("--matrix", help="The matrix.yaml to read.", metavar="FILE")]
"""For commands that work without a matrix.yaml, or must not fall back to the packaged one."""
Matrix = Annotated[
    Path,
    typer.Option(
        "--matrix",
        help="The matrix.yaml to read. [default: the one here, else the packaged one]",
        metavar="FILE",
        show_default=False,
        callback=_unless_named,
    ),
]
Output = Annotated[Path, typer.Option("--output-dir", help="Where reports are written.", metavar="DIR")]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--models",
        help="Names of matrix.yaml, transformers types, classes of diffusers, hub ids or checkpoint folders: --models bert gemma3",
        metavar="M ...",
    ),
]
Targets = Annotated[list[str] | None, typer.Option("--targets", help="Targets of matrix.yaml: --targets cpu openvino", metavar="T ...")]
Architectures = Annotated[
    list[str] | None,
    typer.Option(
        "--architectures", help="Only models of these architectures or structures: --architectures bert encoder-only", metavar="A ..."
    ),
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option("--dtypes", help="Only these precisions of the targets, or all: --dtypes float32 bfloat16", metavar="D ..."),
]
Batches = Annotated[
    list[int] | None,
    typer.Option("--batch", min=1, help="Batches to try, each as a cell: --batch 1 8 32. [default: matrix.yaml's]", metavar="N ..."),
]
Lengths = Annotated[
    list[int] | None,
    typer.Option(
        "--sequence-length",
        min=1,
        help="Sequence lengths in tokens, each as a cell: --sequence-length 16 128. [default: matrix.yaml's]",
        metavar="N ...",
    ),
]
Threads = Annotated[
    list[int] | None,
    typer.Option("--threads", min=1, help="Numbers of threads, each as a cell: --threads 1 2. [default: the targets']", metavar="N ..."),
]
Timing = Annotated[
    bool | None,
    typer.Option("--timing/--no-timing", help="Measure speed, or only whether models work. [default: as the suite says, else --timing]"),
]
Generation = Annotated[
    bool | None,
    typer.Option(
        "--generation/--no-generation",
        help="Also generate text with the models that can, or run one forward pass only. [default: as the suite says, else --generation]",
    ),
]
Forward = Annotated[
    bool, typer.Option("--forward/--no-forward", help="Also run one forward pass of each model. Without it, only text is generated.")
]
Adapt = Annotated[
    bool | None,
    typer.Option("--adapt/--no-adapt", help="Retry failed cells with one setting changed, or don't. [default: as matrix.yaml says]"),
]
Database = Annotated[Path, typer.Option("--database", help="A merged database, or a folder of reports.", metavar="FILE")]
OwnDtypes = Annotated[
    list[str] | None, typer.Option("--dtypes", "--dtype", help="Only cells in these precisions: --dtype float32 int8", metavar="D ...")
]
CellSize = Annotated[Size | None, typer.Option("--size", help="Only tiny or full models.")]
CellGeneration = Annotated[
    bool | None,
    typer.Option("--generation/--no-generation", help="Only cells that generate text, or only those of one forward pass. [default: both]"),
]
RunId = Annotated[str | None, typer.Option("--run", help="A run's id. [default: the latest in the database]", metavar="ID")]
PlannedFolder = Annotated[Path, typer.Argument(help="The folder of the planned run, with plan.json.", metavar="RUN")]
JobStates = Annotated[Path, typer.Option("--states", help="The states of the targets' jobs.", metavar="FILE")]
OwnSize = Annotated[Size | None, typer.Option("--size", help="tiny or full; overrides the suite's size.")]
Everything = Annotated[bool, typer.Option("--all", help="Every model, in every size.")]
Suite = Annotated[str | None, typer.Option("--suite", help="A suite of matrix.yaml. [default: default]")]
BaseImage = Annotated[str | None, typer.Option("--base-image", help="The base of all images, instead of images.base in matrix.yaml.")]
Images = Annotated[bool, typer.Option("--images", help="Run inside every target's image, and store the results.")]
Isolating = Annotated[IsolationChoice, typer.Option("--isolation", help="How targets are isolated from this machine.")]
CacheLimit = Annotated[
    float,
    typer.Option(
        "--cache-limit",
        min=0,
        envvar=LIMIT_VARIABLE,
        help="The limit of the bundle cache between the waves of a run.",
        metavar="GB",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show all build output, as plain lines.")]


def first_models(spec: MatrixSpec, priority: Priority | None) -> list[str]:
    """The models of the first suite of matrix.yaml, or all of them."""
    first = next(iter(spec.suites.values()))
    return list(first.models if priority is not Priority.ALL and isinstance(first.models, tuple) else spec.models)


def axes(batches: Sequence[int] | None, lengths: Sequence[int] | None, threads: Sequence[int] | None) -> Axes:
    """The settings that these options vary."""
    return Axes(batch=tuple(batches or ()), sequence_length=tuple(lengths or ()), threads=tuple(threads or ()))


def recorded(database: Path) -> Path:
    """The database to read. If it is the default and there is none: the published results of this folder, with a message.

    Raises:
        StoreError: it is the default, and there is neither.
    """
    from hwmatrix.knowledge.on_record import PUBLISHED  # opens databases: not for commands that only detect
    from hwmatrix.store.reading import database_at

    path = database_at(database)
    published = database_at(PUBLISHED)
    if database != DEFAULT_OUTPUT or path.is_file():
        return path
    if not published.is_file():
        advice = "Run models (hwmatrix matrix), name a database (--database), or ask what is published: hwmatrix classify --model M."
        raise StoreError(f"{path}: there is no such file: no run of your own, and no published results in {PUBLISHED}", advice=advice)
    echo(f"no run of your own in {DEFAULT_OUTPUT}: this is from the published results, {PUBLISHED}", err=True)
    return published


def chosen_cells(
    cells: Iterable[CellRow],
    dtypes: Sequence[str] | None,
    size: Size | None,
    generation: bool | None,  # noqa: FBT001 - as typer gives it
) -> list[CellRow]:
    """The cells that meet every filter.

    Raises:
        ConfigError: there are none in one of the precisions.
    """
    found = list(cells)
    recorded_names("--dtype", dtypes or (), {cell.dtype.value for cell in found}, "the chosen cells")
    return [
        cell
        for cell in found
        if (not dtypes or cell.dtype.value in dtypes)
        and (size is None or cell.size is size)
        and (generation is None or bool(cell.new_tokens) is generation)
    ]


def known(option: str, names: Sequence[str], allowed: Collection[str]) -> tuple[str, ...]:
    """Check names against the allowed ones, and return them.

    Raises:
        ConfigError: lists unknown names, each with a suggestion.
    """
    problems = [Problem(where=option, what=f"{name!r} is unknown", hint=near_miss(name, allowed)) for name in names if name not in allowed]
    if problems:
        raise ConfigError(problems)
    return tuple(names)


def recorded_names(option: str, names: Sequence[str], recorded: Collection[str], where: str) -> None:
    """Check that recorded cells have these models, targets or precisions. ``where`` names the cells.

    Raises:
        ConfigError: lists the others, each with a suggestion.
    """
    from hwmatrix.store.reading import OTHER_RESULTS

    problems = [
        Problem(where=option, what=f"no {name!r} in {where}", hint=f"{near_miss(name, recorded)}; {OTHER_RESULTS}")
        for name in names
        if name not in recorded
    ]
    if problems:
        raise ConfigError(problems)


def progress(*, verbose: bool) -> View:
    """The progress display of a command. It is on stderr: stdout is only for results."""
    from hwmatrix.host.console import view

    return view(Console(stderr=True), verbose=verbose, on_github=os.environ.get("GITHUB_ACTIONS") == "true")
