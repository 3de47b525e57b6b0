"""The job matrices of GitHub Actions for a plan: one job per target, on the runners that it needs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from hwmatrix.host.publishing import pushable
from hwmatrix.matrix.spec import HOSTED_PATTERN

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.matrix.load import LoadedMatrix
    from hwmatrix.records import Plan


def job_matrices(plan: Plan, loaded: LoadedMatrix) -> dict[str, Any]:
    """Return one job per target, on the runners that it needs. ``hosted`` and ``own`` split ``include`` by the kind of runner.

    ``images`` are those of hosted targets that a release rebuilds and pushes, if the repository names a registry.
    """
    github = loaded.spec.github
    include = []
    for target in plan.targets:
        spec = loaded.spec.targets[target.name]
        labels = spec.runs_on or github.runs_on
        include.append(
            {
                "target": target.name,
                "runs_on": list(labels),
                "hosted": len(labels) == 1 and re.fullmatch(HOSTED_PATTERN, labels[0]) is not None,
                "cells": sum(cell.target == target.name for cell in plan.cells),
                "timeout_minutes": github.timeout_minutes,
            }
        )
    parts = {name: [job for job in include if job["hosted"] is hosted] for name, hosted in (("hosted", True), ("own", False))}
    images = [{"target": name} for name in pushable(loaded, [str(job["target"]) for job in parts["hosted"]])]
    return {"run_id": plan.run_id, "include": include, "images": images, **parts}


def write_step_outputs(plan: Plan, loaded: LoadedMatrix, path: Path) -> None:
    """Write the job matrices as outputs of a workflow step. A matrix without jobs is an empty string, since GitHub rejects empty ones."""
    told = job_matrices(plan, loaded)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"run-id={plan.run_id}\n")
        for name in ("hosted", "images", "own"):
            file.write(f"{name}={json.dumps({'include': told[name]}) if told[name] else ''}\n")
