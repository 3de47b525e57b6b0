from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import mps, sysctl

RECORDED = Path(__file__).parents[1] / "recorded"
M1 = "".join((RECORDED / f"sysctl-{part}-m1.txt").read_text(encoding="ascii") for part in ("machdep-cpu", "hw-optional", "hw-memsize"))
INTEL = "machdep.cpu.brand_string: Intel(R) Core(TM) i5-1038NG7 CPU @ 2.00GHz\n"  # github.com/trailofbits/osquery pull request 8


def mac(monkeypatch: pytest.MonkeyPatch, printed: str, *, machine: str = "arm64") -> None:
    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        assert command[:2] == ["/usr/sbin/sysctl", "-i"]
        return subprocess.CompletedProcess(command, 0, printed)

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "mac_ver", lambda: ("14.2.1", ("", "", ""), machine))
    monkeypatch.setattr(sysctl.subprocess, "run", run)


def refused() -> str:
    with pytest.raises(UnavailableError) as caught:
        mps.detect()
    assert caught.value.error_type == "gpu_not_found"
    return str(caught.value)


def test_a_recorded_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    mac(monkeypatch, M1)
    assert mps.detect() == ("Apple M1", {"model": None, "memory_mb": 16384, "macos": "14.2.1"})


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert refused() == "this is Linux: MPS needs macOS on Apple silicon"


def test_an_older_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    mac(monkeypatch, INTEL, machine="x86_64")
    assert "i5-1038NG7" in refused()


@pytest.mark.parametrize(("printed", "machine"), [(M1 + "sysctl.proc_translated: 1\n", "x86_64"), (M1, "x86_64")])
def test_a_translated_python(monkeypatch: pytest.MonkeyPatch, printed: str, machine: str) -> None:
    mac(monkeypatch, printed, machine=machine)
    assert "Rosetta" in refused()


def test_if_sysctl_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    mac(monkeypatch, "")

    def run(*_arguments: Any, **_options: Any) -> Any:
        raise subprocess.TimeoutExpired("sysctl", 10)

    monkeypatch.setattr(sysctl.subprocess, "run", run)
    assert "does not answer" in refused()
