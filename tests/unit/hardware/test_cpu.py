from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hwmatrix.hardware import cpu, sysctl
from hwmatrix.hardware.cgroups import Limits

RECORDED = Path(__file__).parents[1] / "recorded"
INTEL = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Example CPU @ 2.00GHz
flags\t\t: fpu avx avx2 avx512f fma

processor\t: 1
model name\t: another
"""
GRAVITON3 = (RECORDED / "cpuinfo-graviton3.txt").read_text(encoding="ascii")
M1 = "".join((RECORDED / f"sysctl-{part}-m1.txt").read_text(encoding="ascii") for part in ("machdep-cpu", "hw-optional", "hw-memsize"))
INTEL_MAC = (RECORDED / "sysctl-features-intel.txt").read_text(encoding="ascii")
XEON_W = (RECORDED / "sysctl-leaf7-xeon-w.txt").read_text(encoding="ascii")


def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (tmp_path / "cpuinfo").write_text(text, encoding="ascii")
    info = cpu.cpuinfo(tmp_path / "cpuinfo")
    monkeypatch.setattr(cpu, "cpuinfo", lambda: info)


def test_this_machines_processor() -> None:
    name, facts = cpu.detect()
    assert name
    assert facts["cores"] >= facts["usable_cores"] > 0
    assert facts["memory_mb"] >= facts["available_memory_mb"] >= facts["memory_left_mb"] > 0
    assert 0 <= facts["memory_pressure_percent"] <= 100
    json.dumps(facts)
    assert cpu.refreshed(facts).keys() == facts.keys()


def test_the_first_processor_is_read(tmp_path: Path) -> None:
    (tmp_path / "intel").write_text(INTEL, encoding="ascii")
    assert cpu.cpuinfo(tmp_path / "intel")["model name"] == "Example CPU @ 2.00GHz"
    assert cpu.cpuinfo(tmp_path / "missing") == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (INTEL, ("Example CPU @ 2.00GHz", "GenuineIntel", ["avx", "avx2", "avx512f", "fma"])),
        (GRAVITON3, ("Arm Neoverse-V1", "Arm", ["asimd", "asimdhp", "asimddp", "sve"])),
        (GRAVITON3.replace("0xd40", "0xfff").replace("0x41", "0x99"), ("the machine", "0x99", ["asimd", "asimdhp", "asimddp", "sve"])),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", ("POWER9, altivec supported", None, None)),
        ("processor\t: 0\nuarch\t\t: sifive,u74-mc\n", ("sifive,u74-mc", None, None)),
    ],
)
def test_the_facts_on_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: tuple[Any, ...]) -> None:
    read(monkeypatch, tmp_path, text)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "the machine")
    found, facts = cpu.detect()
    assert (found, facts["vendor"], facts["instructions"]) == told


@pytest.mark.parametrize(
    ("told", "vendor"),
    [("Intel64 Family 6 Model 140 Stepping 1, GenuineIntel", "GenuineIntel"), ("", None), ("x86_64", None)],
)
def test_the_name_and_vendor_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, vendor: str | None) -> None:
    """The first one was printed by Windows: github.com/zlib-ng/deflatebench issue 11."""
    read(monkeypatch, tmp_path, "")
    monkeypatch.setattr(platform, "processor", lambda: told)
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    found, facts = cpu.detect()
    assert (found, facts["vendor"], facts["instructions"]) == (told or "AMD64", vendor, None)


@pytest.mark.parametrize(
    ("printed", "name", "vendor", "instructions"),
    [
        (M1, "Apple M1", "Apple", ["neon"]),
        (
            f"machdep.cpu.brand_string: Intel(R) Core(TM) i5-1038NG7 CPU @ 2.00GHz\nmachdep.cpu.vendor: GenuineIntel\n{INTEL_MAC}",
            "Intel(R) Core(TM) i5-1038NG7 CPU @ 2.00GHz",
            "GenuineIntel",
            ["avx", "avx2", "f16c", "fma"],
        ),
        (XEON_W, "x86_64", None, ["avx2", "avx512f"]),
    ],
)
def test_the_facts_on_macos(monkeypatch: pytest.MonkeyPatch, printed: str, name: str, vendor: str | None, instructions: list[str]) -> None:
    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        assert command[:2] == ["/usr/sbin/sysctl", "-i"]
        return subprocess.CompletedProcess(command, 0, f"{printed}kern.memorystatus_vm_pressure_level: 2\n")

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sysctl.subprocess, "run", run)
    found, facts = cpu.detect()
    assert (found, facts["vendor"], facts["instructions"]) == (name, vendor, instructions)
    assert facts["memory_pressure_level"] == "warning"


def test_if_sysctl_fails_a_mac_still_has_a_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*_arguments: Any, **_options: Any) -> Any:
        raise subprocess.TimeoutExpired("sysctl", 10)

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(sysctl.subprocess, "run", run)
    read(monkeypatch, tmp_path, "")
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    name, facts = cpu.detect()
    assert (name, facts["instructions"], facts["memory_pressure_level"]) == ("arm", None, None)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), 4.0),
        (Limits(cores=0.5), 0.5),
        (Limits(cores=8.0), 4.0),
        (Limits(cpuset=2), 2.0),
        (Limits(cpuset=2, cores=1.5), 1.5),
        (Limits(cpuset=8), 4.0),
    ],
)
def test_usable_cores(monkeypatch: pytest.MonkeyPatch, limits: Limits, expected: float) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setattr(sys, "platform", "linux")
    assert cpu.usable_cores(limits) == expected


def test_on_other_systems_every_core_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("os.cpu_count", lambda: 10)
    assert cpu.usable_cores(Limits()) == 10.0
