"""The limit of the bundle cache: what is removed, in which order, and what always stays."""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest

from hwmatrix.host.cache_limit import keep_under
from hwmatrix.host.ci_machines import pruning
from hwmatrix.models.bundle import plan_part
from hwmatrix.models.canary import canary_plans
from hwmatrix.models.folder import LOCKS
from hwmatrix.models.onnx_export import ONNX_DIR

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.records import ModelPlan

MIB = 2**20
GIB = 2**30


@pytest.fixture(autouse=True)
def _nobody_else_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "others", lambda: iter(()))


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    return tmp_path / "bundles"


def put(bundles: Path, number: int, of: ModelPlan, *, age_days: int, mib: int = 1) -> Path:
    """Write a bundle of a plan, with a given age and size."""
    folder = bundles / f"{number:064x}"
    folder.mkdir(parents=True)
    identity = json.loads(plan_part(of)) | {"weights": "recipe", "made_by": {}}
    return _filled(folder, {"identity": identity}, age_days, mib)


def put_export(bundles: Path, number: int, *, age_days: int, mib: int = 1) -> Path:
    folder = bundles / ONNX_DIR / f"{number:064x}" / "torch"
    folder.mkdir(parents=True)
    return _filled(folder, {}, age_days, mib)


def _filled(folder: Path, manifest: dict[str, Any], age_days: int, mib: int) -> Path:
    (folder / "data").write_bytes(b"x" * mib * MIB)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    used = (folder / "data").stat().st_mtime - age_days * 86400
    for file in folder.iterdir():
        os.utime(file, (used, used))
    return folder


def test_a_cache_under_its_limit_is_not_changed(bundles: Path) -> None:
    folder = put(bundles, 1, make.model_plan(), age_days=100)
    assert keep_under(1.0, bundles, ()) is None
    assert keep_under(1.0, bundles / "nowhere", ()) is None
    assert folder.is_dir()


def test_the_least_recently_used_is_removed_first_until_the_limit_is_met(bundles: Path) -> None:
    old, older, new = (put(bundles, number, make.model_plan(f"m{number}"), age_days=age, mib=2) for number, age in ((1, 5), (2, 9), (3, 1)))
    export = put_export(bundles, 1, age_days=7)
    told = keep_under(5.5 * MIB / GIB, bundles, ())
    assert [path.is_dir() for path in (older, export, old, new)] == [False, True, True, True]
    assert told is not None
    assert "removed 1 of them" in told
    assert keep_under(2.5 * MIB / GIB, bundles, ()) is not None
    assert [path.is_dir() for path in (export, old, new)] == [False, False, True]


def test_bundles_and_exports_of_later_waves_and_canaries_stay(bundles: Path) -> None:
    later = make.model_plan("later")
    kept = [put(bundles, 1, later, age_days=50), put_export(bundles, 1, age_days=50), put(bundles, 2, canary_plans()[0], age_days=50)]
    gone = [put(bundles, 3, make.model_plan("done"), age_days=1), put_export(bundles, 3, age_days=1)]
    assert "removed 2 of them" in (keep_under(0.0, bundles, (later,)) or "")
    assert all(path.is_dir() for path in kept)
    assert not any(path.exists() for path in gone)


@pytest.mark.parametrize("changes", [{"seed": 1}, {"sequence_length": 32}, {"config": {"hidden_size": 64}}, {"batch": 2}])
def test_a_bundle_of_another_recipe_of_a_needed_model_is_removed(bundles: Path, changes: dict[str, Any]) -> None:
    folder = put(bundles, 1, make.model_plan("later", **changes), age_days=1)
    keep_under(0.0, bundles, (make.model_plan("later"),))
    assert not folder.exists()


@pytest.mark.parametrize("manifest", ["{", "{}", "[]", '{"identity": null}', '{"identity": {"architecture": "bert"}}'])
def test_a_bundle_without_a_readable_manifest_can_be_removed(bundles: Path, manifest: str) -> None:
    folder = put(bundles, 1, make.model_plan(), age_days=1)
    (folder / "manifest.json").write_text(manifest, encoding="utf-8")
    keep_under(0.0, bundles, (make.model_plan(),))
    assert not folder.exists()


def test_while_another_command_runs_nothing_is_removed(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "others", lambda: iter([(77, ["python3", "-m", "hwmatrix.runner", "run"])]))
    folder = put(bundles, 1, make.model_plan(), age_days=1)
    told = keep_under(0.0, bundles, ())
    assert folder.is_dir()
    assert told is not None
    assert "nothing is removed, since process 77" in told


def test_locked_bundles_stay_and_are_reported(bundles: Path) -> None:
    folder = put(bundles, 1, make.model_plan(), age_days=1)
    (bundles / LOCKS).mkdir()
    with (bundles / LOCKS / folder.name).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = keep_under(0.0, bundles, ())
    assert folder.is_dir()
    assert told is not None
    assert told.endswith("1 could not be removed (it is locked: another process is making or checking it)")


def test_without_a_limit_nothing_is_removed(bundles: Path) -> None:
    put(bundles, 1, make.model_plan(), age_days=1)
    assert keep_under(float("inf"), bundles, ()) is None
