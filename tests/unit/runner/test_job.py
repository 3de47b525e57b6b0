"""What a cell's child has to load: its model, or a graph that was made with its bundle."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from factory_plans import cell_plan, model_plan, target_plan

from hwmatrix.runner.job import CellJob

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> CellJob:
    return CellJob(
        cell=cell_plan(),
        model=model_plan(),
        target=dataclasses.replace(target_plan(), forward_export="openvino", generation_export="generation"),
        bundle=tmp_path / "key",
        rule=None,
        tolerances={},
    )


@pytest.mark.parametrize("made", [True, False])
def test_a_cell_of_one_pass_loads_its_model_unless_the_graph_was_made(job: CellJob, monkeypatch: pytest.MonkeyPatch, *, made: bool) -> None:
    asked: list[tuple[str, Path, str, bool]] = []

    def is_kept(key: str, cache: Path, exporter: str, *, graph: bool) -> bool:
        asked.append((key, cache, exporter, graph))
        return made

    monkeypatch.setattr("hwmatrix.runner.job.is_kept", is_kept)
    assert job.model_classes == (() if made else (job.model.model_class,))
    assert asked == [("key", job.bundle.parent, "openvino", True)]


def test_a_cell_loads_its_model_if_no_graph_is_made_for_its_target(job: CellJob) -> None:
    own = dataclasses.replace(job, target=dataclasses.replace(job.target, forward_export=None, generation_export=None))
    assert own.model_classes == (job.model.model_class,)


def test_a_cell_that_generates_reads_the_graphs_that_its_target_names(job: CellJob) -> None:
    generating = dataclasses.replace(job.cell, settings=dataclasses.replace(job.cell.settings, new_tokens=8))
    assert dataclasses.replace(job, cell=generating).model_classes == ()
    own = dataclasses.replace(job.target, generation_export=None)
    assert dataclasses.replace(job, cell=generating, target=own).model_classes == (job.model.model_class,)
