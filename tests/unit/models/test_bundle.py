"""The bundle cache: keys, verification, interrupted builds. The builder is fake and needs no torch."""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.metadata
import json
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import BundleError, FactoryError
from hwmatrix.models import bundle, folder, reference
from hwmatrix.models.bundle import Bundle, bundle_key, find_or_build, find_or_take, verify
from hwmatrix.models.canary import canary_plans
from hwmatrix.records import Family, ModelPlan, Role, Size

if TYPE_CHECKING:
    from pathlib import Path

PLAN = ModelPlan(
    name="bert",
    size=Size.TINY,
    family=Family.EMBEDDING,
    architecture="bert",
    model_class="BertForMaskedLM",
    config={"vocab_size": 256, "hidden_size": 32},
)


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.fixture(autouse=True)
def _versions(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, torch="1", transformers="2")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the built plans."""
    built: list[str] = []

    def fill(plan: ModelPlan, folder: Path) -> dict[str, Any]:
        built.append(plan.name)
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(b"weights")
        for name in ("inputs.safetensors", "expected.safetensors"):
            (folder / name).write_bytes(name.encode())
        return {
            "model_class": plan.model_class,
            "parameters": 7,
            "inputs": [],
            "expected": [],
            "floors": {},
            "modalities": {"given": ["text"], "takes": ["text"], "text_path_only": False},
        }

    monkeypatch.setattr(reference, "fill", fill)
    return built


def find(plan: ModelPlan, cache: Path) -> Bundle | None:
    """The bundle that is used; None: it would have to be built."""

    def build(_own: Path) -> None:
        raise LookupError

    try:
        return find_or_take(plan, cache, build)
    except LookupError:
        return None


def test_key_depends_on_everything_that_determines_the_content() -> None:
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"batch": 2},
        {"sequence_length": 8},
        {"config": {"vocab_size": 256, "hidden_size": 64}},
        {"model_class": "BertModel"},
        {"architecture": "roberta"},
        {"role": Role.CANARY_WRONG},
        {"trained": True},
    ]
    keys = {bundle_key(dataclasses.replace(PLAN, **change)) for change in changes}
    assert len(keys | {bundle_key(PLAN)}) == len(changes) + 1


def test_key_does_not_depend_on_labels() -> None:
    same = dataclasses.replace(PLAN, name="other", matrix_line=7, hub_id="a/b", config={"hidden_size": 32, "vocab_size": 256})
    assert bundle_key(same) == bundle_key(PLAN)


def test_key_depends_on_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {bundle_key(PLAN)}
    for versions in ({"transformers": "3"}, {"openvino": "1"}, {"onnx": "1"}, {"onnxscript": "1"}):
        installed(monkeypatch, **{"torch": "1", "transformers": "2", **versions})
        keys.add(bundle_key(PLAN))
    assert len(keys) == 5


def test_key_of_a_folder_depends_on_its_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}', encoding="utf-8")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes((8).to_bytes(8, "little") + b"{}      ")
    plan = dataclasses.replace(PLAN, weights=str(tmp_path))
    before = bundle_key(plan)
    (tmp_path / "README.md").write_text("of no consequence", encoding="utf-8")
    assert bundle_key(plan) == before
    weights.write_bytes((9).to_bytes(8, "little") + b"{}       ")
    assert bundle_key(plan) != before


def test_hub_weights_have_no_key_before_they_are_fetched() -> None:
    with pytest.raises(FactoryError) as caught:
        bundle_key(dataclasses.replace(PLAN, weights="hub", hub_id="a/b"))
    assert caught.value.error_type == "weights_not_fetched"


def test_without_torch_the_key_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(FactoryError, match="reference image"):
        bundle_key(PLAN)


def test_built_once_then_found(tmp_path: Path, builds: list[str]) -> None:
    assert find(PLAN, tmp_path) is None
    first = find_or_build(PLAN, tmp_path)
    assert find_or_build(PLAN, tmp_path) == first == find(PLAN, tmp_path)
    assert builds == ["bert"]
    assert (first.path, first.model_class, first.parameters) == (tmp_path / bundle_key(PLAN), "BertForMaskedLM", 7)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".partial")] == []


def test_every_user_can_read_a_bundle(tmp_path: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = reference.fill

    def fill(plan: ModelPlan, folder: Path) -> dict[str, Any]:
        described = before(plan, folder)
        (folder / "model" / "model.safetensors").chmod(0o600)
        return described

    monkeypatch.setattr(reference, "fill", fill)
    built = find_or_build(PLAN, tmp_path)
    modes = {path.stat().st_mode & 0o777 for path in (built.path, *built.path.rglob("*"))}
    assert modes == {0o755, 0o644}
    assert builds == ["bert"]


def test_what_root_makes_belongs_to_the_owner_of_the_cache(tmp_path: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's runs without containers use the cache that root's containers, which run as another user, write to."""
    given: dict[Path, tuple[int, int]] = {}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda path, uid, gid, **_: given.update({path: (uid, gid)}))
    built = find_or_build(PLAN, tmp_path / "cache")
    left = {path for path in (tmp_path / "cache").rglob("*") if not path.is_relative_to(built.path)}
    assert left == {tmp_path / "cache" / folder.LOCKS, tmp_path / "cache" / folder.LOCKS / built.key}
    partial = built.path.with_name(f".partial-{built.key}-{os.getpid()}")  # where it was made
    assert left | {partial, tmp_path / "cache"} | {partial / path.relative_to(built.path) for path in built.path.rglob("*")} <= given.keys()
    assert set(given.values()) == {(tmp_path.stat().st_uid, tmp_path.stat().st_gid)}
    assert builds == ["bert"]


def test_two_caches_build_the_same_bundle(tmp_path: Path, builds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (find_or_build(PLAN, tmp_path / name) for name in "ab")
    assert (first.key, first.digest) == (second.key, second.digest)
    installed(monkeypatch, torch="2", transformers="2")
    third = find_or_build(PLAN, tmp_path / "a")
    assert third.key != first.key
    assert third.digest == first.digest, "the content is the same, whichever version made it"
    assert len(builds) == 3


def _tamper(path: Path) -> None:
    (path / "model" / "model.safetensors").write_bytes(b"weightz")


def _truncate(path: Path) -> None:
    (path / "expected.safetensors").write_bytes(b"")


def _lose(path: Path) -> None:
    (path / "inputs.safetensors").unlink()


def _add(path: Path) -> None:
    (path / "model" / "modeling_custom.py").write_text("import os\n", encoding="utf-8")


def _link(path: Path) -> None:
    file = path / "inputs.safetensors"
    file.rename(path.parent / "elsewhere")
    file.symlink_to(path.parent / "elsewhere")


def _half(path: Path) -> None:
    (path / "manifest.json").unlink()


def _garble(path: Path) -> None:
    (path / "manifest.json").write_text("{", encoding="utf-8")


def _empty(path: Path) -> None:
    (path / "manifest.json").write_text("[]", encoding="utf-8")


def _other_code(path: Path) -> None:
    identity = json.loads((path / "manifest.json").read_text(encoding="utf-8"))["identity"]
    _edit(path, identity=identity | {"made_by": identity["made_by"] | {"code": "0" * 64}})


def _other_recipe(path: Path) -> None:
    _edit(path, identity={"seed": 8})


def _edit(path: Path, **changes: object) -> None:
    folder.describe(path, json.loads((path / "manifest.json").read_text(encoding="utf-8")) | changes)


def _other_number(path: Path) -> None:
    text = (path / "manifest.json").read_text(encoding="utf-8")
    (path / "manifest.json").write_text(text.replace('"parameters": 7', '"parameters": 8'), encoding="utf-8")


DAMAGES = {
    _tamper: "model.safetensors",
    _truncate: "expected.safetensors",
    _lose: "inputs.safetensors",
    _add: "modeling_custom.py",
    _link: "inputs.safetensors",
    _half: "manifest.json",
    _garble: "manifest.json",
    _empty: "manifest.json",
    _other_code: "another version of hwmatrix",
    _other_recipe: "manifest.json",
    _other_number: "manifest.json differs from its checksum",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_damage_is_reported_and_repaired(tmp_path: Path, builds: list[str], damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    whole = find_or_build(PLAN, tmp_path)
    damage(whole.path)
    with pytest.raises(BundleError, match=DAMAGES[damage]):
        verify(whole.path)
    with caplog.at_level(logging.WARNING):
        assert find(PLAN, tmp_path) is None
    assert DAMAGES[damage] in caplog.text
    assert not whole.path.exists()
    assert find_or_build(PLAN, tmp_path).digest == whole.digest
    assert len(builds) == 2


def test_a_bundle_under_another_key_is_not_used(tmp_path: Path, builds: list[str]) -> None:
    other = find_or_build(dataclasses.replace(PLAN, seed=1), tmp_path)
    other.path.rename(tmp_path / bundle_key(PLAN))
    assert find(PLAN, tmp_path) is None
    assert len(builds) == 1


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(_plan: ModelPlan, folder: Path) -> dict[str, Any]:
        (folder / "model").mkdir()
        raise FactoryError("NaN", error_type="reference_not_finite")

    monkeypatch.setattr(reference, "fill", fill)
    with pytest.raises(FactoryError):
        find_or_build(PLAN, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".locks"]


def test_a_full_disk_is_not_the_models_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(_plan: ModelPlan, _folder: Path) -> dict[str, Any]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reference, "fill", fill)
    with pytest.raises(BundleError, match="No space left") as caught:
        find_or_build(PLAN, tmp_path)
    assert (caught.value.error_type, caught.value.status) == ("cache_not_writable", "infra_error")


def test_a_cache_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(BundleError, match="another cache"):
        find(PLAN, tmp_path / "cache")


def test_files_of_a_killed_build_are_removed_but_not_those_of_a_running_one(tmp_path: Path, builds: list[str]) -> None:
    dead, running = tmp_path / f".partial-{'a' * 64}-99", tmp_path / f".partial-{'b' * 64}-99"
    same = tmp_path / f".partial-{bundle_key(PLAN)}-99"
    for partial in (dead, running, same):
        (partial / "model").mkdir(parents=True)
    (tmp_path / ".locks").mkdir()
    with (tmp_path / ".locks" / ("b" * 64)).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        find_or_build(PLAN, tmp_path)
        assert (dead.exists(), running.exists(), same.exists()) == (False, True, False)
    assert builds == ["bert"]


def test_canaries_differ_only_in_their_role() -> None:
    good, wrong = canary_plans()
    assert (good.name, wrong.name) == ("canary-good", "canary-wrong")
    assert dataclasses.replace(wrong, name=good.name, role=good.role) == good
    assert bundle.bundle_key(good) != bundle.bundle_key(wrong)


@pytest.mark.usefixtures("builds")
def test_a_bundle_is_taken_from_a_cache_of_its_own_if_there_is_none(tmp_path: Path) -> None:
    owned: list[Path] = []

    def build(own: Path) -> None:
        owned.append(own)
        find_or_build(PLAN, own)

    taken = find_or_take(PLAN, tmp_path, build)
    assert taken == find(PLAN, tmp_path) == find_or_take(PLAN, tmp_path, build)
    assert len(owned) == 1
    assert not owned[0].exists()


@pytest.mark.usefixtures("builds")
@pytest.mark.parametrize("how", ["nothing", "file", "link", "linked manifest", "linked file", "another"])
def test_a_bundle_that_is_not_what_it_says_is_not_taken(tmp_path: Path, how: str) -> None:
    """As code of a model may leave it, which runs where the bundle is built."""
    outside = find_or_build(PLAN, tmp_path / "elsewhere").path

    def build(own: Path) -> None:
        if how == "nothing":
            return
        if how == "link":
            (own / outside.name).symlink_to(outside)
            return
        made = find_or_build(PLAN if how != "another" else dataclasses.replace(PLAN, seed=1), own).path
        if how == "another":
            made.rename(own / bundle_key(PLAN))
        elif how == "file":
            (made / "more").touch()
        else:
            name = "manifest.json" if how == "linked manifest" else "inputs.safetensors"
            (made / name).unlink()
            (made / name).symlink_to(outside / name)

    with pytest.raises(BundleError):
        find_or_take(PLAN, tmp_path / "cache", build)
    assert find(PLAN, tmp_path / "cache") is None
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".locks"]
    assert verify(outside)


def test_a_lock_of_another_user_counts_as_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root and the container's user have them in one cache: what the other is building is left alone."""
    (tmp_path / folder.LOCKS).mkdir()
    with folder.unlocked(tmp_path, "key") as free:
        assert free

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "open", refuse)
    with folder.unlocked(tmp_path, "key") as free:
        assert not free
