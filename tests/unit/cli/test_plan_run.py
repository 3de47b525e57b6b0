"""``hwmatrix plan`` and ``run``: planned on one machine, executed on others, merged as one run."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import factory_plans as make
import pytest
from fake_executor import FakeExecutor

from hwmatrix.app import execution
from hwmatrix.cli import main
from hwmatrix.cli import run as run_file
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.records import Isolation
from hwmatrix.store.merge import merge

pytestmark = pytest.mark.usefixtures("project")
MATRIX = """\
version: 1
sizes: {tiny: {}, full: {}}
tolerances: {float32: {relative_error: 1.0e-3, reason: rounding}}
targets:
  cpu: {backend: cpu, image: cpu}
  cuda: {backend: cuda, image: cuda, gpus: true, runs_on: [self-hosted, cuda]}
  mps: {backend: mps, image: cpu, native: true, runs_on: [macos-15]}
models:
  bert: {family: embedding, architecture: bert, class: BertModel}
  vit: {family: vision, architecture: vit, class: ViTModel}
suites: {default: {models: all}}
github: {timeout_minutes: 45}
"""


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, FakeExecutor]]:
    """Every executor that was chosen, with the requested isolation; cuda is unavailable."""
    chosen: list[tuple[str, FakeExecutor]] = []

    def choose(isolation: str, _workshop: Any) -> FakeExecutor:
        executor = FakeExecutor(isolation=Isolation(isolation), missing={"cuda": "no driver"})
        chosen.append((isolation, executor))
        return executor

    monkeypatch.setattr(execution, "choose", choose)
    return chosen


def hwmatrix(*argv: str) -> int:
    return main.main(list(argv))


def planned(project: Path, *argv: str) -> Path:
    assert hwmatrix("plan", "--output-dir", "planned", *argv) == 0
    return project / "planned"


def run_id(folder: Path) -> str:
    found: str = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["run_id"]
    return found


def test_names_of_the_hub_are_planned_as_their_recipes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(Path(__file__).parents[3] / "matrix.yaml", project / "matrix.yaml")
    assert main.main(["plan", "--models", "bert-base-uncased", "gpt2", "t5-small", "--targets", "cpu", "--format", "json"]) == 0
    written = capsys.readouterr()
    planned = json.loads(written.out)["models"]
    assert {model["name"]: model["weights"] for model in planned} == {"bert": "recipe", "gpt2": "recipe", "t5": "recipe"}
    assert [line.partition(":")[0] for line in written.err.splitlines()] == ["bert-base-uncased", "t5-small"]


def test_a_plan_executes_nothing_and_needs_no_engine(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = planned(project, "--format", "github")
    told = json.loads(capsys.readouterr().out)
    assert told["run_id"] == run_id(folder)
    assert [(job["target"], job["runs_on"], job["hosted"], job["cells"], job["timeout_minutes"]) for job in told["include"]] == [
        ("cpu", ["ubuntu-24.04"], True, 2, 45),
        ("cuda", ["self-hosted", "cuda"], False, 2, 45),
        ("mps", ["macos-15"], True, 2, 45),
    ]
    assert list((folder / "shards").iterdir()) == []


def test_a_plan_is_written_only_into_a_folder_that_is_named_and_new(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(project.rglob("*"))
    assert hwmatrix("plan") == hwmatrix("plan", "--format", "json") == hwmatrix("plan", "--format", "github") == 0
    assert sorted(project.rglob("*")) == before
    planned(project)
    capsys.readouterr()
    assert hwmatrix("plan", "--output-dir", "planned") == 7
    assert "Errno" not in capsys.readouterr().err


@pytest.mark.parametrize("steps", sorted(set(itertools.permutations(("plan", "into reports", "run", "run")))))
def test_no_plan_is_what_resume_and_merge_continue(project: Path, steps: tuple[str, ...]) -> None:
    reports = project / "reports" / "latest"
    executed = None
    for number, step in enumerate(steps):
        if step == "run":
            executed = f"2026010{number}T000000Z-abc123"
            RunFolder.create(reports, make.plan(run_id=executed))
        else:
            assert hwmatrix("plan", *(("--output-dir", str(reports / f"planned-{number}")) if step == "into reports" else ())) == 0
    assert executed is not None
    assert RunFolder.latest(reports).path.name == executed
    assert hwmatrix("merge") == 7  # nothing ran
    with duckdb.connect(str(reports / "matrix.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT run_id FROM runs").fetchall() == [(executed,)]


def test_a_plan_in_a_workflow_writes_outputs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(project / "output"))
    (project / "images/cpu").mkdir(parents=True)
    (project / "images/cpu/Dockerfile").write_text("FROM scratch\n", encoding="utf-8")
    (project / "images/cpu/requirements.txt").touch()
    folder = planned(project, "--format", "github", "--targets", "cpu", "cuda")
    outputs = dict(line.split("=", 1) for line in (project / "output").read_text(encoding="utf-8").splitlines())
    assert outputs["run-id"] == run_id(folder)
    assert [job["target"] for job in json.loads(outputs["hosted"])["include"]] == ["cpu"]
    assert json.loads(outputs["images"]) == {"include": [{"target": "cpu"}]}
    assert [job["runs_on"] for job in json.loads(outputs["own"])["include"]] == [["self-hosted", "cuda"]]
    assert hwmatrix("plan", "--output-dir", "again", "--format", "github", "--targets", "cpu") == 0
    assert (project / "output").read_text(encoding="utf-8").splitlines()[-1] == "own="  # GitHub rejects an empty matrix


def test_formats_of_a_plan(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned(project, "--models", "bert")
    assert "3 cells, 1 model" in capsys.readouterr().out
    assert hwmatrix("plan", "--output-dir", "again", "--format", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 6


def test_parts_executed_elsewhere_make_one_run(project: Path, places: list[tuple[str, FakeExecutor]]) -> None:
    folder = planned(project)
    for target in ("cpu", "cuda", "mps"):
        assert hwmatrix("run", str(folder), "--targets", target, "--output-dir", f"on-{target}") == 0
        (part,) = (project / f"on-{target}" / "runs").iterdir()
        assert part.name == run_id(folder)
        for file in (part / "shards").iterdir():
            (folder / "shards" / file.name).write_bytes(file.read_bytes())
    assert [isolation for isolation, _ in places] == ["container", "container", "venv"]  # mps is native
    merged = merge([folder], project / "m.duckdb")
    assert (len(merged.merged), merged.rejected) == (3, ())
    with duckdb.connect(str(project / "m.duckdb"), read_only=True) as connection:
        rows = connection.execute("SELECT target, model, status, message FROM results ORDER BY position").fetchall()
    assert {(target, status) for target, _, status, _ in rows} == {("cpu", "pass"), ("cuda", "unavailable"), ("mps", "pass")}
    assert {message for target, _, _, message in rows if target == "cuda"} == {"no driver"}


def test_a_plan_can_be_given_as_a_file(project: Path, places: list[tuple[str, FakeExecutor]]) -> None:
    folder = planned(project)
    assert hwmatrix("run", str(folder / "plan.json"), "--targets", "cpu", "mps", "--output-dir", "here") == 0
    assert sorted(places[0][1].ran) != []


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (("run", "{folder}", "--targets", "cdua"), "did you mean 'cuda'?"),
        (("run", "nowhere", "--targets", "cpu"), "cannot be read"),
        (("run", "{folder}"), "--targets"),
        (("plan", "--targets", "cdua"), "did you mean 'cuda'?"),
    ],
)
def test_bad_arguments(project: Path, argv: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = planned(project)
    assert hwmatrix(*(word.format(folder=folder) for word in argv)) == 2
    assert what in capsys.readouterr().err


def test_another_matrix_yaml_or_version_is_refused(
    project: Path, places: list[tuple[str, FakeExecutor]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = planned(project)
    (project / "matrix.yaml").write_text(MATRIX + "# changed\n", encoding="utf-8")
    monkeypatch.setattr(run_file.hwmatrix, "__version__", "9.9")
    assert hwmatrix("run", str(folder), "--targets", "cpu") == 2
    told = capsys.readouterr().err
    assert "it differs from the one that the plan was made from" in told
    assert "this is 9.9" in told
    assert places == []


def test_a_machine_with_fewer_cores_than_threads_refuses_to_time_its_part(
    project: Path, places: list[tuple[str, FakeExecutor]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = planned(project, "--threads", "3")
    monkeypatch.setattr(execution, "usable", lambda: (0, 1))
    assert hwmatrix("run", str(folder), "--targets", "cpu", "--output-dir", "here") == 2
    assert "threads: 3: the speed of a cell would be measured on more threads than there are cores: 2" in capsys.readouterr().err
    assert places == []
    assert hwmatrix("run", str(folder), "--targets", "cuda", "--output-dir", "there") == 0  # a GPU computes
