"""Users' queries and templates: their input, their limits, and how mistakes are reported."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
from factory_rows import Database, example, steady

from hwmatrix.cli import main
from hwmatrix.errors import ConfigError, StoreError
from hwmatrix.report.custom import OURS, as_json, ask, render

if TYPE_CHECKING:
    from pathlib import Path

SLOW = "SELECT model, target, p50_ms FROM matrix WHERE run_id = $run_id AND p50_ms > 7 ORDER BY p50_ms DESC"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return example(tmp_path / "matrix.duckdb")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_user_s_query(database: Path, tmp_path: Path) -> None:
    found = ask(database, str(write(tmp_path / "slow.sql", SLOW)))
    assert found.columns == ("model", "target", "p50_ms")
    assert [(row["model"], row["target"]) for row in found.rows] == [("gpt2", "openvino"), ("vit", "openvino"), ("vit", "cpu")]
    assert json.loads(as_json(found))[0]["model"] == "gpt2"


@pytest.mark.parametrize("name", OURS)
def test_our_queries_can_be_used(database: Path, name: str) -> None:
    assert ask(database, name).rows


def test_a_template_in_markdown_escapes_and_has_our_filters(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as made:
        made.run()
        made.shard("s", "cpu")
        made.cell(made.plan("a|<b>`c`", "cpu"), "s", wall=steady(9.0))
    template = write(
        tmp_path / "slow.md.j2", "# {{ run.run_id }}\n{% for row in rows %}\n| {{ row.model }} | {{ row.p50_ms|number }} |\n{% endfor %}"
    )
    text = render(ask(path, str(write(tmp_path / "q.sql", SLOW))), template)
    assert text.splitlines()[0] == "# run-1"
    assert "| a&#124;&lt;b&gt;\\`c\\` | 9.00 |" in text


def test_a_template_in_html_escapes_for_html(database: Path, tmp_path: Path) -> None:
    query = write(tmp_path / "q.sql", "SELECT '<b>&' AS word")
    assert render(ask(database, str(query)), write(tmp_path / "page.html.j2", "<p>{{ rows[0].word }}</p>")) == "<p>&lt;b&gt;&amp;</p>\n"


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELEC 1", "the query fails"),
        ("SELECT nothing FROM matrix", "the query fails"),
        ("SELECT * FROM matrix WHERE run_id = $other", "the query fails"),
        ("DELETE FROM cells", "the query fails"),
        ("CREATE TABLE mine (x INTEGER)", "the query fails"),
        ("", "the query fails|neither"),
    ],
)
def test_queries_that_fail_or_write_are_refused(database: Path, tmp_path: Path, sql: str, what: str) -> None:
    before = database.read_bytes()
    if sql:
        with pytest.raises(ConfigError, match=what):
            ask(database, str(write(tmp_path / "q.sql", sql)))
    assert database.read_bytes() == before


def test_queries_cannot_read_other_files(database: Path, tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.txt", "secret")
    taken = tmp_path / "taken.csv"
    for sql in (
        f"SELECT content FROM read_text('{secret}')",  # noqa: S608 - a test's own
        f"COPY matrix TO '{taken}'",
        f"ATTACH '{tmp_path / 'other.duckdb'}'",
        "SET enable_external_access = true",
    ):
        with pytest.raises(ConfigError, match="the query fails"):
            ask(database, str(write(tmp_path / "q.sql", sql)))
    assert sorted(path.name for path in tmp_path.iterdir()) == [database.name, "q.sql", "secret.txt"]


def test_values_that_json_cannot_represent(database: Path, tmp_path: Path) -> None:
    sql = "SELECT 'nan'::DOUBLE AS a, ['inf'::DOUBLE, 1.5] AS b, DATE '2026-01-02' AS c, 2.5::DECIMAL(4, 1) AS d"
    found = ask(database, str(write(tmp_path / "q.sql", sql)))
    assert json.loads(as_json(found)) == [{"a": None, "b": [None, 1.5], "c": "2026-01-02", "d": "2.5"}]
    with pytest.raises(ConfigError, match=r"a time with a time zone.*now\(\)::TIMESTAMP"):
        ask(database, str(write(tmp_path / "q.sql", "SELECT now() AS n")))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{% for %}", r"t.md.j2:1: not a template"),
        ("{{ nothing }}", "cannot be rendered: 'nothing' is undefined"),
        ("{{ rows[0].x }}", "cannot be rendered"),
        ("{{ 1 / 0 }}", "cannot be rendered: division by zero"),
    ],
)
def test_invalid_templates(database: Path, tmp_path: Path, text: str, what: str) -> None:
    found = ask(database, OURS[0])
    with pytest.raises(ConfigError, match=what):
        render(found, write(tmp_path / "t.md.j2", text))
    with pytest.raises(ConfigError, match="cannot be read"):
        render(found, tmp_path / "none.j2")


def test_invalid_queries(database: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'top_memory'"):
        ask(database, "top_memry")
    (tmp_path / "binary.sql").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        ask(database, str(tmp_path / "binary.sql"))
    with pytest.raises(StoreError, match="no run"):
        ask(database, OURS[0], run_id="nonsense")


def test_the_report_command(database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    template = write(tmp_path / "t.md.j2", "{% for row in rows %}{{ row.model }} {% endfor %}")
    query = ("report", "--database", str(database), "--query", str(write(tmp_path / "q.sql", SLOW)))
    try:
        assert main.main([*query]) == 0
        assert json.loads(capsys.readouterr().out)[0]["model"] == "gpt2"
        assert main.main([*query, "--template", str(template), "--output", str(tmp_path / "out" / "slow.md")]) == 0
        assert (tmp_path / "out" / "slow.md").read_text(encoding="utf-8") == "gpt2 vit vit\n"
        assert main.main(["report", "--database", str(database), "--template", str(template)]) == 2
        assert main.main(["badges", "--database", str(database), "--output-dir", str(tmp_path / "b")]) == 0
        assert (tmp_path / "b" / "badges" / "model-bert.json").is_file()
    finally:
        signal.signal(signal.SIGTERM, before)
