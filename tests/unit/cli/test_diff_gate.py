"""``hwmatrix diff`` and ``gate`` through ``main``: exit codes, formats, files, printed text."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import jsonschema
import pytest
from factory_rows import Database, steady, unmeasured

from hwmatrix.app.schemas import diff_schema, gate_schema
from hwmatrix.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MATRIX = """\
version: 1
sizes: {tiny: {}, full: {}}
tolerances: {float32: {relative_error: 1.0e-3, reason: rounding}}
targets: {cpu: {backend: cpu, image: cpu}}
models: {bert: {family: embedding, architecture: bert, class: BertModel}}
suites: {default: {models: all}}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with matrix.yaml, a good run in reports/latest and a bad one in bad.duckdb."""
    (tmp_path / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    (tmp_path / "reports" / "latest").mkdir(parents=True)
    for path, changes in ((tmp_path / "reports" / "latest" / "matrix.duckdb", {}), (tmp_path / "bad.duckdb", unmeasured("crash"))):
        with Database(path) as database:
            database.run("good" if not changes else "bad")
            database.shard("s", "cpu", "good" if not changes else "bad")
            database.cell(
                database.plan("bert", "cpu", "good" if not changes else "bad"), "s", wall=() if changes else steady(2.0), **changes
            )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def hwmatrix(*argv: str) -> int:
    return main.main(list(argv))


def test_diff_as_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("diff", "reports/latest", "bad.duckdb") == 0
    told = capsys.readouterr().out
    assert "good → bad: 1 cells compared" in told
    assert "Newly broken (1)" in told
    assert "bert on cpu (tiny float32 b1 s16 t1): was pass, is crash (segmentation_fault)" in told


def test_diff_of_hostile_names(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, changes in (("old", {}), ("new", unmeasured("crash"))):
        with Database(project / f"{name}.duckdb") as database:
            database.run()
            database.shard("s", "cpu")
            database.cell(database.plan("a\x1b[31m\u202e", "cpu"), "s", wall=() if changes else steady(2.0), **changes)
    for form in ("table", "markdown", "html"):
        assert hwmatrix("diff", "old.duckdb", "new.duckdb", "--format", form) == 0
        told = capsys.readouterr().out
        assert "Newly broken" in told
        assert not {"\x1b", "\u202e"} & set(told)


def test_diff_against_the_latest_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("diff", "bad.duckdb@bad") == 0
    assert "Newly works (1)" in capsys.readouterr().out


def test_diff_as_documents(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("diff", "reports/latest", "bad.duckdb", "--format", "json") == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), diff_schema())
    for name, words in (("diff.md", "# What changed"), ("diff.html", "<!doctype html>")):
        kind = "markdown" if name.endswith("md") else "html"
        assert hwmatrix("diff", "reports/latest", "bad.duckdb", "--format", kind, "--output", f"out/{name}") == 0
        assert (project / "out" / name).read_text(encoding="utf-8").startswith(words)
    assert hwmatrix("diff", "reports/latest", "bad.duckdb", "--output", "plain.md") == 0
    assert (project / "plain.md").read_text(encoding="utf-8").startswith("# What changed")


@pytest.mark.parametrize("argv", [("diff", "nothing"), ("diff", "matrix.yaml"), ("diff", "bad.duckdb@other"), ("gate", "--run", "nothing")])
def test_a_file_that_is_not_a_database_is_reported(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix(*argv) == 7
    assert "error:" in capsys.readouterr().err


def test_the_gate_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("gate", "--require", "cpu", "--baseline", "reports/latest") == 0
    assert "the gate passed: run good; 1 of 1 cells have a verdict" in capsys.readouterr().out


def test_the_gate_fails_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("gate", "--run", "bad.duckdb", "--baseline", "reports/latest") == 8
    told = capsys.readouterr()
    assert "✗ unexpected failure: bert on cpu" in told.out
    assert "✗ regression: bert on cpu" in told.out
    assert "matrix.yaml:5" in told.out
    assert "the gate failed: 2 violations in run bad" in told.err


def test_the_gate_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("gate", "--run", "bad.duckdb", "--format", "json") == 8
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, gate_schema())
    assert (document["schema"], document["ok"], len(document["violations"])) == ("hwmatrix/gate/1", False, 1)


def test_the_gate_annotates_on_github(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert hwmatrix("gate", "--run", "bad.duckdb", "--format", "json") == 8
    told = capsys.readouterr()
    json.loads(told.out)
    assert "::error file=matrix.yaml,line=5,title=unexpected failure%3A bert on cpu" in told.err


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (("--require", "cpuu"), "--require: 'cpuu' is unknown (did you mean 'cpu'?"),
        (("--fail-on", "slwer"), "did you mean 'slower'?"),
        (("--require",), "--require: no value is given"),
        (("--matrix", "none.yaml"), "none.yaml: cannot be read"),
    ],
)
def test_bad_arguments_of_the_gate(argv: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("gate", *argv) == 2
    assert what in capsys.readouterr().err
