"""Surveys executed inside every target's image, shown by ``detect --images`` and ``classify --images``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.cli.options import outside, progress
from hwmatrix.cli.running import DATABASE, facts_of, order_of, workshop_of
from hwmatrix.errors import NoTargetAvailableError
from hwmatrix.host import runs
from hwmatrix.host.places import choose
from hwmatrix.host.runs import RunFolder, claim, release
from hwmatrix.host.target_jobs import TargetWork, run_on_targets
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import Selection, make_survey_plan
from hwmatrix.store.merge import merge
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from hwmatrix.host.console import View

_WORK: Final = TargetWork(work="survey", noun="survey", memory_mb=8192)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurveyRequest:
    """Which targets to ask about which models, in which places, and where the answers are kept."""

    selection: Selection
    isolation: str
    output: Path
    matrix: Path
    base_image: str | None
    verbose: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """The answers: the database that has them, and the run in it."""

    database: Path
    run_id: str

    def detections(self) -> list[dict[str, Any]]:
        """Each target's kinds of hardware: here or why not."""
        with reading(self.database) as connection:
            rows = records(connection, "survey_detections", {"run_id": self.run_id})
        return [row | {"features": json.loads(row["features"])} for row in rows]

    def classifications(self) -> list[dict[str, Any]]:
        """Each target's view of each model."""
        with reading(self.database) as connection:
            return records(connection, "survey_classifications", {"run_id": self.run_id})


def survey_images(request: SurveyRequest) -> Survey:
    """Ask in every target's image; keep the answers in shards and in the output folder's database.

    Raises:
        ConfigError: the selection names something that matrix.yaml does not have.
        NoTargetAvailableError: no target can be asked here.
        HwmatrixError: a target's image, engine or store failed; the others have been asked, and their answers are kept.
    """
    given, loaded, output = outside(), load(request.matrix), request.output.absolute()
    with progress(verbose=request.verbose) as view:
        workshop = workshop_of(loaded, given, request.base_image, view)
        place = choose(request.isolation, workshop)
        plan = make_survey_plan(loaded, request.selection, facts_of(loaded, place, given, workshop.commit))
        folder = RunFolder.create(output / runs.SURVEYS, plan)
        claim(folder)
        try:
            outcome = run_on_targets(order_of(loaded, folder, place, workshop, 1), _WORK, view)
        except (KeyboardInterrupt, NoTargetAvailableError):
            folder.salvage()
            raise
        finally:
            release(folder)
        _merge(folder, output / DATABASE, view)
    outcome.raise_first()
    return Survey(database=output / DATABASE, run_id=plan.run_id)


def _merge(folder: RunFolder, database: Path, view: View) -> None:
    for rejection in merge([folder.path], database).rejected:
        view.say(f"rejected the shard {rejection.file}: {rejection.reason}")
