"""Archives of bundles: what one machine packs, another uses; of a damaged or foreign archive nothing reaches the cache."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tarfile
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest

from hwmatrix.errors import StoreError
from hwmatrix.host import archive as archives
from hwmatrix.host import bundle_archive
from hwmatrix.host.run_folder import RunFolder
from hwmatrix.models import folder, onnx_export
from hwmatrix.models.bundle import find_or_build, verify
from hwmatrix.models.canary import canary_plans
from hwmatrix.records.bundle_index import INDEX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hwmatrix.records import ModelKey, Plan

pytestmark = pytest.mark.torch

CONFIG = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT = make.model_plan("bert", config=CONFIG)
PLAN = dataclasses.replace(make.plan(), models=(BERT,), cells=(make.cell_plan("bert"),))


def entry(model: Any, cache: Path) -> dict[str, Any]:
    bundle = find_or_build(model, cache)
    named = {"model": model.name, "size": model.size.value, "batch": model.batch, "sequence_length": model.sequence_length}
    return {**named, "key": bundle.key, "digest": bundle.digest}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the bundles of the canaries and of one model, and with an exporter's recorded failure."""
    cache = tmp_path_factory.mktemp("made")
    for model in (*canary_plans(), BERT):
        find_or_build(model, cache)
    failure = onnx_export.OnnxFailure(exporter="torch", error_type="ValueError", message="no such operator", traceback=None)
    onnx_export.find_or_take(find_or_build(BERT, cache), cache, "torch", lambda _: failure)
    return cache


@pytest.fixture
def there(tmp_path: Path, made: Path) -> RunFolder:
    """The folder of the run on the machine that makes the bundles."""
    folder = RunFolder.create(tmp_path / "there", PLAN)
    entries = [entry(model, made) for model in (*canary_plans(), BERT)]
    (folder.bundles / INDEX).write_text(json.dumps({"schema": "hwmatrix/bundle-index/2", "bundles": entries}))
    return folder


@pytest.fixture
def here(tmp_path: Path) -> RunFolder:
    """The folder of the run on a machine of a target."""
    return RunFolder.create(tmp_path / "here", PLAN)


def taken(archive: Path, here: RunFolder, cache: Path, plan: Plan = PLAN) -> frozenset[ModelKey]:
    return bundle_archive.unpack(archive, here, plan, cache)


def test_the_other_machine_uses_the_same_bundles(there: RunFolder, here: RunFolder, made: Path, tmp_path: Path) -> None:
    archive, cache = tmp_path / "bundles.tar", tmp_path / "cache"
    assert bundle_archive.pack(there, made, archive) == 3
    models = taken(archive, here, cache)
    assert models == {BERT.key, *(canary.key for canary in canary_plans())}
    mine, theirs = find_or_build(BERT, cache), find_or_build(BERT, made)
    assert mine.digest == theirs.digest
    assert onnx_export.is_kept(mine.key, cache, "torch")
    assert not onnx_export.is_kept(mine.key, cache, "transformers")
    index = json.loads((here.bundles / INDEX).read_bytes())
    assert {each["model"]: each["digest"] for each in index["bundles"]}["bert"] == theirs.digest
    assert not list(cache.glob(".unpack-*"))


def test_the_same_bundles_give_the_same_archive(there: RunFolder, made: Path, tmp_path: Path) -> None:
    for name in ("one.tar", "two.tar"):
        bundle_archive.pack(there, made, tmp_path / name)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_a_model_without_a_bundle_is_left_out_unless_failures_count(there: RunFolder, here: RunFolder, made: Path, tmp_path: Path) -> None:
    index = json.loads((there.bundles / INDEX).read_bytes())
    index["bundles"][-1] |= {"key": None, "digest": None, "error_type": "factory_failed", "message": "it crashed"}
    (there.bundles / INDEX).write_text(json.dumps(index))
    assert bundle_archive.pack(there, made, tmp_path / "bundles.tar") == 2
    assert BERT.key not in taken(tmp_path / "bundles.tar", here, tmp_path / "cache")
    assert "bert" not in (here.bundles / INDEX).read_text()
    assert BERT.key in bundle_archive.unpack(tmp_path / "bundles.tar", here, PLAN, tmp_path / "cache", failures=True)
    assert json.loads((here.bundles / INDEX).read_bytes())["bundles"][-1]["message"] == "it crashed"


def test_another_bundle_of_the_same_model_in_the_cache_is_replaced(there: RunFolder, here: RunFolder, made: Path, tmp_path: Path) -> None:
    """Trained weights depend on the kind of processor, so two machines may have different bundles under one key."""
    cache = tmp_path / "cache"
    own = find_or_build(BERT, cache)
    folder.describe(own.path, json.loads((own.path / "manifest.json").read_bytes()) | {"training": {"reason": "another processor"}})
    other = verify(own.path).digest
    failure = onnx_export.OnnxFailure(exporter="transformers", error_type="ValueError", message="no such operator", traceback=None)
    onnx_export.find_or_take(verify(own.path), cache, "transformers", lambda _: failure)
    bundle_archive.pack(there, made, tmp_path / "bundles.tar")
    taken(tmp_path / "bundles.tar", here, cache)
    assert verify(own.path).digest == find_or_build(BERT, made).digest != other
    assert not onnx_export.is_kept(own.key, cache, "transformers"), "what was made for the other bundle is gone with it"


def _unlisted_file(place: Path, key: str) -> None:
    (place / key / "more.txt").write_text("?")


def _damaged_weights(place: Path, key: str) -> None:
    weights = place / key / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")


def _bundle_of_another_model(place: Path, key: str) -> None:
    """The index gives the canary's bundle for bert."""
    index = json.loads((place / INDEX).read_bytes())
    index["bundles"][-1]["key"] = index["bundles"][0]["key"]
    (place / INDEX).write_text(json.dumps(index))
    shutil.rmtree(place / key)
    shutil.rmtree(place / onnx_export.ONNX_DIR)


def _bundle_that_is_not_in_the_index(place: Path, _key: str) -> None:
    index = json.loads((place / INDEX).read_bytes())
    del index["bundles"][-1]
    (place / INDEX).write_text(json.dumps(index))


def _unknown_model(place: Path, _key: str) -> None:
    index = json.loads((place / INDEX).read_bytes())
    index["bundles"][-1]["model"] = "gpt2"
    (place / INDEX).write_text(json.dumps(index))


def _no_canary(place: Path, _key: str) -> None:
    index = json.loads((place / INDEX).read_bytes())
    shutil.rmtree(place / index["bundles"].pop(0)["key"])
    (place / INDEX).write_text(json.dumps(index))


def _bad_index(place: Path, _key: str) -> None:
    (place / INDEX).write_text("[]")


def _no_index(place: Path, _key: str) -> None:
    (place / INDEX).unlink()


def _export_of_another_bundle(place: Path, key: str) -> None:
    manifest = place / onnx_export.ONNX_DIR / key / "torch" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | {"bundle": "0" * 64}))


def _foreign_file(place: Path, _key: str) -> None:
    (place / "run.sh").write_text("echo")


def _another_run(place: Path, _key: str) -> None:
    plan = json.loads((place / "plan.json").read_bytes())
    (place / "plan.json").write_text(json.dumps(plan | {"run_id": "another"}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_unlisted_file, "is not in its manifest"),
        (_damaged_weights, "differs in size or checksum"),
        (_bundle_of_another_model, r"is not of bert \(tiny\)"),
        (_bundle_that_is_not_in_the_index, "its index does not list the bundle"),
        (_unknown_model, "models that the run does not have: gpt2"),
        (_no_canary, "it lacks the bundle of canary"),
        (_bad_index, "bundles.json"),
        (_no_index, "it has no bundles.json"),
        (_export_of_another_bundle, "another bundle"),
        (_foreign_file, "'run.sh' does not belong in it"),
        (_another_run, "from another run"),
    ],
)
def test_of_a_wrong_archive_nothing_is_taken(
    there: RunFolder,
    here: RunFolder,
    made: Path,
    tmp_path: Path,
    *,
    change: Callable[[Path, str], None],
    reason: str,
) -> None:
    bundle_archive.pack(there, made, tmp_path / "right.tar")
    changed = tmp_path / "changed"
    with tarfile.open(tmp_path / "right.tar") as tar:
        tar.extractall(changed, filter="data")
    change(changed, find_or_build(BERT, made).key)
    files = {str(file.relative_to(changed)): file for file in sorted(changed.rglob("*")) if file.is_file()}
    archives.write(tmp_path / "wrong.tar", files)
    with pytest.raises(StoreError, match=reason):
        taken(tmp_path / "wrong.tar", here, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.name != ".locks"] == []
    assert not (here.bundles / INDEX).exists()


def test_a_bundle_that_the_cache_has_lost_is_not_packed(there: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="lacks the bundle"):
        bundle_archive.pack(there, tmp_path / "empty", tmp_path / "bundles.tar")
    assert not (tmp_path / "bundles.tar").exists()


def test_a_run_without_an_index_is_not_packed(here: RunFolder, made: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read") as caught:
        bundle_archive.pack(here, made, tmp_path / "bundles.tar")
    assert "start a new run" in str(caught.value.advice)
