from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware import rocm

RECORDED = Path(__file__).parents[1] / "recorded"
ROCMINFO = (RECORDED / "rocminfo-ryzen7.txt").read_text(encoding="utf-8") + (RECORDED / "rocminfo-rx7900gre.txt").read_text(
    encoding="utf-8"
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the recorded machine's nodes and devices."""
    shutil.copytree(RECORDED / "kfd" / "mi210", tmp_path / "kfd" / "topology" / "nodes")
    (tmp_path / "dri").mkdir()
    for device in ("dev-kfd", "dri/renderD128"):
        (tmp_path / device).touch()
    monkeypatch.setattr(rocm, "_KFD", tmp_path / "kfd")
    monkeypatch.setattr(rocm, "_DEVICE", tmp_path / "dev-kfd")
    monkeypatch.setattr(rocm, "_RENDER", tmp_path / "dri")
    monkeypatch.setattr(rocm, "_DRIVER", tmp_path / "version")
    monkeypatch.setattr(rocm, "_DRM", tmp_path / "drm")
    monkeypatch.setattr(rocm, "_ROCM", (tmp_path / "rocm",))
    monkeypatch.setattr(rocm, "_rocminfo", lambda: "")
    return tmp_path


def refused(error_type: str) -> str:
    with pytest.raises(UnavailableError) as caught:
        rocm.detect()
    assert caught.value.error_type == error_type
    return str(caught.value)


def test_a_recorded_machine(machine: Path) -> None:
    (machine / "version").write_text("6.12.12\n", encoding="ascii")
    for number in ("4711", "4712"):
        (machine / "kfd" / "proc" / number).mkdir(parents=True)
    name, facts = rocm.detect()
    assert name == "gfx90a"
    (gpu,) = facts["gpus"]
    assert gpu == {
        "index": 0,
        "node": 2,
        "uuid": "GPU-1901ead3a2ecd4a6",
        "architecture": "gfx90a",
        "compute_units": 104,
        "memory_mb": None,
        "used_mb": None,
        "free_mb": None,
        "render_minor": 128,
        "name": None,
    }
    assert (facts["driver"], facts["rocm"], facts["count"], facts["processes"]) == ("6.12.12", None, 1, 2)


def test_used_memory_is_read_again(machine: Path) -> None:
    """The numbers are from a real card: github.com/elementary/monitor issue 369."""
    device = machine / "drm/renderD128/device"
    device.mkdir(parents=True)
    (device / "mem_info_vram_total").write_text("8573157376\n", encoding="ascii")
    (device / "mem_info_vram_used").write_text("6812925952\n", encoding="ascii")
    (machine / "rocm").write_text("6.4.1-83\n", encoding="ascii")
    _, facts = rocm.detect()
    assert facts["rocm"] == "6.4.1"
    assert [facts["gpus"][0][name] for name in ("memory_mb", "used_mb", "free_mb")] == [8176, 6497, 1678]
    (device / "mem_info_vram_used").write_text("0\n", encoding="ascii")
    (machine / "kfd/proc/4711").mkdir(parents=True)
    now = rocm.refreshed(facts)
    assert [now["gpus"][0][name] for name in ("used_mb", "free_mb")] == [0, 8176]
    assert (now["processes"], facts["processes"]) == (1, None)


def test_a_missing_gpu_is_reported(machine: Path) -> None:
    _, facts = rocm.detect()
    shutil.rmtree(machine / "kfd/topology/nodes/2")
    with pytest.raises(UnavailableError, match="other GPUs than before"):
        rocm.refreshed(facts)


def test_rocminfo_adds_the_name_of_a_node(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "kfd/topology/nodes/2").rename(machine / "kfd/topology/nodes/1")  # the node of the recorded rocminfo
    monkeypatch.setattr(rocm, "_rocminfo", lambda: ROCMINFO)
    assert rocm.detect()[0] == "AMD Radeon RX 7900 GRE"
    assert rocm.marketing_names(ROCMINFO) == {1: "AMD Radeon RX 7900 GRE"}
    assert rocm.marketing_names("") == {}


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90006, "gfx906"),
        (110000, "gfx1100"),
        (100300, "gfx1030"),
        (120001, "gfx1201"),
        (80003, "gfx803"),
    ],
)
def test_architectures(version: int, name: str) -> None:
    """The first two are from rocm-smi and the kernel on one machine (MI210, MI300X), the others from LLVM's table of processors."""
    assert rocm.architecture(version) == name


def test_memory_is_the_sum_of_a_node_s_banks(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / "mem_banks" / str(number)).mkdir(parents=True)
        shutil.copy(RECORDED / "kfd/mi350x/mem_bank", tmp_path / f"mem_banks/{number}/properties")
    assert rocm.memory_mb(tmp_path) == 2 * 294896  # twice: 288 GiB minus the firmware's share
    assert rocm.memory_mb(tmp_path / "missing") is None


def test_without_the_driver(machine: Path) -> None:
    shutil.rmtree(machine / "kfd")
    assert refused("gpu_no_driver").startswith("no AMD compute driver is loaded here")


def test_a_driver_without_gpus(machine: Path) -> None:
    shutil.rmtree(machine / "kfd/topology/nodes/2")
    assert "lists no GPU" in refused("gpu_not_found")


def test_a_gpu_of_another_vendor_is_ignored(machine: Path) -> None:
    file = machine / "kfd/topology/nodes/2/properties"
    file.write_text(file.read_text(encoding="ascii").replace("vendor_id 4098", "vendor_id 4318"), encoding="ascii")
    assert rocm.topology(machine / "kfd/topology/nodes") == []


def test_a_gpu_that_was_not_passed_into_the_container(machine: Path) -> None:
    (machine / "dri/renderD128").unlink()
    assert f"{machine}/dri/renderD128; give a container /dev/kfd and /dev/dri" in refused("gpu_not_found")


def test_a_user_without_permission(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocm.os, "access", lambda path, _mode: "kfd" not in str(path))
    assert (
        refused("gpu_no_permission")
        == f"this user may not use {machine}/dev-kfd: it must be in the groups that own them (mostly render and video)"
    )


@pytest.mark.parametrize(
    "outcome", [subprocess.TimeoutExpired("rocminfo", 30), OSError("gone"), subprocess.CompletedProcess([], 0, ROCMINFO)]
)
def test_rocminfo_is_called_and_may_fail(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> None:
    def run(command: list[str], **_options: Any) -> Any:
        assert command == ["/opt/rocm/bin/rocminfo"]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(rocm.shutil, "which", lambda _name, path=None: path and f"{path}/rocminfo")
    monkeypatch.setattr(rocm.subprocess, "run", run)
    assert rocm._rocminfo() == (ROCMINFO if isinstance(outcome, subprocess.CompletedProcess) else "")


def test_without_rocminfo_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocm.shutil, "which", lambda _name, path=None: None)  # noqa: ARG005
    assert rocm._rocminfo() == ""


def test_a_driver_that_does_not_list_its_processes(machine: Path) -> None:
    assert not (machine / "kfd/proc").exists()
    assert rocm.processes() is None
