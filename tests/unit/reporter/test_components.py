from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from hwmatrix.records import Backend, Severity
from hwmatrix.reporter import components

if TYPE_CHECKING:
    import pytest


def test_every_target_is_checked() -> None:
    checked, _ = components.check()
    assert {each.name for each in checked if each.kind == "target"} == {backend.value for backend in Backend}


def test_a_missing_package_is_reported_with_its_consequences(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"docker", "openvino", "onnxruntime_qnn"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else importlib.util.spec_from_loader(name, None))
    checked, errors = components.check()
    told = {(error.error_type, error.hardware_type): error for error in errors}
    assert told["tool_missing", None].severity is Severity.WARNING
    assert "docker" in told["tool_missing", None].message
    assert told["runtime_not_installed", "openvino"].severity is Severity.INFO
    assert told["runtime_not_installed", "openvino"].message.endswith("which lacks openvino")
    assert told["runtime_not_installed", "qnn"].message.endswith("which lacks onnxruntime_qnn")
    assert told.keys() == {("tool_missing", None), ("runtime_not_installed", "openvino"), ("runtime_not_installed", "qnn")}
    assert not next(each for each in checked if each.name == "openvino").usable
