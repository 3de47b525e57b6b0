from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import pytest

from hwmatrix.matrix.load import load
from hwmatrix.records import Backend, Execution
from hwmatrix.records.backends import TABLE, Descriptor, OnnxUse, descriptor_of, descriptors
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


@pytest.mark.parametrize(
    ("name", "method", "way"),
    [
        ("openvino", "openvino.convert_model on a trace", "trace"),
        ("openvino", "transformers OpenVINO export", "transformers"),
        ("qnn", "torch ONNX export, opset 20, RMS norms fused", "torch"),
        ("onnxruntime", "transformers ONNX export, opset 18", "transformers"),
        ("webgpu", "something else", None),
        ("cpu", "torch eager mode", None),
        ("qnn", None, None),
    ],
)
def test_the_export_methods(name: str, method: str | None, way: str | None) -> None:
    assert descriptor_of(name).export_of(method) == way


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
