"""Manifests with a correct checksum whose content has another form: as a model's own code can write them where a bundle is made."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from hwmatrix.errors import BundleError
from hwmatrix.models import folder, manifests, onnx_export
from hwmatrix.models.bundle import Bundle

FILE = Path("/x/manifest.json")
FLOORS = {"float32": {"outputs": {"logits": 1e-7}}, "float16": {"outputs": None, "overflows": True}}
BUNDLE: dict[str, Any] = {
    "files": {"inputs.safetensors": {"size": 1, "sha256": "0" * 64}},
    "key": "k",
    "identity": {"weights": "recipe"},
    "model_class": "BertModel",
    "parameters": 7,
    "inputs": [{"name": "input_ids", "shape": [1, 16], "dtype": "int64"}],
    "expected": [{"name": "logits", "shape": [1, 16], "dtype": "float32"}],
    "floors": FLOORS,
    "modalities": {"given": ["text"], "takes": ["text"], "text_path_only": False},
    "training": {"task": "copy", "detail": "task copy", "answers": {"kind": "tokens", "outputs": ["logits"], "blank": None, "own": False}},
    "generation": {"prompts": ["short"], "free": [], "irregular": [], "floors": FLOORS},
}
EXPORT: dict[str, Any] = {"files": {}, "key": "key", "bundle": "d", "seconds": 1.5}
FORWARD = EXPORT | {"failure": None, "inputs": ["input_ids"], "outputs": ["logits", None], "opset": 20, "fixed": []}
PAST = {"name": "input.past", "own": "past", "shape": [None, 4], "dtype": "float32", "state": True}
DECODE = {"file": "decode.onnx", "inputs": [PAST], "outputs": {"logits": "logits"}}
GENERATION = EXPORT | {
    "files": {"decode.onnx": {"size": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}},
    "failure": None,
    "graphs": {"decode": DECODE},
    "token": "input_ids",
    "method": "transformers",
    "preparation": ["transformers_export"],
}
OPENVINO = EXPORT | {"failure": None, "outputs": ["logits", None], "method": "transformers OpenVINO exporter", "preparation": ["trace"]}
FAILED = EXPORT | {"failure": {"error_type": "builtins.KeyError", "message": "'x'", "traceback": None}}
WHOLE = {
    "bundle": (BUNDLE, manifests.BundleManifest),
    "forward": (FORWARD, manifests.ForwardManifest),
    "generation": (GENERATION, manifests.GenerationManifest),
    "openvino": (OPENVINO, manifests.OpenVinoManifest),
    "failed": (FAILED, manifests.ExportManifest),
}


def changed(manifest: dict[str, Any], at: str, value: Any) -> dict[str, Any]:
    """The manifest with another value at a place: keys and indices, with dots between them."""
    found = copy.deepcopy(manifest)
    *way, last = (int(part) if part.isdigit() else part for part in at.split("."))
    within: Any = found
    for part in way:
        within = within[part]
    within[last] = value
    return found


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_manifest_and_one_with_more_are_read(kind: str) -> None:
    manifest, form = WHOLE[kind]
    manifests.check(manifest, form, FILE)
    manifests.check(manifest | {"more": {"x": float("nan")}}, form, FILE)


@pytest.mark.parametrize(
    ("kind", "at", "value"),
    [
        ("bundle", "files", []),
        ("bundle", "files", {"a": "b"}),
        ("bundle", "files", {"a": {"size": -1, "sha256": "0"}}),
        ("bundle", "identity", "x"),
        ("bundle", "parameters", "7"),
        ("bundle", "parameters", 2**63),
        ("bundle", "inputs.0", "input_ids"),
        ("bundle", "floors", []),
        ("bundle", "floors.float32", {"weather": 1}),
        ("bundle", "floors.float32.outputs", {"logits": "small"}),
        ("bundle", "modalities", None),
        ("bundle", "modalities.given", 3),
        ("bundle", "training", {}),
        ("bundle", "training", {"reason": ""}),
        ("bundle", "training.answers", {"kind": "tokens"}),
        ("bundle", "training.answers.weather", "fine"),
        ("bundle", "generation", {"prompts": []}),
        ("bundle", "model_class", "\ud800"),
        ("forward", "inputs", None),
        ("forward", "outputs.0", 1),
        ("forward", "key", 1),
        ("generation", "graphs", []),
        ("generation", "graphs", {"prefill": DECODE}),
        ("generation", "graphs.decode.inputs.0", {"name": "x"}),
        ("generation", "graphs.decode.inputs.0.shape", [-1]),
        ("generation", "graphs.decode.file", "../elsewhere.onnx"),
        ("openvino", "outputs", "logits"),
        ("openvino", "method", None),
        ("failed", "failure", "no"),
        ("failed", "failure.message", None),
        ("failed", "failure.weather", "fine"),
    ],
)
def test_another_form_is_refused_with_its_place(kind: str, at: str, value: Any) -> None:
    manifest, form = WHOLE[kind]
    with pytest.raises(BundleError, match=rf"^/x/manifest\.json is broken: .* at (the top|{at.split('.', maxsplit=1)[0]})") as caught:
        manifests.check(changed(manifest, at, value), form, FILE)
    assert caught.value.error_type == "bundle_broken"


def test_nesting_without_end_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BundleError, match="is broken"):
        manifests.check(BUNDLE | {"identity": {"config": deep}}, manifests.BundleManifest, FILE)
    while deep:
        deep = deep[0]  # else Python frees it by recursion


@pytest.mark.parametrize(
    ("exporter", "manifest"),
    [
        ("transformers", FORWARD | {"outputs": 3}),
        ("transformers", FAILED | {"failure": []}),
        ("generation", GENERATION | {"graphs": []}),
        ("openvino", OPENVINO | {"method": 3}),
    ],
)
def test_an_export_whose_manifest_was_forged_is_broken(tmp_path: Path, exporter: str, manifest: dict[str, Any]) -> None:
    place = tmp_path / onnx_export.ONNX_DIR / "key" / exporter
    place.mkdir(parents=True)
    if exporter == "generation":
        (place / "decode.onnx").touch()
    folder.describe(place, manifest)
    with pytest.raises(BundleError, match="is broken"):
        onnx_export.read_one(Bundle(path=tmp_path / "key", key="key", digest="d", manifest={}), tmp_path, exporter)
    assert onnx_export.is_kept("key", tmp_path, exporter)
