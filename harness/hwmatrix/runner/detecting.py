"""Detects hardware in a child process, because detection starts runtimes, and a crash must not kill the parent."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.clock import utc_now
from hwmatrix.hardware.detector import detect_all
from hwmatrix.records import Detection, Limits
from hwmatrix.records.backends import names
from hwmatrix.runner.forked import run_forked
from hwmatrix.runner.messages import BadMessageError, detections_told

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMITS: Final = Limits(timeout_s=60.0, memory_mb=8192)


def detections() -> list[Detection]:
    """Every kind of hardware: present, or absent with the reason. If the child died while detecting a kind, that is the reason."""
    end = run_forked(_detect, limits=_LIMITS, reserves_address_space=True)  # browsers and GPU runtimes do
    how = "took too long" if end.timed_out else f"ended the process (signal {end.signal}, exit code {end.exit_code})"
    if end.refused is not None:
        how = f"sent an invalid message: {end.refused}"
    found: list[Detection] = []
    try:
        found = detections_told(end)
    except BadMessageError as error:
        how = f"sent an invalid message: {error}"
    asked = {detection.hardware_type for detection in found}
    for kind in names():
        if kind not in asked:
            reason = f"detecting it {how}"
            found.append(Detection(hardware_type=kind, available=False, name=None, features={}, reason=reason, detected_at=utc_now()))
    return found


def _detect(send: Callable[[dict[str, Any]], None]) -> None:
    for detection in detect_all(names()):
        send(dataclasses.asdict(detection))
