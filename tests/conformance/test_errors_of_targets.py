"""What each target makes of a runtime's own error: whatever it wraps it in, the recorded message's type and status come out."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from recorded_errors import POSITIVE

from hwmatrix.errors import CellFailure
from hwmatrix.faults.catalogue import classify
from hwmatrix.models.onnx_export import OnnxExport, OnnxFailure, no_graph
from hwmatrix.records import Dtype, Settings, Stage, Status
from hwmatrix.targets.browser.failures import failure_of
from hwmatrix.targets.onnx import onnxruntime
from hwmatrix.targets.qnn import target as qnn

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = Settings(dtype=Dtype.FLOAT32, batch=1, sequence_length=16, threads=1)
EXPORTS = tuple(
    OnnxExport(exporter=name, path=Path("none"), inputs=(), outputs=(), opset=20, seconds=1.0) for name in ("transformers", "torch")
)
BUNDLE: Any = SimpleNamespace(path=Path("key"), parameters=1, calibration=list, manifest={})
MEMORY = [
    each
    for each in POSITIVE
    if each["type"] == "memory_pressure" and each["hardware"] not in {"cuda", "rocm", "mps"} and "status" not in each
]


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_args: object, **_named: object) -> Any:
        raise error

    return fail


def of_onnxruntime(patch: pytest.MonkeyPatch, error: Exception) -> Callable[[], Any]:
    runtime = SimpleNamespace(
        SessionOptions=lambda: SimpleNamespace(add_session_config_entry=lambda *_: None), InferenceSession=raising(error)
    )
    patch.setitem(sys.modules, "onnxruntime", runtime)
    patch.setattr(onnxruntime, "read_all", lambda *_args, **_named: EXPORTS)
    target = onnxruntime.OnnxRuntime(settings=SETTINGS, options={})
    target.load(BUNDLE)
    return lambda: target.prepare({})


def generating_on_onnxruntime(patch: pytest.MonkeyPatch, error: Exception) -> Callable[[], Any]:
    patch.setattr(onnxruntime, "read_generation", lambda *_args: None)
    patch.setattr(onnxruntime, "in_precision", lambda *_args: None)
    patch.setattr(onnxruntime.OnnxRuntime, "_folder", lambda _target: None)
    patch.setattr(onnxruntime, "OnnxGenerator", raising(error))
    target = onnxruntime.OnnxRuntime(settings=SETTINGS, options={})
    target.load_generator(BUNDLE)
    prompt: Any = None
    return lambda: target.prepare_generator(prompt)


def of_qnn(patch: pytest.MonkeyPatch, error: Exception) -> Callable[[], Any]:
    patch.setattr(qnn, "read_all", lambda *_args, **_named: EXPORTS)
    patch.setattr(qnn.TokenIds, "of", lambda _bundle: qnn.TokenIds(count=0, special=frozenset()))
    patch.setattr(qnn.Qnn, "_prepare", raising(error))
    target = qnn.Qnn(settings=SETTINGS, options={})
    target.load(BUNDLE)
    return lambda: target.prepare({})


def of_an_export(_patch: pytest.MonkeyPatch, error: Exception) -> Callable[[], Any]:
    failures = [
        OnnxFailure(exporter="transformers", error_type="builtins.RuntimeError", message=str(error) or "MemoryError", traceback=None)
    ]
    return raising(no_graph(failures))


def of_a_page(_patch: pytest.MonkeyPatch, error: Exception) -> Callable[[], Any]:
    return raising(failure_of({"error": str(error)}))


TARGETS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch, Exception], Callable[[], Any]]]] = {
    "onnxruntime creates": ("onnxruntime", of_onnxruntime),
    "onnxruntime prepares to generate": ("onnxruntime", generating_on_onnxruntime),
    "qnn creates": ("qnn", of_qnn),
    "an export": ("onnxruntime", of_an_export),
    "a page": ("webgpu", of_a_page),
}


@pytest.mark.parametrize("entry", MEMORY, ids=lambda entry: entry["message"][:30])
@pytest.mark.parametrize("name", TARGETS)
def test_memory_that_ran_out_is_oom_at_every_stage_of_every_target(
    monkeypatch: pytest.MonkeyPatch, name: str, entry: dict[str, Any]
) -> None:
    backend, made = TARGETS[name]
    if "exception" in entry and name in {"a page", "an export"}:
        return  # only a text arrives
    error = MemoryError() if "exception" in entry else RuntimeError(entry["message"])
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any type
        made(monkeypatch, error)()
    found = classify(caught.value, hardware=backend, stage=Stage.PREPARE)
    assert found.status is Status.OOM
    assert found.type in {"memory_pressure", "webgpu_out_of_memory"}


@pytest.mark.parametrize("name", ["onnxruntime creates", "qnn creates"])
def test_an_error_of_the_runtime_itself_is_the_targets_own(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    backend, made = TARGETS[name]
    with pytest.raises(CellFailure) as caught:
        made(monkeypatch, RuntimeError("nobody has ever seen this"))()
    found = classify(caught.value, hardware=backend, stage=Stage.PREPARE)
    assert (found.status, found.type) == (Status.ERROR, caught.value.error_type)


def test_an_export_that_hwmatrix_cannot_make_is_no_error_of_the_target() -> None:
    message = "generate does not call BlipForConditionalGeneration once for each token, so there is no graph of a step"
    kept = OnnxFailure(exporter="generation", error_type="hwmatrix.errors.FactoryError", message=message, traceback=None)
    assert classify(no_graph([kept]), hardware="onnxruntime").status is Status.FACTORY_ERROR
