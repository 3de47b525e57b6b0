"""Reads matrix.yaml, and reports all mistakes together, each with file, line, allowed values, and the closest match."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from pathlib import Path
from typing import Any

import pydantic
import yaml

from hwmatrix.basics.near_miss import near_miss
from hwmatrix.basics.plain_yaml import composed
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.matrix.shipped import IMAGES, MATRIX_FILE, image_files, shipped_root
from hwmatrix.matrix.spec import SPEC_ADAPTER, ExpectSpec, MatrixSpec
from hwmatrix.records import TYPE_PREFIX, Dtype, Size, Status
from hwmatrix.records.backends import Descriptor, descriptor_of

if typing.TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

Location = tuple[str | int, ...]
_EXPECTABLE: typing.Final = (
    Status.MISMATCH,
    Status.FALLBACK,
    Status.UNSUPPORTED,
    Status.ERROR,
    Status.OOM,
    Status.TIMEOUT,
    Status.CRASH,
    Status.FACTORY_ERROR,
)
"""Statuses that can be expected. Passing needs no expectation, and cells that did not run or failed by our fault say nothing about a
model."""
_NOT_KEYS: typing.Final = ("[key]", "literal[", "tuple[")
"""Parts of pydantic's locations that name a part of a type instead of a key of the file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedMatrix:
    """A valid matrix.yaml: its specification, its path, its checksum, and the line of each key."""

    spec: MatrixSpec
    path: Path
    sha256: str
    lines: dict[Location, int]


def load(path: Path) -> LoadedMatrix:
    """Read and check a matrix.yaml.

    Raises:
        ConfigError: it cannot be read, or is invalid. The error lists all problems.
    """
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = "run from the project's root, or name the file with --matrix"
        raise ConfigError([Problem(where=str(path), what=f"cannot be read: {error}", hint=hint)]) from error
    data, lines = _parse(text, path)
    if isinstance(data, dict):
        data = _defaults(data) | data
    spec, problems = _validate(data, path, lines)
    if spec is not None:
        problems = _cross_check(spec, path, lines)
    if spec is None or problems:
        raise ConfigError(problems)
    spec = dataclasses.replace(spec, expect=tuple(_named_as_in_runs(expect, spec) for expect in spec.expect))
    return LoadedMatrix(spec=spec, path=path, sha256=hashlib.sha256(raw).hexdigest(), lines=lines)


def _defaults(data: dict[str, Any]) -> dict[str, Any]:
    """The top-level keys that the file lacks and need not have: those of the packaged matrix.yaml, and one suite with every model."""
    found: dict[str, Any] = {"suites": {"default": {"models": "all"}}}
    if not data.keys() >= {"sizes", "tolerances"}:
        path = shipped_root() / MATRIX_FILE
        packaged, _ = _parse(path.read_text(encoding="utf-8"), path)
        found |= {"sizes": packaged["sizes"], "tolerances": packaged["tolerances"]}
    return found


class _Constructor(yaml.constructor.SafeConstructor):
    """Keeps keys as written: ``on`` and ``7`` are names like any other."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}


def _parse(text: str, path: Path) -> tuple[Any, dict[Location, int]]:
    """Return the file's data, and the line of every key.

    Raises:
        ConfigError: it is not YAML for plain data, it is empty, or a key appears twice.
    """
    lines: dict[Location, int] = {}
    problems: list[Problem] = []
    try:
        tree = composed(text)
        if tree is None:
            raise ConfigError([Problem(where=f"{path}:1", what="the file is empty", hint="see docs/matrix-yaml.md")])
        _walk(tree, (), lines, problems, path)
        if problems:
            raise ConfigError(problems)
        return _Constructor().construct_document(tree), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError([Problem(where=where, what=f"not YAML: {what}")]) from error
    except ValueError as error:  # a scalar that looks like a date but is not valid
        raise ConfigError([Problem(where=str(path), what=f"not YAML: {error}", hint="put the value in quotes")]) from error
    except RecursionError as error:
        raise ConfigError([Problem(where=str(path), what="nested too deeply", hint="an alias within its own anchor?")]) from error


def _walk(node: yaml.Node, at: Location, lines: dict[Location, int], problems: list[Problem], path: Path) -> None:
    """Record the line of every key, and every key that appears twice."""
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                problems.append(Problem(where=f"{path}:{line}", what="a key is a list or a mapping", hint="keys are names"))
                continue
            if name in seen:
                where = ".".join(str(part) for part in at) or "the file"
                what = f"{name!r} appears twice in {where}, first on line {seen[name]}"
                problems.append(Problem(where=f"{path}:{line}", what=what, hint="rename or remove one of them"))
            seen[name] = line
            lines[(*at, name)] = line
            _walk(value, (*at, name), lines, problems, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*at, index), lines, problems, path)


def _line(at: Location, lines: dict[Location, int]) -> int:
    while at and at not in lines:
        at = at[:-1]
    return lines.get(at, 1)


def _validate(data: Any, path: Path, lines: dict[Location, int]) -> tuple[MatrixSpec | None, list[Problem]]:
    try:
        return SPEC_ADAPTER.validate_python(data), []
    except pydantic.ValidationError as error:
        problems: dict[Location, Problem] = {}
        for item in error.errors():
            if _is_other_branch(item):
                continue
            at = tuple(part for part in item["loc"] if not str(part).startswith(_NOT_KEYS))
            known = at
            while known and known not in lines:
                known = known[:-1]
            problems.setdefault(known if item["type"] != "missing" else at, _problem(item, at, path, lines))
        return None, list(problems.values())


def _is_other_branch(item: Any) -> bool:
    """Whether an error is about the other branch of a union: if a word or a list is allowed, pydantic reports errors for both."""
    of_list = any(str(part).startswith("tuple[") for part in item["loc"])
    of_word = any(str(part).startswith("literal[") for part in item["loc"])
    return (of_list and item["type"] == "tuple_type") or (of_word and isinstance(item["input"], list))


def _problem(item: Any, at: Location, path: Path, lines: dict[Location, int]) -> Problem:
    where = f"{path}:{_line(at, lines)}"
    name = ".".join(str(part) for part in at) or "the file"
    if item["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        return Problem(where=where, what=f"unknown key {at[-1]!r} at {name}", hint=near_miss(str(at[-1]), _keys_at(at[:-1])))
    if item["type"] in {"missing", "missing_keyword_only_argument"}:
        return Problem(where=where, what=f"{name} is missing", hint="add it")
    if item["type"] == "enum":
        allowed = item["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return Problem(where=where, what=f"{name} is {item['input']!r}", hint=near_miss(str(item["input"]), allowed))
    if item["type"] == "dataclass_type":
        return Problem(where=where, what=f"{name} is {item['input']!r}", hint=f"a mapping belongs here: {', '.join(_keys_at(at))}")
    if item["type"] == "literal_error":
        also = ", or a list" if at != tuple(item["loc"]) else ""
        return Problem(where=where, what=f"{name} is {item['input']!r}", hint=f"allowed: {item['ctx']['expected']}{also}")
    return Problem(where=where, what=f"{name}: {item['msg'][0].lower()}{item['msg'][1:]}", hint=f"it is {item['input']!r}")


def _keys_at(at: Location) -> list[str]:
    """Return the keys that the specification allows at a location, following the types of the dataclasses."""
    kind: Any = MatrixSpec
    for part in at:
        fields = getattr(kind, "__dataclass_fields__", None)
        if fields is None:
            arguments = typing.get_args(kind)
            kind = arguments[-1] if arguments else object
            continue
        hints = typing.get_type_hints(kind)
        names = _aliases(kind)
        kind = _some(hints.get(names.get(str(part), str(part)), object))
    return list(_aliases(kind))


def _some(kind: Any) -> Any:
    """Return the type without None of an optional type."""
    parts = [part for part in typing.get_args(kind) if part is not types.NoneType]
    return parts[0] if isinstance(kind, types.UnionType) and len(parts) == 1 else kind


def _aliases(kind: Any) -> dict[str, str]:
    """Map the names in the file to the names in Python."""
    fields = getattr(kind, "__pydantic_fields__", None)
    if fields is None:
        return {name: name for name in getattr(kind, "__dataclass_fields__", {})}
    return {field.alias or name: name for name, field in fields.items()}


def _cross_check(spec: MatrixSpec, path: Path, lines: dict[Location, int]) -> list[Problem]:
    """Check what types cannot express: names that refer to other names."""
    checks = (_size_problems, _tolerance_problems, _suite_problems, _target_problems, _model_problems, _expect_problems)
    problems = [*(problem for check in checks for problem in check(spec)), *_image_problems(spec, path.absolute().parent)]
    return [Problem(where=f"{path}:{_line(at, lines)}", what=what, hint=hint) for at, what, hint in problems]


def _size_problems(spec: MatrixSpec) -> Iterator[tuple[Location, str, str]]:
    for size in Size:
        if size not in spec.sizes:
            yield ("sizes",), f"sizes.{size.value} is missing", "add it: --size and --all can request either"


def _tolerance_problems(spec: MatrixSpec) -> Iterator[tuple[Location, str, str]]:
    for dtype, tolerance in spec.tolerances.items():
        at: Location = ("tolerances", dtype.value, "bound")
        if dtype is Dtype.DEFAULT:
            what = "tolerances.default is never used: a cell is judged by the precision that its runtime chose"
            yield at[:2], what, "remove it"
        if tolerance.bound is not None and tolerance.excess is None:
            yield at, f"tolerances.{dtype.value} has a bound without excess", "add excess: both are multiples of the noise floor"
        elif tolerance.bound is not None and tolerance.excess is not None and tolerance.bound < tolerance.excess:
            what = f"tolerances.{dtype.value}: bound {tolerance.bound:g} is below excess {tolerance.excess:g}"
            yield at, what, "bound is the larger multiple: nothing above it passes"


def _suite_problems(spec: MatrixSpec) -> Iterator[tuple[Location, str, str]]:
    for name, suite in spec.suites.items():
        listed = suite.models if isinstance(suite.models, tuple) else ()
        if suite.models in {"types", "diffusion"} and suite.size is not Size.TINY:
            what = f"suite {name!r} has models: {suite.models} in size {suite.size.value}"
            yield ("suites", name, "size"), what, "a model made from its type alone is tiny: leave size out, or name models"
        for index, model in enumerate(listed):
            if model not in spec.models:
                at = ("suites", name, "models", index)
                yield at, f"suite {name!r} names the unknown model {model!r}", near_miss(model, spec.models)
        for index, target in enumerate(suite.exclude_targets):
            if target not in spec.targets:
                what = f"suite {name!r} excludes the unknown target {target!r}"
                yield ("suites", name, "exclude_targets", index), what, near_miss(target, spec.targets)
        yield from _measure_problems(spec, name)
        yield from _suite_dtype_problems(spec, name)


def _suite_dtype_problems(spec: MatrixSpec, suite: str) -> Iterator[tuple[Location, str, str]]:
    """Check the precisions that a suite adds: targets that exist, and precisions that are in their ``more_dtypes``."""
    named = spec.suites[suite].dtypes
    for target, dtypes in () if named == "all" else named.items():
        at: Location = ("suites", suite, "dtypes", target)
        if target not in spec.targets:
            yield at, f"suite {suite!r} adds precisions to the unknown target {target!r}", near_miss(target, spec.targets)
            continue
        there = [dtype.value for dtype in spec.targets[target].more_dtypes]
        for index, dtype in enumerate(dtypes):
            if dtype.value not in there:
                what = f"suite {suite!r} adds {dtype.value}, which is not in more_dtypes of target {target!r}"
                yield (*at, index), what, near_miss(dtype.value, there) if there else "add it there"


def _measure_problems(spec: MatrixSpec, suite: str) -> Iterator[tuple[Location, str, str]]:
    """Check a suite's time limits combined with the matrix's: it may set only one of two that belong together."""
    own, rule = spec.suites[suite].measure, spec.measure_of(suite)
    if rule.min_s > rule.max_s and (own.min_s, own.max_s) != (None, None):
        key = "max_s" if own.max_s is not None else "min_s"
        what = f"suite {suite!r} times for at least {rule.min_s:g} s (min_s) and at most {rule.max_s:g} s (max_s)"
        yield ("suites", suite, "measure", key), what, "set both: for a missing one, the matrix's measure applies"


def _target_problems(spec: MatrixSpec) -> Iterator[tuple[Location, str, str]]:
    for name, target in spec.targets.items():
        descriptor = descriptor_of(target.backend)
        for index, dtype in enumerate(target.every_dtype):
            further = index - len(target.dtypes)
            at: Location = ("targets", name, "dtypes", index) if further < 0 else ("targets", name, "more_dtypes", further)
            if dtype in target.every_dtype[:index]:
                yield at, f"target {name!r} lists {dtype.value} twice", "remove one of them"
            missing = [each.value for each in descriptor.computes_in(dtype) if each not in spec.tolerances]
            if dtype is Dtype.DEFAULT and dtype not in descriptor.precisions:
                what = f"target {name!r} uses default, but {target.backend} does not report the precision that it chooses"
                yield at, what, f"name one: {', '.join(descriptor.precisions)}"
            elif missing:
                why = " if its runtime chooses that" if dtype is Dtype.DEFAULT else ""
                what = f"target {name!r} uses {' or '.join(missing)}{why}, which has no tolerance"
                yield at, what, "add it under tolerances"
        yield from _option_problems(name, target.options, descriptor)
    if spec.images.reference not in spec.targets:
        what = f"images.reference is the unknown target {spec.images.reference!r}"
        yield ("images", "reference"), what, near_miss(spec.images.reference, spec.targets)


def _image_problems(spec: MatrixSpec, root: Path) -> Iterator[tuple[Location, str, str]]:
    """Check that the image of every target, and the stage of images/base below it, has its requirements."""
    files = image_files(root)
    stages = {path.stem for path in files["base"].glob("*.txt") if path.suffixes == [".txt"]} if "base" in files else set()
    images = {name for name, folder in files.items() if (folder / "requirements.txt").is_file()}
    for name, target in spec.targets.items():
        for key, value, known, needed in (
            ("image", target.image, images, f"{target.image}/requirements.txt"),
            ("base", target.base, stages, f"base/{target.base}.txt"),
        ):
            if value not in known and value != name:  # a target of another package may run without an image of its own name
                hint = f"{near_miss(value, known)}; or add {IMAGES}/{needed}, with its Dockerfile, beside this file (docs/images.md)"
                yield ("targets", name, key), f"the {key} of target {name!r} is {value!r}, and there is no {IMAGES}/{needed}", hint


def _option_problems(target: str, options: dict[str, Any], descriptor: Descriptor) -> Iterator[tuple[Location, str, str]]:
    known = descriptor.every_option
    for key, value in options.items():
        at: Location = ("targets", target, "options", key)
        if key not in known:
            hint = near_miss(key, known) if known else "remove it"
            yield at, f"target {target!r} has the option {key!r}, which the backend {descriptor.name} does not have", hint
        elif not known[key].allows(value):
            yield at, f"the option {key} of target {target!r} is {value!r}", f"allowed: {known[key].allowed}"


def _expect_problems(spec: MatrixSpec) -> Iterator[tuple[Location, str, str]]:
    for index, expect in enumerate(spec.expect):
        for key, named, known in (("models", expect.models, spec.models), ("targets", expect.targets, spec.targets)):
            for position, name in enumerate(() if named == "all" else named):
                if name not in known and not (key == "models" and name.startswith(TYPE_PREFIX)):
                    what = f"expect.{index} names the unknown {key.removesuffix('s')} {name!r}"
                    yield ("expect", index, key, position), what, near_miss(name, known)
        if expect.status not in _EXPECTABLE:
            what = f"expect.{index} expects {expect.status.value!r}"
            hint = f"an expected status must be one of: {', '.join(status.value for status in _EXPECTABLE)}"
            yield ("expect", index, "status"), what, hint


def _named_as_in_runs(expect: ExpectSpec, spec: MatrixSpec) -> ExpectSpec:
    """Rename types to their models' names in runs: without ``type:``, unless a model of matrix.yaml has the same name."""
    if not isinstance(expect.models, tuple):
        return expect
    plain = ((name, name.removeprefix(TYPE_PREFIX)) for name in expect.models)
    return dataclasses.replace(expect, models=tuple(name if bare in spec.models else bare for name, bare in plain))


def _model_problems(spec: MatrixSpec) -> Iterator[tuple[Location, str, str]]:
    for name, model in spec.models.items():
        if model.weights == "hub" and not model.hub_id:
            yield ("models", name), f"model {name!r} has weights: hub and no hub_id", "add hub_id, or use weights: recipe"
        for size in Size:
            try:
                json.dumps(model.variant(size).config, allow_nan=False)
            except (TypeError, ValueError) as error:
                at = ("models", name, size.value, "config")
                yield at, f"the config of model {name!r} cannot be written as JSON: {error}", "use numbers, words, lists and mappings"
