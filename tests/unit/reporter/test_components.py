from __future__ import annotations

import importlib
from typing import Any

import pytest

from hwmatrix.records import Backend, Severity
from hwmatrix.reporter import components


def test_every_part_has_a_probe_and_every_probe_a_part() -> None:
    assert {part.name for part in components.parts().components} == components._PROBES.keys()


def test_every_part_works_here() -> None:
    checked, errors = components.check()
    parts = [each for each in checked if each.kind == "component"]
    assert {each.name for each in parts} == components._PROBES.keys()
    assert all(each.usable for each in parts), [each.reason for each in parts]
    assert not [error for error in errors if error.error_type == "component_broken"]
    assert {each.name for each in checked if each.kind == "target"} == {backend.value for backend in Backend}


@pytest.mark.parametrize(("name", "severity"), [("catalogue", Severity.CRITICAL), ("resource_pool", Severity.ERROR)])
def test_a_part_that_cannot_be_imported(name: str, severity: Severity, monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = (part for part in components.parts().components if part.name == name)

    def broken(module: str) -> Any:
        if module == part.module:
            raise ImportError("a library is missing")
        return importlib.import_module(module)

    class Importer:
        import_module = staticmethod(broken)
        util, resources = importlib.util, importlib.resources

    monkeypatch.setattr(components, "importlib", Importer)
    checked, errors = components.check()
    (error,) = (error for error in errors if error.error_type == "component_broken")
    assert error.severity is severity
    assert part.costs in error.message
    assert "ImportError: a library is missing" in error.message
    assert "Traceback" in (error.traceback or "")
    assert [each.name for each in checked if each.kind == "component" and not each.usable] == [name]


def test_a_part_with_an_invalid_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwmatrix.faults.catalogue.catalogue", tuple)
    monkeypatch.setattr(components, "_missing", lambda _modules: [])
    _, errors = components.check()
    (error,) = (error for error in errors if error.error_type == "component_broken")
    assert "it returned () instead of a list of error types" in error.message
    assert error.severity is Severity.CRITICAL
    assert error.recommendations, "even if the catalogue cannot be used"


def test_a_missing_package_is_reported_with_its_consequences(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"docker", "openvino", "onnxruntime_qnn"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else importlib.util.spec_from_loader(name, None))
    monkeypatch.setattr(components, "_error_of_part", lambda _part: None)
    checked, errors = components.check()
    told = {(error.error_type, error.hardware_type): error for error in errors}
    assert told["tool_missing", None].severity is Severity.WARNING
    assert "docker" in told["tool_missing", None].message
    assert told["runtime_not_installed", "openvino"].severity is Severity.INFO
    assert told["runtime_not_installed", "openvino"].message.endswith("which lacks openvino")
    assert told["runtime_not_installed", "qnn"].message.endswith("which lacks onnxruntime_qnn")
    assert told.keys() == {("tool_missing", None), ("runtime_not_installed", "openvino"), ("runtime_not_installed", "qnn")}
    assert not next(each for each in checked if each.name == "openvino").usable
