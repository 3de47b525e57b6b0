"""The names that ``--models`` accepts, and the models that they select."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest
import safetensors.numpy

from hwmatrix.app.selecting import fetch_weights, select
from hwmatrix.errors import ConfigError, FactoryError, NothingSelectedError
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.models import hub
from hwmatrix.models.diffusion.recipes import recipes
from hwmatrix.models.types import listing
from hwmatrix.records import Dtype, Family, Isolation, Size, Structure

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmatrix.matrix.plan import Selection

ROOT = Path(__file__).parents[3]
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "max_position_embeddings": 12}


@pytest.fixture
def matrix() -> LoadedMatrix:
    return load(ROOT / "matrix.yaml")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests to an unreachable hub."""
    made: list[str] = []

    def fetch(hub_id: str, _revision: str | None, _cache: Path) -> Path:
        made.append(hub_id)
        raise FactoryError(f"{hub_id} cannot be fetched (no route to host)", error_type="hub_unreachable")

    monkeypatch.setattr(hub, "fetch", fetch)
    return made


def checkpoint(folder: Path, config: dict[str, Any] | None = None, weights: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or BERT), encoding="utf-8")
    (folder / weights).write_bytes(safetensors.numpy.save({}))
    return folder


def chosen(matrix: LoadedMatrix, *models: str, **options: Any) -> Selection:
    return select(matrix, models=models, cache=Path("cache"), **options)


def refused(matrix: LoadedMatrix, *models: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        chosen(matrix, *models)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.usefixtures("asked")
def test_names_of_matrix_yaml(matrix: LoadedMatrix) -> None:
    selection = chosen(
        matrix, "bert", "vit", "bert", targets=("cpu",), suite="smoke", size=Size.FULL, everything=True, architectures=("bert",)
    )
    assert (selection.models, selection.extra) == (("bert", "vit"), ())
    assert (selection.targets, selection.suite, selection.size, selection.everything) == (("cpu",), "smoke", Size.FULL, True)


def test_a_listed_model_is_never_searched_elsewhere(matrix: LoadedMatrix, here: Path, asked: list[str]) -> None:
    checkpoint(here / "bert")
    assert chosen(matrix, "bert").extra == ()
    assert asked == []


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("bert-base-uncased", "bert"),
        ("google-bert/bert-base-uncased", "bert"),
        ("BERT_base_uncased", "bert"),
        ("t5-small", "t5"),
        ("vit-base-patch16-224", "vit"),
        ("clip-vit-base-patch32", "clip"),
        ("facebook/wav2vec2-base", "wav2vec2"),
        ("llava-hf/llava-1.5-7b-hf", "llava"),
    ],
)
def test_a_name_of_the_hub_runs_its_recipe_and_says_so(matrix: LoadedMatrix, asked: list[str], name: str, entry: str) -> None:
    said: list[str] = []
    selection = chosen(matrix, name, say=said.append)
    assert (selection.models, selection.extra, selection.types) == ((entry,), (), ())
    (line,) = said
    assert line.startswith(f"{name}: runs {entry} of matrix.yaml")
    assert str(matrix.spec.models[entry].hub_id) in line
    assert "\n" not in line
    assert asked == []  # the hub: the machine may be offline


def test_an_unknown_precision_is_reported_with_the_closest(matrix: LoadedMatrix) -> None:
    assert chosen(matrix, "bert", dtypes=("float16", "float16", "a8w8")).dtypes == (Dtype.FLOAT16, Dtype.A8W8)
    assert {*chosen(matrix, "bert", targets=("webnn",), dtypes=("all",)).dtypes} == {
        Dtype(name) for name in ("float32", "float16", "int8_dynamic", "a8w8", "int4", "int4_float16")
    }
    with pytest.raises(ConfigError, match=r"--dtypes: there is no precision 'fp16' \(allowed: a16w8, a8w8, bfloat16"):
        chosen(matrix, "bert", dtypes=("fp16",))


def test_a_target_without_the_precision_is_named_with_those_that_it_has(matrix: LoadedMatrix) -> None:
    said: list[str] = []
    chosen(matrix, "bert", targets=("cpu", "onnxruntime"), dtypes=("int4",), say=said.append)
    (line,) = said
    assert line.startswith("cpu: none of int4; it has float32, ")


@pytest.mark.usefixtures("asked")
def test_several_names_of_an_entry_select_it_once(matrix: LoadedMatrix) -> None:
    said: list[str] = []
    selection = chosen(matrix, "bert-base-uncased", "gpt2", "bert", "t5-small", say=said.append)
    assert selection.models == ("bert", "gpt2", "t5")
    assert [line.partition(":")[0] for line in said] == ["bert-base-uncased", "t5-small"]  # gpt2 is a name of matrix.yaml


def changed(here: Path, old: str, new: str) -> LoadedMatrix:
    """Our matrix.yaml with one text replaced."""
    text = (ROOT / "matrix.yaml").read_text(encoding="utf-8")
    assert old in text
    (here / "matrix.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    return load(here / "matrix.yaml")


def test_the_weights_of_an_entry_are_reported(here: Path) -> None:
    entry = "    hub_id: google-bert/bert-base-uncased  # whose dimensions are the defaults of the class, so that full needs no config\n"
    published = changed(here, entry + "    weights: trained\n", entry + "    weights: hub\n")
    said: list[str] = []
    assert chosen(published, "bert-base-uncased", say=said.append).models == ("bert",)
    assert said == ["bert-base-uncased: runs bert of matrix.yaml (weights: hub)"]


def test_a_checkpoint_s_folder_comes_before_another_spelling(matrix: LoadedMatrix, here: Path) -> None:
    checkpoint(here / "bert-base-uncased")
    (here / "t5-small").mkdir()  # of something else
    selection = chosen(matrix, "bert-base-uncased", "t5-small")
    assert [plan.weights for plan in selection.extra] == [str(here / "bert-base-uncased")]
    assert selection.models == ("t5",)


def test_a_type_comes_before_an_abbreviation(here: Path) -> None:
    other = changed(here, "hub_id: google-bert/bert-base-uncased", "hub_id: someone/gemma3-small-it")
    assert [plan.name for plan in chosen(other, "gemma3").types] == ["gemma3"]
    assert chosen(other, "gemma3-small").models == ("bert",)
    assert chosen(other, "type:bert").models == ("type:bert",)


@pytest.mark.parametrize("spelling", ["./mine", "mine", "{here}/mine", "./sub/../mine"])
def test_a_checkpoint_folder(matrix: LoadedMatrix, here: Path, spelling: str) -> None:
    checkpoint(here / "mine")
    (here / "sub").mkdir()
    (plan,) = chosen(matrix, spelling.format(here=here)).extra
    assert (plan.name, plan.family, plan.architecture, plan.model_class) == ("mine", Family.EMBEDDING, "bert", "BertForMaskedLM")
    assert plan.weights == str(here / "mine")
    assert Path(plan.selector).resolve() == here / "mine"
    assert (plan.hub_id, plan.size, plan.batch, plan.sequence_length) == (None, Size.FULL, 1, 12)


def test_a_folder_of_the_home_directory(matrix: LoadedMatrix, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    checkpoint(here / "mine")
    assert chosen(matrix, "~/mine").extra[0].weights == str(here / "mine")


def test_a_checkpoint_is_full_whatever_size_is_asked_for(matrix: LoadedMatrix, here: Path) -> None:
    checkpoint(here / "mine", BERT | {"max_position_embeddings": 512})
    for asked in ({}, {"size": Size.FULL}, {"size": Size.TINY}, {"suite": "performance"}, {"suite": "no-such-suite"}):
        (plan,) = chosen(matrix, "./mine", **asked).extra
        assert (plan.size, plan.sequence_length) == (Size.FULL, 128)


def test_folders_with_the_same_name_are_distinguished(matrix: LoadedMatrix, here: Path) -> None:
    for folder in ("a/mine", "b/mine", "c/bert"):
        checkpoint(here / folder)
    selection = chosen(matrix, "bert", "a/mine", "./a/mine", "b/mine", "c/bert")
    assert selection.models == ("bert",)
    assert [plan.name for plan in selection.extra] == ["mine", str(here / "b/mine"), str(here / "c/bert")]


def test_a_hub_id(matrix: LoadedMatrix, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(here / "snapshots" / "0123abc")
    monkeypatch.setattr(hub, "fetch", lambda _hub_id, _revision, _cache: folder)
    (plan,) = chosen(matrix, "someone/bert-small").extra
    assert (plan.name, plan.hub_id, plan.selector) == ("someone/bert-small", "someone/bert-small", "someone/bert-small")
    assert plan.weights == str(folder)


def test_a_hub_that_cannot_be_reached(matrix: LoadedMatrix, asked: list[str]) -> None:
    assert refused(matrix, "someone/bert-small") == [
        "--models someone/bert-small: someone/bert-small cannot be fetched (no route to host) (hub_unreachable)"
    ]
    assert asked == ["someone/bert-small"]


@pytest.mark.parametrize(
    ("make_folder", "reason"),
    [
        (
            lambda folder: checkpoint(folder, {"model_type": "evil", "architectures": ["Evil"], "auto_map": {"AutoConfig": "x.Y"}}),
            "remote_code_refused",
        ),
        (lambda folder: checkpoint(folder, weights="pytorch_model.bin"), "pickle_refused"),
        (lambda folder: checkpoint(folder, weights="notes.txt"), "no_weights"),
        (lambda folder: folder.mkdir(), "no_checkpoint"),
        (lambda _folder: None, "no_checkpoint"),
        (lambda folder: checkpoint(folder, {"model_type": "bert"}), "config_incomplete"),
    ],
)
def test_models_that_cannot_or_must_not_be_loaded_are_refused(
    matrix: LoadedMatrix, here: Path, make_folder: Callable[[Path], object], reason: str
) -> None:
    make_folder(here / "mine")
    (problem,) = refused(matrix, "./mine")
    assert problem.startswith("--models ./mine: ")
    assert problem.endswith(f"({reason})")


@pytest.mark.parametrize(
    ("words", "architectures"),
    [
        (["bert", "vit"], ("bert", "vit")),
        (["speech"], ("whisper", "wav2vec2")),
        (["decoder-only"], ("gpt2", "llama", "llava")),
        (
            ["mixture-of-experts", "state-space", "diffusion"],
            ("mixtral", "mamba", "unet_2d_condition", "autoencoder_kl", "stable-diffusion"),
        ),
        (["t5", "encoder-decoder", "vit"], ("t5", "vit")),
        (["encoder-only"], ("bert", "roberta", "vit", "swin", "clip", "xclip", "videomae")),
    ],
)
def test_architectures_and_structures(matrix: LoadedMatrix, words: list[str], architectures: tuple[str, ...]) -> None:
    assert chosen(matrix, architectures=words).architectures == architectures


def test_every_structure_has_a_model_in_matrix_yaml(matrix: LoadedMatrix) -> None:
    listed = [name for structure in Structure for name in chosen(matrix, architectures=[structure.value]).architectures]
    assert sorted(listed) == sorted({model.architecture for model in matrix.spec.models.values()})


def test_structures_also_select_checkpoints(matrix: LoadedMatrix, here: Path) -> None:
    checkpoint(here / "mine", {"model_type": "falcon_mamba", "architectures": ["FalconMambaForCausalLM"]})
    assert chosen(matrix, "./mine", architectures=["state-space"]).architectures == ("mamba", "falcon_mamba")


def test_an_unknown_architecture_suggests_the_closest_architecture_or_structure(matrix: LoadedMatrix) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(matrix, architectures=["encoder", "encoder-onli", "brt", "vit"])
    first, second, third = map(str, caught.value.problems)
    assert first.startswith("--architectures: 'encoder' is neither in matrix.yaml nor a structure (")
    assert "did you mean 'encoder-only'? allowed: " in second
    assert "did you mean 'bert'?" in third


def test_a_structure_that_no_model_has_selects_nothing(matrix: LoadedMatrix) -> None:
    models = {name: model for name, model in matrix.spec.models.items() if name != "mamba"}
    smaller = dataclasses.replace(matrix, spec=dataclasses.replace(matrix.spec, models=models))
    with pytest.raises(NothingSelectedError, match=r"no model of matrix\.yaml is state-space"):
        chosen(smaller, architectures=["state-space"])


def test_an_unknown_name_suggests_the_closest_one(matrix: LoadedMatrix, asked: list[str]) -> None:
    (problem,) = refused(matrix, "brt")
    assert problem.startswith("--models: 'brt' is not in matrix.yaml (did you mean 'bert'? allowed: bert, clip,")
    assert problem.endswith(
        "; or a type of transformers (hwmatrix types), a class of diffusers, a hub id (owner/name), or a checkpoint's folder)"
    )
    assert asked == []


def test_all_problems_are_reported_together(matrix: LoadedMatrix, asked: list[str]) -> None:
    assert len(refused(matrix, "brt", "a/b", "./nothing", "bert", "a/b/c")) == 4
    assert asked == ["a/b"]


def test_unavailable_weights_are_recorded_in_the_plan(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(plan: Any, _cache: Path) -> Any:
        raise FactoryError(f"{plan.hub_id} cannot be fetched", error_type="hub_unreachable")

    monkeypatch.setattr(hub, "resolve", resolve)
    checkpoint(here / "mine")
    models = (
        make.model_plan("recipe"),
        make.model_plan("far", weights="hub"),
        make.model_plan("near", weights="mine"),
        make.model_plan("gone", weights="gone"),
    )
    plan = fetch_weights(dataclasses.replace(make.plan(), models=models), here)
    assert [model.unbuildable for model in plan.models] == [
        None,
        "owner/far cannot be fetched",
        None,
        f"{here}/gone is not a folder: name a checkpoint's folder",
    ]
    assert [model.weights for model in plan.models] == ["recipe", "hub", str(here / "mine"), "gone"]


@pytest.mark.parametrize(("mode", "isolation"), [(0o600, Isolation.CONTAINER), (0o644, Isolation.CONTAINER), (0o600, Isolation.NONE)])
def test_a_checkpoint_that_the_user_of_containers_cannot_read_is_found_before_anything_is_built(
    here: Path, monkeypatch: pytest.MonkeyPatch, mode: int, isolation: Isolation
) -> None:
    """Root's containers run as a user who owns none of its files."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    weights = checkpoint(here / "mine") / "model.safetensors"
    weights.chmod(mode)
    models = (make.model_plan("near", weights="mine"),)
    (plan,) = fetch_weights(dataclasses.replace(make.plan(), models=models, isolation=isolation), here).models
    if mode == 0o644 or isolation is Isolation.NONE:
        assert plan.unbuildable is None
    else:
        assert plan.unbuildable == f"{weights} cannot be read by the user of containers: chmod -R a+rX {here / 'mine'}"


@pytest.mark.parametrize("name", ["FluxTransformer2DModel", "flux", "type:flux"])
def test_a_class_of_diffusers_is_named_by_its_class_or_its_recipe(matrix: LoadedMatrix, name: str) -> None:
    (plan,) = chosen(matrix, name).types
    assert (plan.name, plan.architecture, plan.model_class) == ("flux", "flux", "FluxTransformer2DModel")
    assert (plan.family, plan.weights, plan.unbuildable) == (Family.DIFFUSION, "factory", None)


def test_a_class_of_diffusers_has_no_full_size(matrix: LoadedMatrix) -> None:
    (plan,) = chosen(matrix, "flux", size=Size.FULL).types
    assert plan.unbuildable is not None
    assert plan.unbuildable.startswith("a model made from its type alone is tiny")


def test_the_suite_of_diffusion_has_every_class_once(matrix: LoadedMatrix) -> None:
    selection = chosen(matrix, suite="diffusion")
    listed = [model.model_class for model in matrix.spec.models.values() if model.family is Family.DIFFUSION]
    classes = [*listed, *(plan.model_class for plan in selection.types)]
    assert len(set(classes)) == len(classes) == 60
    assert {recipe.model_class for recipe in recipes().values()} <= set(classes)
    assert selection.types_of is None, "a newer transformers has no other classes of diffusers"


def test_recipes_have_names_of_their_own() -> None:
    assert recipes().keys() & listing().by_name.keys() == set()
    classes = [recipe.model_class for recipe in recipes().values()]
    assert len(set(classes)) == len(classes)
