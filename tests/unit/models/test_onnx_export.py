"""The cache of ONNX exports: what is stored, verified, repeated and refused. The exporters are fake."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import BundleError, CellFailure, OutOfMemoryError, TimedOutError, UnsupportedError
from hwmatrix.models import folder, onnx_export, onnx_exporters, openvino_conversion, provenance
from hwmatrix.models.bundle import Bundle
from hwmatrix.models.onnx_export import (
    OPENVINO,
    OnnxExport,
    OnnxFailure,
    export_all,
    export_one,
    find_or_take,
    is_kept,
    no_graph,
    read_all,
    read_openvino,
)

if TYPE_CHECKING:
    from pathlib import Path

TORCH_SAYS = "ConversionError: caused by DispatchError: No ONNX function found for <OpOverload(op='aten.lgamma', overload='default')>."


class Exporters:
    """Fake exporters, which count their calls and raise on request."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, BaseException] = {}

    def named(self, name: str) -> Any:
        def export(_: Bundle, file: Path) -> dict[str, Any]:
            self.calls.append(name)
            file.write_bytes(b"graph by " + name.encode())
            if name in self.failing:
                raise self.failing[name]
            return {"inputs": ["input_ids"], "outputs": ["logits", None], "fixed": ["position_ids"], "opset": 20}

        return export


@pytest.fixture
def exporters(monkeypatch: pytest.MonkeyPatch) -> Exporters:
    made = Exporters()
    monkeypatch.setattr(onnx_export, "EXPORTERS", {name: made.named(name) for name in ("transformers", "torch")})
    return made


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle(path=tmp_path / "key", key="key", digest="d1", manifest={"identity": {"made_by": provenance.made_by()}})


def place(bundle: Bundle, exporter: str = "torch") -> Path:
    return bundle.path.parent / "onnx" / "key" / exporter


@pytest.mark.usefixtures("exporters")
def test_exports_are_stored_with_their_names_and_read_again(bundle: Bundle, tmp_path: Path) -> None:
    made = export_all(bundle, tmp_path)
    assert [type(one) for one in made] == [OnnxExport, OnnxExport]
    first = made[0]
    assert isinstance(first, OnnxExport)
    assert (first.exporter, first.inputs, first.outputs, first.opset) == ("transformers", ("input_ids",), ("logits", None), 20)
    assert first.fixed == ("position_ids",)
    assert first.path.read_bytes() == b"graph by transformers"
    assert first.seconds >= 0
    assert read_all(bundle, tmp_path) == made
    manifest = json.loads((place(bundle) / "manifest.json").read_text())
    assert (manifest["key"], manifest["bundle"], manifest["exporter"], list(manifest["files"])) == ("key", "d1", "torch", ["model.onnx"])


def test_a_complete_export_is_not_repeated(exporters: Exporters, bundle: Bundle, tmp_path: Path) -> None:
    assert export_all(bundle, tmp_path) == export_all(bundle, tmp_path)
    assert exporters.calls == ["transformers", "torch"]


def test_a_failure_is_stored_with_all_its_causes_and_without_a_graph(exporters: Exporters, bundle: Bundle, tmp_path: Path) -> None:
    exporters.failing["torch"] = ValueError("no way")
    exporters.failing["torch"].__cause__ = KeyError("the reason")
    for found in (export_all(bundle, tmp_path), read_all(bundle, tmp_path), export_all(bundle, tmp_path)):
        failure = found[1]
        assert isinstance(failure, OnnxFailure)
        assert (failure.exporter, failure.error_type) == ("torch", "builtins.ValueError")
        assert failure.message == "ValueError: no way; caused by KeyError: 'the reason'"
        assert "Traceback" in (failure.traceback or "")
    assert exporters.calls == ["transformers", "torch"]
    assert [path.name for path in place(bundle).iterdir()] == ["manifest.json"]


def keep_failure(bundle: Bundle, cache: Path, failure: OnnxFailure) -> None:
    """Keep what is known of an exporter whose process died."""
    assert find_or_take(bundle, cache, failure.exporter, lambda _: failure) == failure


def test_an_export_is_taken_from_a_cache_of_its_own_if_there_is_none(exporters: Exporters, bundle: Bundle, tmp_path: Path) -> None:
    owned: list[Path] = []

    def make(own: Path) -> None:
        owned.append(own)
        assert isinstance(export_one(bundle, own, "torch"), OnnxExport)

    for _ in range(2):
        assert find_or_take(bundle, tmp_path, "torch", make) is None
    assert exporters.calls == ["torch"]
    assert isinstance(read_all(bundle, tmp_path, only="torch")[0], OnnxExport)
    assert not owned[0].exists()


def test_what_an_interrupted_export_left_is_removed_and_a_running_one_stays(exporters: Exporters, bundle: Bundle, tmp_path: Path) -> None:
    left, running = (tmp_path / onnx_export.ONNX_DIR / f".own-{name}-torch" for name in ("left", "running"))
    left.mkdir(parents=True)
    running.mkdir()
    with onnx_export.locked("running", tmp_path, "torch"):
        keep_failure(bundle, tmp_path, LATE)
        assert running.exists()
        assert not left.exists()
    assert exporters.calls == []


@pytest.mark.usefixtures("exporters")
@pytest.mark.parametrize("how", ["graph", "link", "bundle"])
def test_an_export_that_is_not_what_it_says_is_not_taken(bundle: Bundle, tmp_path: Path, how: str) -> None:
    def make(own: Path) -> None:
        export_one(bundle, own, "torch")
        made = own / onnx_export.ONNX_DIR / bundle.key / "torch"
        if how == "graph":
            (made / "model.onnx").write_bytes(b"another graph")
        elif how == "link":
            (made / "manifest.json").rename(tmp_path / "elsewhere.json")
            (made / "manifest.json").symlink_to(tmp_path / "elsewhere.json")
        else:
            manifest = json.loads((made / "manifest.json").read_text())
            folder.describe(made, manifest | {"bundle": "another bundle's digest"})

    with pytest.raises(BundleError):
        find_or_take(bundle, tmp_path, "torch", make)
    assert not is_kept(bundle.key, tmp_path, "torch")
    assert not list((tmp_path / onnx_export.ONNX_DIR).glob(".own-*"))


def wrapped(error: Exception) -> Exception:
    """As torch.onnx wraps what an exporter raises."""
    raised = RuntimeError("Failed to export the model")
    raised.__cause__ = error
    return raised


NO_MEMORY = [
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    wrapped(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.")),
    wrapped(wrapped(MemoryError("std::bad_alloc"))),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=repr)
def test_running_out_of_memory_is_not_an_exporter_s_failure(exporters: Exporters, bundle: Bundle, tmp_path: Path, error: Exception) -> None:
    exporters.failing["torch"] = error
    with pytest.raises(OutOfMemoryError):
        export_one(bundle, tmp_path, "torch")
    assert not place(bundle).exists()
    assert list(place(bundle).parent.iterdir()) == []
    exporters.failing.clear()
    assert isinstance(export_one(bundle, tmp_path, "torch"), OnnxExport)


@pytest.mark.parametrize("error", NO_MEMORY, ids=repr)
def test_after_memory_ran_out_nothing_is_tried_with_fixed_shapes_or_traced(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    attempts: list[str] = []

    def fail(*_: Any, **__: Any) -> None:
        attempts.append("one")
        raise error

    monkeypatch.setattr(openvino_conversion, "_exported", fail)
    monkeypatch.setattr(openvino_conversion, "by_trace", lambda *_, **__: attempts.append("a trace"))
    with pytest.raises(type(error)):
        openvino_conversion.convert(None, {})  # type: ignore[arg-type] # it is passed on
    assert not onnx_exporters._about_shapes(error)
    assert attempts == ["one"]


@pytest.mark.usefixtures("exporters")
def test_the_failure_of_a_killed_exporter_can_be_stored(bundle: Bundle, tmp_path: Path) -> None:
    died = OnnxFailure(exporter="torch", error_type="ExporterDied", message="signal 11", traceback=None)
    export_one(bundle, tmp_path, "transformers")
    keep_failure(bundle, tmp_path, died)
    assert read_all(bundle, tmp_path)[1] == died
    assert export_one(bundle, tmp_path, "torch") == died


LATE = OnnxFailure(exporter="torch", error_type=onnx_export.TIMED_OUT, message="no end within 120 s; the load was 3.0", traceback=None)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(onnx_export.TIMED_OUT, ("timeout", "export_timeout")), (onnx_export.OUT_OF_MEMORY, ("oom", "export_out_of_memory"))],
)
def test_time_or_memory_that_ran_out_counts_for_the_cells_of_its_run_but_not_for_the_next_run(
    exporters: Exporters, bundle: Bundle, tmp_path: Path, kind: str, outcome: tuple[str, str]
) -> None:
    late = dataclasses.replace(LATE, error_type=kind)
    exporters.failing["transformers"] = ValueError("no way")
    export_one(bundle, tmp_path, "transformers")
    keep_failure(bundle, tmp_path, late)
    told = read_all(bundle, tmp_path)
    assert told[1] == late
    assert not is_kept("key", tmp_path, "torch")
    failed = no_graph([failure for failure in told if isinstance(failure, OnnxFailure)])
    assert (failed.status, failed.error_type) == outcome
    assert "no exporter made an ONNX graph" not in str(failed)
    assert late.message in str(failed)
    made = export_one(bundle, tmp_path, "torch")
    assert isinstance(made, OnnxExport)
    assert read_all(bundle, tmp_path)[1] == made
    assert exporters.calls == ["transformers", "torch"]


def test_an_attempt_without_a_result_replaces_a_timeout(exporters: Exporters, bundle: Bundle, tmp_path: Path) -> None:
    keep_failure(bundle, tmp_path, LATE)
    exporters.failing["torch"] = MemoryError()
    with pytest.raises(OutOfMemoryError):
        export_one(bundle, tmp_path, "torch")
    with pytest.raises(BundleError) as caught:
        read_all(bundle, tmp_path)
    assert caught.value.error_type == "onnx_missing"


def test_after_a_graph_a_timeout_is_not_retried(exporters: Exporters, bundle: Bundle, tmp_path: Path) -> None:
    made = export_one(bundle, tmp_path, "transformers")
    keep_failure(bundle, tmp_path, LATE)
    assert read_all(bundle, tmp_path) == (made,)
    assert exporters.calls == ["transformers"]


def test_beside_a_timeout_no_operator_is_reported_as_missing() -> None:
    found = no_graph([failure("transformers", TORCH_SAYS), LATE])
    assert isinstance(found, TimedOutError)
    assert "aten.lgamma" in str(found)


def test_an_export_is_made_only_by_what_made_its_bundle(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is named by the bundle's key, which says what made both."""
    monkeypatch.setattr(provenance, "made_by", lambda: {"code": "0", "versions": {}})
    with pytest.raises(BundleError, match="other packages"):
        export_one(bundle, tmp_path, "torch")
    assert not is_kept("key", tmp_path, "torch")


def test_a_stale_export_is_not_read_after_a_failed_attempt(exporters: Exporters, bundle: Bundle, tmp_path: Path) -> None:
    export_all(bundle, tmp_path)
    other = dataclasses.replace(bundle, digest="d2")
    exporters.failing["torch"] = MemoryError()
    with pytest.raises(OutOfMemoryError):
        export_one(other, tmp_path, "torch")
    with pytest.raises(BundleError) as caught:
        read_all(other, tmp_path, only="torch")
    assert caught.value.error_type == "onnx_missing"
    assert not is_kept("key", tmp_path, "torch")


def converted(_: Bundle, folder: Path) -> dict[str, Any]:
    (folder / openvino_conversion.MODEL_FILE).write_bytes(b"graph")
    return {"outputs": ["logits", None], "method": "openvino.convert_model", "preparation": ["trace"]}


def no_conversion(*_: Any) -> dict[str, Any]:
    raise UnsupportedError("OpenVINO has no conversion for aten::x", needs=("aten::x",))


@pytest.mark.usefixtures("exporters")
def test_a_graph_that_openvino_converted_is_kept_and_read(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_openvino(bundle, tmp_path) is None
    monkeypatch.setattr(openvino_conversion, "make", converted)
    made = export_one(bundle, tmp_path, OPENVINO)
    monkeypatch.setattr(openvino_conversion, "make", no_conversion)
    assert export_one(bundle, tmp_path, OPENVINO) == made == read_openvino(bundle, tmp_path)
    assert isinstance(made, openvino_conversion.OpenVinoExport)
    assert made.path.read_bytes() == b"graph"
    assert (made.outputs, made.prepared.method) == (("logits", None), "openvino.convert_model")
    made.path.write_bytes(b"other")
    with pytest.raises(BundleError, match=r"model\.xml"):
        read_openvino(bundle, tmp_path)


@pytest.mark.usefixtures("exporters")
def test_a_conversion_that_failed_leaves_no_graph_and_is_not_tried_again(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_conversion, "make", no_conversion)
    failed = export_one(bundle, tmp_path, OPENVINO)
    assert isinstance(failed, OnnxFailure)
    assert "aten::x" in failed.message
    monkeypatch.setattr(openvino_conversion, "make", converted)
    assert export_one(bundle, tmp_path, OPENVINO) == failed
    assert read_openvino(bundle, tmp_path) is None


def damage_graph(path: Path) -> None:
    (path / "model.onnx").write_bytes(b"graph by nobody")


def remove_graph(path: Path) -> None:
    (path / "model.onnx").unlink()


def add_file(path: Path) -> None:
    (path / "model.onnx.data").write_bytes(b"weights of somebody else")


def damage_manifest(path: Path) -> None:
    (path / "manifest.json").write_text("{")


def shorten_manifest(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["outputs"]
    folder.describe(path, manifest)


def change_manifest(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"opset": 20', '"opset": 21'))


@pytest.mark.parametrize("harm", [damage_graph, remove_graph, add_file, damage_manifest, shorten_manifest, change_manifest])
def test_a_damaged_export_is_refused_and_repeated(exporters: Exporters, bundle: Bundle, tmp_path: Path, harm: Any) -> None:
    made = export_all(bundle, tmp_path)
    harm(place(bundle))
    with pytest.raises(BundleError) as caught:
        read_all(bundle, tmp_path)
    assert caught.value.error_type == "bundle_broken"
    again = export_all(bundle, tmp_path)
    assert exporters.calls == ["transformers", "torch", "torch"]
    assert [one.exporter for one in again] == [one.exporter for one in made]
    assert read_all(bundle, tmp_path) == again


@pytest.mark.usefixtures("exporters")
def test_an_export_of_another_bundle_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    export_all(bundle, tmp_path)
    for changes in ({"digest": "d2"}, {"key": "other"}):
        other = dataclasses.replace(bundle, **changes)
        if other.key != bundle.key:
            shutil.copytree(tmp_path / "onnx" / "key", tmp_path / "onnx" / other.key)
        with pytest.raises(BundleError, match="another bundle") as caught:
            read_all(other, tmp_path)
        assert caught.value.error_type == "bundle_version"


@pytest.mark.usefixtures("exporters")
def test_after_a_graph_no_other_export_is_needed(bundle: Bundle, tmp_path: Path) -> None:
    made = export_one(bundle, tmp_path, "transformers")
    assert read_all(bundle, tmp_path) == (made,)
    assert [is_kept("key", tmp_path, exporter) for exporter in ("transformers", "torch")] == [True, False]
    other = export_one(bundle, tmp_path, "torch")
    assert read_all(bundle, tmp_path) == (made, other)


def test_after_a_failure_the_other_export_is_needed(exporters: Exporters, bundle: Bundle, tmp_path: Path) -> None:
    exporters.failing["transformers"] = ValueError("no way")
    failure = export_one(bundle, tmp_path, "transformers")
    with pytest.raises(BundleError, match="by torch") as caught:
        read_all(bundle, tmp_path)
    assert caught.value.error_type == "onnx_missing"
    other = export_one(bundle, tmp_path, "torch")
    assert read_all(bundle, tmp_path) == (failure, other)


@pytest.mark.usefixtures("exporters")
def test_an_unneeded_export_must_be_complete_if_it_exists(bundle: Bundle, tmp_path: Path) -> None:
    export_all(bundle, tmp_path)
    damage_graph(place(bundle))
    with pytest.raises(BundleError) as caught:
        read_all(bundle, tmp_path)
    assert caught.value.error_type == "bundle_broken"


def test_a_missing_export_is_reported(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="made with the bundles") as caught:
        read_all(bundle, tmp_path)
    assert caught.value.error_type == "onnx_missing"


@pytest.mark.usefixtures("exporters")
def test_an_unwritable_cache_is_reported(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "onnx").write_text("a file where the folder belongs")
    with pytest.raises(BundleError, match="name another cache") as caught:
        export_one(bundle, tmp_path, "torch")
    assert caught.value.error_type == "cache_not_writable"


def failure(exporter: str, message: str) -> OnnxFailure:
    return OnnxFailure(exporter=exporter, error_type="builtins.ValueError", message=message, traceback=None)


def test_without_a_graph_an_operator_that_all_exporters_name_is_unsupported() -> None:
    found = no_graph([failure("transformers", TORCH_SAYS), failure("torch", TORCH_SAYS)])
    assert isinstance(found, UnsupportedError)
    assert (found.needs, found.error_type) == (("aten.lgamma",), "unsupported_operator")
    assert "aten.lgamma" in str(found)


def test_a_failure_includes_the_exporters_tracebacks() -> None:
    guard = 'Traceback (most recent call last):\n  File "modeling_x.py", line 123, in forward\n    if mask.all():\nGuard: u0\n'
    failures = [
        OnnxFailure(exporter="transformers", error_type="Guard", message="Guard: u0", traceback=guard),
        OnnxFailure(exporter="torch", error_type="ExporterDied", message="killed", traceback=None),
    ]
    told = "".join(traceback.format_exception(no_graph(failures)))
    assert f"The exporter by transformers failed:\n{guard}" in told
    assert "exporter by torch" not in told
    assert "Guard: u0" in str(no_graph(failures))


def test_a_stored_traceback_has_no_lines_of_markers(exporters: Exporters, bundle: Bundle, tmp_path: Path) -> None:
    exporters.failing["torch"] = ValueError("~~~\n^^^ is said")
    failure = export_one(bundle, tmp_path, "torch")
    assert isinstance(failure, OnnxFailure)
    lines = (failure.traceback or "").splitlines()
    assert any(line.endswith("raise self.failing[name]") for line in lines)
    assert not any(re.fullmatch(r" +[~^]+", line) for line in lines)
    assert lines[-1] == "^^^ is said"


@pytest.mark.parametrize(
    ("messages", "error_type"),
    [
        ((TORCH_SAYS, "something else"), "export_failed"),
        (("Could not guard on data-dependent expression u0 > 1",) * 2, "data_dependent_export"),
        (("something", "something else"), "export_failed"),
    ],
)
def test_without_a_graph_any_other_failure_is_an_error_with_both_messages(messages: tuple[str, str], error_type: str) -> None:
    found = no_graph([failure(name, message) for name, message in zip(("transformers", "torch"), messages, strict=True)])
    assert type(found) is CellFailure
    assert found.error_type == error_type
    assert all(message in str(found) for message in messages)
