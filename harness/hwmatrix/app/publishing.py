"""Writes the SBOMs of built images, and pushes the images (``hwmatrix images``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hwmatrix.host import publishing
from hwmatrix.host.engine import connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hwmatrix.host.console import View
    from hwmatrix.host.publishing import Built, Described


def publish(
    built: Sequence[Built], *, named: Sequence[str], prefix: str | None, folder: Path, environment: Mapping[str, str], view: View
) -> None:
    """Write the SBOM of each image, push the images that may be pushed to ``prefix`` (if given), and write images.json.

    Raises:
        ConfigError: a named image must never be pushed; then no image is pushed.
        EngineError: the engine or the registry refuses.
    """
    engine = connect(environment, need_builder=False)
    may, never = publishing.sort_out(engine, built, named=named if prefix is not None else ())
    described = []
    for image in built:
        one = publishing.describe(engine, image, folder)
        view.say(f"{one.tag}: {one.packages} packages in {folder / one.sbom}")
        described.append(one)
    if prefix is not None:
        for target in never:
            view.say(f"{target}: not pushed, the label {publishing.NEVER}=never forbids it")
        for index, one in enumerate(described):
            if one.target in may:
                described[index] = publishing.push(engine, one, prefix, folder, view.detail)
                view.say(f"pushed {described[index].pushed} as {described[index].digest}")
    view.say(f"wrote {publishing.record(folder, described, never)}")
    pushed = [one for one in described if one.pushed is not None]
    if len(pushed) == 1 and prefix is not None and (outputs := environment.get("GITHUB_OUTPUT")):
        _step_outputs(Path(outputs), f"{prefix}/{pushed[0].target}", pushed[0])


def _step_outputs(path: Path, name: str, image: Described) -> None:
    """Write the inputs of the attestation as outputs of a workflow step: the image's name without a tag, its digest, its SBOM."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"name={name}\ndigest={image.digest}\nsbom={image.sbom}\n")
