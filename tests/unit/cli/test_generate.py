"""``hwmatrix generate`` through ``main``: written files, printed text, exit codes."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.cli import generate as generating
from hwmatrix.cli import main
from hwmatrix.generate import reproduction as reproducing
from hwmatrix.generate import test_plan
from hwmatrix.generate.model_code import ModelCode
from hwmatrix.knowledge.measured_cell import find_cell
from hwmatrix.knowledge.requirements import RequirementsError
from hwmatrix.matrix.load import load
from hwmatrix.records import Family
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "recorded" / "default.duckdb"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the project's matrix.yaml and a separate cache. No torch is needed."""

    def unknown(*_: Any, **__: Any) -> None:
        raise RequirementsError("nothing is known", advice="measure it")

    (tmp_path / "matrix.yaml").write_bytes((ROOT / "matrix.yaml").read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(test_plan, "requirements_for", unknown)
    monkeypatch.setattr(reproducing, "model_code", lambda _plan, _cache: ModelCode(inputs=(), call={}, vocabulary=0, special=[]))
    before, level = signal.getsignal(signal.SIGTERM), logging.getLogger("hwmatrix").level
    yield tmp_path
    signal.signal(signal.SIGTERM, before)
    logging.getLogger("hwmatrix").setLevel(level)


def hwmatrix(*argv: str) -> int:
    return main.main(list(argv))


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*"))


def test_one_model(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("generate", "--model", "bert") == 0
    assert files_in(project / "generated_tests") == ["test_hf_bert.py"]
    told = capsys.readouterr().out
    assert "hf_embedding_template.py" in told
    assert told.splitlines()[-1] == "run: pytest generated_tests/test_hf_bert.py"


@pytest.mark.parametrize(
    "words", [("--model", "bert", "gpt2"), ("--models", "bert", "gpt2"), ("--model", "bert", "--model", "gpt2"), ("bert", "gpt2", "bert")]
)
def test_several_models(project: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert hwmatrix("generate", *words, "--output-dir", "here/there") == 0
    assert files_in(project / "here" / "there") == ["test_hf_bert.py", "test_hf_gpt2.py"]
    assert capsys.readouterr().out.splitlines()[-1] == "run: pytest here/there"


def test_all_models_as_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("generate", "--all", "--device", "cpu", "--format", "json") == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    assert len({tuple(row) for row in rows.values()}) == 1, "every row must have every key"
    assert rows["mixtral"] == {
        "model": "mixtral",
        "family": "text_generation",
        "subfamily": "causal_lm",
        "structure": "mixture-of-experts",
        "confidence": rows["mixtral"]["confidence"],
        "source": rows["mixtral"]["source"],
        "template": "hf_text_generation_template.py",
        "devices": ["cpu"],
        "path": "generated_tests/test_hf_mixtral.py",
        "run": "pytest generated_tests/test_hf_mixtral.py",
        "left_out": None,
    }
    assert [name for name, row in rows.items() if row["left_out"] is not None] == []
    assert rows["stable-diffusion"]["template"] == "hf_diffusion_template.py"
    assert len(files_in(project / "generated_tests")) == len(rows)


def test_the_models_of_the_first_suite(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suites = load(project / "matrix.yaml").spec.suites
    first = next(iter(suites.values())).models
    assert hwmatrix("generate", "--priority", "high", "--device", "cpu", "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert sorted(row["model"] for row in rows) == sorted(first)
    assert len(files_in(project / "generated_tests")) == sum(row["path"] is not None for row in rows)

    assert hwmatrix("generate", "--priority", "all", "--device", "cpu", "--format", "json") == 0
    assert len(json.loads(capsys.readouterr().out)) == len(load(project / "matrix.yaml").spec.models)


def test_writing_the_templates_for_another_generator(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("generate", "--templates", "templates") == 0
    names = {f"hf_{family.value}_template.py" for family in Family}
    assert names | {"_base.py.j2", "_flags.py.j2", "_structures.py.j2"} == set(files_in(project / "templates"))
    assert "wrote templates/hf_vision_template.py" in capsys.readouterr().out
    assert hwmatrix("generate", "--templates", "templates") == 0  # the same again
    (project / "templates" / "hf_vision_template.py").write_text("mine", encoding="utf-8")
    assert hwmatrix("generate", "--templates", "templates") == 2
    assert "exists, and differs from the template" in capsys.readouterr().err
    assert (project / "templates" / "hf_vision_template.py").read_text(encoding="utf-8") == "mine"


def test_the_options_reach_the_test(project: Path) -> None:
    assert hwmatrix("generate", "--model", "bert", "--device", "openvino", "--timeout", "60", "--size", "full") == 0
    text = (project / "generated_tests" / "test_hf_bert.py").read_text(encoding="utf-8")
    assert "POOL_TIMEOUT_MIN = 60.0" in text
    assert "size=Size.FULL" in text
    assert 'Place(device="openvino"' in text
    assert "hwmatrix generate --model bert --size full --device openvino" in text


def test_debug_says_why(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    assert hwmatrix("generate", "--model", "bert", "--debug") == 0
    assert "template hf_embedding_template.py, because" in caplog.text
    caplog.clear()
    logging.getLogger("hwmatrix").setLevel(logging.NOTSET)
    assert hwmatrix("generate", "--model", "bert") == 0
    assert "because" not in caplog.text
    capsys.readouterr()


def test_the_cache_is_cleared_first(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[str] = []

    def clear(plan: Any, cache: Path) -> list[Path]:
        assert not (project / "generated_tests").exists()
        cleared.append(plan.name)
        return [cache / "abc"]

    monkeypatch.setattr(generating, "clear_cached", clear)
    assert hwmatrix("generate", "--model", "bert", "gpt2", "--clear-cache", "--format", "json") == 0
    assert cleared == ["bert", "gpt2"]
    told = capsys.readouterr()
    assert f"removed {project / 'cache' / 'abc'}" in told.err
    json.loads(told.out)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "no model is named"),
        (("--model", "bert", "--all"), 2, "--model and --all contradict each other"),
        (("--all", "--priority", "high"), 2, "--all and --priority contradict each other"),
        (("--model", "bert", "--templates", "there"), 2, "--model and --templates contradict each other"),
        (("--templates", "matrix.yaml"), 2, "matrix.yaml: cannot be written"),
        (("--model", "bert", "--timeout", "-1"), 2, "--timeout"),
        (("--model", "bert", "--timeout", "inf"), 2, "is not a valid number of minutes"),
        (("--model", "bert", "--device", "gpu"), 2, "'gpu' is not a hardware name"),
        (("--model", "bertt"), 2, "is only a name"),
        (("--model", "we{{ird}}"), 2, "not a valid model name"),
        (("--model", ""), 2, "it is empty"),
        (("--model", "./nothing"), 2, "is not a folder"),
        (("--model", "bert", "--output", "x.py"), 2, "--output: it is only allowed with --reproduce"),
        (("--model", "bert", "--matrix", "other.yaml"), 2, "other.yaml: cannot be read"),
        (("--reproduce", "mixtral", "qnn"), 7, "there is no such file"),
        (("--reproduce", "mixtral", "qnn", "--all"), 2, "--all and --reproduce contradict each other"),
        (("--reproduce", "mixtral", "qnn", "--database", "nothing.duckdb"), 7, "there is no such file"),
        (("--reproduce", "bert", "cpu", "--database", str(RECORDED)), 3, "passes in run"),
        (("--reproduce", "bert-base-uncased", "cpu", "--database", str(RECORDED)), 3, "passes in run"),
        (("--reproduce", "bert", "tpu", "--database", str(RECORDED)), 2, "has no target 'tpu'"),
        (("--reproduce", "bert", "qn", "--database", str(RECORDED)), 2, "hwmatrix matrix --models bert --targets qn"),
        (
            ("--reproduce", "mixtral", "qnn", "--database", str(RECORDED), "--output", "no/where.py"),
            2,
            "--output no/where.py: cannot be written",
        ),
    ],
)
def test_mistakes_are_reported_and_nothing_is_written(
    project: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    assert hwmatrix("generate", *words) == code
    told = capsys.readouterr().err
    assert message in told
    assert code == 2 or "building" not in told
    assert files_in(project) == ["matrix.yaml"]


def test_all_wrong_names_are_reported_together_before_anything_is_written(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("generate", "--model", "bert", "nothing", "type:gemma3") == 2
    told = capsys.readouterr().err
    assert "--model nothing: is only a name" in told
    assert "--model type:gemma3: is a type of transformers" in told
    assert files_in(project) == ["matrix.yaml"]


def test_a_script_of_a_failing_cell(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("generate", "--reproduce", "mixtral", "qnn", "--database", str(RECORDED)) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[0] == "wrote reproduce_mixtral_qnn.py: mixtral on qnn, float16, tiny: mismatch"
    assert "as measured: relative L2 error 0.626 of logits" in told
    assert "also failing (--dtype, --size): a16w8 in tiny: mismatch; a8w8 in tiny: mismatch" in told
    script = (project / "reproduce_mixtral_qnn.py").read_text(encoding="utf-8")
    assert script.startswith("# mixtral (tiny) on qnn, float16: mismatch\n")
    assert hwmatrix("generate", "--reproduce", "mixtral", "qnn", "--dtype", "a8w8", "--database", str(RECORDED), "--format", "json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["dtype"], facts["status"], facts["run"]) == ("a8w8", "mismatch", "python reproduce_mixtral_qnn.py")


def test_a_script_can_be_printed_or_written_elsewhere(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = ("generate", "--reproduce", "bert", "cpu", "--force", "--database", str(RECORDED))
    assert hwmatrix(*cell, "--output", "-") == 0
    assert capsys.readouterr().out.startswith("# bert (tiny) on cpu, float32: passes\n")
    (project / "mine.py").write_text("x = 1\n", encoding="utf-8")
    assert hwmatrix(*cell, "--output", "mine.py") == 0
    assert (project / "mine.py").read_text(encoding="utf-8").startswith("# bert (tiny) on cpu")


def test_a_file_that_hwmatrix_did_not_generate_is_not_replaced(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "reproduce_mixtral_qnn.py").write_text("x = 1\n", encoding="utf-8")
    assert hwmatrix("generate", "--reproduce", "mixtral", "qnn", "--database", str(RECORDED)) == 2
    assert "is not a script by hwmatrix" in capsys.readouterr().err
    assert (project / "reproduce_mixtral_qnn.py").read_text(encoding="utf-8") == "x = 1\n"


def test_the_default_database_is_that_of_the_latest_reports(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "reports" / "latest").mkdir(parents=True)
    (project / "reports" / "latest" / "matrix.duckdb").write_bytes(RECORDED.read_bytes())
    assert hwmatrix("generate", "--reproduce", "swin", "qnn", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == "a16w8"


def test_the_example_of_a_script_is_a_cell_that_has_one() -> None:
    _, _, example = str(generating.generate_command.__doc__).partition("hwmatrix generate --reproduce ")
    model, target, _, database = example.split()
    cell = find_cell(ROOT / database, model, target)
    assert cell.settings.new_tokens == 0
    assert descriptor_of(cell.target.backend).script is not None
