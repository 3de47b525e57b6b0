from __future__ import annotations

import base64
import contextlib
import http.client
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwmatrix.errors import CellFailure, ConfigError, CrashedError, TraceError, UnavailableError, UnsupportedError
from hwmatrix.hardware import browser as hardware
from hwmatrix.hardware.browser import Installed
from hwmatrix.models.onnx_export import OnnxExport, OnnxFailure
from hwmatrix.records import Dtype, Settings
from hwmatrix.records.traces import Step
from hwmatrix.targets.browser import cell as browser_cell
from hwmatrix.targets.browser import descriptors
from hwmatrix.targets.browser import files as browser_files
from hwmatrix.targets.browser import target as browser
from hwmatrix.targets.browser import trace as browser_trace
from hwmatrix.targets.browser.cell import CellPage, Made
from hwmatrix.targets.browser.log import Nodes
from hwmatrix.targets.onnx import trace as onnx_trace
from hwmatrix.targets.onnx.trace import AllValues

SETTINGS = Settings(dtype=Dtype.FLOAT32, batch=1, sequence_length=16, threads=1)
SWIFTSHADER = {"vendor": "google", "architecture": "swiftshader", "isFallbackAdapter": True, "features": ["subgroups"]}
RDNA = {"vendor": "amd", "architecture": "rdna-3", "isFallbackAdapter": False, "features": ["shader-f16"]}


def export(exporter: str) -> OnnxExport:
    path = Path("/cache") / exporter / "model.onnx"
    return OnnxExport(exporter=exporter, path=path, inputs=("x",), outputs=("y", None), opset=20, seconds=1.0)


def made(counts: dict[str, int], *, device: dict[str, Any] | None = None, graphs: tuple[tuple[str, ...], ...] = ()) -> Made:
    return Made(export=export("transformers"), nodes=Nodes(counts=counts, operators={}), device=device, graphs=graphs)


class Page(CellPage):
    """A fake page. ``logs``: the log, or the error, of creating a session with each exporter's graph."""

    def __init__(self, logs: dict[str, dict[str, int] | CellFailure]) -> None:
        super().__init__(None, assets=Path("/assets"), threads=1)
        self._exports = tuple(export(name) for name in logs)
        self.logs = logs
        self.called: list[tuple[str, dict[str, Any]]] = []
        self.results: dict[str, np.ndarray[Any, Any]] = {}

    def fetch(self, export: OnnxExport) -> None:
        self._fetched = export

    def call(self, command: str, *, timeout_s: float | None = None, **argument: Any) -> Any:
        assert timeout_s is None
        self.called.append((command, argument))
        if command == "outputs":
            data = base64.b64encode(np.arange(2, dtype=np.float32).tobytes()).decode()
            return [{"data": data, "dtype": "float32", "shape": [2]}, {"data": "", "dtype": "int64", "shape": [0]}]
        if command == "kinds":
            strings = {"name": "s", "dtype": "string", "shape": [1], "bytes": None}
            kinds = [{"name": n, "dtype": str(a.dtype), "shape": list(a.shape), "bytes": a.nbytes} for n, a in self.results.items()]
            return [strings, *kinds]
        if command == "piece":
            return base64.b64encode(self.results[argument["name"]].tobytes()[argument["begin"] : argument["end"]]).decode()
        if command == "run":
            return 1.0
        if command != "create":
            return None
        told = self.logs[argument["name"]]
        if isinstance(told, CellFailure):
            raise told
        lines = [f"Node(s) placed on [{name}ExecutionProvider]. Number of nodes: {count}" for name, count in told.items()]
        return {"log": lines, "device": None, "graphs": []}

    def prepared(self) -> Made:
        return self.prepare({"name": "webgpu"}, "WebGpu", {"x": np.zeros(1, dtype=np.int64), "unused": np.zeros(1)})

    def tried(self) -> list[str]:
        return [argument["name"] for command, argument in self.called if command == "create"]


def test_the_export_with_the_better_placement_is_kept_and_gets_its_inputs() -> None:
    page = Page({"transformers": {"WebGpu": 8, "CPU": 2}, "torch": {"WebGpu": 9, "CPU": 1}})
    assert page.prepared().export.exporter == "torch"
    command, argument = page.called[-1]
    assert (command, argument["name"], list(argument["inputs"])) == ("choose", "torch", ["x"])
    assert argument["inputs"]["x"] == {"dtype": "int64", "shape": [1], "data": base64.b64encode(bytes(8)).decode()}


def test_an_export_placed_wholly_on_the_target_ends_the_search() -> None:
    page = Page({"transformers": {"WebGpu": 8}, "torch": {"WebGpu": 9}})
    assert page.prepared().export.exporter == "transformers"
    assert page.tried() == ["transformers"]


def test_the_first_of_equal_placements_is_kept() -> None:
    counts = {"WebGpu": 1, "CPU": 1}
    assert Page({"transformers": counts, "torch": counts}).prepared().export.exporter == "transformers"


def test_after_an_export_that_the_runtime_rejects_the_other_is_used() -> None:
    refused = UnsupportedError("no kernel", needs=("Det",))
    assert Page({"transformers": refused, "torch": {"WebGpu": 1, "CPU": 1}}).prepared().export.exporter == "torch"
    with pytest.raises(UnsupportedError, match="no kernel") as caught:
        Page({"transformers": refused, "torch": CellFailure("other", error_type="browser_runtime_failed")}).prepared()
    assert "other" in caught.value.__notes__[0]


def test_a_lost_device_ends_all_sessions() -> None:
    lost = CrashedError("gone", error_type="webgpu_device_lost")
    with pytest.raises(CrashedError):
        Page({"transformers": {"WebGpu": 1, "CPU": 1}, "torch": lost}).prepared()


def test_an_adapter_that_disappears_counts_as_lost() -> None:
    gone = UnavailableError("Failed to get GPU adapter", error_type="webgpu_no_adapter")
    target = webgpu(SWIFTSHADER, wanted="software")
    target.page = Page({"transformers": gone, "torch": gone})
    with pytest.raises(CrashedError, match="Failed to get GPU adapter") as caught:
        target.prepare({"x": np.zeros(1, dtype=np.int64)})
    assert caught.value.error_type == "webgpu_device_lost"


def test_a_model_without_any_export_names_the_operator_that_onnx_lacks() -> None:
    page = Page({})
    message = "No ONNX function found for <OpOverload(op='prims.lgamma', overload='default')>"
    page._failures = tuple(OnnxFailure(exporter=name, error_type="E", message=message, traceback=None) for name in ("a", "b"))
    with pytest.raises(UnsupportedError) as caught:
        page.prepared()
    assert caught.value.needs == ("prims.lgamma",)
    assert page.called == []


def test_outputs_have_the_names_of_the_reference() -> None:
    page = Page({"transformers": {"WebGpu": 1}})
    page.prepared()
    outputs = page.outputs()
    assert list(outputs) == ["y"]
    np.testing.assert_array_equal(outputs["y"], np.array([0, 1], dtype=np.float32))


def test_all_values_of_a_graph_are_fetched_in_pieces_from_the_same_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_cell, "_PIECE", 8)
    page = Page({"transformers": {"WebGpu": 1}, "values": {"WebGpu": 1}})
    page.prepared()
    page.results = {
        "long": np.arange(5, dtype=np.float32),
        "half": np.array([0.5], dtype=np.float16),
        "flags": np.array([[True], [False]]),
        "none": np.zeros((0, 2), dtype=np.int64),
    }
    before = len(page.called)
    values = page.values(export("values"), {"x": np.zeros(1, dtype=np.int64)})
    for name, array in page.results.items():
        np.testing.assert_array_equal(values[name], array)
    assert [values[name].dtype.name for name in page.results] == ["float32", "float32", "bool", "int64"]
    assert set(values) == set(page.results)  # strings are not numbers
    called = page.called[before:]
    assert called[0] == ("create", {"name": "values", "provider": {"name": "webgpu"}})
    assert (called[1][0], called[1][1]["name"], list(called[1][1]["inputs"])) == ("choose", "values", ["x"])
    assert [argument["begin"] for command, argument in called if command == "piece" and argument["name"] == "long"] == [0, 8, 16]


class Inputs:
    """The parts of a bundle that a trace needs."""

    def input_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return {"x": np.array([3], dtype=np.int64), "unused": np.zeros(1)}


def traced_page(monkeypatch: pytest.MonkeyPatch, expected: dict[str, np.ndarray[Any, Any]]) -> Page:
    """A page with a prepared session, and a graph (x to middle to y) with these reference values."""
    steps = (Step(name="n", operator="Neg", inputs=("x",), outputs=("middle",)),)

    def all_values(path: Path, folder: Path) -> AllValues:
        assert path == Path("/cache/transformers/model.onnx")
        return AllValues(path=folder / "model.onnx", steps=steps, names=tuple(expected), results=("y", "second"))

    def reference_values(path: Path, feed: dict[str, Any], names: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]]:
        assert path.parent.is_dir()
        assert list(feed) == ["x"]
        return {name: expected[name] for name in names}

    monkeypatch.setattr(onnx_trace, "all_values", all_values)
    monkeypatch.setattr(onnx_trace, "reference_values", reference_values)
    page = Page({"transformers": {"WebGpu": 1}, "values": {"WebGpu": 1}})
    page.prepared()
    return page


@pytest.mark.parametrize("target", [browser.WebGpu(settings=SETTINGS, options={}), browser.WebNn(settings=SETTINGS, options={})])
def test_a_trace_has_the_page_s_and_the_cpu_s_values(monkeypatch: pytest.MonkeyPatch, target: Any) -> None:
    expected = {"y": np.ones(2, dtype=np.float32), "middle": np.zeros(2, dtype=np.float32)}
    target.page = traced_page(monkeypatch, expected)
    target.page.results = {"y": np.full(2, 2.0, dtype=np.float32), "middle": np.zeros(2, dtype=np.float32)}
    target._made = target.page._made
    trace = target.trace(Inputs())
    assert (trace.results, [step.name for step in trace.steps]) == ({"y": "y"}, ["n"])
    assert set(trace.values) == set(trace.expected) == {"y", "middle"}
    np.testing.assert_array_equal(trace.values["y"], [2.0, 2.0])
    np.testing.assert_array_equal(trace.expected["y"], [1.0, 1.0])
    assert "CPU provider" in trace.against


def test_values_that_do_not_fit_into_a_page_are_not_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_trace, "LIMIT_MB", 1)
    page = traced_page(monkeypatch, {"y": np.zeros(2 * 2**18, dtype=np.float32)})
    before = len(page.called)
    with pytest.raises(TraceError, match="1 values of the graph take 2 MiB, more than the limit of 1 for a page"):
        browser_trace.trace(page, made({"WebGpu": 1}), Inputs())  # type: ignore[arg-type]
    assert page.called[before:] == []


def test_without_a_browser_a_cell_is_unavailable() -> None:
    with pytest.raises(UnavailableError) as caught:
        CellPage(None, assets=Path("/assets"), threads=1).open()
    assert caught.value.error_type == "browser_not_started"


def webgpu(adapter: dict[str, Any], *, wanted: str) -> browser.WebGpu:
    target = browser.WebGpu(settings=SETTINGS, options={"adapter": wanted})
    target._adapter = adapter
    target._made = made({"WebGpu": 3, "CPU": 1})
    return target


def test_a_software_adapter_instead_of_a_gpu_is_another_device() -> None:
    placement = webgpu(SWIFTSHADER, wanted="hardware").placement()
    assert placement.on_target == 0.0
    assert "swiftshader" in placement.detail


@pytest.mark.parametrize(("adapter", "wanted", "shown"), [(SWIFTSHADER, "software", "software adapter"), (RDNA, "hardware", "amd rdna-3")])
def test_the_requested_adapter_counts_by_its_nodes(adapter: dict[str, Any], wanted: str, shown: str) -> None:
    placement = webgpu(adapter, wanted=wanted).placement()
    assert placement.on_target == 0.75
    assert shown in placement.detail


@pytest.mark.parametrize(
    ("device", "devices", "share"), [("cpu", ("cpu",), 1.0), ("gpu", ("cpu",), 0.0), ("gpu", (), 1.0), ("npu", ("npu", "cpu"), 1.0)]
)
def test_a_webnn_graph_on_another_device_does_not_run_on_the_target(device: str, devices: tuple[str, ...], share: float) -> None:
    target = browser.WebNn(settings=SETTINGS, options={"device": device})
    target._made = made({"WebNN": 5}, graphs=(devices,))
    placement = target.placement()
    assert placement.on_target == share
    assert f"requested device type: {device}" in placement.detail


@pytest.mark.parametrize("target", [browser.WebGpu, browser.WebNn])
def test_a_browser_serves_one_cell(target: type[browser.WebGpu | browser.WebNn]) -> None:
    """Memory that a browser keeps from one model would count for the next."""
    assert not target.service({}).alive()


def test_an_invalid_option_value_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="one of: software, hardware"):
        browser.WebGpu(settings=SETTINGS, options={"adapter": "metal"})
    with pytest.raises(ConfigError, match=r"options\.device"):
        browser.WebNn(settings=SETTINGS, options={"device": "tpu"})


@pytest.mark.parametrize(
    ("dtype", "features", "needs", "error_type"),
    [
        (Dtype.FLOAT16, (), "shader-f16", "webgpu_unsupported_feature"),
        (Dtype.INT4_FLOAT16, (), "shader-f16", "webgpu_unsupported_feature"),
        (Dtype.BFLOAT16, ("shader-f16",), "bfloat16", "unsupported_dtype"),
    ],
)
def test_a_precision_that_the_adapter_or_the_tools_lack_is_unsupported(
    dtype: Dtype, features: tuple[str, ...], needs: str, error_type: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        browser._require(dtype, descriptors.WEBGPU, features)
    assert (caught.value.needs, caught.value.error_type) == ((needs,), error_type)


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.FLOAT16, Dtype.INT4, Dtype.INT4_FLOAT16])
def test_what_the_adapter_has_is_accepted(dtype: Dtype) -> None:
    browser._require(dtype, descriptors.WEBGPU, ("shader-f16",))
    browser._require(dtype, descriptors.WEBNN)


def test_a_missing_browser_or_runtime_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hardware.browser_places, "installed", tuple)
    with pytest.raises(UnavailableError, match="Chromium, Chrome, Edge, Brave"):
        hardware.detect()
    with pytest.raises(UnavailableError, match="no-such-browser"):
        Installed(executable="no-such-browser").command()
    with pytest.raises(UnavailableError, match="ONNX Runtime Web"):
        Installed(assets=tmp_path).runtime_version()


Get = Callable[[str], http.client.HTTPResponse]


@pytest.fixture
def fetched(tmp_path: Path, loopback: None) -> Iterator[Get]:  # noqa: ARG001 - a permission
    """Query the server of a cell's files, which has a cacheable folder and one that is not."""
    for name in ("runtime", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.wasm").write_bytes(b"content")
    (tmp_path / "secret").write_text("x", encoding="utf-8")
    folders = {name: tmp_path / name for name in ("runtime", "model")}
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(browser_files.listening_socket())
        server = browser_files.serve(listening.fileno(), folders, kept=frozenset({"runtime"}))
        stack.callback(server.server_close)
        stack.callback(server.shutdown)

        def get(path: str) -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection("127.0.0.1", listening.getsockname()[1], timeout=5)
            stack.callback(connection.close)
            connection.request("GET", path)
            return connection.getresponse()

        yield get


def test_files_are_served_isolated_and_only_the_runtime_s_are_cacheable(fetched: Get) -> None:
    kept, fresh = fetched("/runtime/file.wasm"), fetched("/model/file.wasm")
    assert kept.read() == fresh.read() == b"content"
    assert kept.headers["Content-Type"] == "application/wasm"
    assert kept.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert kept.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert "immutable" in kept.headers["Cache-Control"]
    assert fresh.headers["Cache-Control"] == "no-store"


def test_only_files_of_the_given_folders_are_served(fetched: Get) -> None:
    paths = ["/", "/secret", "/model/../secret", "/other/file.wasm", "/model/absent", "/model/x/file.wasm", "//secret"]
    assert {path: fetched(path).status for path in paths} == dict.fromkeys(paths, http.HTTPStatus.NOT_FOUND)
