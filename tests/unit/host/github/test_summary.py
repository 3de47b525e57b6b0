"""GitHub's views: the summary within its limit, annotations on their lines, release notes, all without injections."""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING

import duckdb
import pytest
from factory_rows import Database, example, steady, unmeasured
from hypothesis import given
from hypothesis import strategies as st

from hwmatrix.basics.github_log import annotation, harmless
from hwmatrix.cli import main
from hwmatrix.errors import StoreError
from hwmatrix.host.github.assets import make_assets
from hwmatrix.report.diff import make_diff, read_side
from hwmatrix.report.rows import read
from hwmatrix.report.step_summary import BEGIN, END, NOTES_CHARACTERS, cut, release_notes, step_summary

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "::set-env name=PATH::/evil\n::error::<script>alert(1)</script> | ](http://x) ##[add-mask]a\r\n```\n<img src=x>"
MATRIX = """\
version: 1
sizes: {tiny: {}, full: {}}
tolerances: {float32: {relative_error: 1.0e-3, reason: rounding}}
targets:
  cpu: {backend: cpu, image: cpu}
models:
  bert: {family: embedding, architecture: bert, class: BertModel}
  vit: {family: vision, architecture: vit, class: ViTModel}
suites: {default: {models: all}}
"""


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A folder of reports with a run in which vit crashed with a message that contains injections."""
    folder = tmp_path / "reports"
    folder.mkdir()
    with Database(folder / "matrix.duckdb") as database:
        database.run()
        database.shard("cpu", "cpu")
        database.cell(database.plan("bert", "cpu"), "cpu", wall=steady(2.0))
        database.cell(database.plan("vit", "cpu", family="vision"), "cpu", **{**unmeasured("crash"), "message": EVIL})
    (tmp_path / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    return folder


def commands(text: str) -> list[str]:
    """Lines that a runner would interpret as commands."""
    return [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]


def test_the_summary_is_appended_and_failures_are_annotated_on_their_lines(
    reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "collected.txt").write_text(f"{' '.join(EVIL.split())}\n", encoding="utf-8")
    argv = ["--matrix", str(tmp_path / "matrix.yaml"), "--annotate-as", "matrix.yaml", "--collected", str(tmp_path / "run")]
    assert main.main(["summary", "--output-dir", str(reports), *argv]) == 0
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("before\n### Rejected or missing results\n")
    assert "# Compatibility matrix" in text
    assert EVIL not in text
    assert all(line.startswith(("- ", "| ")) for line in commands(text))  # as code in a list or a table
    printed = capsys.readouterr()
    (command,) = commands(printed.err.replace("##[", "## ["))
    assert command.startswith(
        "::error file=matrix.yaml,line=8,title=unexpected failure%3A vit::crash (segmentation_fault) on cpu (float32)"
    )
    assert commands(printed.out) == []


def test_without_a_runner_it_is_printed(reports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert main.main(["summary", "--output-dir", str(reports)]) == 0
    assert capsys.readouterr().out.startswith("# Compatibility matrix")


@pytest.mark.parametrize("room", [0, 10, 60, 500, 2000, 10**6])
def test_a_summary_that_is_too_long_is_cut_with_a_note(tmp_path: Path, room: int) -> None:
    rows = read(example(tmp_path / "m.duckdb"))
    text = step_summary(rows, [EVIL], room=room)
    assert len(text.encode()) <= room
    whole = step_summary(rows, [EVIL])
    assert text == whole if room == 10**6 else "The rest is in matrix.md"[:room] in text


@given(st.text(), st.integers(min_value=-5, max_value=200))
def test_cutting(text: str, room: int) -> None:
    short = cut(text, room, "cut.")
    assert len(short.encode("utf-8", "surrogatepass")) <= max(room, 0)
    assert short == text or short.endswith(("*cut.*\n", "cut."[: max(room, 0)]))


def test_release_notes_keep_the_author_s_text_and_replace_our_section(tmp_path: Path) -> None:
    rows = read(example(tmp_path / "m.duckdb"))
    first = release_notes("Mine.\r\n", rows, None)
    assert first.startswith(f"Mine.\n\n{BEGIN}\n# Compatibility matrix")
    assert first.endswith(f"{END}\n")
    assert "There is no earlier release with a matrix" in first
    side = read_side(tmp_path / "m.duckdb")
    again = release_notes(f"{first}\nMore of mine.", rows, make_diff(side, side))
    assert again.startswith("Mine.\n")
    assert "More of mine." in again
    assert again.count(BEGIN) == again.count(END) == again.count("# Compatibility matrix\n") == 1
    assert "There is no earlier release" not in again


def test_release_notes_stay_within_the_limit(tmp_path: Path) -> None:
    rows = read(example(tmp_path / "m.duckdb"))
    long = "ä" * (NOTES_CHARACTERS // 2 - 2000)
    text = release_notes(long, rows, None)
    assert len(text) <= NOTES_CHARACTERS
    assert long in text
    assert "The rest is in the files of this release." in text
    assert release_notes("b" * NOTES_CHARACTERS, rows, None) == "b" * NOTES_CHARACTERS + "\n"


def test_assets(reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["report", "--output-dir", str(reports)]) == 0
    assert main.main(["badges", "--output-dir", str(reports)]) == 0
    (tmp_path / "body.md").write_text("Mine.", encoding="utf-8")
    capsys.readouterr()
    argv = ["--last", str(reports / "matrix.duckdb"), "--body", str(tmp_path / "body.md"), "--notes", str(tmp_path / "notes.md")]
    assert main.main(["assets", str(reports), str(tmp_path / "assets"), *argv]) == 0
    sums = dict(reversed(line.split("  ")) for line in (tmp_path / "assets" / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    files = {path.name: path for path in (tmp_path / "assets").iterdir()}
    assert files.keys() == {*sums, "SHA256SUMS"}
    assert sums.keys() >= {"matrix.md", "matrix.json", "errors.md", "errors.json", "summary.md", "matrix.duckdb", "badges.tar.gz"}
    assert {name: hashlib.sha256(files[name].read_bytes()).hexdigest() for name in sums} == sums
    with tarfile.open(files["badges.tar.gz"]) as tar:
        assert "badges/model-bert.json" in tar.getnames()
    assert (tmp_path / "notes.md").read_text(encoding="utf-8").startswith("Mine.\n")


def test_assets_of_a_folder_without_reports_or_into_old_ones(reports: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no matrix\.md, matrix\.json"):
        make_assets(reports, tmp_path / "assets")
    assert main.main(["report", "--output-dir", str(reports)]) == 0
    (tmp_path / "assets").mkdir()
    with pytest.raises(StoreError, match="File exists"):
        make_assets(reports, tmp_path / "assets")


def test_an_unreadable_last_release_is_reported(reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["report", "--output-dir", str(reports)]) == 0
    with duckdb.connect(str(tmp_path / "last.duckdb")) as connection:
        connection.execute("CREATE TABLE other (x INT)")
    argv = ["--last", str(tmp_path / "last.duckdb"), "--notes", str(tmp_path / "notes.md")]
    assert main.main(["assets", str(reports), str(tmp_path / "assets"), *argv]) == 0
    assert "::warning::no comparison with the last release" in capsys.readouterr().out
    assert "# Compatibility matrix" in (tmp_path / "notes.md").read_text(encoding="utf-8")


@given(st.text(alphabet=st.sampled_from(list(":#[]%,\r\n\t ab=\u2028\x0b\x85")), max_size=60))
def test_no_text_becomes_a_command(text: str) -> None:
    assert commands(harmless(text)) == []
    told = annotation("error", text, title=f"t{text}", file=f"f{text}", line=3)
    assert "\n" not in told
    assert "\r" not in told
    head, _, _ = told.removeprefix("::error ").partition("::")
    assert all(part.partition("=")[0] in {"file", "line", "title"} for part in head.split(","))


def test_harmless_text_is_not_changed() -> None:
    assert harmless("a :: b\nc") == "a :: b\nc"
    assert harmless(EVIL).count("\u200b") == 3
    assert annotation("warning", "50 %") == "::warning::50 %25"


def test_a_mistake_in_matrix_yaml_is_annotated_on_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "matrix.yaml").write_text(f'{MATRIX}"::add-mask::\\n::error::x": 1\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main.main(["plan"]) == 2
    (command,) = commands(capsys.readouterr().err)
    assert command.startswith("::error file=matrix.yaml,line=10::matrix.yaml:10: unknown key '::add-mask::")
