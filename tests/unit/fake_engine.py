"""A fake container engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hwmatrix.host.engine import Engine


def engine(**changes: Any) -> Engine:
    """An engine that can build and has a bridge, with ``changes``."""
    usual = Engine(
        url="unix:///engine.sock",
        version="28.0",
        api_version="1.48",
        operating_system="Debian",
        cgroup_version=2,
        rootless=False,
        networks=frozenset({"bridge", "host", "null"}),
        builder=Path("/usr/bin/docker"),
        builder_problem="",
        environment={"PATH": "/usr/bin"},
    )
    return dataclasses.replace(usual, **changes)
