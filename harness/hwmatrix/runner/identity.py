"""What this interpreter is and what is installed in it: evidence for every row."""

from __future__ import annotations

import platform
import sys
from importlib import metadata


def interpreter() -> str:
    """Implementation, version and build: the same packages run at other speeds on another build."""
    build, date = platform.python_build()
    return f"{platform.python_implementation()} {platform.python_version()} ({build}, {date}; {platform.python_compiler()}; {sys.platform})"


def packages() -> dict[str, str]:
    """Every installed distribution and its version."""
    return dict(sorted((distribution.metadata["Name"], distribution.version) for distribution in metadata.distributions()))
