"""The recorded messages of runtimes, drivers and engines: what the catalogue is checked against."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

_FOLDER: Final = Path(__file__).parent / "recorded" / "errors"
_PROGRAM: Final = "program"


def recorded(*, program: bool = False) -> list[dict[str, Any]]:
    """Every recorded message, with the hardware of its file unless it names its own. ``program``: those that hwmatrix itself writes."""
    found = []
    for path in sorted(_FOLDER.glob("*.yaml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        if (path.stem == _PROGRAM) == program:
            found += [{"hardware": document.get("hardware", "any"), "file": path.stem} | entry for entry in document["messages"]]
    return found


def name_of(entry: dict[str, Any]) -> str:
    """The name of a message's test case."""
    return f"{entry['file']}-{entry.get('type') or entry.get('not_type')}"


POSITIVE: Final = [entry for entry in recorded() if "type" in entry]
NEGATIVE: Final = [entry for entry in recorded() if "type" not in entry]
