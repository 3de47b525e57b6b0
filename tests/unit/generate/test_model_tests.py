"""Generated tests: their names, their content, and that model names are never executed as code."""

from __future__ import annotations

import ast
import copy
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import fake_types
import jinja2
import pytest

from hwmatrix.app.clearing import clear_cached
from hwmatrix.basics.cache_folder import bundles_folder
from hwmatrix.classifier.answers import template_for
from hwmatrix.errors import ConfigError
from hwmatrix.generate import model_tests as generate
from hwmatrix.generate import test_plan
from hwmatrix.generate.literals import WIDTH, literal
from hwmatrix.generate.model_tests import GeneratedTest, generate_test
from hwmatrix.generate.rendering import comment, file_for, mark, plain, rows, slug, write_templates
from hwmatrix.generate.test_plan import Wish
from hwmatrix.knowledge.requirements import RequirementsError
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.matrix.spec import VariantSpec
from hwmatrix.models.bundle import plan_part
from hwmatrix.records import Basis, Dtype, Family, ModelPlan, Requirements, Size

SPEC = load(Path(__file__).parents[3] / "matrix.yaml").spec
BUILDABLE = [name for name, model in SPEC.models.items() if model.tiny.unbuildable is None]
EVIL = 'we"ird\'s {{ 1234567*7 }} {% raw %}\n"""\\x0a#é☃'
TEMPLATES = Path(generate.__file__).parent / "templates" / "tests"


def needs(memory_mb: int = 300) -> Requirements:
    return Requirements(
        model_name="m",
        hardware="cpu",
        dtype=Dtype.FLOAT32,
        batch=1,
        sequence_length=16,
        memory_kind="host",
        min_memory_mb=memory_mb,
        recommended_memory_mb=memory_mb * 2,
        cpu_cores=1,
        disk_space_mb=1,
        batch_size=4,
        parameters=1,
        basis=Basis.ESTIMATED,
        note="a test",
    )


@pytest.fixture(autouse=True)
def no_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the estimate of a model's requirements, which would need torch."""
    monkeypatch.setattr(test_plan, "requirements_for", lambda *_, **__: needs())


def generated(model: str, folder: Path, **wish: Any) -> tuple[GeneratedTest, dict[str, Any]]:
    """A generated test and the constants at its top."""
    made = generate_test(model, spec=SPEC, folder=folder, wish=Wish(**wish))
    tree = ast.parse(made.path.read_text(encoding="utf-8"))
    constants = {
        node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return made, constants


def arguments(call: ast.expr) -> dict[str, Any]:
    assert isinstance(call, ast.Call)
    return {str(each.arg): each.value for each in call.keywords}


def plan_in(constants: dict[str, Any]) -> ModelPlan:
    """The model plan in a test, read without executing the test."""
    given = arguments(constants["MODEL"])
    enums = {"size": Size, "family": Family}
    values = {
        name: enums[name][value.attr] if name in enums and isinstance(value, ast.Attribute) else ast.literal_eval(value)
        for name, value in given.items()
    }
    return ModelPlan(**values)


def devices_in(constants: dict[str, Any]) -> list[str]:
    return [ast.literal_eval(arguments(place)["device"]) for place in constants["PLACES"].elts]


@pytest.mark.parametrize("name", BUILDABLE)
def test_every_model_s_test_contains_the_model_of_matrix_yaml(tmp_path: Path, name: str) -> None:
    made, constants = generated(name, tmp_path)
    held, wanted = plan_in(constants), model_plan(name, SPEC, Size.TINY)
    assert held == dataclasses.replace(wanted, selector="")
    assert made.path == tmp_path / f"test_hf_{name.replace('-', '_')}.py"
    assert made.template == f"hf_{wanted.family.value}_template.py"
    assert devices_in(constants) == list(made.devices)
    assert made.devices[-1] == "cpu"


def test_there_is_a_template_for_every_family() -> None:
    assert {path.name for path in TEMPLATES.glob("hf_*")} == {f"hf_{family.value}_template.py.j2" for family in Family}


@pytest.mark.parametrize("family", Family)
def test_any_jinja2_environment_renders_the_recommended_template(tmp_path: Path, family: Family) -> None:
    """Like another test generator: with a plain environment and a classification, or only the name."""
    write_templates(tmp_path)
    template = jinja2.Environment(loader=jinja2.FileSystemLoader(tmp_path)).get_template(str(template_for(family)))  # noqa: S701
    given = {
        "model_name": EVIL,
        "model_family": family.value,
        "model_subfamily": "causal_lm",
        "recommended_hardware": "cuda",
        "resource_requirements": {"min_memory_mb": None, "note": EVIL},
        "torch_device": "cuda:0",
    }
    for values in (given, {"model_name": EVIL}):
        tree = ast.parse(template.render(values))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "described"]
        assert [ast.literal_eval(argument) for argument in calls[0].args] == [EVIL, values.get("recommended_hardware")]
        tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert "test_outputs_agree_with_the_reference" in tests


@pytest.mark.parametrize(
    ("name", "subfamily", "present", "absent"),
    [
        ("bert-base-uncased", "masked_lm", "test_masked_tokens_change_nothing", "test_the_cache_changes_nothing"),
        ("google/canine-s", None, "test_every_token_sees_every_other", "test_masked_tokens_change_nothing"),
        ("gpt2", "causal_lm", "test_the_cache_changes_nothing", "test_the_encoder_affects_the_decoder"),
        ("t5-small", "seq2seq_lm", "test_the_encoder_affects_the_decoder", "test_every_token_sees_every_other"),
        ("vit", "image_classifier", "test_the_class_is_that_of_the_reference", "test_every_frame_matters"),
        ("clip", "contrastive", "test_similarities_are_symmetric", "test_the_cache_changes_nothing"),
    ],
)
def test_the_classification_determines_the_tests(tmp_path: Path, name: str, subfamily: str | None, present: str, absent: str) -> None:
    write_templates(tmp_path)
    family = {"vit": "vision", "clip": "multimodal", "gpt2": "text_generation", "t5-small": "text_generation"}.get(name, "embedding")
    template = jinja2.Environment(loader=jinja2.FileSystemLoader(tmp_path)).get_template(f"hf_{family}_template.py")  # noqa: S701
    text = template.render(model_name=name, model_subfamily=subfamily)
    assert f"def {present}(" in text
    assert f"def {absent}(" not in text


@pytest.mark.parametrize(
    ("name", "present", "absent"),
    [
        ("bert", ["test_masked_tokens_change_nothing", "test_every_token_sees_every_other"], ["generation", "causal"]),
        ("gpt2", ["test_a_later_token_changes_nothing_before_it", "test_the_cache_changes_nothing"], ["experts", "encoder"]),
        ("mixtral", ["test_tokens_reach_several_experts", "test_both_ways_to_compute_experts_agree"], ["the_state_"]),
        ("mamba", ["test_the_state_changes_nothing"], ["the_cache_changes", "experts"]),
        ("t5", ["test_the_encoder_affects_the_decoder", "at its first position"], ["at its last position"]),
        ("whisper", ["test_silence_gives_finite_and_different_numbers", "test_the_cache_changes_nothing"], ["number_of_frames"]),
        ("wav2vec2", ["test_the_number_of_frames_matches_the_length_of_the_sound"], ["generation"]),
        ("clip", ["test_permuted_images_give_permuted_rows"], ["generation"]),
        ("llava", ["test_image_and_text_both_matter", "test_the_cache_changes_nothing"], ["similarities"]),
        ("xclip", ["test_the_order_of_the_frames_matters", "logits_per_video"], ["test_the_class_is"]),
        ("videomae", ["test_every_frame_matters", "test_the_class_is_that_of_the_reference"], ["similarities"]),
    ],
)
def test_each_structure_has_its_tests(tmp_path: Path, name: str, present: list[str], absent: list[str]) -> None:
    text = generated(name, tmp_path)[0].path.read_text(encoding="utf-8")
    assert [each for each in present if each not in text] == []
    assert [each for each in absent if each in text] == []


def test_devices_come_from_the_priorities_with_the_settings_of_their_target(tmp_path: Path) -> None:
    _, constants = generated("vit", tmp_path)
    places = {ast.literal_eval(arguments(place)["device"]): arguments(place) for place in constants["PLACES"].elts}
    assert list(places) == ["cuda", "rocm", "mps", "openvino", "qnn", "cpu"]
    assert ast.unparse(places["qnn"]["dtype"]) == "Dtype.FLOAT16"
    assert ast.literal_eval(places["qnn"]["tolerance"]) == SPEC.tolerances[Dtype.FLOAT16].relative_error
    assert ast.literal_eval(places["qnn"]["options"]) == {"soc_model": 57}
    assert ast.unparse(places["cuda"]["dtype"]) == "Dtype.FLOAT32"
    assert ast.literal_eval(places["cpu"]["memory_mb"]) == 300


def test_one_device_can_be_fixed(tmp_path: Path) -> None:
    made, constants = generated("bert", tmp_path, device="webgpu")
    assert made.devices == ("webgpu",)
    assert devices_in(constants) == ["webgpu"]
    assert generated("bert", tmp_path, device="auto")[0].devices == ("cuda", "rocm", "mps", "cpu")
    with pytest.raises(ConfigError, match="'gpu' is not a hardware name"):
        generate_test("bert", spec=SPEC, folder=tmp_path, wish=Wish(device="gpu"))


def test_the_pool_keeps_the_model_for_the_requested_time(tmp_path: Path) -> None:
    assert ast.literal_eval(generated("bert", tmp_path)[1]["POOL_TIMEOUT_MIN"]) == 30.0
    assert ast.literal_eval(generated("bert", tmp_path, timeout_min=0.5)[1]["POOL_TIMEOUT_MIN"]) == 0.5


def test_unknown_memory_is_not_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Requirements:
        raise RequirementsError("nothing is known", advice="measure it")

    monkeypatch.setattr(test_plan, "requirements_for", unknown)
    _, constants = generated("bert", tmp_path)
    assert all("memory_mb" not in arguments(place) for place in constants["PLACES"].elts)
    assert "memory that it needs" not in (tmp_path / "test_hf_bert.py").read_text(encoding="utf-8")


def test_why_a_template_was_chosen_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="hwmatrix.generate.model_tests"):
        generated("mixtral", tmp_path)
    assert "structure mixture-of-experts" in caplog.text
    assert "template hf_text_generation_template.py, because" in caplog.text


def test_unbuildable_models_and_unknown_names_are_refused_with_the_reason(tmp_path: Path) -> None:
    never = copy.copy(SPEC.models["bert"])
    for size in ("tiny", "full"):
        object.__setattr__(never, size, VariantSpec(unbuildable="too new"))
    with pytest.raises(ConfigError, match=r"cannot be built in tiny size: too new.*there is nothing to test"):
        generate_test("bert", spec=dataclasses.replace(SPEC, models={**SPEC.models, "bert": never}), folder=tmp_path)
    with pytest.raises(ConfigError, match=r"186\.8 GB.*--size tiny may be buildable"):
        generate_test("mixtral", spec=SPEC, folder=tmp_path, wish=Wish(size=Size.FULL))
    with pytest.raises(ConfigError, match=r"is only a name: .*checkpoint's folder"):
        generate_test("acme-model", spec=SPEC, folder=tmp_path, wish=Wish(cache=tmp_path / "cache"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["mamba2", "type:bert"])
def test_a_type_of_transformers_is_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fake_types.install(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match=r"is a type of transformers.*run it: hwmatrix test --model " + name):
        generate_test(name, spec=SPEC, folder=tmp_path / "tests", wish=Wish(cache=tmp_path / "cache"))


def test_file_names_have_only_lower_case_letters_digits_and_underscores() -> None:
    names = {
        "bert-base-uncased": "bert_base_uncased",
        "facebook/wav2vec2-base": "facebook_wav2vec2_base",
        "llava-hf/llava-1.5-7b-hf": "llava_hf_llava_1_5_7b_hf",
        "../models/My Model (2)": "my_model_2",
        "/models/x/été": "t",
        "~/x.y": "x_y",
        "☃": "model",
        "": "model",
        EVIL: "we_ird_s_1234567_7_raw_x0a",
    }
    assert {name: slug(name) for name in names} == names


def test_a_long_name_is_cut_and_gets_a_checksum() -> None:
    one, other = slug("a" * 300), slug("a" * 301)
    assert len(one) == len(other) == 80
    assert one != other


def test_two_models_with_the_same_file_name_get_separate_files(tmp_path: Path) -> None:
    first = file_for("acme/m-1", tmp_path)
    first.write_text(f"{mark('acme/m-1')}\n", encoding="utf-8")
    second = file_for("acme-m/1", tmp_path)
    assert first.name == "test_hf_acme_m_1.py"
    assert second.name.startswith("test_hf_acme_m_1_")
    second.write_text(f"{mark('acme-m/1')}\n", encoding="utf-8")
    assert file_for("acme-m/1", tmp_path) == second
    assert file_for("acme/m-1", tmp_path) == first


@pytest.mark.parametrize("text", ["import os\n", "", f"{mark('bert')[:-3]}\n", "# hwmatrix: this file was generated for os.system('x')\n"])
def test_a_file_that_hwmatrix_did_not_generate_is_not_replaced(tmp_path: Path, text: str) -> None:
    mine = tmp_path / "test_hf_bert.py"
    mine.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="was not generated by hwmatrix"):
        generate_test("bert", spec=SPEC, folder=tmp_path)
    assert mine.read_text(encoding="utf-8") == text
    assert [path.name for path in tmp_path.iterdir()] == ["test_hf_bert.py"]


def test_generating_again_replaces_the_whole_test(tmp_path: Path) -> None:
    path = generated("bert", tmp_path)[0].path
    before = path.read_text(encoding="utf-8")
    path.write_text(before + "\nassert False\n", encoding="utf-8")
    assert generated("bert", tmp_path)[0].path == path
    assert path.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--output-dir .* cannot be written"):
        generate_test("bert", spec=SPEC, folder=tmp_path / "file")


def test_a_name_full_of_quotes_braces_and_line_breaks_stays_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's folder can have any name."""
    wanted = dataclasses.replace(
        model_plan("bert", SPEC, Size.TINY), name=EVIL, weights=f"/checkpoints/{EVIL}", hub_id=EVIL, config={EVIL: [EVIL, {"x": EVIL}]}
    )
    monkeypatch.setattr(test_plan, "look_up", lambda *_, **__: wanted)
    monkeypatch.setattr(test_plan, "classify", lambda *_, **known: _classified(known))
    made, constants = generated(f"/checkpoints/{EVIL}", tmp_path)
    assert plan_in(constants) == dataclasses.replace(wanted, selector="")
    tree = ast.parse(made.path.read_text(encoding="utf-8"))
    kinds = {type(node).__name__ for node in tree.body}
    assert kinds <= {"Expr", "ImportFrom", "Import", "Assign", "FunctionDef", "If"}
    assert [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)] == ["__name__ == '__main__'"]
    assert [node for node in tree.body if isinstance(node, ast.Expr)] == tree.body[:1], (
        "the docstring must be the only expression statement"
    )
    assert "8641969" not in str(ast.get_docstring(tree)), "a template in a name must not be rendered"


def _classified(known: dict[str, Any]) -> Any:
    from hwmatrix.models.classify import classify

    return classify("bert", **known)


VALUES: list[Any] = [
    None,
    True,
    3,
    -1.5e-30,
    float("1e400"),
    "",
    EVIL,
    "'",
    '"',
    "both ' and \"",
    "\ud83d\ude00 \N{SNOWMAN} \u202e",
    [],
    {},
    (),
    (1,),
    [1, [2, "x" * 200], {"a": ("b",)}],
    {"key " * 30: {"inner": list(range(100))}},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_literal_is_read_back_as_the_value(value: Any) -> None:
    text = literal(value, indent=4, column=20)
    assert eval(compile(f"x = ({text})".partition("= ")[2], "literal", "eval"), {"__builtins__": {"float": float}}) == value  # noqa: S307
    assert text.isascii()


def test_a_literal_fits_on_its_line_or_has_one_line_per_item() -> None:
    assert literal({"a": 1, "b": [2, 3]}) == '{"a": 1, "b": [2, 3]}'
    text = literal({"a": list(range(60)), "b": 1}, indent=4, column=11)
    assert text.splitlines()[0] == "{"
    assert text.splitlines()[-1] == "    }"
    assert max(map(len, text.splitlines())) <= WIDTH
    with pytest.raises(TypeError, match="a set has no literal"):
        literal({1})


def test_text_cannot_break_out_of_comments_and_docstrings() -> None:
    assert comment("one\ntwo\u2028three\x1b[0m") == "# one\n# two\n# three?[0m"
    assert all(line.startswith("# ") and len(line) <= WIDTH for line in comment("word " * 100).splitlines())
    assert comment("") == "#"
    assert plain('a"""b\\c{d}\ne') == "a???b?c?d??e"
    assert ast.literal_eval(rows([[1000 + n for n in range(100)]], indent=4, column=30).strip()) == [[1000 + n for n in range(100)]]


def test_clearing_removes_only_the_bundles_of_the_model(tmp_path: Path) -> None:
    wanted, other = model_plan("bert", SPEC, Size.TINY), model_plan("gpt2", SPEC, Size.TINY)
    for key, plan, version in (("a", wanted, "2.1"), ("b", wanted, "2.2"), ("c", other, "2.1"), ("d", None, "")):
        folder = bundles_folder(tmp_path) / (key * 64)
        folder.mkdir(parents=True)
        identity = {}
        if plan is not None:
            of = dataclasses.replace(plan, new_tokens=8) if key == "b" else plan
            identity = json.loads(plan_part(of)) | {"weights": plan.weights, "made_by": {"versions": {"torch": version}}}
        (folder / "manifest.json").write_text(json.dumps({"identity": identity}), encoding="utf-8")
    exports = bundles_folder(tmp_path) / "onnx" / ("a" * 64) / "torch"
    exports.mkdir(parents=True)
    (exports / "model.onnx").write_bytes(b"x")
    assert [path.name[0] for path in clear_cached(wanted, tmp_path)] == ["a", "b"]
    assert sorted(path.parent.name[0] for path in tmp_path.glob("bundles/*/manifest.json")) == ["c", "d"]
    assert not exports.exists()
    assert clear_cached(wanted, tmp_path) == []
    assert clear_cached(wanted, tmp_path / "nothing") == []
