"""The operator tests of the ONNX standard: written once where ``onnx`` is installed, and read by targets without it.

``onnx.backend.test`` has a small graph, inputs, expected outputs and tolerances for each behavior of each operator. They are stored under
``<cache>/operator-tests/<version of onnx>/``: ``tests.json`` is the index, ``tests.bin`` contains all graphs and tensors one after
another, ``manifest.json`` has the SHA-256 of both. No pickle, no protobuf.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hwmatrix.basics.files import sha256_of
from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import BundleError
from hwmatrix.models import folder
from hwmatrix.models.folder import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TESTS_SCHEMA: Final = "hwmatrix/operator-tests/2"
TESTS_DIR: Final = "operator-tests"
_INDEX: Final = "tests.json"
_DATA: Final = "tests.bin"
_EXPANDED: Final = re.compile(r"_expanded(?:_ver\d+)?$")
_RANDOM: Final = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
_RANDOM_NAME: Final = re.compile(r"^test_training_dropout(?!_zero_ratio)")
"""Dropout in training is random, except with a ratio of zero, which drops nothing."""
_NUMPY: Final = {"FLOAT": "float32", "DOUBLE": "float64", "BOOL": "bool", "STRING": "string"}
NATIVE: Final = frozenset(
    {"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "string"}
)
"""The element types that numpy supports."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor. ``element`` is numpy's name of its type (``float32``, also ``string``), else the name in ONNX (``int4``).

    For numpy's types ``array`` has the tensor's shape. For the others it has the raw bytes (uint8, one dimension); elements smaller
    than a byte are packed as in ONNX.
    """

    element: str
    shape: tuple[int, ...]
    array: np.ndarray[Any, Any]

    @property
    def native(self) -> bool:
        """Whether numpy has this type."""
        return self.element in NATIVE


Value = Tensor | tuple[Tensor, ...] | None
"""A tensor, a sequence of tensors, or an empty optional."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorTest:
    """One test: a graph (``model``, serialized), its inputs and its expected outputs, by name in the graph's order.

    ``operator`` and ``domain`` name what is tested. ``expanded``: the graph is not the operator itself but its definition by other
    operators. ``random``: the outputs are random, so only types and shapes can be compared.
    """

    name: str
    operator: str
    domain: str
    opset: int
    expanded: bool
    random: bool
    rtol: float
    atol: float
    model: bytes
    inputs: tuple[tuple[str, Value], ...]
    outputs: tuple[tuple[str, Value], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorTests:
    """All tests of a version of ONNX. ``digest`` is the SHA-256 of the manifest: equal digests mean equal tests."""

    version: str
    digest: str
    tests: tuple[OperatorTest, ...]


def make(cache: Path) -> Path:
    """Write the tests of the installed version of onnx into the cache, unless they are there. Returns their folder.

    Raises:
        BundleError: the cache cannot be written (``cache_not_writable``).
    """
    import onnx

    root = cache / TESTS_DIR
    with folder.locked(root, onnx.__version__):
        place = root / onnx.__version__
        try:
            _check(place)
        except BundleError:
            _write(place, onnx.__version__)
    return place


def read(cache: Path) -> OperatorTests:
    """The tests of the newest version that :func:`make` wrote, verified.

    Raises:
        BundleError: there are none (``onnx_missing``), or they are damaged (``bundle_broken``).
    """
    places = sorted((path.parent for path in (cache / TESTS_DIR).glob(f"*/{MANIFEST}")), key=_version)
    if not places:
        message = f"there are no operator tests in {cache / TESTS_DIR}: they are made in the reference image"
        raise BundleError(message, error_type="onnx_missing")
    place = places[-1]
    _check(place)
    data = (place / _DATA).read_bytes()
    entries = read_json((place / _INDEX).read_bytes())
    tests = tuple(_test(entry, data) for entry in entries)
    return OperatorTests(version=place.name, digest=sha256_of(place / MANIFEST), tests=tests)


def _version(place: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", place.name))


def _check(place: Path) -> None:
    try:
        manifest = read_json((place / MANIFEST).read_bytes())
        schema, _ = manifest["schema"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{place / MANIFEST} cannot be read: {error!r}", error_type="bundle_broken") from error
    if schema != TESTS_SCHEMA:
        raise BundleError(f"{place} has version {schema!r}, expected: {TESTS_SCHEMA!r}", error_type="bundle_version")
    folder.check(place, manifest)


def _test(entry: dict[str, Any], data: bytes) -> OperatorTest:
    start, size = entry.pop("model")
    inputs, outputs = (tuple((name, _value(value, data)) for name, value in entry.pop(key)) for key in ("inputs", "outputs"))
    return OperatorTest(**entry, model=data[start : start + size], inputs=inputs, outputs=outputs)


def _value(value: Any, data: bytes) -> Value:
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(_tensor(element, data) for element in value)
    return _tensor(value, data)


def _tensor(value: dict[str, Any], data: bytes) -> Tensor:
    element, shape = value["element"], tuple(value["shape"])
    if element == "string":
        array: np.ndarray[Any, Any] = np.array(value["strings"], dtype=object).reshape(shape)
    elif element in NATIVE:
        array = np.frombuffer(data, dtype=element, count=math.prod(shape), offset=value["at"]).reshape(shape)
    else:
        array = np.frombuffer(data, dtype=np.uint8, count=value["size"], offset=value["at"])
    return Tensor(element=element, shape=shape, array=array)


def _write(place: Path, version: str) -> None:
    with folder.replacing(place, "the operator tests") as partial:
        blob = bytearray()
        entries = _collect_tests(blob)
        (partial / _DATA).write_bytes(blob)
        (partial / _INDEX).write_text(json.dumps(entries) + "\n", encoding="utf-8")
        folder.describe(partial, {"schema": TESTS_SCHEMA, "onnx": version})


def _collect_tests(blob: bytearray) -> list[dict[str, Any]]:
    """The index entries of every test of the standard. Graphs and tensors are appended to ``blob``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some tests overflow or divide by zero on purpose
        from onnx.backend.test.case.node import collect_testcases

        cases: list[Any] = sorted(collect_testcases(), key=lambda case: case.name)

    def keep(data: bytes) -> int:
        blob.extend(bytes(-len(blob) % 8))  # arrays are read in place, aligned
        at = len(blob)
        blob.extend(data)
        return at

    operators = {case.name: case.model.graph.node[0] for case in cases if not _EXPANDED.search(case.name)}
    return [_entry(case, operators[_EXPANDED.sub("", case.name)], keep) for case in cases]


def _entry(case: Any, tested: Any, keep: Callable[[bytes], int]) -> dict[str, Any]:
    model, graph = case.model.SerializeToString(), case.model.graph
    ((inputs, outputs),) = case.data_sets
    versions = {opset.domain: opset.version for opset in case.model.opset_import}
    return {
        "name": case.name,
        "operator": tested.op_type,
        "domain": tested.domain,
        "opset": versions.get(tested.domain, 0),
        "expanded": _EXPANDED.search(case.name) is not None,
        "random": _RANDOM_NAME.search(case.name) is not None or any(node.op_type in _RANDOM for node in graph.node),
        "rtol": case.rtol,
        "atol": case.atol,
        "model": [keep(model), len(model)],
        "inputs": [[port.name, _stored_value(value, keep)] for port, value in zip(graph.input, inputs, strict=True)],
        "outputs": [[port.name, _stored_value(value, keep)] for port, value in zip(graph.output, outputs, strict=True)],
    }


def _stored_value(value: Any, keep: Callable[[bytes], int]) -> Any:
    from onnx import TensorProto, numpy_helper

    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_stored_value(element, keep) for element in value]
    proto = value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value))
    name = TensorProto.DataType.Name(proto.data_type)
    element = _NUMPY.get(name, name.lower())
    array = numpy_helper.to_array(proto)
    described: dict[str, Any] = {"element": element, "shape": list(array.shape)}
    if element == "string":
        texts = [text.decode() if isinstance(text, bytes) else str(text) for text in array.reshape(-1).tolist()]
        return described | {"strings": texts}
    raw = np.ascontiguousarray(array).tobytes() if element in NATIVE else numpy_helper.from_array(array).raw_data
    return described | {"at": keep(raw), "size": len(raw)}
