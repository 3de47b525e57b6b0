"""Print the packages of a requirements file that cannot be found, separated by spaces."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path


def missing(requirements: str) -> list[str]:
    """Names in the file, one a line, of which no distribution is on the path."""
    names = [line.partition("#")[0].strip() for line in requirements.splitlines()]
    return [name for name in names if name and not any(importlib.metadata.distributions(name=name))]


if __name__ == "__main__":
    print(" ".join(missing(Path(sys.argv[1]).read_text(encoding="utf-8"))))  # noqa: T201 - its output
