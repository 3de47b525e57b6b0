"""``hwmatrix images``: builds the images of targets, and pushes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from hwmatrix.app.environment import read_environment
from hwmatrix.app.execution import workshop_of
from hwmatrix.cli.options import BaseImage, Matrix, Targets, Verbose, progress
from hwmatrix.host import publishing
from hwmatrix.host.executors import choose
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import Selection, check_selection
from hwmatrix.records import Isolation


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("images")(images_command)


def images_command(
    *,
    targets: Targets = None,
    matrix: Matrix = Path("matrix.yaml"),
    base_image: BaseImage = None,
    push: Annotated[
        str | None,
        typer.Option("--push", help="Push the images, with SBOM and provenance.", metavar="REGISTRY/PREFIX"),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Build the images of the targets that can run here, or of the given targets. Unchanged images are not rebuilt.

    An image with the label org.hwmatrix.push=never (qnn) is never pushed. Logins are those of docker login. Example:

        hwmatrix images --targets cpu openvino --push registry.example/team/hwmatrix
    """
    loaded = load(matrix)
    prefix = publishing.checked_prefix(push) if push is not None else None
    check_selection(loaded, Selection(targets=tuple(targets or ())))
    never = publishing.never_pushed(loaded, loaded.spec.targets) if prefix is not None else []
    publishing.refuse([name for name in targets or () if name in never])
    environment = read_environment()
    with progress(verbose=verbose) as view:
        workshop = dataclasses.replace(workshop_of(loaded, environment, base_image, view), attest=prefix is not None)
        executor = choose(Isolation.CONTAINER, workshop)
        reasons = {} if targets else {name: executor.unavailable(name) for name in loaded.spec.targets}
        for name, reason in reasons.items():
            if reason is not None:
                view.say(f"{name}: not built, {reason} (name it with --targets to build it anyway)")
        chosen = targets or [name for name, reason in reasons.items() if reason is None]
        failed = executor.prepare(chosen)
        for error in failed.values():
            raise error
        if prefix is not None:
            for name in (name for name in chosen if name in never):
                view.say(f"{name}: not pushed, the label {publishing.NEVER}=never forbids it")
            built = [(name, *executor.identity(name)) for name in chosen if name not in never]
            publishing.publish(
                [(name, tag, digest) for name, tag, digest in built if tag is not None and digest is not None],
                prefix=prefix,
                environment=environment.variables,
                say=view.say,
                detail=view.detail,
            )
