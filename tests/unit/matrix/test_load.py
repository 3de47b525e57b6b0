from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hwmatrix.app.schemas import REPORTS
from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError
from hwmatrix.matrix.load import load
from hwmatrix.matrix.spec import json_schema
from hwmatrix.records import AdaptRule, Dtype, Size

ROOT = Path(__file__).parents[3]
BASE = """\
version: 1
sizes:
  tiny: {batch: 1}
  full: {batch: 2}
tolerances:
  float32: {relative_error: 1.0e-3, reason: rounding}
targets:
  cpu: {backend: cpu, image: cpu}
models:
  bert:
    family: embedding
    architecture: bert
    class: BertModel
suites:
  default: {models: all}
"""


def problems(tmp_path: Path, text: str | bytes) -> list[str]:
    """All problems of a file, without the folder's name."""
    path = tmp_path / "matrix.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load(path)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]


def only(tmp_path: Path, text: str | bytes) -> str:
    (problem,) = problems(tmp_path, text)
    return problem


def changed(old: str, new: str) -> str:
    assert BASE.count(old) == 1
    return BASE.replace(old, new)


def test_a_valid_file(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(BASE, encoding="utf-8")
    loaded = load(path)
    assert loaded.spec.models["bert"].model_class == "BertModel"
    assert loaded.spec.sizes[Size.FULL].batch == 2
    assert loaded.spec.targets["cpu"].dtypes == (Dtype.FLOAT32,)
    assert loaded.lines["models", "bert"] == 10
    assert loaded.lines["models", "bert", "class"] == 13
    assert len(loaded.sha256) == 64


def test_sizes_tolerances_and_suites_may_be_left_out(tmp_path: Path) -> None:
    path, packaged = tmp_path / "matrix.yaml", load(ROOT / "matrix.yaml").spec
    path.write_text(BASE[: BASE.index("sizes:")] + BASE[BASE.index("targets:") : BASE.index("suites:")], encoding="utf-8")
    spec = load(path).spec
    assert (spec.sizes, spec.tolerances) == (packaged.sizes, packaged.tolerances)
    assert [(name, suite.models) for name, suite in spec.suites.items()] == [("default", "all")]
    path.write_text(BASE, encoding="utf-8")
    assert set(load(path).spec.tolerances) == {Dtype.FLOAT32}  # its own, alone


def test_the_projects_own_file_is_valid() -> None:
    loaded = load(ROOT / "matrix.yaml")
    lines = (ROOT / "matrix.yaml").read_text(encoding="utf-8").splitlines()
    for name in loaded.spec.models:
        assert lines[loaded.lines["models", name] - 1] == f"  {name}:"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("version: 1", "version: 1\ntarget: {}", "matrix.yaml:2: unknown key 'target' at target (did you mean 'targets'?"),
        ("{batch: 1}", "{bach: 1}", "matrix.yaml:3: unknown key 'bach' at sizes.tiny.bach (did you mean 'batch'?"),
        ("reason: rounding", "reason: r, why: x", "matrix.yaml:6: unknown key 'why' at tolerances.float32.why (allowed: bound, excess"),
        ("image: cpu", "image: cpu, option: {}", "matrix.yaml:8: unknown key 'option' at targets.cpu.option (did you mean 'options'?"),
        ("    class:", "    klass: X\n    class:", "matrix.yaml:13: unknown key 'klass' at models.bert.klass (did you mean 'class'?"),
        (
            "    class:",
            "    tiny:\n      confg: {}\n    class:",
            "matrix.yaml:14: unknown key 'confg' at models.bert.tiny.confg (did you mean",
        ),
        ("models: all", "models: all, sise: tiny", "matrix.yaml:15: unknown key 'sise' at suites.default.sise (did you mean 'size'?"),
        ("targets:", "images: {bas: x}\ntargets:", "matrix.yaml:7: unknown key 'bas' at images.bas (did you mean 'base'?"),
        ("targets:", "measure: {warmup: 1}\ntargets:", "matrix.yaml:7: unknown key 'warmup' at measure.warmup (did you mean 'warmup_s'?"),
        (
            "{models: all}",
            "\n    measure: {max: 1}",
            "matrix.yaml:16: unknown key 'max' at suites.default.measure.max (did you mean 'max_s'? allowed: half_width, max_s, min_s",
        ),
    ],
)
def test_an_unknown_key_is_reported_with_its_line_and_the_closest_key(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert only(tmp_path, changed(old, new)).startswith(expected)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("version: 1", "version: 2", "matrix.yaml:1: version is 2 (allowed: 1)"),
        (
            "backend: cpu",
            "backend: openvin",
            "matrix.yaml:8: targets.cpu.backend is 'openvin' (did you mean 'openvino'? allowed: cpu, ",
        ),
        (
            "family: embedding",
            "family: text",
            "matrix.yaml:11: models.bert.family is 'text' (allowed: audio, diffusion, embedding, multimodal, ",
        ),
        ("tiny: {batch: 1}", "tinny: {batch: 1}", "matrix.yaml:3: sizes.tinny is 'tinny' (did you mean 'tiny'?"),
        ("{batch: 1}", "{batch: many}", "matrix.yaml:3: sizes.tiny.batch: input should be a valid integer"),
        ("{batch: 1}", "{batch: 0}", "matrix.yaml:3: sizes.tiny.batch: input should be greater than 0 (it is 0)"),
        ("{batch: 1}", "{timeout_s: .inf}", "matrix.yaml:3: sizes.tiny.timeout_s: input should be a finite number (it is inf)"),
        ("1.0e-3", "2", "matrix.yaml:6: tolerances.float32.relative_error: input should be less than 1 (it is 2)"),
        ("image: cpu", "image: cpu, dtypes: [float23]", "matrix.yaml:8: targets.cpu.dtypes.0 is 'float23' (did you mean 'float32'?"),
        ("  bert:", "  Bert Base:", "matrix.yaml:10: models.Bert Base: string should match pattern"),
        ("    class: BertModel\n", "", "matrix.yaml:10: models.bert.class is missing (add it)"),
        (
            "default: {models: all}",
            "default:",
            (
                "matrix.yaml:15: suites.default is None "
                "(a mapping belongs here: size, models, timing, generation, dtypes, measure, settings, exclude_targets, description)"
            ),
        ),
        ("models: all", "models: al", "matrix.yaml:15: suites.default.models is 'al' (allowed: 'all', 'types' or 'diffusion', or a list)"),
        ("models: all", "models: [bert, 3]", "matrix.yaml:15: suites.default.models.1: input should be a valid string (it is 3)"),
        ("targets:", "measure: {max_s: -1}\ntargets:", "matrix.yaml:7: measure.max_s: input should be greater than 0 (it is -1)"),
        (
            "{models: all}",
            "\n    measure:\n      max_s: -1",
            "matrix.yaml:17: suites.default.measure.max_s: input should be greater than 0 (it is -1)",
        ),
        (
            "{models: all}",
            "\n    measure: {half_width: wide}",
            "matrix.yaml:16: suites.default.measure.half_width: input should be a valid number",
        ),
        (
            "models: all",
            "measure: 1",
            "matrix.yaml:15: suites.default.measure is 1 (a mapping belongs here: warmup_s, warmup_iterations, min",
        ),
    ],
)
def test_a_wrong_value_is_reported_with_its_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert only(tmp_path, changed(old, new)).startswith(expected)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "models: all",
            "models: [bart]",
            "matrix.yaml:15: suite 'default' names the unknown model 'bart' (did you mean 'bert'? allowed: bert)",
        ),
        (
            "{models: all}",
            "\n    measure: {max_s: 0.2}",
            "matrix.yaml:16: suite 'default' times for at least 0.3 s (min_s) and at most 0.2 s (max_s) (set both: ",
        ),
        (
            "{models: all}",
            "\n    measure:\n      half_width: 0.1\n      min_s: 4",
            "matrix.yaml:18: suite 'default' times for at least 4 s (min_s) and at most 3 s (max_s)",
        ),
        ("image: cpu", "image: cpu, dtypes: [float16]", "matrix.yaml:8: target 'cpu' uses float16, which has no tolerance (add it under"),
        (
            "image: cpu",
            "image: cpu, more_dtypes: [float16]",
            "matrix.yaml:8: target 'cpu' uses float16, which has no tolerance (add it under",
        ),
        ("image: cpu", "image: cpu, more_dtypes: [float32]", "matrix.yaml:8: target 'cpu' lists float32 twice"),
        (
            "models: all",
            "dtypes: {cpo: [float32]}",
            "matrix.yaml:15: suite 'default' adds precisions to the unknown target 'cpo' (did you mean 'cpu'?",
        ),
        (
            "models: all",
            "dtypes: {cpu: [float16]}",
            "matrix.yaml:15: suite 'default' adds float16, which is not in more_dtypes of",
        ),
        (
            "models: all",
            "exclude_targets: [cpo]",
            "matrix.yaml:15: suite 'default' excludes the unknown target 'cpo' (did you mean 'cpu'?",
        ),
        ("models: all", "dtypes: al", "matrix.yaml:15: suites.default.dtypes"),
        (
            "image: cpu",
            "image: cpu, dtypes: [default]",
            "matrix.yaml:8: target 'cpu' uses default, but cpu does not report the precision that it chooses (name one: float32, float16",
        ),
        (
            "backend: cpu, image: cpu",
            "backend: openvino, image: cpu, dtypes: [default]",
            "matrix.yaml:8: target 'cpu' uses float16 or bfloat16 if its runtime chooses that, which has no tolerance (add it under",
        ),
        (
            "  float32: {relative_error",
            "  default: {relative_error: 0.1, reason: r}\n  float32: {relative_error",
            "matrix.yaml:6: tolerances.default is never used: a cell is judged by the precision that its runtime chose (remove it)",
        ),
        ("image: cpu", "image: cpu, dtypes: [float32, float32]", "matrix.yaml:8: target 'cpu' lists float32 twice (remove one of them)"),
        (
            "targets:",
            "images: {reference: cpo}\ntargets:",
            "matrix.yaml:7: images.reference is the unknown target 'cpo' (did you mean 'cpu'?",
        ),
        (
            "image: cpu",
            "image: cpo",
            "matrix.yaml:8: the image of target 'cpu' is 'cpo', and there is no images/cpo/requirements.txt",
        ),
        (
            "image: cpu",
            "image: cpu, base: torch-cpo",
            "matrix.yaml:8: the base of target 'cpu' is 'torch-cpo', and there is no images/",
        ),
        ("    class:", "    weights: hub\n    class:", "matrix.yaml:10: model 'bert' has weights: hub and no hub_id (add hub_id, or use"),
        ("  full: {batch: 2}\n", "", "matrix.yaml:2: sizes.full is missing (add it: --size and --all can request either)"),
        (
            "    class:",
            "    tiny: {config: {limit: .inf}}\n    class:",
            "matrix.yaml:13: the config of model 'bert' cannot be written as JSON",
        ),
        (
            "    class:",
            "    tiny: {config: {day: 2026-01-02}}\n    class:",
            "matrix.yaml:13: the config of model 'bert' cannot be written as",
        ),
    ],
)
def test_references_to_unknown_names(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert only(tmp_path, changed(old, new)).startswith(expected)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (
            "backend: openvino, image: cpu, options: {precision_hint: false}",
            "has the option 'precision_hint', which the backend openvino does",
        ),
        ("backend: openvino, image: cpu, options: {precision_hint: false}", "precision_hints"),
        ("backend: openvino, image: cpu, options: {precision_hints: none}", "is 'none' (allowed: true or false)"),
        (
            "backend: openvino, image: cpu, options: {export: onnx}",
            "the option export of target 'x' is 'onnx' (allowed: one of: transformers, trace)",
        ),
        ("backend: cuda, image: cpu, options: {device: true}", "is True (allowed: a number, from 0)"),
        ("backend: cuda, image: cpu, options: {device: -1}", "is -1 (allowed: a number, from 0)"),
        ("backend: webgpu, image: cpu, options: {adapter: metal}", "allowed: one of: software, hardware"),
        ("backend: cpu, image: cpu, options: {device: 0}", "has the option 'device', which the backend cpu does not have"),
    ],
)
def test_an_unknown_option_of_a_target_or_a_wrong_value_is_reported_with_its_line(tmp_path: Path, target: str, expected: str) -> None:
    told = only(tmp_path, changed("targets:\n", f"targets:\n  x: {{{target}}}\n"))
    assert told.startswith("matrix.yaml:8: ")
    assert expected in told


def test_the_options_that_the_pages_of_the_targets_name_are_allowed(tmp_path: Path) -> None:
    for named in (
        "openvino, image: cpu, options: {device: GPU, attention: eager, export: trace, precision_hints: false}",
        "cuda, image: cpu, options: {device: 1, attention: sdpa, compile: true}",
        "qnn, image: cpu, dtypes: [float32], options: {soc_model: 57, export: torch}",
        "webnn, image: cpu, options: {device: npu, browser: debian, executable: /usr/bin/chromium, assets: /srv/ort}",
        "webgpu, image: cpu, options: {adapter: hardware, browser: sparticuz}",
        "inductor, image: cpu, options: {attention: eager}",
        "executorch, image: cpu, options: {export: torch}",
    ):
        (tmp_path / "matrix.yaml").write_text(changed("targets:\n", f"targets:\n  x: {{backend: {named}}}\n"), encoding="utf-8")
        assert load(tmp_path / "matrix.yaml").spec.targets["x"].options


def test_a_duplicate_key_is_reported_with_both_lines(tmp_path: Path) -> None:
    text = changed("suites:", "  bert:\n    family: audio\n    family: video\nsuites:")
    assert problems(tmp_path, text) == [
        "matrix.yaml:14: 'bert' appears twice in models, first on line 10 (rename or remove one of them)",
        "matrix.yaml:16: 'family' appears twice in models.bert, first on line 15 (rename or remove one of them)",
    ]


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    text = BASE.replace("version: 1", "version: 9").replace("batch: 2", "bach: 2").replace("family: embedding", "family: sound")
    assert [line.split(" ")[0] for line in problems(tmp_path, text)] == ["matrix.yaml:1:", "matrix.yaml:4:", "matrix.yaml:11:"]
    crossed = BASE.replace("models: all", "models: [x, y]").replace("image: cpu", "image: cpu, dtypes: [float16, bfloat16]")
    assert len(problems(tmp_path, crossed)) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "matrix.yaml:1: the file is empty (see docs/matrix-yaml.md)"),
        ("# nothing\n", "matrix.yaml:1: the file is empty (see docs/matrix-yaml.md)"),
        ("- a\n", "matrix.yaml:1: the file is ['a'] (a mapping belongs here: version, "),
        ("a:\n\tb: 1\n", "matrix.yaml:2: not YAML: found character '\\t' that cannot start any token"),
        ("a: [1, 2\nb: 3\n", "matrix.yaml:2: not YAML: expected ',' or ']'"),
        (f"{BASE}---\na: 1\n", "matrix.yaml:16: not YAML: but found another document"),
        (f"{BASE}x: !!python/object/apply:os.system [true]\n", "matrix.yaml:16: not YAML: could not determine a constructor for the tag"),
        (f"{BASE}x: 2026-13-45\n", "matrix.yaml: not YAML: month must be in 1..12 (put the value in quotes)"),
        (f"{BASE}? [a, b]\n: 1\n", "matrix.yaml:16: a key is a list or a mapping (keys are names)"),
        (f"{BASE}x: &x {{y: *x}}\n", "matrix.yaml: nested too deeply"),
        ("[" * 100_000, "matrix.yaml: not YAML: nested too deeply"),
        (f"{BASE}1: x\n", "matrix.yaml:16: unknown key '1' at 1 (allowed: adapt, expect, github, images, "),
        (b"\xff\xfe", "matrix.yaml: cannot be read: 'utf-8' codec can't decode"),
        ("a\0b", "matrix.yaml: not YAML: unacceptable character"),
    ],
)
def test_a_file_that_is_not_a_matrix(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert only(tmp_path, text).startswith(expected)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*--matrix"):
        load(tmp_path / "matrix.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)


def test_names_are_read_as_text(tmp_path: Path) -> None:
    """YAML reads 7 as a number and on as true, but as model names they are text."""
    path = tmp_path / "matrix.yaml"
    path.write_text(
        changed("  bert:", "  on: &m {family: audio, architecture: a, class: B}\n  7: {<<: *m, seed: 3}\n  bert:"), encoding="utf-8"
    )
    models = load(path).spec.models
    assert list(models) == ["on", "7", "bert"]
    assert models["7"].model_class == "B"
    assert models["7"].seed == 3


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("", AdaptRule()),
        ("adapt: true", AdaptRule()),
        ("adapt: false", None),
        ("adapt: {halvings: 1}", AdaptRule(halvings=1)),
        ("adapt: {precision: {float16: [float32]}, export: false}", AdaptRule(precision={Dtype.FLOAT16: (Dtype.FLOAT32,)}, export=False)),
    ],
)
def test_the_settings_of_adapt(tmp_path: Path, said: str, rule: AdaptRule | None) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(f"{BASE}{said}\n", encoding="utf-8")
    assert load(path).spec.adapt == rule


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("{halving: 2}", "unknown key 'halving' at adapt.halving (did you mean 'halvings'? allowed: export, halvings, precision, rewrite)"),
        ("7", "adapt is 7 (a mapping belongs here: "),
        ("{precision: {float16: [float8]}}", "adapt.precision.float16.0 is 'float8' (did you mean 'float"),
        ("{halvings: -1}", "adapt.halvings: input should be greater than or equal to 0 (it is -1)"),
    ],
)
def test_a_mistake_in_adapt_is_reported_with_its_line(tmp_path: Path, said: str, told: str) -> None:
    assert only(tmp_path, f"{BASE}adapt: {said}\n").startswith(f"matrix.yaml:16: {told}")


def test_the_closest_match() -> None:
    assert near_miss("brt", ["vit", "bert"]) == "did you mean 'bert'? allowed: bert, vit"
    assert near_miss("zzz", ["vit", "bert"]) == "allowed: bert, vit"
    assert near_miss("gema3", ["vit", "bert"], besides=["gemma3"]) == "did you mean 'gemma3'? allowed: bert, vit"


def test_of_many_allowed_words_only_the_closest_are_listed() -> None:
    text = near_miss("model77", [f"model{number}" for number in range(650)])
    assert text.startswith("did you mean 'model77'? allowed: model177, ")
    assert text.endswith(" and 638 more")
    assert len(text) < 250


def written(name: str) -> Any:
    return json.loads((ROOT / "docs" / "schemas" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "schema", "argument"),
    [
        ("matrix.schema.json", json_schema, "matrix-file"),
        *((f"{name}-report.schema.json", schema, name) for name, schema in REPORTS.items()),
    ],
)
def test_the_published_schemas_are_up_to_date(name: str, schema: Any, argument: str) -> None:
    assert written(name) == schema(), f"python -m hwmatrix schema {argument} > docs/schemas/{name}"
    jsonschema.Draft202012Validator.check_schema(written(name))


def test_the_json_schema_agrees_with_the_loader() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    data = yaml.safe_load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
    validator.validate(data)
    data["targets"]["cpu"]["backend"] = "gpu"
    data["models"]["bert"]["famly"] = "audio"
    data["measure"]["warmup"] = 3
    found = {error.json_path for error in validator.iter_errors(data)}
    assert found == {"$.targets.cpu.backend", "$.models.bert", "$.measure"}


def test_expectations_name_types_like_their_models_in_runs(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    expect = "expect: [{models: [bert, type:gemma3, type:bert], targets: all, status: error, reason: it fails, link: docs}]\n"
    path.write_text(f"{BASE}{expect}", encoding="utf-8")
    (found,) = load(path).spec.expect
    assert found.models == ("bert", "gemma3", "type:bert")
    path.write_text(f"{BASE}{expect.replace('type:gemma3', 'gemma3')}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"matrix\.yaml:16: expect\.0 names the unknown model 'gemma3'"):
        load(path)
    path.write_text(f"{BASE}{expect.replace('type:gemma3', 'kind:gemma3')}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"matrix\.yaml:16: expect\.0\.models"):
        load(path)
