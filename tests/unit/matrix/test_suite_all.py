"""Suite ``all``, and transformers types as models: from the arguments to the plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import fake_types as fake
import pydantic
import pytest
import safetensors.numpy

from hwmatrix.app.selecting import fetch_weights, select
from hwmatrix.errors import ConfigError, NothingSelectedError
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.plan import RunFacts, make_plan, replan
from hwmatrix.matrix.spec import PartialMeasureSpec
from hwmatrix.models.factory.pins import newest
from hwmatrix.models.factory.rules import Override
from hwmatrix.models.types import listing
from hwmatrix.records import Family, Isolation, MeasureRule, ModelPlan, Plan, Size, cell_command, plan_from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTS = RunFacts(
    run_id="r1", created_at="2026-01-02T03:04:05", command="hwmatrix matrix", hwmatrix_version="0.1", commit="abc", isolation=Isolation.VENV
)
MATRIX = """\
version: 1
sizes: {tiny: {batch: 2, sequence_length: 16}, full: {sequence_length: 128}}
tolerances: {float32: {relative_error: 1.0e-3, reason: rounding}}
targets:
  cpu: {backend: cpu, image: cpu}
  openvino: {backend: openvino, image: openvino}
models:
  bert: {family: embedding, architecture: bert, class: BertForMaskedLM}
  mamba2: {family: text_generation, architecture: llama, class: LlamaForCausalLM}
  time: {family: other, architecture: timesfm, class: TimesFmModel, tiny: {unbuildable: it would take a year}}
suites:
  default: {models: all}
  all: {models: types, timing: false}
  slow: {models: types}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    fake.install(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    fake.override_all(monkeypatch, {})


@pytest.fixture
def matrix(here: Path) -> LoadedMatrix:
    return written(here, MATRIX)


def written(folder: Path, text: str) -> LoadedMatrix:
    (folder / "matrix.yaml").write_text(text, encoding="utf-8")
    return load(folder / "matrix.yaml")


def planned(matrix: LoadedMatrix, *models: str, **options: Any) -> Plan:
    selection = select(matrix, models=models, cache=Path("cache"), **options)
    return fetch_weights(make_plan(matrix, selection, FACTS), Path("cache"))


def model_named(plan: Plan, name: str) -> ModelPlan:
    (found,) = (model for model in plan.models if model.name == name)
    return found


def names(plan: Plan) -> list[str]:
    return [model.name for model in plan.models]


def refused(matrix: LoadedMatrix, *models: str, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        planned(matrix, *models, **options)
    return [str(problem) for problem in caught.value.problems]


def test_the_suite_has_matrix_yaml_and_every_type_that_it_lacks(matrix: LoadedMatrix) -> None:
    plan = planned(matrix, suite="all")
    assert names(plan) == ["bert", "mamba2", "time", "gemma3", "gpt2", "type:mamba2", "timesfm"]
    assert [cell.target for cell in plan.cells[:2]] == ["cpu", "openvino"]
    assert len(plan.cells) == 14
    assert (plan.timing, plan.types_of) == (False, fake.VERSION)
    assert model_named(plan, "gemma3") == ModelPlan(
        name="gemma3",
        selector="gemma3",
        size=Size.TINY,
        family=Family.MULTIMODAL,
        architecture="gemma3",
        model_class="Gemma3ForConditionalGeneration",
        weights="factory",
        batch=2,
        sequence_length=16,
    )


def test_an_entry_named_like_a_type_keeps_its_name_and_the_type_is_still_covered(matrix: LoadedMatrix) -> None:
    plan = planned(matrix, suite="all")
    assert model_named(plan, "mamba2").architecture == "llama"
    renamed = model_named(plan, "type:mamba2")
    assert (renamed.architecture, renamed.selector, renamed.weights) == ("mamba2", "type:mamba2", "factory")
    assert names(planned(matrix, "mamba2", "type:mamba2")) == ["mamba2", "type:mamba2"]


def test_an_entry_that_is_unbuildable_when_tiny_covers_no_type(matrix: LoadedMatrix) -> None:
    assert {"time", "timesfm"} <= set(names(planned(matrix, suite="all")))


def test_overrides_set_the_length_and_exclude_types(matrix: LoadedMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = {
        "gpt2": Override(reason="for this test", sequence=48),
        "gemma3": Override(reason="for this test", impossible="it needs a package that nobody has"),
    }
    fake.override_all(monkeypatch, overrides)
    plan = planned(matrix, "gpt2", "gemma3")
    assert model_named(plan, "gpt2").sequence_length == 48
    assert {cell.settings.sequence_length for cell in plan.cells if cell.model == "gpt2"} == {48}
    assert model_named(plan, "gemma3").unbuildable == "it needs a package that nobody has"


def test_types_by_name(matrix: LoadedMatrix) -> None:
    plan = planned(matrix, "gpt2", "bert", "gemma3", "type:gpt2")
    assert names(plan) == ["bert", "gpt2", "gemma3"]
    assert (plan.timing, plan.types_of) == (True, None)
    assert names(planned(matrix, "gemma3", suite="all")) == ["gemma3"]
    assert planned(matrix, "gemma3", suite="all").timing is False
    assert names(planned(matrix, "type:bert")) == ["type:bert"]  # the type itself, not its entry


def test_a_folder_named_like_a_type_is_a_checkpoint(matrix: LoadedMatrix, here: Path) -> None:
    (here / "gpt2").mkdir()
    (problem,) = refused(matrix, "gpt2")
    assert "config.json" in problem
    assert names(planned(matrix, "type:gpt2")) == ["gpt2"]


def test_a_checkpoint_is_in_no_suite(matrix: LoadedMatrix, here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "config.json").write_text('{"model_type": "bert", "architectures": ["BertForMaskedLM"]}', encoding="utf-8")
    (here / "mine" / "model.safetensors").write_bytes(safetensors.numpy.save({}))
    (problem,) = refused(matrix, "./mine", suite="all")
    assert problem.startswith("--suite all: mine is not in it")
    assert names(planned(matrix, "./mine")) == ["mine"]


@pytest.mark.parametrize(
    ("name", "near"), [("gema3", "did you mean 'gemma3'?"), ("type:gpt3", "did you mean 'gpt2'?"), ("brt", "did you mean 'bert'?")]
)
def test_suggestions_come_from_names_and_types(matrix: LoadedMatrix, name: str, near: str) -> None:
    (problem,) = refused(matrix, name)
    assert problem.startswith(f"--models: {name!r} is not in matrix.yaml ({near} allowed: bert, mamba2, time; or a type of transformers")


@pytest.mark.parametrize(("asked", "timing"), [(None, False), (True, True), (False, False)])
def test_timing_can_be_enabled(matrix: LoadedMatrix, asked: bool | None, timing: bool) -> None:  # noqa: FBT001
    assert planned(matrix, suite="all", timing=asked).timing is timing
    assert planned(matrix, suite="slow").timing is True
    assert planned(matrix, timing=False).timing is False


def test_architectures_also_select_types(matrix: LoadedMatrix) -> None:
    assert names(planned(matrix, suite="all", architectures=["gemma3", "bert"])) == ["bert", "gemma3"]
    plan = planned(matrix, suite="all", architectures=["state-space"])
    assert names(plan) == ["type:mamba2"]
    assert plan.types_of is None  # only some of them
    (problem,) = refused(matrix, architectures=["gemma3"])
    assert problem.endswith("nor a structure (it is a type of transformers: --models gemma3)")
    (problem,) = refused(matrix, suite="all", architectures=["gema3"])
    assert "did you mean 'gemma3'?" in problem
    with pytest.raises(NothingSelectedError):
        planned(matrix, suite="all", architectures=["diffusion"])


def test_types_have_no_full_size(matrix: LoadedMatrix) -> None:
    (problem,) = refused(matrix, suite="all", size=Size.FULL)
    assert problem.startswith("--size: a suite of all types of transformers is tiny")
    plan = planned(matrix, "gemma3", "bert", size=Size.FULL)
    assert model_named(plan, "bert").unbuildable is None
    assert "give it an entry in matrix.yaml" in str(model_named(plan, "gemma3").unbuildable)
    assert model_named(plan, "gemma3").sequence_length == 128


def test_a_suite_of_types_in_full_size_is_a_mistake_in_matrix_yaml(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"matrix\.yaml:13: suite 'all' has models: types in size full \(a model made from its type"):
        written(here, MATRIX.replace("{models: types, timing: false}", "{models: types, size: full}"))


def test_the_command_of_a_type_s_cell_repeats_only_this_cell(matrix: LoadedMatrix) -> None:
    plan = planned(matrix, suite="all")
    for name in ("gemma3", "type:mamba2"):
        model = model_named(plan, name)
        cell = next(cell for cell in plan.cells if cell.model == name and cell.target == "openvino")
        command = cell_command(model, cell, plan)
        assert command == f"nox -s matrix -- --models {name} --size tiny --targets openvino --dtypes float32 --isolation venv --no-timing"
        again = planned(matrix, name, size=Size.TINY, targets=["openvino"], timing=False)
        assert (again.cells, again.models, again.timing) == ((cell,), (model,), False)


def test_a_plan_of_types_round_trips(matrix: LoadedMatrix) -> None:
    plan = planned(matrix, suite="all")
    plan.model_of(plan.cells[0])  # lookup tables are not part of the plan
    again = plan_from_json(to_json(plan), where="plan.json")
    assert again == plan
    with pytest.raises(KeyError):
        again.model_of(dataclasses.replace(plan.cells[0], size=Size.FULL))


def told(matrix: LoadedMatrix) -> list[str]:
    """The printed output; by default the images have the installed version of transformers."""
    if not Path("images").exists():
        Path("images").mkdir()
        Path("images/constraints.txt").write_text(f"transformers=={listing().version}\n", encoding="utf-8")
    lines: list[str] = []
    select(matrix, models=(), suite="all", cache=Path("cache"), say=lines.append)
    return lines


def test_new_and_removed_types_are_reported_in_one_line(matrix: LoadedMatrix) -> None:
    (line,) = told(matrix)
    since, gone = newest().version, len(newest().types) - 5
    assert line.startswith(f"transformers 9.9.0 has no pinned list; since {since}: 0 types new, {gone} gone, ")
    assert line.endswith(f"(hwmatrix types --compare {since})")


def test_images_with_another_version_are_reported(matrix: LoadedMatrix, here: Path) -> None:
    (here / "images").mkdir()
    (here / "images" / "constraints.txt").write_text("tokenizers==1\ntransformers==9.8.0 ; sys_platform == 'linux'\n", encoding="utf-8")
    assert told(matrix)[-1] == "the types are those of transformers 9.9.0, but the images have 9.8.0: install the same version here"
    (here / "images" / "constraints.txt").write_text("transformers==9.9.0\n", encoding="utf-8")
    assert len(told(matrix)) == 1


def test_without_transformers_the_pinned_list_is_used_and_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch, matrix: LoadedMatrix
) -> None:
    fake.install(monkeypatch, here, "")
    plan = planned(matrix, suite="all")
    assert plan.types_of == newest().version
    assert len(plan.models) > 600
    (line,) = told(matrix)
    assert f"the types are those of {newest().version}" in line


def types_now(matrix: LoadedMatrix) -> tuple[ModelPlan, ...]:
    from hwmatrix.app.type_models import TypeModels

    return TypeModels.beside(matrix.spec).every()


def test_a_run_of_all_types_follows_transformers(matrix: LoadedMatrix, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = planned(matrix, suite="all")
    moved = {table: {kind: name for kind, name in kinds.items() if kind != "gpt2"} for table, kinds in fake.TABLES.items()}
    moved["CAUSAL_LM"] |= {"llama9": "Llama9ForCausalLM", "gemma3": "Gemma3ForCausalLM"}
    moved["IMAGE_TEXT_TO_TEXT"] = {"gemma3": "Gemma3ForBoth"}
    fake.install(monkeypatch, here, fake.text_of(moved), version="9.9.1")
    new = replan(matrix, old, types=types_now(matrix), types_of="9.9.1")
    assert names(new) == ["bert", "mamba2", "time", "gemma3", "type:mamba2", "timesfm", "llama9"]
    assert model_named(new, "gemma3").model_class == "Gemma3ForBoth"
    assert (new.types_of, new.timing, new.run_id) == ("9.9.1", False, "r1")
    assert {cell.model for cell in new.cells} == set(names(new))


def test_a_run_of_some_types_gets_no_others(matrix: LoadedMatrix) -> None:
    old = planned(matrix, "gpt2", "gemma3", timing=False)
    gone = tuple(model for model in types_now(matrix) if model.name != "gpt2")
    new = replan(matrix, old, types=gone, types_of="9.9.1")
    lost = {cell.key for cell in old.cells} - {cell.key for cell in new.cells}
    assert lost
    assert set(new.withdrawn) == lost == set(replan(matrix, new, types=gone, types_of="9.9.1").withdrawn)
    assert (names(new), new.types_of, new.timing) == (["gemma3"], None, False)
    full = planned(matrix, "gemma3", size=Size.FULL)
    assert replan(matrix, full, types=types_now(matrix)).models == full.models


def test_a_type_that_matrix_yaml_now_lists_is_its_entry(matrix: LoadedMatrix, here: Path) -> None:
    old = planned(matrix, suite="all")
    entry = "  gemma3: {family: text_generation, architecture: gemma3, class: Gemma3ForCausalLM}\nsuites:\n"
    listed = written(here, MATRIX.replace("suites:\n", entry))
    new = replan(listed, old, types=types_now(listed), types_of=fake.VERSION)
    assert [model.model_class for model in new.models if model.architecture == "gemma3"] == ["Gemma3ForCausalLM"]
    assert model_named(new, "gemma3").weights == "recipe"


def test_650_types_on_8_targets_are_planned(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {"CAUSAL_LM": {f"brand{number}": f"Brand{number}ForCausalLM" for number in range(650)}}
    fake.install(monkeypatch, here, fake.text_of(many))
    targets = "".join(f"  t{number}: {{backend: cpu, image: cpu}}\n" for number in range(8))
    matrix = written(here, MATRIX.replace("targets:\n", f"targets:\n{targets}"))
    plan = planned(matrix, suite="all", targets=[f"t{number}" for number in range(8)])
    for cell in plan.cells:
        assert plan.model_of(cell).name == cell.model
        assert plan.target(cell.target).name == cell.target
    assert len(plan.cells) == 653 * 8


RULE: Final = "measure: {warmup_s: 0.2, min_s: 0.4, max_s: 2.0}\nsuites:"
QUICK: Final = MATRIX.replace("suites:", RULE) + "  quick: {models: types, measure: {min_s: 0.1, max_s: 1.0, min_samples: 5}}\n"
OF_ALL: Final = MeasureRule(warmup_s=0.2, min_s=0.4, max_s=2.0)
OF_QUICK: Final = MeasureRule(warmup_s=0.2, min_s=0.1, max_s=1.0, min_samples=5)


def test_a_suite_s_measure_overrides_that_of_the_matrix(here: Path) -> None:
    matrix = written(here, QUICK)
    for chosen in ({"suite": "quick"}, {"suite": "quick", "timing": False}):
        plan = planned(matrix, **chosen)
        assert (plan.measure, plan.measure_of) == (OF_QUICK, "quick")
    assert planned(matrix, "bert", suite="quick").measure == OF_QUICK
    for models, chosen in (((), {}), (("bert", "gemma3"), {}), ((), {"suite": "slow"}), ((), {"everything": True})):
        plan = planned(matrix, *models, **chosen)
        assert (plan.measure, plan.measure_of) == (OF_ALL, None)


def test_the_selected_suite_s_measure_applies(here: Path) -> None:
    matrix = written(here, QUICK.replace("default: {models: all}", "default: {measure: {max_s: 0.5}}"))
    assert (planned(matrix).measure.max_s, planned(matrix).measure_of) == (0.5, "default")
    assert planned(matrix, "bert").measure == OF_ALL


def test_a_plan_keeps_its_measure_until_it_is_replanned(here: Path) -> None:
    matrix = written(here, QUICK)
    old = planned(matrix, suite="quick")
    assert plan_from_json(to_json(old), where="plan.json") == old
    types = {"types": types_now(matrix), "types_of": fake.VERSION}
    assert replan(matrix, old, **types).measure == OF_QUICK
    changed = replan(written(here, QUICK.replace("min_samples: 5", "min_samples: 7")), old, **types)
    assert (changed.measure.min_samples, changed.measure_of) == (7, "quick")
    gone = replan(written(here, QUICK.replace("quick:", "quicker:")), old, **types)
    assert (gone.measure, gone.measure_of) == (OF_ALL, None)


def test_the_command_repeats_a_cell_with_its_suite_s_measure(here: Path) -> None:
    matrix = written(here, QUICK.replace("quick: {models: types,", "quick: {models: types, timing: false,"))
    plan = planned(matrix, suite="quick", timing=True)
    for name in ("bert", "gemma3"):
        cell = next(cell for cell in plan.cells if cell.model == name and cell.target == "cpu")
        command = cell_command(model_named(plan, name), cell, plan)
        assert (
            command
            == f"nox -s matrix -- --models {name} --size tiny --targets cpu --dtypes float32 --isolation venv --suite quick --timing"
        )
        again = planned(matrix, name, suite="quick", size=Size.TINY, targets=["cpu"], timing=True)
        assert (again.cells, again.measure, again.timing) == ((cell,), OF_QUICK, True)


def test_a_suite_s_measure_has_the_same_keys_and_limits_as_the_matrix_s() -> None:
    def limits(kind: Any) -> dict[str, Any]:
        found = pydantic.TypeAdapter(kind).json_schema()["properties"]
        return {name: each.get("anyOf", [each])[0] | {"default": None, "title": None} for name, each in found.items()}

    assert limits(PartialMeasureSpec) == limits(MeasureRule)
    assert PartialMeasureSpec().over(OF_ALL) == OF_ALL
