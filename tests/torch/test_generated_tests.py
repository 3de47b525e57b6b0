"""Generated tests, run: all models of matrix.yaml pass on the cpu, and a wrong model is found out by the test that is there for it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fault_runs import untrained, untrained_spec

from hwmatrix.cli.main import main
from hwmatrix.generate.model_tests import Wish, generate_test, plan_of
from hwmatrix.models import bundle, folder
from hwmatrix.pool import pool
from hwmatrix.runner import place
from hwmatrix.runner.under_test import Generated, ModelUnderTest

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Outputs = dict[str, torch.Tensor]

pytestmark = pytest.mark.torch
pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
TRAINED = ("bert", "gpt2", "vit")
"""These learn their tasks within seconds. All others have random weights here: what generated tests assert holds for any weights."""
SPEC = untrained_spec(*TRAINED)
BUILDABLE = sorted(name for name, model in SPEC.models.items() if model.tiny.unbuildable is None)
REFERENCE = "test_outputs_agree_with_the_reference"


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> Path:
    return shared_cache


@pytest.fixture(scope="module")
def frameworks() -> None:
    """pytester forgets what the tests that it runs have imported; what was imported before stays."""
    from hwmatrix.targets.torch import cpu  # noqa: F401
    from hwmatrix.targets.torch.device import preload_torch

    preload_torch(model.model_class for model in SPEC.models.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ran:
    """What became of the tests of a run: names with their files, and the reasons of those that were skipped."""

    passed: list[tuple[str, str]]
    failed: list[tuple[str, str]]
    skipped: list[tuple[str, str]]


def read(report: Path) -> Ran:
    ran = Ran(passed=[], failed=[], skipped=[])
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has just written it
        name = (case.attrib["classname"].rpartition(".")[2], case.attrib["name"].partition("[")[0])
        skipped = case.find("skipped")
        if skipped is not None:
            ran.skipped.append((name[0], skipped.attrib["message"]))
        elif case.find("failure") is not None or case.find("error") is not None:
            ran.failed.append(name)
        else:
            ran.passed.append(name)
    return ran


@pytest.mark.long
def test_all_models_of_matrix_yaml_pass_on_the_cpu(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user does it: generate, check the style, run."""
    monkeypatch.setenv("HWMATRIX_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(untrained(*TRAINED), encoding="utf-8")
    folder = tmp_path / "generated_tests"
    assert main(["generate", "--all", "--device", "cpu", "--output-dir", str(folder)]) == 0
    assert {path.stem.removeprefix("test_hf_") for path in folder.iterdir()} == {name.replace("-", "_") for name in BUILDABLE}

    for command in (["check", "--extend-select", "E501"], ["format", "--check"]):
        style = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "140", str(folder)]
        told = subprocess.run(style, check=False, capture_output=True, text=True)
        assert told.returncode == 0, told.stdout

    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(folder)]
    source = os.pathsep.join([str(ROOT / "harness"), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": source})
    ran = read(report)
    assert (ran.failed, ran.skipped, told.returncode) == ([], [], 0), told.stdout[-4000:]
    for name in BUILDABLE:
        assert len([test for file, test in ran.passed if file == f"test_hf_{name.replace('-', '_')}"]) >= 7


@pytest.fixture
def run(
    pytester: pytest.Pytester,
    frameworks: None,  # noqa: ARG001 - imported before pytester looks at what is
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Ran]:
    """Generate the test of a model, and run it here: importing torch once is enough."""
    monkeypatch.setenv("HWMATRIX_CACHE", str(cache))
    monkeypatch.setattr(pool, "_GLOBAL", [])  # a pool of its own: a failed test's traceback may keep a model of another's alive
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # each plugin would be imported anew by each run

    def generate_and_run(model: str, device: str | None = "cpu", *arguments: str, timeout_min: float = 30.0) -> Ran:
        made = generate_test(model, spec=SPEC, folder=pytester.path, wish=Wish(device=device, cache=cache, timeout_min=timeout_min))
        report = pytester.path / "report.xml"
        with warnings.catch_warnings():
            pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments, made.path.name)
        return read(report)

    return generate_and_run


def leaks_the_future(outputs: Outputs, _: dict[str, Any]) -> Outputs:
    return {name: tensor + 0.01 * tensor[:, -1:] for name, tensor in outputs.items()}


def mixes_samples(outputs: Outputs, _: dict[str, Any]) -> Outputs:
    return {name: tensor + 0.01 * (tensor.mean(dim=0, keepdim=True) - tensor) for name, tensor in outputs.items()}


def gives_nothing_but_logits_of_zero(outputs: Outputs, _: dict[str, Any]) -> Outputs:
    return {name: tensor * 0 for name, tensor in outputs.items()}


def lacks_an_output(outputs: Outputs, _: dict[str, Any]) -> Outputs:
    return dict(list(outputs.items())[1:])


def gives_other_types(outputs: Outputs, _: dict[str, Any]) -> Outputs:
    return {name: tensor.double() for name, tensor in outputs.items()}


def differs_each_time(outputs: Outputs, _: dict[str, Any]) -> Outputs:
    import torch

    return {name: tensor + torch.randn(tensor.shape) for name, tensor in outputs.items()}


def gives_nan_for_silence(outputs: Outputs, inputs: dict[str, Any]) -> Outputs:
    even = any(tensor.is_floating_point() and bool((tensor == tensor.flatten()[0]).all()) for tensor in inputs.values())
    return {name: tensor * float("nan") for name, tensor in outputs.items()} if even else outputs


def numbers_its_images(outputs: Outputs, _: dict[str, Any]) -> Outputs:
    import torch

    tables = ("logits_per_image", "logits_per_video")
    return {name: tensor + torch.arange(1.0, len(tensor) + 1)[:, None] if name in tables else tensor for name, tensor in outputs.items()}


def loses_the_last_frame(outputs: Outputs, _: dict[str, Any]) -> Outputs:
    return {name: tensor[:, :-1] for name, tensor in outputs.items()}


def counts_classes_from_one(outputs: Outputs, _: dict[str, Any]) -> Outputs:
    return {name: tensor.roll(1, dims=-1) for name, tensor in outputs.items()}


@pytest.mark.parametrize(
    ("model", "mutation", "finds_it"),
    [
        ("clip", numbers_its_images, "test_permuted_images_give_permuted_rows"),
        ("clip", numbers_its_images, "test_similarities_are_symmetric"),
        ("xclip", numbers_its_images, "test_similarities_are_symmetric"),
        ("wav2vec2", loses_the_last_frame, "test_the_number_of_frames_matches_the_length_of_the_sound"),
        ("vit", counts_classes_from_one, "test_the_class_is_that_of_the_reference"),
        ("t5", leaks_the_future, "test_a_later_token_changes_nothing_before_it"),
        ("gpt2", leaks_the_future, "test_a_later_token_changes_nothing_before_it"),
        ("bert", mixes_samples, "test_samples_of_a_batch_do_not_mix"),
        ("vit", gives_nothing_but_logits_of_zero, "test_every_corner_of_the_image_matters"),
        ("vit", gives_nan_for_silence, "test_an_image_of_one_color_gives_finite_numbers"),
        ("bert", lacks_an_output, "test_outputs_have_the_names_shapes_and_types_of_the_reference"),
        ("bert", gives_other_types, "test_outputs_have_the_names_shapes_and_types_of_the_reference"),
        ("bert", differs_each_time, "test_a_second_run_gives_the_same"),
        ("wav2vec2", gives_nan_for_silence, "test_silence_gives_finite_and_different_numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_outputs_that_are_wrong_are_found_out(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, model: str, mutation: Callable[..., Outputs], finds_it: str
) -> None:
    right = ModelUnderTest.run
    monkeypatch.setattr(
        ModelUnderTest, "run", lambda self, inputs=None: mutation(right(self, inputs), self.inputs if inputs is None else inputs)
    )
    assert finds_it in {name for _, name in run(model).failed}


@pytest.mark.parametrize(
    ("model", "blind_to", "finds_it"),
    [
        ("bert", "attention_mask", "test_masked_tokens_change_nothing"),
        ("bert", "input_ids", "test_every_token_sees_every_other"),
        ("t5", "input_ids", "test_the_encoder_affects_the_decoder"),
        ("whisper", "input_features", "test_the_encoder_affects_the_decoder"),
        ("whisper", "input_features", "test_both_ends_of_the_sound_matter"),
        ("llava", "pixel_values", "test_image_and_text_both_matter"),
        ("clip", "input_ids", "test_image_and_text_both_matter"),
        ("videomae", "pixel_values", "test_the_order_of_the_frames_matters"),
        ("videomae", "pixel_values", "test_every_frame_matters"),
        ("xclip", "input_ids", "test_text_matters_too"),
    ],
)
def test_a_model_that_does_not_look_at_an_input_is_found_out(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, model: str, blind_to: str, finds_it: str
) -> None:
    """It sees the bundle's own input in place of another. With the bundle's inputs it is right, so the reference does not find it."""
    right = ModelUnderTest.run

    def blind(self: ModelUnderTest, inputs: dict[str, Any] | None = None) -> Outputs:
        own = self.inputs[blind_to]
        if inputs is not None and inputs[blind_to].shape == own.shape:
            inputs = {**inputs, blind_to: own}
        return right(self, inputs)

    monkeypatch.setattr(ModelUnderTest, "run", blind)
    failed = {name for _, name in run(model).failed}
    assert finds_it in failed
    assert REFERENCE not in failed


def forgets_its_cache(made: Generated, *, use_cache: bool) -> None:
    if use_cache:
        made.logits[:, 1:] *= 1.01


def begins_elsewhere(made: Generated, *, use_cache: bool) -> None:  # noqa: ARG001
    made.logits[:, 0] *= 1.01


def rolls_dice(made: Generated, *, use_cache: bool) -> None:
    import torch

    if use_cache:
        made.tokens[:, 1:] = torch.randint(10**6, made.tokens[:, 1:].shape)


@pytest.mark.parametrize(
    ("model", "mutation", "finds_it"),
    [
        ("gpt2", forgets_its_cache, {"test_the_cache_changes_nothing"}),
        ("mamba", forgets_its_cache, {"test_the_state_changes_nothing"}),
        ("t5", begins_elsewhere, {"test_greedy_generation_begins_with_the_result_of_the_forward_pass"}),
        ("llama", rolls_dice, {"test_greedy_generation_gives_the_same_tokens_again", "test_the_cache_changes_nothing"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_generation_that_goes_wrong_is_found_out(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, model: str, mutation: Callable[..., None], finds_it: set[str]
) -> None:
    right = ModelUnderTest.generate

    def wrong(self: ModelUnderTest, tokens: int, *, use_cache: bool) -> Generated:
        made = right(self, tokens, use_cache=use_cache)
        mutation(made, use_cache=use_cache)
        return made

    monkeypatch.setattr(ModelUnderTest, "generate", wrong)
    assert {name for _, name in run(model).failed} == finds_it


def test_experts_that_one_way_computes_wrong_are_found_out(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    right = ModelUnderTest.run

    def wrong(self: ModelUnderTest, inputs: dict[str, Any] | None = None) -> Outputs:
        factor = 1.01 if self.module.config._experts_implementation == "batched_mm" else 1.0
        return {name: tensor * factor for name, tensor in right(self, inputs).items()}

    monkeypatch.setattr(ModelUnderTest, "run", wrong)
    assert {name for _, name in run("mixtral").failed} == {"test_both_ways_to_compute_experts_agree"}


def test_experts_that_are_always_the_same_are_found_out(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    """The router's weights are made nothing: every token goes to the first experts."""
    from hwmatrix.models import build

    right = build.load_model

    def routed_to_the_first(*arguments: Any, **options: Any) -> Any:
        model = right(*arguments, **options)
        for name, parameter in model.named_parameters():
            if "gate.weight" in name:
                parameter.data.zero_()
        return model

    monkeypatch.setattr(build, "load_model", routed_to_the_first)
    failed = {name for _, name in run("mixtral").failed}
    assert {"test_tokens_reach_several_experts", REFERENCE} <= failed


def tampered(path: Path, file: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the tensors of a bundle's file, and its manifest with it, so that every checksum is right."""
    from safetensors.torch import load_file, save_file

    save_file(change(load_file(path / file)), path / file, metadata={"format": "pt"})
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    folder.describe(path, manifest)


@pytest.mark.parametrize("file", ["expected.safetensors", "model/model.safetensors"])
def test_a_bundle_whose_weights_are_not_those_of_its_reference_is_found_out(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """One part in a thousand is enough, and only the comparison with the reference can tell."""
    own = tmp_path / "own"
    made = bundle.find_or_build(plan_of("bert", SPEC, Wish()), own / "bundles")
    tampered(made.path, file, lambda tensors: {name: tensor * 1.001 for name, tensor in tensors.items()})
    bundle.verify(made.path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(own))
    assert [name for _, name in run("bert").failed] == [REFERENCE]


def test_missing_hardware_is_skipped_with_its_reason_and_the_rest_runs(run: Callable[..., Ran]) -> None:
    from hwmatrix.hardware.detector import detect_all

    here = {found.hardware_type for found in detect_all() if found.available}
    ran = run("bert", None)
    assert ran.failed == []
    assert len(ran.passed) >= 7
    for device in {"cuda", "rocm", "mps"} - here:
        reasons = {reason for _, reason in ran.skipped if reason.startswith(f"{device}-float32: ")}
        assert reasons, device
        assert all(len(reason) > len(f"{device}-float32: ") + 10 for reason in reasons)


def test_a_model_that_needs_more_memory_than_is_free_is_skipped_with_the_numbers(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "available_memory_mb", lambda _backend: 3)
    ran = run("bert")
    assert ran.passed == ran.failed == []
    assert len(ran.skipped) >= 7
    assert [reason for _, reason in ran.skipped if "MiB on cpu, but only 3 MiB are free" not in reason] == []


@pytest.mark.parametrize(("timeout_min", "kept"), [(0.0, 0), (30.0, 1)])
def test_the_pool_keeps_the_model_for_the_time_that_was_asked_for(run: Callable[..., Ran], timeout_min: float, kept: int) -> None:
    assert run("bert", timeout_min=timeout_min).failed == []
    assert pool.get_global_resource_pool().get_stats()["models"] == kept


def test_a_batch_that_does_not_fit_is_halved_and_that_is_told(
    run: Callable[..., Ran], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ModelUnderTest.run
    asked: list[int] = []

    def short_of_memory(self: ModelUnderTest, inputs: dict[str, Any] | None = None) -> Outputs:
        size = 1 if inputs is None else len(inputs["input_ids"])
        asked.append(size)
        if size > 1:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
            )
        return right(self, inputs)

    monkeypatch.setattr(ModelUnderTest, "run", short_of_memory)
    ran = run("bert", "cpu", "-k", "samples_of_a_batch")
    assert (ran.passed, ran.failed) == ([("test_hf_bert", "test_samples_of_a_batch_do_not_mix")], [])
    assert asked[:3] == [4, 2, 1]
    report = (pytester.path / "report.xml").read_text(encoding="utf-8")
    assert "bert ran on cpu with batch 1 instead of 4; cpu was expected" in report


def test_another_error_than_a_want_of_memory_is_no_reason_for_a_smaller_batch(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ModelUnderTest.run

    def broken(self: ModelUnderTest, inputs: dict[str, Any] | None = None) -> Outputs:
        if inputs is not None and len(inputs["input_ids"]) > 1:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x32 and 64x32)")
        return right(self, inputs)

    monkeypatch.setattr(ModelUnderTest, "run", broken)
    assert [name for _, name in run("bert", "cpu", "-k", "samples_of_a_batch").failed] == ["test_samples_of_a_batch_do_not_mix"]


def test_a_checkpoint_of_ones_own_is_tested_wherever_it_lies(pytester: pytest.Pytester, tmp_path: Path, run: Callable[..., Ran]) -> None:
    """Its folder's name is full of what could be code."""
    import transformers

    folder = tmp_path / 'my "model\' {{ 7 * 7 }}\n"""; raise SystemExit #'
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=32
    )
    transformers.BertModel(config).save_pretrained(folder)
    ran = run(str(folder))
    assert ran.failed == []
    assert len(ran.passed) == 7
    assert [path.name for path in pytester.path.glob("test_*.py")] == ["test_hf_my_model_7_7_raise_systemexit.py"]
