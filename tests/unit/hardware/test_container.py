"""Facts about containers from files, in a folder that simulates the root."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hwmatrix.hardware import container
from hwmatrix.hardware.container import Surroundings, View
from hwmatrix.records import Backend, Detection

RECORDED = Path(__file__).parents[1] / "recorded"
OUTSIDE = Surroundings(inside=None, nodes=(), toolkit=(), cdi=(), runtimes=())
AMD_NODES = ("/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128")


def found(kind: Backend, *, available: bool = True) -> Detection:
    reason = None if available else f"no {kind.value}"
    return Detection(hardware_type=kind.value, available=available, name=None, features={}, reason=reason, detected_at="now")


def put(root: Path, name: str, text: str = "") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="utf-8")


def around(**told: object) -> Surroundings:
    return Surroundings(**{"inside": None, "nodes": (), "toolkit": (), "cdi": (), "runtimes": ()} | told)  # type: ignore[arg-type]


def test_an_ordinary_machine(tmp_path: Path) -> None:
    assert container.look(tmp_path, path="") == OUTSIDE


@pytest.mark.parametrize(
    ("files", "inside"),
    [
        ({".dockerenv": ""}, "docker: there is a /.dockerenv"),
        ({"run/.containerenv": "engine=podman"}, "podman: there is a /run/.containerenv"),
        ({"run/systemd/container": "lxc\n"}, "lxc: /run/systemd/container says so"),
        ({"proc/self/cgroup": (RECORDED / "cgroups/kubepods-v1-cgroup").read_text()}, "kubepods: /proc/self/cgroup names it"),
        ({"proc/self/cgroup": (RECORDED / "cgroups/docker-v1-cgroup").read_text()}, "docker: /proc/self/cgroup names it"),
        ({"proc/self/cgroup": "0::/user.slice/user-0.slice/session-1.scope\n"}, None),
        ({"proc/self/cgroup": "0::/system.slice/dockerized-app.service\n"}, None),
    ],
)
def test_this_process_is_in_a_container(tmp_path: Path, files: dict[str, str], inside: str | None) -> None:
    for name, text in files.items():
        put(tmp_path, name, text)
    assert container.look(tmp_path, path="").inside == inside


def test_support_for_gpus_in_containers(tmp_path: Path) -> None:
    for node in ("nvidia0", "nvidiactl", "kfd", "dri/renderD128", "dri/card1", "accel/accel0", "null"):
        put(tmp_path, f"dev/{node}")
    put(tmp_path, "etc/docker/daemon.json", (RECORDED / "docker-daemon-nvidia.json").read_text(encoding="utf-8"))
    put(tmp_path, "etc/cdi/nvidia.yaml", (RECORDED / "cdi-nvidia.yaml").read_text(encoding="utf-8"))
    put(tmp_path, "var/run/cdi/amd.json", '{"cdiVersion": "0.6.0", "kind": "amd.com/gpu", "devices": []}')
    put(tmp_path, "etc/cdi/README", "kind: no/specification")
    put(tmp_path, "bin/nvidia-ctk", "#!/bin/sh\n")
    (tmp_path / "bin/nvidia-ctk").chmod(0o755)
    assert container.look(tmp_path, path=str(tmp_path / "bin")) == Surroundings(
        inside=None,
        nodes=("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128", "/dev/accel/accel0"),
        toolkit=("nvidia-ctk",),
        cdi=("amd.com/gpu", "nvidia.com/gpu"),
        runtimes=("nvidia",),
    )


@pytest.mark.parametrize("text", ["{", "[]", '{"runtimes": []}', "{}", ""])
def test_settings_without_a_runtime(tmp_path: Path, text: str) -> None:
    put(tmp_path, "etc/docker/daemon.json", text)
    assert container.look(tmp_path, path="").runtimes == ()


@pytest.mark.parametrize("kind", list(Backend))
def test_a_process_in_a_container_sees_the_available_hardware(kind: Backend) -> None:
    inside = around(inside="docker: there is a /.dockerenv")
    assert container.view(kind, found(kind), inside) == View(visible=True, why="this is one (docker: there is a /.dockerenv)")
    assert container.view(kind, found(kind, available=False), inside) == View(visible=False, why=f"no {kind.value}")


@pytest.mark.parametrize(
    ("told", "visible", "why"),
    [
        ({}, False, "toolkit is not installed"),
        ({"toolkit": ("nvidia-ctk",)}, True, "nvidia-ctk is here"),
        ({"runtimes": ("nvidia",)}, True, "Docker's daemon has the runtime nvidia"),
        ({"runtimes": ("runsc",)}, False, "toolkit is not installed"),
        ({"cdi": ("nvidia.com/gpu",)}, True, "CDI describes nvidia.com/gpu"),
    ],
)
def test_nvidias_gpus_need_the_toolkit(told: dict[str, object], visible: bool, why: str) -> None:  # noqa: FBT001 - a table
    view = container.view(Backend.CUDA, found(Backend.CUDA), around(**told))
    assert (view.visible, why in view.why) == (visible, True)


def test_amds_gpus_need_their_nodes() -> None:
    assert container.view(Backend.ROCM, found(Backend.ROCM), around(nodes=AMD_NODES)).visible
    assert not container.view(Backend.ROCM, found(Backend.ROCM), around(nodes=AMD_NODES[:2])).visible


@pytest.mark.parametrize("kind", [Backend.CUDA, Backend.ROCM])
def test_a_missing_gpu_is_in_no_container(kind: Backend) -> None:
    view = container.view(kind, found(kind, available=False), around(cdi=("nvidia.com/gpu",), nodes=AMD_NODES))
    assert view == View(visible=False, why=f"no {kind.value}")


def test_metal_is_in_no_container() -> None:
    assert not container.view(Backend.MPS, found(Backend.MPS), OUTSIDE).visible


@pytest.mark.parametrize("kind", [Backend.CPU, Backend.ONNXRUNTIME, Backend.QNN, Backend.OPENVINO, Backend.WEBGPU, Backend.WEBNN])
def test_software_comes_with_the_image(kind: Backend) -> None:
    """Whether it is also installed outside is irrelevant."""
    assert container.view(kind, found(kind, available=False), OUTSIDE).visible


def test_an_npu_must_be_passed() -> None:
    view = container.view(Backend.OPENVINO, found(Backend.OPENVINO), around(nodes=("/dev/accel/accel0", "/dev/dri/renderD128")))
    assert view.why.endswith("GPU or NPU with /dev/accel and /dev/dri given to it")


def test_this_machine_can_be_inspected() -> None:
    assert container.look().toolkit == tuple(program for program in container._TOOLKIT if shutil.which(program))
