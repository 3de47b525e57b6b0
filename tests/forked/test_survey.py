"""A survey as the runner does it in an image: real detection in a child, a whole shard, no cells."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import factory_plans as make
import pytest

from hwmatrix.records import Backend
from hwmatrix.runner.survey import classifications
from hwmatrix.store.merge import merge
from hwmatrix.store.reading import reading, records

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forked children as Linux has them")


def test_a_survey_leaves_a_whole_shard_without_cells(tmp_path: Path) -> None:
    models = (
        make.model_plan(),
        make.model_plan("gpt2", model_class="GPT2LMHeadModel"),
        make.model_plan("my folder: v2", architecture="gone/wrong", model_class="Nothing"),
    )
    plan = dataclasses.replace(make.plan((), ("cpu",)), models=models)
    run = make.run_folder(tmp_path, plan)
    folders = ("--plan", str(run / "plan.json"), "--cache", str(tmp_path / "cache"), "--out", str(run / "shards"))
    known_of_place = ("--host", "a machine", "--image", "hwmatrix/cpu:1", "--image-digest", "sha256:12")
    command = (sys.executable, "-m", "hwmatrix.runner", "survey", "--target", "cpu", *folders, *known_of_place)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event"')]
    (told,) = [event for event in events if event["event"] == "survey"]
    assert "cpu" in told["here"]
    assert (told["classified"], told["models"]) == (2, 3)
    database = tmp_path / "m.duckdb"
    report = merge([run], database)
    assert (len(report.merged), report.rejected) == (1, ())
    with reading(database) as connection:
        seen = records(connection, "survey_detections", {"run_id": plan.run_id})
        known = records(connection, "survey_classifications", {"run_id": plan.run_id})
        cells = connection.execute("SELECT count(*) FROM cells").fetchone()
    assert cells == (0,)
    assert {row["hardware_type"] for row in seen} == {backend.value for backend in Backend}
    (cpu,) = [row for row in seen if row["hardware_type"] == "cpu"]
    assert (cpu["available"], cpu["image_digest"], json.loads(cpu["features"])["cores"] >= 1) == (True, "sha256:12", True)
    assert all(row["reason"] for row in seen if not row["available"])
    assert {row["model"]: row["family"] for row in known} == {"bert": "embedding", "gpt2": "text_generation", "my folder: v2": None}
    assert next(row for row in known if row["family"] is None)["confidence"] == 0


def test_a_model_of_two_sizes_is_classified_once() -> None:
    found = classifications([make.model_plan(), make.model_plan()])
    assert [each.model_name for each in found] == ["bert"]
