from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest

from hwmatrix.matrix.load import load
from hwmatrix.records import Backend, Execution, Preparation
from hwmatrix.records.backends import TABLE, Descriptor, OnnxUse, descriptor_of, descriptors
from hwmatrix.records.vocabulary import exported_by
from hwmatrix.targets.protocol import OperatorRunner, Target, operators_class, target_class

PROJECT = Path(__file__).parents[3]
ALL = pytest.mark.parametrize("backend", descriptors(), ids=lambda each: each.name)


def test_the_enum_has_the_backends_of_the_table() -> None:
    assert list(TABLE) == list(Backend)


@ALL
def test_matrix_yaml_uses_only_supported_settings_of_a_backend(backend: Descriptor) -> None:
    targets = [target for target in load(PROJECT / "matrix.yaml").spec.targets.values() if target.backend == backend.name]
    assert targets
    for target in targets:
        assert target.image == backend.image
        assert set(target.dtypes) <= set(backend.precisions)
        assert target.execution is backend.execution


@ALL
def test_each_backend_s_image_has_a_folder(backend: Descriptor) -> None:
    assert (PROJECT / "images" / backend.image / "Dockerfile").is_file()


@ALL
def test_a_fallback_chain_has_backends_and_ends_with_the_cpu(backend: Descriptor) -> None:
    assert backend.fallback[-1:] == (() if backend.name == "cpu" else ("cpu",))
    assert all(descriptor_of(name).name != backend.name for name in backend.fallback)


@ALL
def test_backends_that_run_onnx_exports_have_an_order_of_exporters(backend: Descriptor) -> None:
    assert backend.onnx is OnnxUse.NONE or backend.exports
    assert backend.onnx is OnnxUse.NONE or backend.torch_device is None


@ALL
def test_emulated_and_software_backends_are_not_pytorch_devices(backend: Descriptor) -> None:
    assert backend.execution is Execution.HARDWARE or backend.torch_device is None


@ALL
def test_the_export_that_made_a_graph_is_known_from_the_preparation(backend: Descriptor) -> None:
    for way in backend.exports:
        assert backend.export_of((exported_by(way), Preparation.FIXED_SHAPES)) == way
    assert backend.export_of((Preparation.FIXED_SHAPES,)) is None
    assert backend.export_of(None) is None


@pytest.mark.torch
@ALL
def test_the_classes_implement_the_protocols(backend: Descriptor) -> None:
    missing = [module for module in backend.requires if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    has_all(target_class(backend.name), Target)
    if backend.operators is not None:
        has_all(operators_class(backend.name), OperatorRunner)


def has_all(found: type, protocol: type) -> None:
    for name in sorted({*vars(protocol), *protocol.__annotations__}):
        if name.startswith("_"):
            continue
        assert hasattr(found, name), name
        wanted = getattr(protocol, name, None)
        if inspect.isfunction(wanted):
            asked, given = (list(inspect.signature(member).parameters) for member in (wanted, getattr(found, name)))
            assert given == asked, name
