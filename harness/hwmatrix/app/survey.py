"""Surveys executed inside every target's image, shown by ``detect --images`` and ``classify --images``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.app.execution import PlannedRun, facts_of, finishing, merge_shards, order_of
from hwmatrix.host import run_folder
from hwmatrix.host.executors import choose
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.host.target_jobs import TargetWork, run_on_targets
from hwmatrix.matrix.load import LoadedMatrix
from hwmatrix.matrix.plan import Selection, make_survey_plan
from hwmatrix.store.reading import DATABASE, reading, records

if TYPE_CHECKING:
    from hwmatrix.app.environment import Environment
    from hwmatrix.host.console import View
    from hwmatrix.host.executors import Workshop

_WORK: Final = TargetWork(work="survey", noun="survey", memory_mb=8192)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurveyRequest:
    """Which targets to survey about which models, where they run, and where the results are stored."""

    loaded: LoadedMatrix
    selection: Selection
    isolation: str
    output: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """The results of a survey: their database, and the run in it."""

    database: Path
    run_id: str

    def detections(self) -> list[dict[str, Any]]:
        """The hardware that each target's image detects, or the reason why it does not."""
        with reading(self.database) as connection:
            rows = records(connection, "survey_detections", {"run_id": self.run_id})
        return [row | {"features": json.loads(row["features"])} for row in rows]

    def classifications(self) -> list[dict[str, Any]]:
        """Each target's classification of each model."""
        with reading(self.database) as connection:
            return records(connection, "survey_classifications", {"run_id": self.run_id})


def survey_images(request: SurveyRequest, workshop: Workshop, environment: Environment, view: View) -> Survey:
    """Run the survey in every target's image; store the results in shards and in the output folder's database.

    Raises:
        ConfigError: the selection names something that matrix.yaml does not have.
        NoTargetAvailableError: no target can run here.
        HwmatrixError: a target's image, engine or store failed; the others finished, and their results are stored.
    """
    executor = choose(request.isolation, workshop)
    plan = make_survey_plan(request.loaded, request.selection, facts_of(request.loaded, executor, environment, workshop.commit))
    folder, database = RunFolder.create(request.output / run_folder.SURVEYS, plan), request.output / DATABASE
    with finishing(folder, lambda: merge_shards([folder.path], database, view), view):
        outcome = run_on_targets(order_of(request.loaded, PlannedRun(folder=folder, plan=plan, executor=executor), workshop), _WORK, view)
    outcome.raise_first()
    return Survey(database=database, run_id=plan.run_id)
