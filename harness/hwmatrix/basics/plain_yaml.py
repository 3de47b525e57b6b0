"""Reads YAML for plain data, with libyaml where PyYAML has it: eight times as fast."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import Composer

_LOADER: Any = yaml.SafeLoader
if yaml.__with_libyaml__:

    class _Loader(Composer, yaml.CSafeLoader):
        """libyaml parses, Python composes: nodes that are nested too deeply are a RecursionError. CSafeLoader ends the process there."""

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)

    _LOADER = _Loader


def parsed(text: str) -> Any:
    """The data of a YAML text.

    Raises:
        yaml.YAMLError: it is not YAML for plain data, or is nested too deeply.
    """
    try:
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - it is a safe loader
    except RecursionError as error:
        raise yaml.YAMLError("nested too deeply") from error


def composed(text: str) -> yaml.Node | None:
    """The nodes of a YAML text, with their lines. None: it is empty.

    Raises:
        yaml.YAMLError: it is not YAML, or is nested too deeply. The message is that of PyYAML's own parser: it says what it
            found instead.
    """
    try:
        try:
            return yaml.compose(text, Loader=_LOADER)
        except yaml.YAMLError:
            return yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError as error:
        raise yaml.YAMLError("nested too deeply") from error
