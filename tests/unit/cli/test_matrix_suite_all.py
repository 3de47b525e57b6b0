"""``--suite all`` through ``main``: run, resumed, run again with another transformers, planned here and executed elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import fake_types as fake
import pytest
from fake_executor import FakeExecutor

from hwmatrix.app import execution
from hwmatrix.cli import main
from hwmatrix.models.factory.pins import newest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MATRIX = """\
version: 1
sizes: {tiny: {}, full: {}}
tolerances: {float32: {relative_error: 1.0e-3, reason: rounding}}
targets:
  cpu: {backend: cpu, image: cpu}
models:
  bert: {family: embedding, architecture: bert, class: BertForMaskedLM}
suites:
  default: {models: all}
  all: {models: types, timing: false}
"""
KEY = "/tiny/cpu/float32/b1-s16-t1"


@pytest.fixture(autouse=True)
def fake_types(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (project / "images").mkdir()
    (project / "images" / "constraints.txt").write_text(
        "transformers==9.9.0\n", encoding="utf-8"
    )  # the version of the fake that is installed
    fake.install(monkeypatch, project)
    yield
    fake.override_all(monkeypatch, {})


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> FakeExecutor:
    made = FakeExecutor()
    monkeypatch.setattr(execution, "choose", lambda _isolation, _workshop: made)
    return made


def hwmatrix(*argv: str) -> int:
    return main.main(list(argv))


def plan_of(folder: Path) -> Any:
    (path,) = folder.rglob("plan.json")
    return json.loads(path.read_text(encoding="utf-8"))


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_every_type_is_run_and_reported(executor: FakeExecutor, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("matrix", "--suite", "all") == 0
    assert executor.ran == [f"{name}{KEY}" for name in ("bert", "gemma3", "gpt2", "mamba2", "timesfm")]
    assert f"transformers 9.9.0 has no pinned list; since {newest().version}: " in said(capsys)
    assert plan_of(project / "reports" / "latest")["timing"] is False
    document = json.loads((project / "reports" / "latest" / "matrix.json").read_text(encoding="utf-8"))
    assert {cell["model"]: cell["family"] for cell in document["cells"]}["gemma3"] is not None
    assert {cell["model"]: cell["evidence"]["command"] for cell in document["cells"]}["mamba2"] == (
        "nox -s matrix -- --models mamba2 --size tiny --targets cpu --dtypes float32 --isolation container --no-timing"
    )


def test_missing_cells_are_run_as_planned(executor: FakeExecutor, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor.dies_after = {"cpu": 2}
    assert hwmatrix("matrix", "--suite", "all") != 0
    fake.install(monkeypatch, project, fake.text_of({"CAUSAL_LM": {"gpt2": "GPT2LMHeadModel"}}), version="9.9.1")
    executor.dies_after, executor.ran[:] = {}, []
    assert hwmatrix("matrix", "--resume") == 0
    assert {model["name"] for model in plan_of(project / "reports" / "latest")["models"]} == {"bert", "gemma3", "gpt2", "mamba2", "timesfm"}
    assert hwmatrix("matrix", "--resume", "--no-timing") == 2
    assert hwmatrix("matrix", "--resume", "--timing") == 2


def test_stale_follows_transformers_even_if_matrix_yaml_is_unchanged(
    executor: FakeExecutor, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.keys = dict.fromkeys(("bert", "gemma3", "gpt2", "mamba2", "timesfm", "llama9"), "cd" * 32)
    assert hwmatrix("matrix", "--suite", "all") == 0
    moved = {table: {kind: name for kind, name in kinds.items() if kind != "timesfm"} for table, kinds in fake.TABLES.items()}
    moved["CAUSAL_LM"]["llama9"] = "Llama9ForCausalLM"
    fake.install(monkeypatch, project, fake.text_of(moved), version="9.9.1")
    executor.ran.clear()
    capsys.readouterr()
    assert hwmatrix("matrix", "--stale") == 0
    text = said(capsys)
    assert "types of transformers 9.9.1 that are gone: timesfm" in text
    assert "types of transformers 9.9.1 that are new: llama9" in text
    assert executor.ran == [f"llama9{KEY}"]
    assert plan_of(project / "reports" / "latest")["types_of"] == "9.9.1"


@pytest.mark.parametrize("text", [None, ""], ids=["transformers", "only the pinned list"])
def test_a_plan_can_be_executed_without_transformers(
    executor: FakeExecutor, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    fake.install(monkeypatch, project, text)
    assert hwmatrix("plan", "--suite", "all", "--output-dir", "planned", "--format", "github") == 0
    printed = capsys.readouterr()
    job = json.loads(printed.out)["include"][0]
    made = plan_of(project / "planned")
    assert job["cells"] == len(made["models"]) == (5 if text is None else len(newest().types))
    assert ("the types are those of" in printed.err) is (text is not None)
    fake.install(monkeypatch, project, "")
    if text is None:
        assert hwmatrix("run", str(project / "planned"), "--targets", "cpu", "--output-dir", "there") == 0
        assert len(executor.ran) == 5
        assert plan_of(project / "there")["models"] == made["models"]


def test_impossible_requests_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("matrix", "--suite", "all", "--size", "full") == 2
    assert "--size: a suite of all types of transformers is tiny" in capsys.readouterr().err
    assert hwmatrix("matrix", "--models", "gema3") == 2
    assert "did you mean 'gemma3'?" in capsys.readouterr().err
    assert hwmatrix("plan", "--suite", "all", "--architectures", "diffusion") == 3
