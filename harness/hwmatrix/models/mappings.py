"""The auto mappings of the installed transformers (classes and model types), read as text.

Importing them would import torch, which takes seconds. They are plain tables of strings, so parsing the file is enough, and it
also works where only transformers is installed.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import logging
from pathlib import Path
from typing import Final

_FILE: Final = "models/auto/modeling_auto.py"
_PREFIX: Final = "MODEL_FOR_"
_SUFFIXES: Final = ("_MAPPING_NAMES", "_NAMES")
_LOG: Final = logging.getLogger(__name__)
Mappings = dict[str, dict[str, tuple[str, ...]]]
"""From a mapping's short name (``CAUSAL_LM``) to its model types, each with its classes."""


def installed() -> Mappings:
    """The mappings of the installed transformers; empty if it is not installed or stores them in another form."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.origin:
        return {}
    return read(Path(spec.origin).parent / _FILE)


@functools.cache
def read(file: Path) -> Mappings:
    """The mappings in a ``modeling_auto.py``. An unreadable file is logged and gives none."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        _LOG.warning("transformers' mappings cannot be read, only hwmatrix's own table is used: %s: %s", file, error)
        return {}
    found: Mappings = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[ast.List(elts=entries)])) if name.endswith(_SUFFIXES):
                found[_short(name)] = _entries(entries, found)
    return found


def _short(name: str) -> str:
    short = name.removeprefix(_PREFIX)
    for suffix in _SUFFIXES:
        short = short.removesuffix(suffix)
    return short


def _entries(entries: list[ast.expr], found: Mappings) -> dict[str, tuple[str, ...]]:
    """The pairs of one mapping: written out, or copied from an earlier mapping."""
    pairs: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        match entry:
            case ast.Tuple(elts=[ast.Constant(value=str(kind)), classes]):
                pairs[kind] = tuple(
                    node.value for node in ast.walk(classes) if isinstance(node, ast.Constant) and isinstance(node.value, str)
                )
            case ast.Starred():
                named = [_short(node.id) for node in ast.walk(entry) if isinstance(node, ast.Name)]
                pairs |= {kind: classes for name in named for kind, classes in found.get(name, {}).items()}
    return pairs
