"""``hwmatrix generate``: writes model tests, and scripts that reproduce a failing cell."""

from __future__ import annotations

import functools
import json
import logging
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Column, Table

from hwmatrix.app.clearing import clear_cached
from hwmatrix.app.environment import read_environment
from hwmatrix.basics.files import write_atomically
from hwmatrix.cli.options import DEFAULT_OUTPUT, Format, FormatOption, Matrix, Priority, first_models, recorded
from hwmatrix.cli.terminal import echo, safe_text
from hwmatrix.errors import CellFailure, ConfigError, Problem
from hwmatrix.generate.model_tests import DEFAULT_FOLDER, generate_test
from hwmatrix.generate.rendering import slug, write_templates
from hwmatrix.generate.reproduction import MARK, Reproduction, install_line, reproduce
from hwmatrix.generate.test_plan import DEFAULT_TIMEOUT_MIN, Wish, plan_of
from hwmatrix.knowledge.measured_cell import find_cell
from hwmatrix.knowledge.names import name_on_record
from hwmatrix.matrix.load import load
from hwmatrix.records import Dtype, Size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.generate.model_tests import GeneratedTest
    from hwmatrix.matrix.spec import MatrixSpec

_STANDARD_OUTPUT: Final = Path("-")

Names = Annotated[
    list[str] | None,
    typer.Option("--model", "--models", help="A name of matrix.yaml, a hub id, or a checkpoint folder: --model A B", metavar="M"),
]
More = Annotated[list[str] | None, typer.Argument(help="More models.", metavar="[M ...]", show_default=False)]
Folder = Annotated[Path, typer.Option("--output-dir", help="Where tests are written.", metavar="DIR")]
Database = Annotated[
    Path | None, typer.Option("--database", help="Measurements. [default: reports/latest/matrix.duckdb, if it exists]", metavar="FILE")
]
Priorities = Annotated[
    Priority | None, typer.Option("--priority", help="Models of matrix.yaml: high means its first suite.", metavar="high|all")
]
Templates = Annotated[Path | None, typer.Option("--templates", help="Write only the templates, for your own generator.", metavar="DIR")]
Everything = Annotated[bool, typer.Option("--all", help="All models of matrix.yaml.")]
SizeOption = Annotated[Size | None, typer.Option("--size", help="tiny or full. [default: tiny]")]
Device = Annotated[
    str | None,
    typer.Option("--device", help="Test only on this hardware. [default: all hardware in the order for this kind of model]", metavar="D"),
]
Timeout = Annotated[
    float, typer.Option("--timeout", help="Minutes for which the resource pool keeps an unused model.", metavar="MIN", min=0)
]
ClearCache = Annotated[bool, typer.Option("--clear-cache", help="Remove the models' bundles and exports first.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print why each template was chosen.")]
Again = Annotated[
    tuple[str, str] | None,
    typer.Option("--reproduce", help="Instead of tests, write a script that reproduces the failure of this cell.", metavar="MODEL TARGET"),
]
GenerationOption = Annotated[
    bool | None,
    typer.Option(
        "--generation/--no-generation",
        help="With --reproduce: the cell that generates text, or that of one forward pass. [default: the latter, if it fails]",
    ),
]
DtypeOption = Annotated[Dtype | None, typer.Option("--dtype", help="With --reproduce: the precision of the cell.")]
OutputFile = Annotated[
    Path | None,
    typer.Option("--output", help="With --reproduce: the file, or - to print it. [default: reproduce_<model>_<target>.py]", metavar="FILE"),
]
Force = Annotated[bool, typer.Option("--force", help="With --reproduce: also for a passing cell.")]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("generate")(generate_command)


def generate_command(
    more: More = None,
    *,
    model: Names = None,
    everything: Everything = False,
    priority: Priorities = None,
    templates: Templates = None,
    output_dir: Folder = DEFAULT_FOLDER,
    size: SizeOption = None,
    device: Device = None,
    timeout: Timeout = DEFAULT_TIMEOUT_MIN,
    clear_cache: ClearCache = False,
    debug: Debug = False,
    again: Again = None,
    dtype: DtypeOption = None,
    generation: GenerationOption = None,
    output_file: OutputFile = None,
    force: Force = False,
    database: Database = None,
    matrix: Matrix = Path("matrix.yaml"),
    output: FormatOption = Format.TABLE,
) -> None:
    """Write model tests: plain pytest, one file per model, skipped with the reason if hardware is missing.

    With --reproduce, write a script that reproduces a failing cell without hwmatrix, for a bug report to the library or runtime. Examples:

        hwmatrix generate --model bert

        hwmatrix generate --model bert-base-uncased gpt2 --device cuda --output-dir tests/models

        hwmatrix generate --priority high --device cpu && pytest generated_tests

        hwmatrix generate --all

        hwmatrix generate --reproduce xclip qnn --database reports/published/matrix.duckdb
    """
    names = [*(model or ()), *(more or ())]
    ways = {"--all": everything, "--priority": priority is not None, "--templates": templates is not None, "--reproduce": again is not None}
    _check(
        ways, names=names, again=again, timeout=timeout, dtype=dtype, generation=generation, output_file=output_file, force=force or None
    )
    if debug:
        logging.getLogger("hwmatrix").setLevel(logging.DEBUG)
    if again is not None:
        chosen = {"dtype": dtype, "size": size, "generation": generation, "force": force}
        _reproduce(again, recorded(database or DEFAULT_OUTPUT), chosen, file=output_file, output=output)
        return
    if templates is not None:
        for path in write_templates(templates):
            echo(f"wrote {path}")
        return
    spec = load(matrix).spec
    wish = Wish(size=size or Size.TINY, device=device, timeout_min=timeout, cache=read_environment().cache, database=database)
    listed = first_models(spec, priority or Priority.ALL)
    left_out = _refuse_unbuildable(names, spec, wish) if names else _unbuildable(listed, spec, wish)
    wanted = [name for name in (dict.fromkeys(names) if names else listed) if name not in left_out]
    if clear_cache:
        for name in wanted:
            for path in clear_cached(plan_of(name, spec, wish), read_environment().cache):
                echo(f"removed {path}", err=True)
    made = [generate_test(name, spec=spec, folder=output_dir, wish=wish) for name in wanted]
    _print_tests(made, left_out, output_dir, output)


def _check(ways: dict[str, bool], *, names: list[str], again: tuple[str, str] | None, timeout: float, **details: Any) -> None:
    """Check that the options belong together.

    Raises:
        ConfigError: no model is named, or options exclude each other.
    """
    problems = []
    chosen = [*(["--model"] if names else []), *(way for way, given in ways.items() if given)]
    if not chosen:
        hint = "--model M, or --priority high, or --all, or --reproduce MODEL TARGET"
        problems.append(Problem(where="hwmatrix generate", what="no model is named", hint=hint))
    if len(chosen) > 1:
        what = f"{' and '.join(chosen)} contradict each other: each says what to write"
        problems.append(Problem(where=chosen[-1], what=what, hint="leave all but one of them out"))
    if not math.isfinite(timeout):
        problems.append(
            Problem(where="--timeout", what=f"{timeout} is not a valid number of minutes", hint="0 releases unused models at once")
        )
    if again is None:
        options = {"dtype": "--dtype", "generation": "--generation", "output_file": "--output", "force": "--force"}
        problems += [
            Problem(where=options[name], what="it is only allowed with --reproduce", hint="leave it out")
            for name, value in details.items()
            if value is not None
        ]
    if problems:
        raise ConfigError(problems)


def _refuse_unbuildable(names: list[str], spec: MatrixSpec, wish: Wish) -> dict[str, str]:
    """Check all named models before a file is written: a named model may not be left out.

    Raises:
        ConfigError: lists every model that cannot have a test.
    """
    problems = []
    for name in dict.fromkeys(names):
        try:
            plan_of(name, spec, wish)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return {}


def _unbuildable(names: list[str], spec: MatrixSpec, wish: Wish) -> dict[str, str]:
    """The models that cannot have a test, with the reason."""
    return {name: " ".join(reason.split()) for name in names if (reason := spec.models[name].variant(wish.size).unbuildable)}


def _print_tests(made: list[GeneratedTest], left_out: dict[str, str], folder: Path, output: Format) -> None:
    if output is Format.JSON:
        rows: list[dict[str, Any]] = [
            {
                "model": each.model,
                "family": each.classification.family,
                "subfamily": each.classification.subfamily,
                "structure": each.classification.structure,
                "confidence": each.classification.confidence,
                "source": each.classification.source,
                "template": each.template,
                "devices": list(each.devices),
                "path": str(each.path),
                "run": each.run,
                "left_out": None,
            }
            for each in made
        ]
        rows += [dict.fromkeys(_KEYS) | {"model": name, "left_out": reason} for name, reason in left_out.items()]
        echo(json.dumps(rows, indent=2))
        return
    table = [(each.model, str(each.path), f"{each.template}\n{', '.join(each.devices)}") for each in made]
    table += [(name, f"left out: {reason}", "") for name, reason in left_out.items()]
    shown = Table(*(Column(name, overflow="fold") for name in ("model", "test", "template, devices")), show_lines=True)
    for row in table:
        shown.add_row(*(safe_text(cell) for cell in row))
    Console().print(shown)
    if made:
        echo(f"run: {made[0].run if len(made) == 1 else f'pytest {folder}'}")


_KEYS: Final = ("model", "family", "subfamily", "structure", "confidence", "source", "template", "devices", "path", "run", "left_out")


def _reproduce(cell: tuple[str, str], database: Path, chosen: Mapping[str, Any], *, file: Path | None, output: Format) -> None:
    """Write the script of a cell, and print what it reproduces. ``chosen`` are the options of :func:`reproduce`.

    Raises:
        ConfigError: no such cell on record, or the file cannot be written.
    """
    name = name_on_record(cell[0], database)
    try:
        reproduction = reproduce(name, cell[1], database=database, say=functools.partial(echo, err=True), **chosen)
    except CellFailure as failure:
        what = f"the model cannot be built here, and so its inputs cannot either: {failure}"
        found = find_cell(database, name, cell[1], **{key: chosen[key] for key in ("dtype", "size", "generation")}, passing=chosen["force"])
        hint = f"use the versions that it was measured with: {install_line(found)}"
        raise ConfigError([Problem(where=f"--reproduce {' '.join(cell)}", what=what, hint=hint)]) from failure
    if file == _STANDARD_OUTPUT:
        if reproduction.data:
            what = "the script reads a folder beside it"
            raise ConfigError([Problem(where="--output -", what=what, hint="name a file")])
        echo(reproduction.script, nl=False)
        return
    found = reproduction.cell
    kind = "_generation" if found.settings.new_tokens else ""
    file = file or _replaceable(Path(f"reproduce_{slug(found.model.name)}_{slug(found.target.name)}{kind}.py"))
    _write(reproduction, file)
    facts = {
        "model": found.model.name,
        "target": found.target.name,
        "dtype": found.settings.dtype.value,
        "size": found.model.size.value,
        "new_tokens": found.settings.new_tokens,
        "status": found.status.value,
        "message": found.message,
        "also_failing": list(found.also_failing),
        "database": str(database),
        "path": str(file),
        "data": str(file.with_suffix("")) if reproduction.data else None,
        "run": f"python {file}",
    }
    if output is Format.JSON:
        echo(json.dumps(facts, indent=2))
        return
    if reproduction.data:
        echo(f"wrote {facts['data']}: {reproduction.described}; keep it beside the script")
    echo(f"wrote {file}: {facts['model']} on {facts['target']}, {facts['dtype']}, {facts['size']}: {facts['status']}")
    if found.message:
        echo(f"  as measured: {found.message}")
    if found.also_failing:
        echo(f"  also failing (--dtype, --size): {'; '.join(found.also_failing)}")
    echo(f"run: {facts['run']}")


def _write(made: Reproduction, file: Path) -> None:
    """Write a script, and the files that it reads beside it.

    Raises:
        ConfigError: they cannot be written.
    """
    try:
        for name, source in made.data.items():
            place = file.with_suffix("") / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
        write_atomically(file, made.script)
    except OSError as error:
        raise ConfigError([Problem(where=f"--output {file}", what=f"cannot be written: {error}", hint="name another file")]) from error


def _replaceable(path: Path) -> Path:
    """The path, if there is no file yet, or only an earlier script.

    Raises:
        ConfigError: another file has this name.
    """
    if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace")[:2000]:
        raise ConfigError(
            [Problem(where=str(path), what="already exists, and is not a script by hwmatrix", hint="name another file with --output")]
        )
    return path
