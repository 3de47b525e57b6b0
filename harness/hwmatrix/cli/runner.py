"""``hwmatrix runner``: labels of a machine, what it lacks, and what to clean up."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import json
import platform
from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.cli.options import DEFAULT_OUTPUT, Format, FormatOption, Matrix, Output, Targets
from hwmatrix.cli.tables import print_table
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import NoTargetAvailableError
from hwmatrix.hardware.detector import detect
from hwmatrix.host.ci_machines import checking, pruning
from hwmatrix.host.ci_machines.labels import Label, labels, needed_here
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import Selection, check_selection
from hwmatrix.records import Backend


class LabelFormat(enum.StrEnum):
    """How labels are printed. ``line`` is what GitHub's ``config.sh --labels`` takes."""

    TABLE = "table"
    JSON = "json"
    LINE = "line"


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    runner = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage a CI runner: labels, checks, cleanup.")
    runner.command("labels")(labels_command)
    runner.command("check")(check_command)
    runner.command("prune")(prune_command)
    app.add_typer(runner, name="runner")


def labels_command(
    output: Annotated[
        LabelFormat, typer.Option("--format", help="A table with reasons, JSON, or one line for config.sh.")
    ] = LabelFormat.TABLE,
) -> None:
    """Print the labels that this machine should have as a runner, each with its evidence.

    For example:

        ./config.sh --url https://github.com/OWNER/REPOSITORY --ephemeral --labels "$(hwmatrix runner labels --format line)"
    """
    engine, problem, _ = checking.connected(read_environment().variables)
    kinds = (*needed_here(), Backend.OPENVINO)
    found = {kind: detect(kind, light=True) for kind in kinds}
    known = labels(found, system=platform.system(), machine=platform.machine(), engine=engine, engine_problem=problem)
    carried = [label for label in known if label.carried]
    if output is LabelFormat.LINE:
        echo(",".join(label.name for label in carried))
    elif output is LabelFormat.JSON:
        others = [label for label in known if not label.carried]
        echo(json.dumps({"labels": [_label_data(label) for label in carried], "not": [_label_data(label) for label in others]}, indent=2))
    else:
        print_table(("label", "carried", "why"), ((label.name, "yes" if label.carried else "no", label.why) for label in known))


def check_command(
    *,
    targets: Targets = None,
    matrix: Matrix = Path("matrix.yaml"),
    output: FormatOption = Format.TABLE,
) -> None:
    """Show what this machine has for the jobs of each target, what is missing, and how to fix it. Nothing is built or executed.

    The exit code is 0 if all named targets can run here (without names: if any target can), else 6. Examples:

        hwmatrix runner check

        hwmatrix runner check --targets cuda --format json
    """
    loaded = load(matrix)
    check_selection(loaded, Selection(targets=tuple(targets or ())))
    chosen = tuple(dict.fromkeys(targets or loaded.spec.targets))
    environment = read_environment()
    findings = checking.check(loaded.spec, chosen, environment.variables, environment.cache)
    lacking = {target: checking.missing(findings, target) for target in chosen}
    if output is Format.JSON:
        ready = [{"target": target, "ready": not names, "missing": names} for target, names in lacking.items()]
        echo(json.dumps({"findings": [dataclasses.asdict(each) for each in findings], "targets": ready}, indent=2))
    else:
        _print_checks(findings, lacking)
    failing = [target for target, names in lacking.items() if names]
    if failing and (targets or len(failing) == len(chosen)):
        raise NoTargetAvailableError(f"cannot run here: {', '.join(failing)}", advice="Install what is missing: see docs/runners.md.")


def prune_command(
    *,
    older_than: Annotated[
        float | None, typer.Option("--older-than", help="Only data that was not used for this many days.", metavar="DAYS", min=0)
    ] = None,
    keep_gb: Annotated[
        float | None, typer.Option("--keep-gb", help="Stop when at most this much is left (GiB).", metavar="GB", min=0)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove the data. Without this option it is only listed.")] = False,
    output_dir: Output = DEFAULT_OUTPUT,
) -> None:
    """Remove old data of hwmatrix: images, environments, bundles, exports, checkpoints, runs; least recently used first.

    By default, this is everything unused for 30 days. Never removed: images of this version or used by a container, locked bundles,
    the latest run, and running runs. While another hwmatrix command runs here, images and the cache are not touched.
    For example:

        hwmatrix runner prune --older-than 7

        hwmatrix runner prune --keep-gb 50 --yes
    """
    days = pruning.DEFAULT_DAYS if older_than is None and keep_gb is None else older_than
    engine, problem, _ = checking.connected(read_environment().variables, need_builder=False)
    with contextlib.ExitStack() as stack:
        client = None if engine is None else stack.enter_context(contextlib.closing(engine.client(timeout_s=600)))
        if client is None:
            echo(f"images are skipped: {problem}", err=True)
        reason = pruning.busy(client, pruning.others())
        items = pruning.runs(output_dir.absolute())
        if reason is None:
            cache = read_environment().cache
            items += [*pruning.environments(cache), *pruning.bundles(cache), *pruning.checkpoints(cache)]
            items += pruning.images(client.df()["Images"] or ()) if client is not None else []
        else:
            echo(f"images, environments and the cache are skipped: {reason}", err=True)
        chosen = pruning.choose(
            items,
            older_than=None if days is None else dt.timedelta(days=days),
            keep_bytes=None if keep_gb is None else round(keep_gb * pruning.GIB),
            now=dt.datetime.now(dt.UTC),
        )
        problems = {item: pruning.remove(item, client) if yes else None for item in chosen}
    for item, reason in problems.items():
        state = f"stays: {reason}" if reason else "removed" if yes else "would be removed"
        echo(f"{item.kind.value:<12} {_mb(item.size):>9}  {item.used_at:%Y-%m-%d}  {item.name}: {state}")
    done = [item for item, problem in problems.items() if problem is None]
    remaining = [item for item in items if item not in problems]
    verb = "removed" if yes else "would be removed (with --yes)"
    total = _mb(sum(item.size for item in done))
    echo(f"{len(done)} of {len(items)} {verb}: at least {total}; {len(remaining)} stay with {_mb(sum(item.size for item in remaining))}")


def _mb(size: int) -> str:
    return f"{size / 2**20:.0f} MB"


def _print_checks(findings: list[checking.Finding], lacking: dict[str, tuple[str, ...]]) -> None:
    """Print one line per finding with the fix below it, then one line per target."""
    for each in findings:
        needed = f"  (for {', '.join(each.targets)})" if each.targets and each.state is not checking.State.OK else ""
        echo(f"{each.state.value:<8} {each.what}: {each.fact}{needed}")
        if each.mend:
            echo(f"         {each.mend}")
    echo("")
    for target, names in lacking.items():
        echo(f"{target:<14} {'cannot: ' + ', '.join(names) if names else 'can run here'}")


def _label_data(label: Label) -> dict[str, str]:
    return {"name": label.name, "why": label.why}
