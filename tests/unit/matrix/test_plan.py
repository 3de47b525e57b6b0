from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import factory_plans as make
import pytest

from hwmatrix.errors import ConfigError, NothingSelectedError
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.plan import RunFacts, Selection, check_selection, make_plan, replan
from hwmatrix.records import Axes, Dtype, Execution, Isolation, Limits, Plan, Size, cell_command, plan_from_json, to_json
from hwmatrix.records.backends import OnnxUse, descriptors
from hwmatrix.runner import exports
from hwmatrix.targets.onnx.descriptor import EXPORTERS

ROOT = Path(__file__).resolve().parents[3]
FACTS = RunFacts(
    run_id="r1", created_at="2026-01-02T03:04:05", command="hwmatrix matrix", hwmatrix_version="0.1", commit="abc", isolation=Isolation.VENV
)
TEXT = """\
version: 1
sizes:
  tiny: {batch: 1, sequence_length: 16, timeout_s: 10, memory_mb: 100}
  full: {batch: 2, sequence_length: 128, timeout_s: 600, memory_mb: 9000}
tolerances:
  float32: {relative_error: 1.0e-3, reason: rounding}
  float16: {relative_error: 1.0e-2, reason: more rounding}
targets:
  cpu: {backend: cpu, image: cpu, threads: 2}
  gpu: {backend: openvino, image: openvino, dtypes: [float32, float16], execution: emulated, options: {device: GPU}}
models:
  vit: {family: vision, architecture: vit, class: ViTModel, tiny: {timeout_s: 33, memory_mb: 200}}
  bert: {family: embedding, architecture: bert, class: BertModel, full: {batch: 8, sequence_length: 512, memory_mb: 7}}
  deberta: {family: embedding, architecture: bert, class: BertModel, full: {unbuildable: too large}}
suites:
  default: {models: all}
  smoke: {models: [bert, vit]}
  speed: {size: full, models: [bert]}
"""


@pytest.fixture
def matrix(tmp_path: Path) -> LoadedMatrix:
    path = tmp_path / "matrix.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return load(path)


def planned(matrix: LoadedMatrix, **selection: Any) -> list[str]:
    """The plan of a selection, by default on the target cpu."""
    plan = make_plan(matrix, Selection(**({"targets": ("cpu",)} | selection)), FACTS)
    return [f"{cell.model}/{cell.size.value}" for cell in plan.cells]


def test_a_checkpoint_of_matrix_yaml_that_is_not_there_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(TEXT.replace("class: ViTModel,", f"class: ViTModel, weights: {tmp_path}/mine,"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        planned(load(path))
    assert [problem.where for problem in caught.value.problems] == [f"{path}:12"]
    assert planned(load(path), models=("bert",)) == ["bert/tiny"]
    (tmp_path / "mine").mkdir()
    assert len(planned(load(path))) == 3


def test_the_default_suite_is_used_if_nothing_is_selected(matrix: LoadedMatrix) -> None:
    assert planned(matrix) == ["vit/tiny", "bert/tiny", "deberta/tiny"]


def test_suites(matrix: LoadedMatrix) -> None:
    assert planned(matrix, suite="smoke") == ["vit/tiny", "bert/tiny"]
    assert planned(matrix, suite="speed") == ["bert/full"]
    assert planned(matrix, suite="speed", size=Size.TINY) == ["bert/tiny"]


def test_models_are_in_the_file_s_order_without_duplicates(matrix: LoadedMatrix) -> None:
    assert planned(matrix, models=("deberta", "vit", "deberta")) == ["vit/tiny", "deberta/tiny"]
    assert planned(matrix, models=("bert",), suite="speed") == ["bert/full"]
    assert planned(matrix, models=("bert",), size=Size.FULL) == ["bert/full"]


def test_all_models_in_every_size(matrix: LoadedMatrix) -> None:
    assert planned(matrix, everything=True) == [f"{name}/{size}" for name in ("vit", "bert", "deberta") for size in ("tiny", "full")]
    assert planned(matrix, everything=True, size=Size.FULL) == ["vit/full", "bert/full", "deberta/full"]


def test_architectures(matrix: LoadedMatrix) -> None:
    assert planned(matrix, architectures=("bert",)) == ["bert/tiny", "deberta/tiny"]
    assert planned(matrix, architectures=("bert", "vit"), models=("vit",)) == ["vit/tiny"]


def test_targets_and_precisions(matrix: LoadedMatrix) -> None:
    plan = make_plan(matrix, Selection(models=("bert",)), FACTS)
    assert [cell.key for cell in plan.cells] == [
        "bert/tiny/cpu/float32/b1-s16-t2",
        "bert/tiny/gpu/float32/b1-s16-t1",
        "bert/tiny/gpu/float16/b1-s16-t1",
    ]
    gpu = plan.target("gpu")
    assert (gpu.execution, gpu.options, gpu.matrix_line) == (Execution.EMULATED, {"device": "GPU"}, 10)
    assert plan.tolerances.keys() == {Dtype.FLOAT32, Dtype.FLOAT16}


@pytest.mark.parametrize(("option", "export"), [("", "openvino"), (", attention: eager", None), (", export: trace", None)])
def test_a_target_gets_the_graph_of_the_bundle_unless_an_option_asks_for_another(tmp_path: Path, option: str, export: str | None) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(TEXT.replace("{device: GPU}", f"{{device: GPU{option}}}"), encoding="utf-8")
    plan = make_plan(load(path), Selection(models=("bert",)), FACTS)
    assert [target.forward_export for target in plan.targets] == [None, export]


def test_chosen_precisions(matrix: LoadedMatrix) -> None:
    plan = make_plan(matrix, Selection(models=("bert",), dtypes=(Dtype.FLOAT16,)), FACTS)
    assert [cell.key for cell in plan.cells] == ["bert/tiny/gpu/float16/b1-s16-t1"]
    assert [target.name for target in plan.targets] == ["gpu"], "cpu has no cell"
    assert [cell.key for cell in replan(matrix, plan).cells] == ["bert/tiny/gpu/float16/b1-s16-t1"]
    with pytest.raises(ConfigError, match=r"--dtypes: no selected target is tested in float16 \(did you mean 'float32'"):
        make_plan(matrix, Selection(targets=("cpu",), dtypes=(Dtype.FLOAT16,)), FACTS)


def test_varied_settings_give_a_cell_for_every_combination(matrix: LoadedMatrix) -> None:
    axes = Axes(batch=(8, 1, 8), sequence_length=(16, 128), threads=(1, 2))
    plan = make_plan(matrix, Selection(models=("vit", "bert"), targets=("cpu",), axes=axes), FACTS)
    assert plan.axes == Axes(batch=(1, 8), sequence_length=(16, 128), threads=(1, 2))
    assert [cell.key for cell in plan.cells] == [
        f"{model}/tiny/cpu/float32/b{batch}-s{length}-t{threads}"
        for model, batch, length in (
            *(("vit", batch, 16) for batch in (1, 8)),  # it takes no text
            *(("bert", batch, length) for batch in (1, 8) for length in (16, 128)),
        )
        for threads in (1, 2)
    ]
    for cell in plan.cells:
        model = plan.model_of(cell)
        assert (model.name, model.batch, model.sequence_length) == (cell.model, cell.settings.batch, cell.settings.sequence_length)
    assert plan_from_json(to_json(plan), where="plan.json") == plan
    assert replan(matrix, plan) == plan


def test_a_suite_varies_settings_unless_an_option_does(tmp_path: Path) -> None:
    text = TEXT.replace("speed: {", "speed: {settings: {batch: [1, 4], threads: [1]}, ")
    (tmp_path / "matrix.yaml").write_text(text, encoding="utf-8")
    matrix = load(tmp_path / "matrix.yaml")
    assert make_plan(matrix, Selection(suite="speed"), FACTS).axes == Axes(batch=(1, 4), threads=(1,))
    own = make_plan(matrix, Selection(suite="speed", axes=Axes(batch=(2,))), FACTS)
    assert own.axes == Axes(batch=(2,), threads=(1,))
    assert {cell.settings.batch for cell in own.cells} == {2}
    assert make_plan(matrix, Selection(), FACTS).axes == Axes()


def test_models_without_text_have_no_length_to_vary(matrix: LoadedMatrix) -> None:
    with pytest.raises(ConfigError, match="--sequence-length: none of these models takes text: vit"):
        make_plan(matrix, Selection(models=("vit",), axes=Axes(sequence_length=(16, 32))), FACTS)


def test_keys_are_unique(matrix: LoadedMatrix) -> None:
    plan = make_plan(matrix, Selection(everything=True), FACTS)
    assert len({cell.key for cell in plan.cells}) == len(plan.cells) == 3 * 2 * 3


def test_a_duplicate_model_is_refused(matrix: LoadedMatrix) -> None:
    with pytest.raises(ConfigError, match="'bert' is the name of two models"):
        make_plan(matrix, Selection(models=("bert",), extra=(make.model_plan("bert"),)), FACTS)


def test_models_outside_matrix_yaml_run_alone_and_with_others(matrix: LoadedMatrix) -> None:
    extra = (make.model_plan("mine", architecture="mine"),)
    assert planned(matrix, extra=extra) == ["mine/tiny"]
    assert planned(matrix, extra=extra, models=("vit",)) == ["vit/tiny", "mine/tiny"]
    assert planned(matrix, extra=extra, architectures=("mine",)) == ["mine/tiny"]


def test_what_a_cell_is_and_how_its_bundle_is_made_do_not_depend_on_the_other_targets() -> None:
    """So the command of a single cell repeats it, with the limits under which its exports were made."""
    shipped = load(ROOT / "matrix.yaml")
    whole = make_plan(shipped, Selection(targets=tuple(shipped.spec.targets)), FACTS)
    assert len({cell.limits.timeout_s for cell in whole.cells if cell.size is Size.TINY}) > 1, "else this test says nothing"
    for target in whole.targets:
        alone = make_plan(shipped, Selection(targets=(target.name,)), FACTS)
        assert alone.cells == tuple(cell for cell in whole.cells if cell.target == target.name)
        assert alone.models == tuple(model for model in whole.models if any(cell.model_key == model.key for cell in alone.cells))
        assert alone.targets == (target,)
        for cell in alone.cells:
            model = alone.model_of(cell)
            assert model.limits.timeout_s >= cell.limits.timeout_s
            assert cell_command(model, cell, alone) == cell_command(model, cell, whole)


@pytest.mark.parametrize("backend", [each.name for each in descriptors() if each.onnx is not OnnxUse.NONE])
@pytest.mark.parametrize("export", EXPORTERS)
def test_a_target_that_names_an_onnx_export_gets_that_one_alone(tmp_path: Path, backend: str, export: str) -> None:
    target = f"one: {{backend: {backend}, image: onnxruntime, execution: emulated, options: {{export: {export}}}}}"
    (tmp_path / "matrix.yaml").write_text(TEXT.replace("targets:", f"targets:\n  {target}"), encoding="utf-8")
    plan = make_plan(load(tmp_path / "matrix.yaml"), Selection(targets=("one",), models=("bert",)), FACTS)
    assert exports.wanted(plan) == set()
    assert exports.wanted_by_name(plan) == {plan.models[0].key: (export,)}
    assert exports.of_canaries(plan) == (export,)


def test_a_model_s_limits_and_settings_override_those_of_its_size(matrix: LoadedMatrix) -> None:
    plan = make_plan(matrix, Selection(everything=True, targets=("cpu",)), FACTS)
    cells = {f"{cell.model}/{cell.size.value}": cell for cell in plan.cells}
    assert cells["vit/tiny"].limits == Limits(timeout_s=33, memory_mb=200)
    assert cells["bert/tiny"].limits == Limits(timeout_s=10, memory_mb=100)
    assert cells["bert/full"].limits == Limits(timeout_s=600, memory_mb=7)
    settings = cells["bert/full"].settings
    assert (settings.batch, settings.sequence_length, settings.threads) == (8, 512, 2)
    assert cells["vit/full"].settings.sequence_length == 128


def test_an_unbuildable_model_stays_in_the_plan_with_its_reason(matrix: LoadedMatrix) -> None:
    plan = make_plan(matrix, Selection(models=("deberta",), size=Size.FULL), FACTS)
    assert plan.models[0].unbuildable == "too large"
    assert len(plan.cells) == 3


def test_an_unavailable_target_stays_in_the_plan_with_its_reason(matrix: LoadedMatrix) -> None:
    facts = dataclasses.replace(FACTS, unavailable={"gpu": "no such device"})
    plan = make_plan(matrix, Selection(), facts)
    assert [target.unavailable for target in plan.targets] == [None, "no such device"]
    assert sum(cell.target == "gpu" for cell in plan.cells) == 6


def test_all_unknown_names_are_reported_together(matrix: LoadedMatrix) -> None:
    wrong = Selection(models=("brt", "zzz"), targets=("cpo",), architectures=("vut",), suite="smok")
    with pytest.raises(ConfigError) as caught:
        check_selection(matrix, wrong)
    assert [str(problem) for problem in caught.value.problems] == [
        "--models: 'brt' is not in matrix.yaml (did you mean 'bert'? allowed: bert, deberta, vit)",
        "--models: 'zzz' is not in matrix.yaml (allowed: bert, deberta, vit)",
        "--targets: 'cpo' is not in matrix.yaml (did you mean 'cpu'? allowed: cpu, gpu)",
        "--architectures: 'vut' is not in matrix.yaml (did you mean 'vit'? allowed: bert, vit)",
        "--suite: 'smok' is not in matrix.yaml (did you mean 'smoke'? allowed: default, smoke, speed)",
    ]


def test_an_empty_selection_is_an_error(matrix: LoadedMatrix) -> None:
    with pytest.raises(NothingSelectedError):
        planned(matrix, models=("bert",), architectures=("vit",))


def test_without_a_default_suite_one_must_be_given(matrix: LoadedMatrix, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(TEXT.replace("  default:", "  main:"), encoding="utf-8")
    other = load(path)
    with pytest.raises(ConfigError, match="name one with --suite: main, smoke, speed"):
        planned(other)
    assert planned(other, suite="smoke")
    assert len(matrix.spec.suites) == 3


def test_the_runner_can_read_a_plan(matrix: LoadedMatrix) -> None:
    plan: Plan = make_plan(matrix, Selection(everything=True), FACTS)
    assert plan_from_json(to_json(plan), where="p") == plan
    assert (plan.run_id, plan.matrix_sha256, plan.commit) == ("r1", matrix.sha256, "abc")


GENERATING = """
version: 1
sizes:
  tiny: {new_tokens: 8}
  full: {}
tolerances:
  float32: {relative_error: 1.0e-3, reason: a test}
targets:
  cpu: {backend: cpu, image: cpu}
  qnn: {backend: qnn, image: qnn, dtypes: [float32]}
models:
  bert: {family: embedding, architecture: bert, class: BertForMaskedLM}
  t5: {family: text_generation, architecture: t5, class: T5ForConditionalGeneration}
  gpt2: {family: text_generation, architecture: gpt2, class: GPT2LMHeadModel}
suites:
  default: {models: all}
  once: {models: all, generation: false}
  full: {models: [gpt2], size: full}
"""


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, ["t5/cpu/8", "t5/qnn/8", "gpt2/cpu/8", "gpt2/qnn/8"]),
        ({"models": ("gpt2",)}, ["gpt2/cpu/8", "gpt2/qnn/8"]),
        ({"generation": False}, []),
        ({"suite": "once"}, []),
        ({"suite": "once", "generation": True}, ["t5/cpu/8", "t5/qnn/8", "gpt2/cpu/8", "gpt2/qnn/8"]),
        ({"suite": "full"}, []),  # its size asks for no tokens
    ],
)
def test_models_that_generate_have_a_second_cell_where_a_target_can_or_says_why_not(
    tmp_path: Path, selection: dict[str, Any], expected: list[str]
) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(GENERATING, encoding="utf-8")
    plan = make_plan(load(path), Selection(**selection), FACTS)
    once = [cell for cell in plan.cells if not cell.settings.new_tokens]
    generating = [cell for cell in plan.cells if cell.settings.new_tokens]
    assert [f"{cell.model}/{cell.target}/{cell.settings.new_tokens}" for cell in generating] == expected
    assert len({cell.key for cell in plan.cells}) == len(plan.cells)
    for cell in generating:
        (same,) = [other for other in once if (other.model, other.target) == (cell.model, cell.target)]
        assert cell.key == f"{same.key}-n8"
    asked = {model.name for model in plan.models if model.new_tokens}
    assert asked == {name.partition("/")[0] for name in expected}


def test_a_stale_run_keeps_generating(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(GENERATING, encoding="utf-8")
    for chosen in ({"generation": True}, {"generation": False}, {"forward": False}):
        old = make_plan(load(path), Selection(**chosen), FACTS)
        assert replan(load(path), old).cells == old.cells


def test_a_run_can_generate_alone(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(GENERATING, encoding="utf-8")
    whole, alone = (make_plan(load(path), Selection(forward=forward), FACTS) for forward in (True, False))
    assert alone.cells == tuple(cell for cell in whole.cells if cell.settings.new_tokens)
    assert {model.name for model in alone.models} == {"t5", "gpt2"} < {model.name for model in whole.models}


@pytest.mark.parametrize("selection", [{"generation": False}, {"suite": "full"}])
def test_a_run_that_would_generate_alone_needs_models_that_can(tmp_path: Path, selection: dict[str, Any]) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(GENERATING, encoding="utf-8")
    with pytest.raises(NothingSelectedError) as caught:
        make_plan(load(path), Selection(forward=False, **selection), FACTS)
    assert "--no-forward" in caught.value.advice


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, {"cpu"}),
        ({"suite": "default", "models": ("bert",)}, {"cpu"}),
        ({"suite": "smoke"}, {"cpu", "gpu"}),
        ({"models": ("bert",)}, {"cpu", "gpu"}),
        ({"targets": ("gpu",)}, {"gpu"}),
        ({"targets": ("gpu", "cpu"), "suite": "default"}, {"cpu", "gpu"}),
    ],
)
def test_a_suite_leaves_out_targets_that_the_selection_does_not_name(tmp_path: Path, selection: dict[str, Any], expected: set[str]) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(TEXT.replace("default: {models: all}", "default: {models: all, exclude_targets: [gpu]}"), encoding="utf-8")
    plan = make_plan(load(path), Selection(**selection), FACTS)
    assert {cell.target for cell in plan.cells} == {target.name for target in plan.targets} == expected
    assert replan(load(path), plan).cells == plan.cells


PRECISE = (
    TEXT.replace("options: {device: GPU}", "more_dtypes: [int8, int4], options: {device: GPU}")
    .replace("tolerances:", "tolerances:\n  int8: {relative_error: 0.1, reason: r}\n  int4: {relative_error: 0.5, reason: r}")
    .replace("  smoke:", "  every: {models: [bert], dtypes: all}\n  some: {models: [bert], dtypes: {gpu: [int4]}}\n  smoke:")
)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, ["float32", "float16"]),
        ({"suite": "every"}, ["float32", "float16", "int8", "int4"]),
        ({"suite": "some"}, ["float32", "float16", "int4"]),
        ({"dtypes": (Dtype.INT8,)}, ["int8"]),
        ({"suite": "every", "dtypes": (Dtype.INT8, Dtype.FLOAT32)}, ["float32", "int8"]),
    ],
)
def test_a_suite_adds_precisions(tmp_path: Path, selection: dict[str, Any], expected: list[str]) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(PRECISE, encoding="utf-8")
    matrix = load(path)
    plan = make_plan(matrix, Selection(**({"targets": ("gpu",), "models": ("bert",)} | selection)), FACTS)
    assert [cell.settings.dtype.value for cell in plan.cells] == expected
    again = replan(matrix, plan)
    assert [cell.key for cell in again.cells] == [cell.key for cell in plan.cells]
