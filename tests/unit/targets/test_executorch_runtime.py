"""ExecuTorch's runtime, without the package: versions, missing kernels, error codes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hwmatrix.errors import CellFailure, OutOfMemoryError, UnavailableError, UnsupportedError
from hwmatrix.records import Dtype
from hwmatrix.records.backends import descriptor_of
from hwmatrix.targets.executorch import runtime

KERNELS = {"aten::embedding.out", "aten::add.out"}


class Method:
    """Adds one to each value; fails as the runtime does if told to."""

    fails: str | None = None

    def execute(self, values: list[Any]) -> list[Any]:
        if self.fails is not None:
            raise RuntimeError(self.fails)
        return [value + 1 for value in values]


class Runtime:
    """A runtime of two kernels."""

    delegates = ("XnnpackBackend", "QnnBackend")
    refuses: str | None = None

    def __init__(self) -> None:
        self.backend_registry = SimpleNamespace(registered_backend_names=list(self.delegates))
        self.operator_registry = SimpleNamespace(operator_names=KERNELS)

    @classmethod
    def get(cls) -> Runtime:
        return cls()

    def load_program(self, data: bytes, *, enable_etdump: bool = False) -> Any:
        if self.refuses is not None:
            raise RuntimeError(self.refuses)
        assert data == b"program"

        def write(events: str, values: str) -> None:
            assert enable_etdump
            Path(events).write_bytes(b"events")
            Path(values).touch()

        return SimpleNamespace(load_method={"forward": Method()}.__getitem__, write_etdump_result_to_file=write)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package executorch 1.5.1 beside torch 2.13.0, with the runtime above."""
    module = ModuleType("executorch.runtime")
    module.Runtime = Runtime  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "executorch", ModuleType("executorch"))
    monkeypatch.setitem(sys.modules, "executorch.runtime", module)
    monkeypatch.setitem(sys.modules, "executorch.extension.pybindings", None)  # what another test imported of the real package
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"executorch": "1.5.1", "torch": "2.13.0"}[name])
    return module


@pytest.mark.usefixtures("package")
def test_the_runtime_is_found_with_its_delegates() -> None:
    assert runtime.installed() == ("ExecuTorch 1.5.1", {"version": "1.5.1", "delegates": None})
    assert runtime.detect()[1]["delegates"] == ["QnnBackend", "XnnpackBackend"]


def test_a_missing_package_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError) as caught:
        runtime.detect()
    assert caught.value.error_type == "missing_package"


def test_a_build_for_another_torch_says_both_versions(package: ModuleType) -> None:
    del package.Runtime
    with pytest.raises(UnavailableError, match=r"ExecuTorch 1\.5\.1 does not load beside torch 2\.13\.0") as caught:
        runtime.detect()
    assert caught.value.error_type == "executorch_unloadable"


@pytest.mark.usefixtures("package")
def test_a_build_without_xnnpack_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "delegates", ("QnnBackend",))
    with pytest.raises(UnavailableError, match="no XnnpackBackend") as caught:
        runtime.detect()
    assert caught.value.error_type == "executorch_delegate_missing"


@pytest.mark.usefixtures("package")
def test_a_program_runs() -> None:
    assert runtime.Program(b"program", kernels=("aten::add.out",)).run([1, 2]) == [2, 3]


@pytest.mark.usefixtures("package")
def test_operators_without_a_kernel_are_named_before_the_program_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "refuses", "it must not be asked")
    with pytest.raises(UnsupportedError) as caught:
        runtime.Program(b"program", kernels=("aten::sort.values", "aten::add.out", "aten::lgamma.out"))
    assert caught.value.needs == ("aten::lgamma.out", "aten::sort.values")


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("told", "kind", "error_type", "name"),
    [
        ("Failed to load program, error: 0x:23", CellFailure, "executorch_program", "InvalidProgram"),
        ("Failed to load method forward, error: 0x:30", CellFailure, "executorch_program", "DelegateInvalidCompatibility"),
        ("Failed to load method forward, error: 0x:21", OutOfMemoryError, "memory_pressure", "MemoryAllocationFailed"),
    ],
)
def test_a_program_that_the_runtime_refuses(
    monkeypatch: pytest.MonkeyPatch, told: str, kind: type[CellFailure], error_type: str, name: str
) -> None:
    monkeypatch.setattr(Runtime, "refuses", told)
    with pytest.raises(kind, match=rf"{name}\)$") as caught:
        runtime.Program(b"program", kernels=())
    assert caught.value.error_type == error_type


@pytest.mark.usefixtures("package")
def test_a_run_that_ends_with_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "fails", "method->execute() failed with error 0x12")
    with pytest.raises(CellFailure, match=r"failed with error 0x12 \(InvalidArgument\)$") as caught:
        runtime.Program(b"program", kernels=()).run([1])
    assert caught.value.error_type == "executorch_failed"


def recorded(monkeypatch: pytest.MonkeyPatch, events: list[Any]) -> None:
    """Let the package's tool find these events of an execution."""

    def inspector(*, etdump_path: str) -> Any:
        assert Path(etdump_path).read_bytes() == b"events"
        return SimpleNamespace(event_blocks=[SimpleNamespace(name="Default", events=[]), SimpleNamespace(name="Execute", events=events)])

    module = ModuleType("executorch.devtools")
    module.Inspector = inspector  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "executorch.devtools", module)


def event(name: str, *raw_ms: float) -> Any:
    return SimpleNamespace(name=name, perf_data=SimpleNamespace(raw=list(raw_ms)))


@pytest.mark.usefixtures("package")
def test_the_time_of_a_run_is_that_of_its_calls_after_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = [event("OPERATOR_CALL", 90.0, 9.0, 9.0, 9.0), event("Add (ND) #1", 7.0, 7.0, 7.0, 7.0)]
    first, second = event("native_call_add.out", 50.0, 1.0, 2.0, 9.0), event("native_call_add.out", 50.0, 0.5, 0.5, 0.5)
    recorded(
        monkeypatch, [first, *wrapped, second, event("DELEGATE_CALL", 80.0, 3.0, 4.0, 5.0), event("DELEGATE_CALL", 8.0, 1.0, 1.0, 1.0)]
    )
    times = runtime.Program(b"program", kernels=()).times([1])
    assert times == runtime.Times(delegates_ms=5.0, kernels_ms={"add.out": 2.5})
    assert times.total_ms == 7.5


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("events", [[], [SimpleNamespace(name="DELEGATE_CALL", perf_data=None)], [None]])
def test_times_that_cannot_be_read_are_none(monkeypatch: pytest.MonkeyPatch, events: list[Any]) -> None:
    recorded(monkeypatch, events)
    assert runtime.Program(b"program", kernels=()).times([1]) is None


@pytest.mark.usefixtures("package")
def test_of_a_program_that_takes_long_one_run_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list[float]()
    monkeypatch.setattr(Method, "execute", lambda _method, _values: runs.append(1.0))
    monkeypatch.setattr(runtime, "_ENOUGH_S", -1.0)
    recorded(monkeypatch, [event("DELEGATE_CALL", 3.0)])
    assert runtime.Program(b"program", kernels=()).times([1]) == runtime.Times(delegates_ms=3.0, kernels_ms={})
    assert len(runs) == 1


@pytest.mark.usefixtures("package")
def test_a_large_program_is_not_loaded_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, [event("DELEGATE_CALL", 3.0, 3.0)])
    program = runtime.Program(b"program", kernels=())
    assert program.times([1]) is not None
    monkeypatch.setattr(runtime, "_MOST_BYTES", 6)
    assert program.times([1]) is None


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("last", "told"),
    [
        (
            ["native_call_add.out", "OPERATOR_CALL", "native_call_convolution.out", "OPERATOR_CALL"],
            r"\(InvalidArgument\) in convolution\.out$",
        ),
        (["native_call_add.out", "OPERATOR_CALL", "Add (ND) #1", "DELEGATE_CALL"], r"\(InvalidArgument\) in XnnpackBackend$"),
        ([], r"\(InvalidArgument\)$"),
    ],
)
def test_a_run_that_fails_is_recorded_once_more_to_name_the_call(monkeypatch: pytest.MonkeyPatch, last: list[str], told: str) -> None:
    recorded(monkeypatch, [SimpleNamespace(name=name, perf_data=None) for name in last])
    monkeypatch.setattr(Method, "fails", "method->execute() failed with error 0x12")
    with pytest.raises(CellFailure, match=told):
        runtime.Program(b"program", kernels=()).run([1])


@pytest.mark.parametrize("told", ["something else", "error 0x99"])
def test_an_error_without_a_known_code_is_left_as_it_is(told: str) -> None:
    error = RuntimeError(told)
    assert runtime.explained(error) is error


def test_it_generates_in_float32_and_names_its_exporters() -> None:
    descriptor = descriptor_of("executorch")
    assert descriptor.generates
    assert set(descriptor.precisions) - set(descriptor.forward_only) == {Dtype.FLOAT32}
    assert descriptor.export_of(("torch_export", "fixed_shapes")) == "torch"
    assert descriptor.export_of(("transformers_export", "fixed_shapes", "constant_inputs")) == "transformers"
    assert descriptor.export_of(None) is None
