"""A command's environment, read once: variables, the cache folder, the requested base image, the command line."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hwmatrix.basics.cache_folder import needed_cache_folder

BASE_VARIABLE: Final = "HWMATRIX_BASE_IMAGE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment:
    """The environment of a command. ``command`` is the command line, quoted for a shell."""

    variables: Mapping[str, str]
    cache: Path
    base_image: str | None
    command: str


def read_environment() -> Environment:
    """Read the environment. Only commands call this.

    Raises:
        ConfigError: there is no cache folder, because the user has no home directory and no variable names one.
    """
    variables = dict(os.environ)
    return Environment(
        variables=variables,
        cache=needed_cache_folder(variables),
        base_image=variables.get(BASE_VARIABLE),
        command=shlex.join(["hwmatrix", *sys.argv[1:]]),
    )
