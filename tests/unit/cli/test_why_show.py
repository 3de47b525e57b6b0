"""``hwmatrix why`` and ``show`` on invented databases: their output, and that hostile text stays text."""

# ruff: noqa: RUF001 - typographic signs are meant
from __future__ import annotations

import itertools
import json
import signal
from typing import TYPE_CHECKING

import duckdb
import jsonschema
import pytest
from factory_rows import Database, example, steady, unmeasured

from hwmatrix.app.schemas import matrix_schema, why_schema
from hwmatrix.cli import main
from hwmatrix.report import grid
from hwmatrix.report.why import explain

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "\x1b]0;title\x07\x1b[31mred\x1b[0m [bold]markup[/bold] " + "x" * 5000


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return example(tmp_path / "matrix.duckdb")


def hwmatrix(*argv: str) -> int:
    before = signal.getsignal(signal.SIGTERM)
    try:
        return main.main(list(argv))
    finally:
        signal.signal(signal.SIGTERM, before)


def ask(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert hwmatrix(*argv) == 0
    return capsys.readouterr().out


def test_a_failing_cell_is_explained(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with duckdb.connect(str(database)) as connection:
        connection.execute(
            "INSERT INTO stages SELECT cell_id, 'load', 12.5 FROM cells WHERE model = 'model-unsupported' AND target = 'openvino'"
        )
    told = ask(capsys, "why", "model-unsupported", "openvino", "--database", str(database))
    assert "❌ unsupported: model-unsupported on openvino (tiny, float32, batch 1, 16 tokens)" in told
    assert "how far:    load 12 ms → prepare ✗" in told
    assert "error:      unsupported_operator (error): OpenVINO has no conversion for aten::special_bessel_j0" in told
    assert "what to do: " in told
    assert "works:      on cpu (✅ High)" in told
    assert "repeat it:  hwmatrix matrix --models model-unsupported --targets openvino" in told
    script = "hwmatrix generate --reproduce model-unsupported openvino --dtype float32 --size tiny --database"
    assert f"as script:  {script} {database}" in told
    shown = [answer.cell for answer in explain(database, "model-unsupported", "openvino")]
    assert all(f"{line.label}: {line.meaning}" in told for line in grid.build(shown).legend)


def test_a_cell_that_passes_says_how_well(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ask(capsys, "why", "bert", "openvino", "--database", str(database))
    assert "✅ High: bert on openvino" in told
    assert "latency:    p50 1.70 ms" in told
    assert "works:" not in told
    assert "as script:" not in told, "there must be no failure to reproduce"


ROUNDED = {
    "dtype": "a8w8", "relative_error": 0.031, "loss": 0.03, "excess": 1.3, "kernel_error": 0.039, "allowed_error": 0.045,
    "quality_metric": "accuracy", "quality": 1.0, "quality_reference": 1.0, "quality_agreement": 1.0, "quality_low": 0.9,
    "quality_high": 1.0, "quality_inputs": 64, "quality_detail": "classes", "quality_kernel_error": 0.006, "quality_lost": 1,
    "quality_gained": 0,
}  # fmt: skip


def test_a_cell_with_rounded_weights_tells_how_far_it_is_from_these_and_how_far_it_may_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as made:
        made.run()
        made.shard("openvino", "openvino")
        made.cell(made.plan("bert", "openvino", dtype="a8w8", cell_key="bert/openvino/a8w8"), "openvino", **ROUNDED)
    told = ask(capsys, "why", "bert", "openvino", "--database", str(path))
    apart = "3.9e-02 from its own rounded weights in float32 (4.5e-02 is allowed); these are 3.0e-02 from the reference"
    assert f"kernels:    {apart}\n" in told
    assert "held-out:   6.0e-03 from its own rounded weights in float32\n" in told
    (cell,) = json.loads(ask(capsys, "show", "--database", str(path), "--format", "json"))["cells"]
    assert (cell["parity"]["kernel_error"], cell["parity"]["allowed_error"]) == (0.039, 0.045)
    assert (cell["quality"]["kernel_error"], cell["quality"]["lost"], cell["quality"]["gained"]) == (0.006, 1, 0)


def test_a_cell_that_was_not_compared_with_its_rounded_weights_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as made:
        made.run()
        made.shard("openvino", "openvino")
        made.cell(made.plan("bert", "openvino", dtype="int8", cell_key="b"), "openvino", dtype="int8", kernel_detail="it cannot be read")
    told = ask(capsys, "why", "bert", "openvino", "--database", str(path))
    assert "kernels:    not compared with its own rounded weights in float32: it cannot be read\n" in told


@pytest.mark.parametrize("name", ["bert", "google-bert/bert-base-uncased", "bert-base-uncased", "Bert_Base", "google-bert/bert-base"])
def test_a_model_is_found_by_its_name_on_the_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as made:
        made.run()
        made.shard("cpu", "cpu")
        made.cell(made.plan("bert", "cpu", hub_id="google-bert/bert-base-uncased"), "cpu", wall=steady(1.0))
        made.cell(made.plan("gpt2", "cpu", cell_key="other"), "cpu", wall=steady(2.0))
    assert ": bert on cpu" in ask(capsys, "why", name, "cpu", "--database", str(path))
    shown = json.loads(ask(capsys, "show", "--models", name, "--database", str(path), "--format", "json"))
    assert [cell["model"] for cell in shown["cells"]] == ["bert"]
    history = json.loads(ask(capsys, "history", name, "cpu", "--database", str(path), "--format", "json"))
    assert [moment["model"] for (moment,) in history["cells"]] == ["bert"]


def test_an_unavailable_target_shows_what_works_instead(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ask(capsys, "why", "bert", "gpu", "--database", str(database))
    assert "➖ unavailable: bert on gpu" in told
    assert "OpenVINO lists no device GPU here" in told
    assert told.index("works:      on openvino") < told.index("works:      on cpu")  # the fastest first


def test_the_closest_configurations_come_first(tmp_path: Path) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as made:
        made.run()
        for target in ("cpu", "qnn"):
            made.shard(target, target)
        key = {"cell_key": "asked"}
        made.cell(made.plan("bert", "qnn", dtype="float16", **key), "qnn", **unmeasured("mismatch"))
        made.cell(made.plan("bert", "qnn", dtype="a16w8", cell_key="other dtype"), "qnn", wall=steady(9.0))
        made.cell(made.plan("bert", "cpu"), "cpu", wall=steady(1.0))
        made.cell(made.plan("bert-large", "qnn", cell_key="relative"), "qnn", wall=steady(1.0))
        made.cell(made.plan("gte", "qnn", cell_key="family"), "qnn", wall=steady(1.0))
        made.cell(made.plan("vit", "qnn", family="vision", cell_key="stranger"), "qnn", wall=steady(1.0))
    failing = explain(path, "bert", "qnn")[0]
    assert [each.differs for each in failing.alternatives] == [
        "precision a16w8 instead of float16",
        "on cpu in float32",
        "bert-large, of the same architecture",
        "gte, of the same family in float32",
    ]
    assert explain(path, "bert", "qnn")[1].cell.status.value == "pass"  # failing cells first


def test_why_as_json(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(ask(capsys, "why", "model-oom", "openvino", "--database", str(database), "--format", "json"))
    jsonschema.validate(document, why_schema())
    assert document["schema"] == "hwmatrix/why/1"
    (answer,) = document["answers"]
    assert (answer["cell"]["status"], answer["error"]["type"]) == ("oom", "memory_pressure")
    assert answer["error"]["recommendations"]


@pytest.mark.parametrize(
    ("argv", "code", "what"),
    [
        (("why", "brt", "cpu"), 2, "did you mean 'bert'?"),
        (("why", "bert", "cp"), 2, "did you mean 'cpu'?"),
        (("show", "--targets", "cp"), 2, "did you mean 'cpu'?"),
        (("show", "--models", "brt"), 2, "did you mean 'bert'?"),
        (("show", "--status", "crsh"), 2, "did you mean 'crash'?"),
        (("show", "--run", "nonsense"), 7, "no run 'nonsense'"),
    ],
)
def test_unknown_names_are_refused(database: Path, argv: tuple[str, ...], code: int, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix(*argv, "--database", str(database)) == code
    assert what in capsys.readouterr().err


def test_the_matrix_in_a_terminal(database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    told = ask(capsys, "show", "--database", str(database.parent))
    lines = told.splitlines()
    bert = next(line for line in lines if line.strip().startswith("bert"))
    assert ("✅ High" in bert, "×" in bert) == (True, False), "no speed of a tiny model"
    assert any(line.startswith("➖ gpu: OpenVINO lists no device GPU here") for line in lines)
    assert "entirely on the target" in told
    monkeypatch.setenv("COLUMNS", "80")
    narrow = ask(capsys, "show", "--database", str(database.parent))
    assert "embedding" in narrow
    assert "…" not in narrow
    models = {cell["model"] for cell in json.loads(ask(capsys, "show", "--format", "json", "--database", str(database)))["cells"]}
    assert models <= {*narrow.split()}, "names are whole"
    assert all(len(line) <= 80 for line in narrow.splitlines() if line.startswith(("bert", "embedding", "──")))
    monkeypatch.setenv("COLUMNS", "160")
    assert "vit" not in ask(capsys, "show", "--models", "bert", "gpt2", "--database", str(database))
    document = json.loads(ask(capsys, "show", "--models", "bert", "--format", "json", "--database", str(database)))
    jsonschema.validate(document, matrix_schema())
    assert {cell["model"] for cell in document["cells"]} == {"bert"}
    only = ask(capsys, "show", "--status", "timeout", "--database", str(database))
    assert "model-timeout" in only
    assert "bert" not in only


def test_hostile_text_is_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as made:
        made.run()
        made.shard("s", "cpu")
        changes = unmeasured("error") | {"message": HOSTILE, "traceback": HOSTILE, "placement_detail": HOSTILE, "on_target": 0.5}
        made.cell(made.plan("a [red]b\x1b[31m", "cpu"), "s", **changes)
    for argv in (("why", "a [red]b\x1b[31m", "cpu"), ("show",)):
        told = ask(capsys, *argv, "--database", str(path))
        assert "\x1b" not in told
        assert "\x07" not in told
        assert "[red]" in told
    assert hwmatrix("why", "a [red]b", "cpu", "--database", str(path)) == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert "[red]" in told


def test_a_run_without_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.duckdb"
    with Database(path) as made:
        made.run()
        made.plan("bert", "cuda", unavailable="no driver")
        made.plan("bert", "cpu")
    assert "cuda: no driver" in ask(capsys, "show", "--database", str(path))
    assert "not run: bert on cpu" in ask(capsys, "why", "bert", "cpu", "--database", str(path))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One model on one target in two sizes and precisions, each with and without generating; of these, int8 fails where it generates."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "reports" / "published" / "matrix.duckdb"
    path.parent.mkdir(parents=True)
    monkeypatch.setattr("hwmatrix.knowledge.on_record.PUBLISHED", path.parent)
    with Database(path) as made:
        made.run()
        made.shard("openvino", "openvino")
        for size, dtype, new_tokens in itertools.product(("tiny", "full"), ("float32", "int8"), (0, 8)):
            key = f"{size}/{dtype}/{new_tokens}"
            cell = made.plan("gpt2", "openvino", size=size, dtype=dtype, new_tokens=new_tokens, cell_key=key)
            made.cell(cell, "openvino", **(unmeasured("mismatch") if dtype == "int8" and new_tokens else {}))
    return path


FILTERS = {
    "--dtype int8": lambda cell: cell["dtype"] == "int8",
    "--size full": lambda cell: cell["size"] == "full",
    "--generation": lambda cell: cell["new_tokens"] > 0,
    "--no-generation": lambda cell: cell["new_tokens"] == 0,
}


@pytest.mark.usefixtures("settings")
def test_filters_select_their_intersection(capsys: pytest.CaptureFixture[str]) -> None:
    every = [answer["cell"] for answer in json.loads(ask(capsys, "why", "gpt2", "openvino", "--format", "json"))["answers"]]
    assert len(every) == 8
    for count in (1, 2, 3):
        for names in itertools.combinations(FILTERS, count):
            if {"--generation", "--no-generation"} <= set(names):
                continue
            words = " ".join(names).split()
            expected = {cell["cell_key"] for cell in every if all(FILTERS[name](cell) for name in names)}
            explained = json.loads(ask(capsys, "why", "gpt2", "openvino", *words, "--format", "json"))["answers"]
            assert {answer["cell"]["cell_key"] for answer in explained} == expected
            shown = json.loads(ask(capsys, "show", *words, "--format", "json"))["cells"]
            assert len(shown) == len(expected)


@pytest.mark.usefixtures("settings")
def test_why_prints_a_line_for_each_cell_and_the_worst_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("why", "gpt2", "openvino") == 0
    told = capsys.readouterr()
    assert "this is from the published results" in told.err
    assert sum(line.count("openvino") and line.endswith("tokens)") for line in told.out.splitlines()) == 1
    assert "mismatch: gpt2 on openvino (full, int8, batch 1, 16 + 8 tokens)" in told.out
    assert "hwmatrix why" not in told.out
    every = ask(capsys, "why", "gpt2", "openvino", "--all")
    assert every.count(": gpt2 on openvino (") == 8


@pytest.mark.usefixtures("settings")
def test_one_forward_pass_is_no_alternative_to_generating(capsys: pytest.CaptureFixture[str]) -> None:
    answers = json.loads(ask(capsys, "why", "gpt2", "openvino", "--format", "json"))["answers"]
    offered = [(answer["cell"], each["cell"]) for answer in answers for each in answer["alternatives"]]
    assert offered
    assert all(bool(asked["new_tokens"]) is bool(other["new_tokens"]) for asked, other in offered)
