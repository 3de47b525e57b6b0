"""Checkpoint folders: what is read from their files, and what is refused."""

from __future__ import annotations

import json
import pickle
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy

from hwmatrix.errors import FactoryError, RefusedError
from hwmatrix.models.checkpoint import inspect, plan_for
from hwmatrix.records import Family, Size

if TYPE_CHECKING:
    from pathlib import Path

BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "max_position_embeddings": 64}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "checkpoint", BERT)


@pytest.fixture
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)


def checkpoint(folder: Path, config: dict[str, Any], weights: str | None = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if weights:
        (folder / weights).write_bytes(safetensors.numpy.save({}))
    return folder


@pytest.mark.parametrize("content", [b"", b"garbage\n", safetensors.numpy.save({"x": np.zeros(9)})[:-1]], ids=["empty", "garbage", "cut"])
def test_damaged_weights(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert error_type(folder) == "weights_broken"


def error_type(folder: Path) -> str:
    with pytest.raises(FactoryError) as caught:
        inspect(folder)
    return caught.value.error_type


def test_reads_architecture_class_and_weights(folder: Path) -> None:
    found = inspect(folder)
    assert (found.architecture, found.model_class) == ("bert", "BertForMaskedLM")
    assert found.weights == (folder / "model.safetensors",)
    assert found.files == (folder / "config.json", folder / "model.safetensors")


def test_plan_uses_the_folder_and_stays_within_its_positions(folder: Path) -> None:
    plan = plan_for("mine", folder, Size.FULL, 2, 128, hub_id="me/mine", revision="abc")
    assert (plan.name, plan.family, plan.weights) == ("mine", Family.EMBEDDING, str(folder))
    assert (plan.batch, plan.sequence_length, plan.size) == (2, 64, Size.FULL)
    assert (plan.hub_id, plan.revision) == ("me/mine", "abc")


def test_positions_of_a_nested_text_model_count(tmp_path: Path) -> None:
    config = {"model_type": "clip", "architectures": ["CLIPModel"], "text_config": {"max_position_embeddings": 77}}
    assert plan_for("mine", checkpoint(tmp_path / "clip", config), Size.FULL, 1, 128).sequence_length == 77


def test_shards_of_an_index(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "sharded", BERT, weights="b.safetensors")
    (folder / "a.safetensors").write_bytes(safetensors.numpy.save({}))
    index = {"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert inspect(folder).weights == (folder / "a.safetensors", folder / "b.safetensors")
    (folder / "b.safetensors").unlink()
    assert error_type(folder) == "weights_broken"


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "pytorch_model.bin", 7])
def test_an_index_may_name_only_safetensors_in_its_folder(tmp_path: Path, name: object) -> None:
    folder = checkpoint(tmp_path / "hostile", BERT, weights=None)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}), encoding="utf-8")
    with pytest.raises(RefusedError):
        inspect(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt", "tf_model.h5", "flax_model.msgpack"])
def test_pickled_weights_are_refused_without_reading_them(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "pickled", BERT, weights=None)
    (folder / name).write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(RefusedError, match=name) as caught:
        inspect(folder)
    assert caught.value.error_type == "pickle_refused"


@pytest.mark.parametrize("config", [True, False])
def test_a_model_in_openvino_s_format_is_called_so(tmp_path: Path, *, config: bool) -> None:
    """Its weights have the suffix of pickles, and are none."""
    folder = checkpoint(tmp_path / "converted", BERT, weights=None)
    (folder / "openvino_model.xml").write_text("<net/>", encoding="utf-8")
    (folder / "openvino_model.bin").write_bytes(b"weights")
    if not config:
        (folder / "config.json").unlink()
    with pytest.raises(FactoryError, match=r"OpenVINO's format \(openvino_model\.xml\).*converted from") as caught:
        inspect(folder)
    assert caught.value.error_type == "no_checkpoint"


def test_pickles_beside_safetensors_do_not_matter(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    assert inspect(folder).weights == (folder / "model.safetensors",)


@pytest.mark.usefixtures("no_transformers")
def test_remote_code_is_refused_on_a_machine_without_transformers(tmp_path: Path) -> None:
    config = {**BERT, "model_type": "custom", "auto_map": {"AutoConfig": "configuration_custom.Custom"}}
    with pytest.raises(RefusedError, match="never does") as caught:
        inspect(checkpoint(tmp_path / "remote", config))
    assert caught.value.error_type == "remote_code_refused"


@pytest.mark.usefixtures("no_transformers")
def test_a_native_architecture_may_contain_unneeded_code(tmp_path: Path) -> None:
    config = {**BERT, "auto_map": {"AutoModelForMaskedLM": "modeling_custom.Custom"}}
    assert inspect(checkpoint(tmp_path / "mixed", config)).architecture == "bert"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{", "config_broken"),
        ("[]", "config_broken"),
        ("\xff\xfe", "config_broken"),
        ('{"model_type": "bert"}', "config_incomplete"),
        ('{"model_type": "bert", "architectures": []}', "config_incomplete"),
        ('{"architectures": ["BertModel"]}', "config_incomplete"),
    ],
)
def test_broken_configurations(folder: Path, text: str, kind: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert error_type(folder) == kind


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert error_type(tmp_path / "missing") == "no_checkpoint"
    assert error_type(tmp_path) == "no_checkpoint"
    (tmp_path / "model_index.json").write_text("{}", encoding="utf-8")
    with pytest.raises(FactoryError, match="diffusers"):
        inspect(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    assert error_type(checkpoint(tmp_path / "empty", BERT, weights=None)) == "no_weights"


class _Bomb:
    """A pickle that fails any test that reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was read",)


def test_models_of_diffusers_are_refused_with_what_to_do(tmp_path: Path) -> None:
    unet = checkpoint(tmp_path / "unet", {"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.42.1"})
    with pytest.raises(FactoryError, match=r"is a UNet2DConditionModel of diffusers, .* matrix\.yaml with family: diffusion"):
        inspect(unet)
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "model_index.json").write_text("{}", encoding="utf-8")
    with pytest.raises(FactoryError, match=r"it is a diffusers pipeline \(model_index\.json\), .* with family: diffusion"):
        inspect(tmp_path / "pipeline")
