"""The runner's events for the host: one JSON object per line on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any


def emit(event: str, **facts: Any) -> None:
    """Tell one thing. The host ignores lines that are no JSON, so a library's own prints do no harm."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()
