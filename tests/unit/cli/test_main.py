"""The commands through ``main``: exit codes, printed text, written files. Only the executor is fake."""

from __future__ import annotations

import json
import logging
import re
import shlex
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest
import typer.main
from fake_executor import FakeExecutor

from hwmatrix import __version__
from hwmatrix.app import execution
from hwmatrix.app.schemas import REPORTS
from hwmatrix.cli import detect as detecting
from hwmatrix.cli import main
from hwmatrix.cli.main import _COMMANDS, program, spread
from hwmatrix.errors import EngineError, ImageBuildError
from hwmatrix.records import Detection

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("project")
MATRIX = """\
version: 1
sizes:
  tiny: {}
  full: {}
tolerances:
  float32: {relative_error: 1.0e-3, reason: rounding}
targets:
  cpu: {backend: cpu, image: cpu}
  openvino: {backend: openvino, image: openvino}
models:
  bert: {family: embedding, architecture: bert, class: BertModel, hub_id: google-bert/bert-base-uncased}
  vit: {family: vision, architecture: vit, class: ViTModel}
suites:
  default: {models: all}
"""


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> FakeExecutor:
    fake = FakeExecutor()
    monkeypatch.setattr(execution, "choose", lambda _isolation, _workshop: fake)
    return fake


def hwmatrix(*argv: str) -> int:
    return main.main(list(argv))


def cells(project: Path) -> dict[str, str]:
    document: Any = json.loads((project / "reports" / "latest" / "matrix.json").read_text(encoding="utf-8"))
    return {f"{cell['model']}/{cell['target']}": cell["status"] for cell in document["cells"]}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("matrix", "matrix"),
        ("matrix --models a b c", "matrix --models a --models b --models c"),
        ("matrix --models a --models b", "matrix --models a --models b"),
        ("matrix --models a b --size tiny --targets cpu gpu", "matrix --models a --models b --size tiny --targets cpu --targets gpu"),
        ("matrix --architectures x y --resume", "matrix --architectures x --architectures y --resume"),
        ("matrix --models=a --all", "matrix --models=a --all"),
        ("merge one two --database d", "merge one two --database d"),
        ("matrix --models a -v", "matrix --models a -v"),
        ("matrix --batch 1 8 --threads 1 2", "matrix --batch 1 --batch 8 --threads 1 --threads 2"),
        ("fit --batch 8 bert", "fit --batch 8 bert"),
        ("fit --hw cpu bert", "fit --hw cpu bert"),
        ("fit --hw cpu cuda bert --batch 8", "fit --hw cpu --hw cuda bert --batch 8"),
        ("fit --batch 8 bert --hw cpu cuda", "fit --batch 8 bert --hw cpu --hw cuda"),
        ("fit --hw cpu", "fit --hw cpu"),
        ("fit bert --hw cpu cuda", "fit bert --hw cpu --hw cuda"),
        ("fit --hw cpu cuda -- bert", "fit --hw cpu --hw cuda -- bert"),
        ("runner check --targets a b", "runner check --targets a --targets b"),
        ("types --compare", "types --compare newest"),
        ("types --compare --format json", "types --compare newest --format json"),
        ("types a --compare 5.23.0", "types a --compare 5.23.0"),
        ("", ""),
    ],
)
def test_options_that_take_several_values(words: str, expected: str) -> None:
    assert spread(words.split(), typer.main.get_command(program())) == expected.split()


@pytest.mark.parametrize("words", ["matrix --models", "matrix --models --all", "matrix --targets -v", "matrix --models a --architectures"])
def test_such_an_option_without_values_is_refused(words: str) -> None:
    """Ignoring it would run everything."""
    assert hwmatrix(*words.split()) == 2


def test_a_run_from_matrix_yaml_to_the_reports(project: Path, executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("matrix") == 0
    assert cells(project) == {"bert/cpu": "pass", "bert/openvino": "pass", "vit/cpu": "pass", "vit/openvino": "pass"}
    written = {path.name for path in (project / "reports" / "latest").iterdir()}
    assert written >= {"matrix.md", "matrix.json", "errors.md", "errors.json", "summary.md", "matrix.duckdb", "runs"}
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "4 cells: 4 pass" in printed.err
    assert "start with reports/latest/index.html" in printed.err
    assert len(executor.ran) == 4


def test_the_selected_cells_are_run(project: Path, executor: FakeExecutor) -> None:
    assert hwmatrix("matrix", "--models", "bert", "vit", "--targets", "cpu", "--size", "full", "--output-dir", "elsewhere") == 0
    assert [key.split("/")[:3] for key in executor.ran] == [["bert", "full", "cpu"], ["vit", "full", "cpu"]]
    assert (project / "elsewhere" / "matrix.json").exists()


def test_a_failing_model_is_not_an_error_but_a_failing_image_is(project: Path, executor: FakeExecutor) -> None:
    executor.broken_images = frozenset({"openvino"})
    assert hwmatrix("matrix") == 4
    assert cells(project) == {"bert/cpu": "pass", "bert/openvino": "infra_error", "vit/cpu": "pass", "vit/openvino": "infra_error"}


def test_an_interrupted_run_is_resumed(project: Path, executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.dies_after = {"cpu": 1}
    assert hwmatrix("matrix") == 5
    assert cells(project)["vit/cpu"] == "infra_error"
    executor.dies_after, executor.ran = {}, []
    assert hwmatrix("matrix", "--resume") == 0
    assert [key.split("/")[0] for key in executor.ran] == ["vit"]
    assert set(cells(project).values()) == {"pass"}
    assert hwmatrix("matrix", "--resume") == 0
    assert "nothing is missing" in capsys.readouterr().err
    assert len(list((project / "reports" / "latest" / "runs").iterdir())) == 1


def test_a_rejected_shard_is_an_error_and_the_others_are_reported(
    project: Path, executor: FakeExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.outcomes = {"bert/tiny/cpu/float32/b1-s16-t1": [{"peak_mb": 1e15}]}  # more than there is
    assert hwmatrix("matrix") == 7
    assert cells(project) == {"bert/cpu": "not_run", "bert/openvino": "pass", "vit/cpu": "not_run", "vit/openvino": "pass"}
    (shard,) = (project / "reports" / "latest" / "runs").glob("*/shards/cpu-*.duckdb")
    assert f"rejected the shard {shard.name}" in capsys.readouterr().err
    executor.ran = []
    shard.unlink()
    assert hwmatrix("matrix", "--resume") == 0
    assert sorted(executor.ran) == ["bert/tiny/cpu/float32/b1-s16-t1", "vit/tiny/cpu/float32/b1-s16-t1"]
    assert set(cells(project).values()) == {"pass"}


def test_a_target_that_this_machine_lacks_is_left_to_others(
    project: Path, executor: FakeExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.raises = {"cpu": KeyboardInterrupt(), "openvino": KeyboardInterrupt()}
    assert hwmatrix("matrix") == 130
    executor.raises, executor.missing = {}, {"openvino": "no device"}
    assert hwmatrix("matrix", "--resume") == 0
    assert "openvino: not continued on this machine: no device" in capsys.readouterr().err
    assert cells(project) == {"bert/cpu": "pass", "bert/openvino": "not_run", "vit/cpu": "pass", "vit/openvino": "not_run"}
    assert hwmatrix("matrix", "--resume") == 0
    assert "nothing is missing that can run here" in capsys.readouterr().err
    executor.missing = {}
    assert hwmatrix("matrix", "--resume") == 0
    assert set(cells(project).values()) == {"pass"}


@pytest.mark.parametrize("words", ["show", "why bert cpu", "fit bert", "evidence"])
def test_only_a_run_can_be_continued(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hwmatrix.cli.main._Commands.invoke", interrupted)
    assert hwmatrix(*words.split()) == 130
    assert "--resume" not in capsys.readouterr().err


def test_an_interrupted_run_is_reported(project: Path, executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.raises = {"openvino": KeyboardInterrupt()}
    assert hwmatrix("matrix") == 130
    assert cells(project) == {"bert/cpu": "pass", "bert/openvino": "not_run", "vit/cpu": "pass", "vit/openvino": "not_run"}
    assert "continue with --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    "extra", ["--models bert", "--targets cpu", "--suite default", "--architectures bert", "--size tiny", "--all", "--isolation none"]
)
def test_a_resumed_run_follows_its_plan(executor: FakeExecutor, extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("matrix") == 0
    executor.jobs.clear()
    assert hwmatrix("matrix", "--resume", *extra.split()) == 2
    assert "--resume: the last run is continued as it was planned" in capsys.readouterr().err
    assert executor.jobs == []


@pytest.mark.usefixtures("executor")
def test_resuming_without_a_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("matrix", "--resume") == 2
    assert "holds no run to continue" in capsys.readouterr().err


@pytest.mark.usefixtures("executor")
def test_a_removed_target_cannot_be_resumed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("matrix") == 0
    text = MATRIX.replace("  openvino: {backend: openvino, image: openvino}\n", "")
    (project / "matrix.yaml").write_text(text, encoding="utf-8")
    assert hwmatrix("matrix", "--resume") == 2
    assert "has targets that matrix.yaml no longer has: openvino" in capsys.readouterr().err


@pytest.mark.usefixtures("executor")
def test_a_changed_matrix_file_is_reported(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("matrix") == 0
    assert hwmatrix("matrix", "--resume") == 0
    assert "has changed" not in capsys.readouterr().err
    (project / "matrix.yaml").write_text(f"{MATRIX}\n# another line\n", encoding="utf-8")
    assert hwmatrix("matrix", "--resume") == 0
    assert "matrix.yaml has changed since the run was planned; a run keeps its plan" in " ".join(capsys.readouterr().err.split())


def test_stale_cells_are_run_with_the_current_matrix_yaml(
    executor: FakeExecutor, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hwmatrix("matrix") == 0
    (folder,) = (project / "reports" / "latest" / "runs").iterdir()
    index = json.dumps(
        {
            "schema": "hwmatrix/bundle-index/2",
            "bundles": [{"model": "bert", "size": "tiny", "batch": 1, "sequence_length": 16, "digest": "other"}],
        }
    )
    (folder / "bundles" / "bundles.json").write_text(index, encoding="utf-8")
    text = MATRIX.replace("  vit: {family: vision, architecture: vit, class: ViTModel}\n", "")
    text = text.replace("bert-base-uncased}", "bert-base-uncased, tiny: {config: {hidden_size: 48}}}")
    (project / "matrix.yaml").write_text(text, encoding="utf-8")
    executor.ran.clear()
    assert hwmatrix("matrix", "--stale") == 0
    assert "its current models and targets are used" in " ".join(capsys.readouterr().err.split())
    assert sorted(executor.ran) == ["bert/tiny/cpu/float32/b1-s16-t1", "bert/tiny/openvino/float32/b1-s16-t1"]
    plan: Any = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert (plan["run_id"], [model["name"] for model in plan["models"]]) == (folder.name, ["bert"])
    assert plan["models"][0]["config"] == {"hidden_size": 48}
    assert cells(project) == {"bert/cpu": "pass", "bert/openvino": "pass"}
    (project / "matrix.yaml").write_text(text.replace("  bert: ", "  roberta: "), encoding="utf-8")
    assert hwmatrix("matrix", "--stale") == 3


def test_no_target_can_run_here(project: Path, executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.missing = {"cpu": "no driver", "openvino": "no device"}
    assert hwmatrix("matrix") == 6
    assert "openvino: no device" in capsys.readouterr().err
    assert set(cells(project).values()) == {"unavailable"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("matrix", "--bogus"), "--bogus"),
        (("nonsense",), "nonsense"),
        (("matrix", "--workers", "0"), "--workers"),
        (("matrix", "--size", "medium"), "Invalid value for '--size': 'medium'"),
        (("matrix", "--detect-only", "--resume"), "--resume"),
        (("matrix", "--isolation", "jail"), "jail"),
        (("matrix", "--matrix", "missing.yaml"), "missing.yaml: cannot be read"),
        (("matrix", "--models", "brt"), "did you mean 'bert'?"),
        (("matrix", "--targets", "cpo", "--suite", "smoke"), "did you mean 'cpu'?"),
        (("images", "--targets", "cpo"), "did you mean 'cpu'?"),
        (("merge",), "contains no run"),
        ((), "Usage"),
    ],
)
@pytest.mark.usefixtures("executor")
def test_bad_arguments(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix(*argv) == 2
    printed = capsys.readouterr()
    assert said in printed.err + printed.out
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--threads", "3"), "threads: 3: the speed of a cell would be measured on more threads than there are cores: 2 (choose at most 2"),
        (("--threads", "2", "--workers", "2"), "--workers 2: 2 targets with 2 threads each would share 2 cores (choose at most 1"),
    ],
)
def test_a_cell_is_timed_on_a_core_for_each_thread_or_refused(
    argv: tuple[str, ...], said: str, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(execution, "usable", lambda: (0, 1))
    assert hwmatrix("matrix", *argv) == 2
    assert said in capsys.readouterr().err
    assert executor.jobs == []
    assert hwmatrix("matrix", *argv, "--no-timing") == 0
    assert executor.jobs != []


def test_a_run_is_not_resumed_on_a_machine_with_fewer_cores_than_threads(
    executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(execution, "usable", lambda: (0, 1, 2, 3))
    assert hwmatrix("matrix", "--threads", "4") == 0
    ran = len(executor.jobs)
    monkeypatch.setattr(execution, "usable", lambda: (0, 1))
    assert hwmatrix("matrix", "--resume") == 2
    assert "threads: 4: the speed of a cell would be measured on more threads than there are cores: 2" in capsys.readouterr().err
    assert len(executor.jobs) == ran


@pytest.mark.usefixtures("executor")
def test_a_broken_matrix_yaml(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "matrix.yaml").write_text(MATRIX.replace("backend: cpu", "backend: cpv").replace("models: all", "modls: all"))
    assert hwmatrix("matrix") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: matrix.yaml:8: targets.cpu.backend is 'cpv' (did you mean 'cpu'?")
    assert lines[1].startswith("matrix.yaml:14: unknown key 'modls' at suites.default.modls (did you mean 'models'?")
    assert not (project / "reports").exists()


@pytest.mark.usefixtures("executor")
def test_nothing_matches(project: Path) -> None:
    assert hwmatrix("matrix", "--models", "bert", "--architectures", "vit") == 3
    assert not (project / "reports").exists()


@pytest.mark.parametrize(
    ("error", "code"), [(EngineError("no engine"), 5), (ImageBuildError("no base", command=(), code=None, output=""), 4)]
)
def test_no_isolation_is_possible(monkeypatch: pytest.MonkeyPatch, error: Exception, code: int) -> None:
    def choose(*_: object) -> None:
        raise error

    monkeypatch.setattr(execution, "choose", choose)
    assert hwmatrix("matrix") == code


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("history", "hwmatrix history --add reports/latest"),
        ("history bert", "hwmatrix history --add reports/latest"),
        ("gate", "hwmatrix matrix"),
        ("report", "hwmatrix matrix"),
        ("badges", "hwmatrix matrix"),
        ("groups", "hwmatrix matrix"),
        ("show", "hwmatrix matrix"),
        ("publish nowhere", "hwmatrix matrix"),
        ("merge nowhere", "hwmatrix matrix"),
    ],
)
def test_without_results_the_command_that_makes_them_is_named(words: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix(*words.split()) == 7
    printed = capsys.readouterr().err
    assert command in printed
    assert "hwmatrix merge" not in printed


def test_a_broken_plan_is_not_blamed_on_an_option_that_was_not_used(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "plan.json").write_text("{", encoding="utf-8")
    assert hwmatrix("merge", ".") == 7
    assert "--resume" not in capsys.readouterr().err


def test_an_option_shows_one_default() -> None:
    for command in typer.main.get_command(program()).commands.values():  # type: ignore[attr-defined]
        help_text = command.get_help(typer.Context(command))
        blocks = re.split(r"\n  -", help_text)
        assert [block for block in blocks if block.count("[default:") > 1] == []


@pytest.mark.parametrize("argv", [("merge", "."), ("report", "--output-dir", "nowhere"), ("report", "--database", "matrix.yaml")])
def test_files_with_other_content_are_refused(argv: tuple[str, ...]) -> None:
    assert hwmatrix(*argv) == 7


@pytest.mark.usefixtures("executor")
def test_an_unwritable_output_folder(project: Path) -> None:
    (project / "file").write_text("in the way")
    assert hwmatrix("matrix", "--output-dir", "file/latest") == 7


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(execution, "choose", choose)
    with pytest.raises(ZeroDivisionError):
        hwmatrix("matrix")


def test_merging_and_reporting_again(project: Path, executor: FakeExecutor, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("matrix", "--targets", "cpu") == 0
    (run,) = (project / "reports" / "latest" / "runs").iterdir()
    (run / "shards" / "cpu-broken.duckdb").write_text("text")
    capsys.readouterr()
    assert hwmatrix("merge") == 7
    printed = capsys.readouterr()
    again = f"hwmatrix run {run.relative_to(project)} --targets cpu --output-dir reports/latest"
    assert printed.err.splitlines()[-1] == again
    assert printed.out.splitlines() == [
        "rejected cpu-broken.duckdb: it has no sidecar: it was never finished, or not copied whole",
        "0 shards merged (0 rows), 1 known before, 1 rejected",
    ]
    assert hwmatrix(*shlex.split(again)[1:]) == 0
    assert hwmatrix("merge", str(run), "--database", "other.duckdb") == 0
    assert "1 shard merged" in capsys.readouterr().out
    assert hwmatrix("report", "--database", "other.duckdb", "--output-dir", "again") == 0
    assert (project / "again" / "matrix.md").read_text() != ""
    assert hwmatrix("report", "--database", "other.duckdb", "--run", "nonsense") == 7
    assert len(executor.ran) == 2


def test_stale_cells_are_run_again(executor: FakeExecutor, project: Path) -> None:
    assert hwmatrix("matrix") == 0
    tiny = {"size": "tiny", "batch": 1, "sequence_length": 16, "digest": "other"}
    index = json.dumps({"schema": "hwmatrix/bundle-index/2", "bundles": [{"model": name, **tiny} for name in ("bert", "vit")]})
    (folder,) = (project / "reports" / "latest" / "runs").iterdir()
    (folder / "bundles" / "bundles.json").write_text(index, encoding="utf-8")
    first = len(executor.ran)
    assert hwmatrix("matrix", "--stale", "--max-age", "30") == 0
    assert len(executor.ran) == 2 * first
    assert len(list((project / "reports" / "latest" / "runs").iterdir())) == 1
    assert hwmatrix("matrix", "--max-age", "30") == 2
    assert hwmatrix("matrix", "--stale", "--models", "bert") == 2


@pytest.mark.parametrize("which", ["matrix-file", *REPORTS])
def test_schemas_are_printed(which: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("schema", which) == 0
    assert json.loads(capsys.readouterr().out)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_detection(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        Detection(
            hardware_type="cpu", available=True, name="[red]A CPU", features={"cores": 2, "none": None}, reason=None, detected_at="now"
        ),
        Detection(hardware_type="openvino", available=False, name=None, features={}, reason="not installed", detected_at="now"),
    ]
    monkeypatch.setattr(detecting, "detect_all", lambda: found)
    assert hwmatrix("detect", "--format", "json") == 0
    assert [one["reason"] for one in json.loads(capsys.readouterr().out)] == [None, "not installed"]
    for argv in (("detect",), ("matrix", "--detect-only")):
        assert hwmatrix(*argv) == 0
        printed = capsys.readouterr().out
        assert "[red]A CPU" in printed
        assert "not installed" in printed
        assert "cores: 2" in printed


def test_classification(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("classify", "--models", "vit", "--format", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model"], row["family"]) == ("vit", "vision")
    assert hwmatrix("classify") == 0
    assert "bert" in capsys.readouterr().out


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert hwmatrix("--help") == 0
    made = program()
    names = {each.name for each in (*made.registered_commands, *made.registered_groups) if each.name}
    assert names == set(_COMMANDS)
    assert names >= {"matrix", "images", "detect", "classify", "merge", "report", "schema"}
    shown = capsys.readouterr().out
    for name in names:
        assert name in shown
        assert hwmatrix(name, "--help") == 0


def test_the_recorded_command_can_be_repeated(project: Path, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["hwmatrix", "matrix", "--models", "bert", "--output-dir", "my 'reports' $(x)"]
    monkeypatch.setattr("sys.argv", words)
    assert hwmatrix(*words[1:]) == 0
    plan: Any = json.loads(next(project.rglob("plan.json")).read_text())
    assert shlex.split(plan["command"]) == words
    assert plan["isolation"] == executor.isolation.value
    assert make.plan().schema == plan["schema"]


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for module, code in (("docker", 2), ("hwmatrix.gone", None)):

        def fail(_words: object, module: str = module) -> None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)

        monkeypatch.setattr(main, "program", lambda _command, fail=fail: lambda words, **_: fail(words))
        if code is None:  # a file of ours: a bug
            with pytest.raises(ModuleNotFoundError):
                hwmatrix("schema")
        else:
            assert hwmatrix("schema") == code
            assert "pip install 'hwmatrix[host]'" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hwmatrix {__version__}\n"


def test_an_invalid_log_level_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOGLEVEL", "DEBUGG")
    assert hwmatrix("schema") == 2
    assert "one of CRITICAL" in capsys.readouterr().err


@pytest.mark.parametrize(("level", "told"), [(None, False), ("WARNING", False), ("INFO", True)])
def test_warnings_of_an_import_are_told_only_if_asked_for(monkeypatch: pytest.MonkeyPatch, level: str | None, *, told: bool) -> None:
    """transformers imports torchao wherever that is installed, which warns about GPUs."""
    for name in ("torchao", "torchao.kernel", "torch.utils._pytree"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
        logging.getLogger(name)._cache.clear()  # type: ignore[attr-defined]
    monkeypatch.delenv("LOGLEVEL", raising=False)
    if level:
        monkeypatch.setenv("LOGLEVEL", level)
    assert hwmatrix("schema") == 0
    assert [logging.getLogger(name).isEnabledFor(logging.WARNING) for name in ("torchao.kernel", "torch.utils._pytree")] == [told, told]
