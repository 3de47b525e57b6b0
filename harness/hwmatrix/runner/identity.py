"""What this interpreter is and what is installed in it: evidence for every row."""

from __future__ import annotations

import platform
import sys
import sysconfig
from importlib import metadata


def interpreter() -> str:
    """Implementation, version and build: the same packages run at other speeds on another build."""
    compiler = platform.python_compiler()
    optimised = "optimised" if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") else "not optimised"
    return f"{platform.python_implementation()} {platform.python_version()} ({compiler}, {optimised}, {sys.platform})"


def packages() -> dict[str, str]:
    """Every installed distribution and its version."""
    return dict(sorted((distribution.metadata["Name"], distribution.version) for distribution in metadata.distributions()))
