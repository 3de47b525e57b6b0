"""The runner's events for the host: one JSON object per line on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any


def emit(event: str, **facts: Any) -> None:
    """Send one event. The host ignores lines that are not JSON, so prints of a library do no harm."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()
