"""The accepted names of a model: an entry of matrix.yaml, or a hub name."""

from __future__ import annotations

import re
from typing import Final

from hwmatrix.errors import ConfigError, Problem

_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
_LONGEST: Final = 200
"""Twice the hub's limit."""


def check_name(model_name: str) -> None:
    """Reject what cannot be a model's name.

    Raises:
        ConfigError: it is empty, a path, or has invalid characters.
    """
    where = "the model's name"
    if not isinstance(model_name, str) or not model_name.strip():
        raise ConfigError([Problem(where=where, what="it is empty", hint="give a name of matrix.yaml or a hub id (owner/name)")])
    if is_name(model_name):
        return
    if model_name.startswith((".", "/", "~")) or model_name.count("/") > 1 or "\\" in model_name:
        hint = "hwmatrix classify --models PATH reads the configuration of a checkpoint's folder"
        raise ConfigError([Problem(where=where, what=f"{model_name!r} is a path", hint=hint)])
    hint = "a name has at most 200 letters, digits, '-', '_', '.', and one '/' between owner and name"
    raise ConfigError([Problem(where=where, what=f"{model_name[:_LONGEST]!r} is not a valid model name", hint=hint)])


def is_name(model_name: str) -> bool:
    """Whether this is a valid model name."""
    return bool(_NAME.fullmatch(model_name)) and len(model_name) <= _LONGEST and ".." not in model_name
