"""`hwmatrix init`: it writes valid files for the user's own models, and never overwrites existing ones unasked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import yaml

from hwmatrix.app.type_models import TypeModels
from hwmatrix.cli import init as starting
from hwmatrix.cli import main
from hwmatrix.errors import FactoryError
from hwmatrix.host.github.render import action_pins
from hwmatrix.host.starter import starter_matrix
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.records import Dtype, Family, ModelPlan, Size

SHIPPED = load(Path(__file__).parents[3] / "matrix.yaml").spec
INSTALL = "hwmatrix[host] @ git+https://git.example/hwmatrix@" + "a" * 40
BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "max_position_embeddings": 64}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "library"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(starting, "requirement", lambda _folder: INSTALL)
    return folder


def checkpoint(folder: Path, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or BERT), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors.numpy.save({}))
    return folder


def init(*argv: str, expect: int = 0) -> None:
    assert main.main(["init", *argv]) == expect


def made() -> LoadedMatrix:
    return load(Path("matrix.yaml"))


def test_a_checkpoint_runs_by_default_with_a_length_that_it_supports(here: Path) -> None:
    checkpoint(here / "models" / "My Bert")
    init("--models", "models/My Bert")
    loaded = made()
    assert list(loaded.spec.models) == ["my-bert"]
    model = loaded.spec.models["my-bert"]
    assert (model.architecture, model.model_class, model.weights) == ("bert", "BertForSequenceClassification", "./models/My Bert")
    assert loaded.spec.suites["default"].size is Size.FULL
    assert model_plan("my-bert", loaded.spec, Size.FULL).sequence_length == 64


def test_targets_tolerances_and_sizes_are_the_packaged_ones(here: Path) -> None:
    checkpoint(here / "mine")
    init("--models", "./mine", "--targets", "cuda", "qnn")
    spec = made().spec
    assert spec.targets == {name: SHIPPED.targets[name] for name in ("cpu", "cuda", "qnn")}  # cpu builds the references
    assert spec.sizes == SHIPPED.sizes
    used = {dtype for target in spec.targets.values() for dtype in target.every_dtype}
    assert Dtype.INT8_DYNAMIC in used
    assert Dtype.INT4 not in used
    assert spec.tolerances == {dtype: SHIPPED.tolerances[dtype] for dtype in SHIPPED.tolerances if dtype in used}


def test_a_type_of_transformers_gets_a_tiny_model_and_the_file_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    init("--models", "gemma3", "type:gpt2")
    spec = made().spec
    assert {name: model.weights for name, model in spec.models.items()} == {"gemma3": FACTORY, "gpt2": FACTORY}
    assert spec.suites["default"].size is Size.TINY
    assert model_plan("gemma3", spec, Size.FULL).unbuildable
    assert model_plan("gemma3", spec, Size.TINY).unbuildable is None
    capsys.readouterr()
    assert main.main(["classify", "--models", "gemma3", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["family"] == "multimodal"


def test_checkpoints_beside_types_have_a_separate_suite(here: Path) -> None:
    checkpoint(here / "mine")
    init("--models", "gemma3", "./mine")
    suites = made().spec.suites
    assert (suites["default"].size, suites["default"].models) == (Size.TINY, "all")
    assert (suites["performance"].size, suites["performance"].models) == (Size.FULL, ("mine",))


@pytest.mark.parametrize("name", ["openai/clip-vit-base-patch32", "clip-vit-base-patch32"])
def test_a_known_hub_checkpoint_needs_no_network(name: str) -> None:
    init("--models", name, name)
    spec = made().spec
    (model,) = spec.models.values()
    assert (model.hub_id, model.weights, model.model_class) == ("openai/clip-vit-base-patch32", "hub", SHIPPED.models["clip"].model_class)
    (entry,) = spec.models
    assert model_plan(entry, spec, Size.FULL).sequence_length == model_plan("clip", SHIPPED, Size.FULL).sequence_length


def test_an_unknown_hub_checkpoint_is_classified_by_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(BERT), encoding="utf-8")
    monkeypatch.setattr(starting.hub, "fetch_config", lambda _name, _revision, _cache: folder)
    init("--models", "somebody/bert-of-mine", "another/bert-of-mine")
    models = made().spec.models
    assert {name: (model.hub_id, model.weights) for name, model in models.items()} == {
        "bert-of-mine": ("somebody/bert-of-mine", "hub"),
        "another-bert-of-mine": ("another/bert-of-mine", "hub"),
    }


def test_all_unknown_names_are_reported(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def unreachable(*_: object) -> Path:
        raise FactoryError("the hub does not answer", error_type="hub_unreachable")

    monkeypatch.setattr(starting.hub, "fetch_config", unreachable)
    (here / "empty").mkdir()
    init("--models", "gema3", "somebody/model", "./empty", expect=2)
    said = capsys.readouterr().err
    assert "'gema3' is unknown" in said
    assert "gemma3" in said
    assert "--models somebody/model: the hub does not answer" in said
    assert "config.json" in said
    assert list(here.iterdir()) == [here / "empty"]


def test_models_that_cannot_be_built_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    impossible = next(plan for plan in TypeModels.beside(SHIPPED).every() if plan.unbuildable is not None)
    init("--models", impossible.architecture, expect=2)
    assert str(impossible.unbuildable) in capsys.readouterr().err
    assert not list(here.iterdir())


@pytest.mark.parametrize(("argv", "words"), [((), "no model is named"), (("--models", "gpt2", "--targets", "cpo"), "did you mean 'cpu'?")])
def test_bad_arguments(argv: tuple[str, ...], words: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(*argv, expect=2)
    assert words in capsys.readouterr().err
    assert not list(here.iterdir())


def test_existing_files_are_replaced_only_on_request(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "matrix.yaml").write_text("mine\n", encoding="utf-8")
    init("--models", "gpt2", "--workflow", expect=2)
    assert "matrix.yaml: it already exists (--force replaces it)" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["matrix.yaml"]
    assert (here / "matrix.yaml").read_text(encoding="utf-8") == "mine\n"
    init("--models", "gpt2", "--workflow", "--force")
    assert list(made().spec.models) == ["gpt2"]
    (here / "matrix.yaml").unlink()
    init("--models", "bert", "--workflow", expect=2)  # only the workflow exists
    assert not (here / "matrix.yaml").exists()


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_an_existing_noxfile_is_kept_and_the_session_printed(
    force: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "noxfile.py").write_text("import nox\n", encoding="utf-8")
    init("--models", "gpt2", *force)
    assert (here / "noxfile.py").read_text(encoding="utf-8") == "import nox\n"
    assert f'session.install("{INSTALL}")' in capsys.readouterr().out


def test_git_ignores_the_reports_once(here: Path) -> None:
    init("--models", "gpt2")
    assert (here / ".gitignore").read_text(encoding="utf-8") == "reports/latest/\n"
    (here / ".gitignore").write_text("mine", encoding="utf-8")
    for _ in range(2):
        init("--models", "gpt2", "--force")
        assert (here / ".gitignore").read_text(encoding="utf-8") == "mine\nreports/latest/\n"


def test_the_noxfile_is_valid_and_has_the_session(here: Path) -> None:
    init("--models", "gpt2")
    text = (here / "noxfile.py").read_text(encoding="utf-8")
    sessions: dict[str, Any] = {}
    exec(compile(text, "noxfile.py", "exec"), sessions)  # noqa: S102 - it is what was just written
    asked: list[tuple[str, ...]] = []

    class Session:
        posargs = ("--targets", "cpu")

        def install(self, *words: str) -> None:
            asked.append(words)

        def run(self, *words: str) -> None:
            asked.append(words)

    sessions["matrix"](Session())
    assert asked == [(INSTALL,), ("hwmatrix", "matrix", "--targets", "cpu")]


def test_the_workflow_has_minimal_permissions_and_pinned_actions(here: Path) -> None:
    init("--models", "gpt2")
    assert not (here / ".github").exists()
    init("--models", "gpt2", "--workflow", "--force")
    workflow = yaml.safe_load((here / ".github/workflows/hwmatrix.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    (job,) = workflow["jobs"].values()
    assert job["permissions"] == {"contents": "read"}
    assert "secrets" not in str(workflow)
    used = [step["uses"].partition("@")[::2] for step in job["steps"] if "uses" in step]
    assert all(action_pins()[name].commit == commit for name, commit in used)
    commands = "\n".join(step["run"] for step in job["steps"] if "run" in step)
    for command in (f'"{INSTALL}"', "hwmatrix matrix", "hwmatrix summary", "hwmatrix gate"):
        assert command in commands


def test_hostile_names_stay_plain_data() -> None:
    """Folders and hub ids can have almost any name."""
    hostile = ModelPlan(
        name="a: {b}\n# c",
        size=Size.FULL,
        family=Family.EMBEDDING,
        architecture="bert",
        model_class="BertModel",
        hub_id='x/"y": {z}',
        weights="./a: b # {c}",
        sequence_length=128,
    )
    data = yaml.safe_load(starter_matrix([hostile], ["cpu"], SHIPPED))
    (model,) = data["models"].values()
    assert (model["hub_id"], model["weights"]) == (hostile.hub_id, hostile.weights)
