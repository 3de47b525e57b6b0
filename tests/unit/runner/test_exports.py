"""Which exporters are called for a bundle, and for which models of a plan. Children and exporters are fake."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import factory_plans as make
import pytest

from hwmatrix.models.bundle import Bundle
from hwmatrix.models.canary import canary_plans
from hwmatrix.models.onnx_export import EXPORTERS, ONNX_DIR
from hwmatrix.records.backends import descriptor_of
from hwmatrix.runner import exports
from hwmatrix.runner.forked import run_owning

FIRST, SECOND = EXPORTERS
BUNDLE = Bundle(path=Path("key"), key="key", digest="digest", manifest={})


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The called exporters; those in ``FAILS`` fail."""
    names: list[str] = []

    def by(exporter: str, *_: Any, **__: Any) -> dict[str, Any]:
        names.append(exporter)
        return {"ok": exporter not in FAILS, "message": None}

    FAILS.clear()
    monkeypatch.setattr(exports, "_export_by", by)
    return names


FAILS: set[str] = set()


def export(tmp_path: Path, *, every: bool = False) -> list[dict[str, Any]]:
    return exports.export(BUNDLE, tmp_path, make.LIMITS, exports.Wanted(forward=True, every=every), run_owning)


def test_the_second_exporter_is_not_called_after_a_success(called: list[str], tmp_path: Path) -> None:
    assert export(tmp_path) == [{"exporter": FIRST, "ok": True, "message": None}]
    assert called == [FIRST]


def test_the_second_exporter_is_called_after_a_failure(called: list[str], tmp_path: Path) -> None:
    FAILS.add(FIRST)
    assert [told["ok"] for told in export(tmp_path)] == [False, True]
    assert called == [FIRST, SECOND]


def test_every_exporter_is_called_on_request(called: list[str], tmp_path: Path) -> None:
    export(tmp_path, every=True)
    assert called == [FIRST, SECOND]


def test_an_exporter_with_an_outdated_result_is_called_again(called: list[str], tmp_path: Path) -> None:
    kept = tmp_path / ONNX_DIR / "key" / SECOND
    kept.mkdir(parents=True)
    (kept / "manifest.json").write_text("{}", encoding="utf-8")
    export(tmp_path)
    assert called == [FIRST, SECOND]


def test_exports_that_generate_are_made_besides_and_only_where_asked(called: list[str], tmp_path: Path) -> None:
    wanted = exports.Wanted(forward=False, named=("generation", "generation-openvino"))
    FAILS.add("generation")
    assert [told["ok"] for told in exports.export(BUNDLE, tmp_path, make.LIMITS, wanted, run_owning)] == [False, True]
    assert called == ["generation", "generation-openvino"]


def test_everything_is_kept_once_each_wanted_export_has_a_result(tmp_path: Path) -> None:
    wanted = exports.Wanted(forward=True, named=("generation",))
    assert exports.all_kept("key", tmp_path, exports.Wanted(forward=False))
    for missing, name in ((True, FIRST), (True, "generation"), (False, None)):
        assert exports.all_kept("key", tmp_path, wanted) != missing
        if name is not None:
            (tmp_path / ONNX_DIR / "key" / name).mkdir(parents=True)
            (tmp_path / ONNX_DIR / "key" / name / "manifest.json").write_text('{"failure": null}', encoding="utf-8")


@pytest.mark.parametrize(
    ("targets", "wanted", "chosen"),
    [(("cpu", "openvino"), False, False), (("cpu", "onnxruntime"), True, False), (("cpu", "onnxruntime", "qnn"), True, True)],
)
def test_targets_decide(targets: tuple[str, ...], *, wanted: bool, chosen: bool) -> None:
    plan = make.plan(models=("bert",), targets=targets)
    canaries = {canary.key for canary in canary_plans()}
    assert exports.wanted(plan) == ({make.model_plan("bert").key, *canaries} if wanted else set())
    assert exports.chosen_between(plan) == chosen
    generating = [dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, new_tokens=4)) for cell in plan.cells]
    assert exports.wanted(dataclasses.replace(plan, cells=tuple(generating))) == (canaries if wanted else set())


def test_an_unavailable_target_needs_no_exports() -> None:
    plan = make.plan(models=("bert",), targets=("cpu", "qnn"))
    missing = tuple(dataclasses.replace(target, unavailable="no such machine") for target in plan.targets)
    plan = dataclasses.replace(plan, targets=missing)
    assert exports.wanted(plan) == set()
    assert not exports.chosen_between(plan)


def test_available_targets_whose_cells_run_one_pass_need_the_graph_that_they_name() -> None:
    plan = make.plan(models=("gpt2",), targets=("cpu", "onnxruntime", "openvino"))
    targets = tuple(dataclasses.replace(each, forward_export=descriptor_of(each.backend).forward_export) for each in plan.targets)
    plan = dataclasses.replace(plan, targets=targets)
    assert exports.wanted_by_name(plan) == {make.model_plan("gpt2").key: ("openvino",)}
    gone = tuple(dataclasses.replace(each, unavailable="gone") for each in targets)
    assert exports.wanted_by_name(dataclasses.replace(plan, targets=gone)) == {}


def test_canaries_need_the_graphs_that_available_targets_name() -> None:
    plan = make.plan(models=("gpt2",), targets=("cpu", "openvino"))
    assert exports.of_canaries(plan) == ()
    targets = tuple(dataclasses.replace(each, forward_export=descriptor_of(each.backend).forward_export) for each in plan.targets)
    assert exports.of_canaries(dataclasses.replace(plan, targets=targets)) == ("openvino",)
    gone = tuple(dataclasses.replace(each, unavailable="gone") for each in targets)
    assert exports.of_canaries(dataclasses.replace(plan, targets=gone)) == ()


def test_available_targets_whose_cells_generate_need_their_exports() -> None:
    plan = make.plan(models=("gpt2",), targets=("cpu", "onnxruntime", "openvino", "qnn"))
    assert exports.wanted_by_name(plan) == {}
    cells = tuple(dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, new_tokens=8)) for cell in plan.cells)
    targets = tuple(dataclasses.replace(each, generation_export=descriptor_of(each.backend).generation_export) for each in plan.targets)
    plan = dataclasses.replace(plan, cells=cells, targets=targets)
    assert exports.wanted_by_name(plan) == {make.model_plan("gpt2").key: ("generation", "generation-openvino")}
    gone = tuple(dataclasses.replace(each, unavailable="gone" if each.backend == "openvino" else None) for each in targets)
    assert exports.wanted_by_name(dataclasses.replace(plan, targets=gone)) == {make.model_plan("gpt2").key: ("generation",)}
