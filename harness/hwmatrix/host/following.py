"""Follows a job: forwards the runner's events to the view, and records why the job failed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hwmatrix.host.console import View
    from hwmatrix.host.executors import Ended, Executor, Job


def follow(executor: Executor, job: Job, view: View, title: str) -> Ended:
    """Hand the runner's events to the view. Lines that are none come from libraries. Why it failed is part of its output."""
    reasons: list[str] = []

    def on_line(line: str) -> None:
        with contextlib.suppress(ValueError):
            event: Any = json.loads(line)
            if isinstance(event, dict) and event.get("event") == "failed":
                reasons.append(event["message"])
            elif isinstance(event, dict) and "event" in event:
                view.event(title, event)

    ended = executor.run(job, on_line)
    return dataclasses.replace(ended, output="\n".join([ended.output, *reasons]).strip())
