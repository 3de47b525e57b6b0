"""What is used was made by this code and these packages, whatever changes and however making it again ends."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from hwmatrix.errors import BundleError, FactoryError, OutOfMemoryError
from hwmatrix.models import onnx_export, provenance, reference
from hwmatrix.models.bundle import bundle_key, find_or_build, verify
from hwmatrix.models.provenance import PACKAGE
from hwmatrix.models.sizes import SIZES_DIR, ModelSize, model_size
from hwmatrix.records import Family, ModelPlan, Size

MAKERS = ("models/reference.py", "models/bundle.py", "models/onnx_export.py", "models/sizes.py")
PLAN = ModelPlan(name="bert", size=Size.TINY, family=Family.EMBEDDING, architecture="bert", model_class="BertForMaskedLM")
SIZE = ModelSize(
    parameters=1,
    stored_bytes=1,
    stored_dtype="float32",
    tied_bytes=0,
    weight_bytes=4,
    dtypes={},
    input_bytes=1,
    activation_bytes=1,
    output_bytes=1,
    largest_output_bytes=1,
    method="forward",
)
EXPORTER = next(iter(onnx_export.EXPORTERS))


def imported_by(*files: str) -> set[Path]:
    """These files of the package and all that they import of it, also within functions."""
    left, found = [PACKAGE / file for file in files], set[Path]()
    while left:
        file = left.pop()
        if file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hwmatrix."):
                place = PACKAGE.parent / str(node.module).replace(".", "/")
                names = [place / f"{alias.name}.py" for alias in node.names]
                left += [each for each in (place.with_suffix(".py"), place / "__init__.py", *names) if each.is_file()]
    return found


def data_of(folder: Path) -> set[Path]:
    return {file for file in folder.rglob("*") if file.is_file() and file.suffix != ".py" and "__pycache__" not in file.parts}


def test_a_change_of_any_code_or_data_that_makes_something_gives_another_checksum(tmp_path: Path) -> None:
    makers = imported_by(*MAKERS)
    assert len(makers) > 50
    copy = tmp_path / "hwmatrix"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.gz"))
    checksum = provenance.code_checksum.__wrapped__
    before = checksum(copy)
    assert before == checksum(PACKAGE)
    unnoticed = []
    for file in sorted(makers | data_of(PACKAGE / "models")):
        changed = copy / file.relative_to(PACKAGE)
        content = changed.read_bytes()
        changed.write_bytes(content + b"\n# changed\n")
        if checksum(copy) == before:
            unnoticed.append(file.name)
        changed.write_bytes(content)
    assert unnoticed == []
    (copy / "models" / "more.py").touch()
    assert checksum(copy) != before
    (copy / "models" / "more.py").unlink()
    (copy / "report" / "page.py").write_bytes(b"")
    assert checksum(copy) == before, "what makes nothing does not count"


def test_the_size_of_a_checkpoint_depends_on_its_weight_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored bytes are those of the files, which the configuration does not tell."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}', encoding="utf-8")
    plan = dataclasses.replace(PLAN, weights=str(checkpoint))
    for content in (safetensors.numpy.save({"x": np.zeros(size)}) for size in (1, 2)):
        (checkpoint / "model.safetensors").write_bytes(content)
        size = dataclasses.replace(SIZE, stored_bytes=len(content))
        monkeypatch.setattr("hwmatrix.models.sizes._cached_size", lambda *_, size=size: size)
        assert model_size(plan, cache=tmp_path) == model_size(plan, cache=tmp_path) == size
    assert len(list((tmp_path / SIZES_DIR).iterdir())) == 2


class Cache(RuleBasedStateMachine):
    """A cache of bundles and exports while packages and code change, and makers fail. Each content says what made it."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.cache = self.place / "cache"
        self.versions = {"torch": "1", "transformers": "1", "onnx": "1"}
        self.code = "1"
        self.failing: Exception | None = None
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(importlib.metadata, "version", self.version)
        self.patch.setattr(provenance, "code_checksum", lambda: self.code)
        self.patch.setattr(reference, "fill", self.fill)
        self.patch.setitem(onnx_export.EXPORTERS, EXPORTER, self.export)

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.place)

    def version(self, name: str) -> str:
        if name not in self.versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return self.versions[name]

    @property
    def maker(self) -> bytes:
        return repr((self.code, sorted(self.versions.items()))).encode()

    def fill(self, plan: ModelPlan, folder: Path) -> dict[str, Any]:
        if self.failing is not None:
            raise FactoryError("it fails", error_type="reference_failed") from self.failing
        (folder / "inputs.safetensors").write_bytes(self.maker)
        given = {"given": ["text"], "text_path_only": False}
        return {"model_class": plan.model_class, "parameters": 1, "inputs": [], "expected": [], "floors": {}, "modalities": given}

    def export(self, _bundle: Any, file: Path) -> dict[str, Any]:
        if self.failing is not None:
            raise self.failing
        file.write_bytes(self.maker)
        return {"inputs": [], "outputs": [], "fixed": [], "opset": 20}

    @rule(package=st.sampled_from(["torch", "onnx", "openvino"]), version=st.sampled_from("12"))
    def upgrade(self, package: str, version: str) -> None:
        self.versions[package] = version

    @rule(code=st.sampled_from("12"))
    def change_code(self, code: str) -> None:
        self.code = code

    @rule(how=st.sampled_from([None, MemoryError(), ValueError("no way")]))
    def fail(self, how: Exception | None) -> None:
        self.failing = how

    @rule()
    def make(self) -> None:
        try:
            bundle = find_or_build(PLAN, self.cache)
            onnx_export.export_one(bundle, self.cache, EXPORTER)
        except (FactoryError, OutOfMemoryError):
            assert self.failing is not None

    @precondition(lambda self: (self.cache / bundle_key(PLAN)).exists())
    @rule(what=st.sampled_from(["inputs.safetensors", f"../onnx/KEY/{EXPORTER}/model.onnx"]))
    def damage(self, what: str) -> None:
        file = self.cache / bundle_key(PLAN) / what.replace("KEY", bundle_key(PLAN))
        if file.exists():
            file.write_bytes(b"damaged")

    @invariant()
    def whatever_is_read_was_made_by_what_is_here(self) -> None:
        try:
            bundle = verify(self.cache / bundle_key(PLAN))
            assert (bundle.path / "inputs.safetensors").read_bytes() == self.maker
            graph = onnx_export.read_one(bundle, self.cache, EXPORTER)
        except BundleError:
            return
        if isinstance(graph, onnx_export.OnnxExport):
            assert graph.path.read_bytes() == self.maker
        else:
            assert "no way" in graph.message

    @invariant()
    def a_bundle_of_other_code_is_refused(self) -> None:
        for manifest in self.cache.glob("*/manifest.json"):
            if f'"code": "{self.code}"' not in manifest.read_text(encoding="utf-8"):
                with pytest.raises(BundleError):
                    verify(manifest.parent)


def test_what_is_used_was_made_for_this_key() -> None:
    run_state_machine_as_test(Cache, settings=settings(max_examples=25, stateful_step_count=15, deadline=None))
