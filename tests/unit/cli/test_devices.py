"""``hwmatrix devices`` through ``main``, on fake machines."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from fake_machine import GPU, Machine, installed

from hwmatrix.cli import device_tables, devices, main
from hwmatrix.hardware import api, container
from hwmatrix.hardware.torch_build import TorchBuild
from hwmatrix.knowledge.priorities import order_of
from hwmatrix.models.classify import classify
from hwmatrix.records import Backend, backends

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MATRIX = """\
version: 1
sizes:
  tiny: {}
  full: {}
tolerances:
  float32: {relative_error: 1.0e-3, reason: rounding}
targets:
  cpu: {backend: cpu, image: cpu}
models:
  bert: {family: embedding, architecture: bert, class: BertModel, hub_id: google-bert/bert-base-uncased}
  vit: {family: vision, architecture: vit, class: ViTForImageClassification, hub_id: google/vit-base-patch16-224}
  whisper: {family: audio, architecture: whisper, class: WhisperForConditionalGeneration}
suites:
  first: {models: [vit, bert]}
  default: {models: all}
"""
CPU = {
    "cores": 8,
    "usable_cores": 1.5,
    "instructions": ["avx", "avx2"],
    "memory_mb": 65536,
    "memory_limit_mb": 4096,
    "memory_left_mb": 1024,
    "system": "Linux 6.1",
}
OUTSIDE = container.Surroundings(inside=None, nodes=(), toolkit=(), cdi=(), runtimes=())


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """A server with two NVIDIA GPUs and a CUDA build of PyTorch, in a project's folder."""
    (tmp_path / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(container, "look", lambda: OUTSIDE)
    before = signal.getsignal(signal.SIGTERM)
    with installed(monkeypatch, tmp_path / "cache") as machine:
        second = GPU | {"index": 1, "uuid": "GPU-2", "free_mb": None, "compute_capability": None}
        machine.here = {
            Backend.CPU: ("a CPU", dict(CPU)),
            Backend.CUDA: ("2 x B200", {"driver": "610.43", "cuda": "13.3", "cudnn": None, "count": 2, "gpus": [GPU, second]}),
            Backend.OPENVINO: ("OpenVINO 2026.4.1", {"devices": {"CPU": "a CPU", "GPU.0": "Arc"}, "device_memory_mb": {"GPU.0": 15930}}),
            Backend.ONNXRUNTIME: ("ONNX Runtime 1.31.1", {"version": "1.31.1", "providers": None}),
            Backend.QNN: ("Qualcomm HTP, emulated", {"execution": "emulated", "onnxruntime_qnn": "2.7.0", "onnxruntime": "1.31.1"}),
        }
        give_torch(monkeypatch, TorchBuild(version="2.13.0+cu130", cuda="13.0", hip=None))
        yield machine
    signal.signal(signal.SIGTERM, before)


def give_torch(monkeypatch: pytest.MonkeyPatch, build: TorchBuild | None) -> None:
    for module in (api, devices):
        monkeypatch.setattr(module.torch_build, "torch_build", lambda: build)


def hwmatrix(*argv: str) -> int:
    return main.main(["devices", *argv])


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert hwmatrix(*argv, "--format", "json") == 0
    return json.loads(capsys.readouterr().out)


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *argv: str) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    assert hwmatrix(*argv) == 0
    return capsys.readouterr().out


def test_the_available_hardware(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    printed = shown(capsys, monkeypatch)
    lines = {line.split()[0]: line for line in printed.splitlines() if line}
    assert "1.0 of 4.0 GiB left" in lines["cpu"]  # the memory left by the container's limit, not that of the machine
    assert "2 x B200" in printed
    assert "179.1 of 179.1 GiB free, ? of 179.1 GiB free" in printed
    assert "driver 610.43, CUDA 13.3" in printed
    assert "cuDNN" not in printed
    assert "devices CPU, GPU.0" in printed
    assert "  webgpu" in printed
    assert "no rocm" in printed
    assert "here, but not in a container:" in printed
    assert "toolkit is not installed" in printed
    assert "best here: cuda; PyTorch device: cuda:0 (PyTorch 2.13.0+cu130)" in printed


def test_the_available_hardware_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(capsys)
    assert told["schema"] == "hwmatrix/devices/1"
    by_name = {row["hardware"]: row for row in told["hardware"]}
    assert by_name.keys() == {kind.value for kind in Backend}
    assert by_name["cuda"]["features"]["gpus"][0]["name"] == "B200"
    assert by_name["rocm"] | {"detected_at": None} == {
        "hardware": "rocm",
        "available": False,
        "name": None,
        "features": {},
        "reason": "no rocm",
        "detected_at": None,
        "in_container": {"visible": False, "why": "no rocm"},
    }
    assert (told["best_available"], told["torch_device"], told["inside_container"]) == ("cuda", "cuda:0", None)
    assert told["torch"] == {"version": "2.13.0+cu130", "cuda": "13.0", "hip": None}
    assert told["for_containers"] == {"device_nodes": [], "toolkit": [], "cdi": [], "docker_runtimes": []}


def test_a_pytorch_that_cannot_use_the_gpus_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    give_torch(monkeypatch, TorchBuild(version="2.13.0+cpu", cuda=None, hip=None))
    printed = shown(capsys, monkeypatch)
    assert "best here: cuda; PyTorch device: cpu (PyTorch 2.13.0+cpu; cuda: the installed PyTorch 2.13.0+cpu is built for" in printed
    give_torch(monkeypatch, None)
    assert answer(capsys)["torch"] is None
    assert "no PyTorch is installed" in shown(capsys, monkeypatch)


def test_inside_a_container(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    around = container.Surroundings(inside="podman: there is a /run/.containerenv", nodes=(), toolkit=(), cdi=(), runtimes=())
    monkeypatch.setattr(container, "look", lambda: around)
    assert "this process is in a container: podman: there is a /run/.containerenv" in shown(capsys, monkeypatch)


def test_every_single_device(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    machine.here[Backend.ROCM] = (
        "MI300X",
        {
            "gpus": [
                {"index": 0, "name": None, "architecture": "gfx942", "compute_units": 304, "memory_mb": 196592, "free_mb": 196000},
            ]
        },
    )
    machine.here[Backend.MPS] = ("Apple M1", {"memory_mb": 16384})
    for kind in (Backend.WEBGPU, Backend.WEBNN):
        machine.here[kind] = ("Chromium 156", {"software_adapter": kind is Backend.WEBGPU, "render_nodes": ["/dev/dri/renderD128"]})
    rows = {row["device"]: row for row in answer(capsys, "--list-devices")}
    assert list(rows) == [
        *("cpu", "openvino:CPU", "openvino:GPU.0", "onnxruntime", "cuda:0", "cuda:1", "rocm:0", "mps"),
        *("webgpu:software", "webgpu:/dev/dri/renderD128", "webnn:/dev/dri/renderD128", "qnn"),
    ]
    assert rows["cpu"] == {
        "device": "cpu",
        "name": "a CPU",
        "memory_mb": 4096,
        "free_mb": 1024,
        "torch_device": "cpu",
        "details": "1.5 of 8 cores; avx, avx2",
    }
    assert (rows["cuda:1"]["memory_mb"], rows["cuda:1"]["free_mb"], rows["cuda:1"]["torch_device"]) == (183359, None, "cuda:1")
    assert (rows["rocm:0"]["name"], rows["rocm:0"]["details"]) == ("gfx942", "gfx942, 304 compute units")
    assert (rows["openvino:GPU.0"]["memory_mb"], rows["openvino:CPU"]["memory_mb"]) == (15930, None)
    assert rows["qnn"]["details"] == "emulated"
    printed = shown(capsys, monkeypatch, "--list-devices")
    assert all(device in printed for device in rows)
    assert "15.6 GiB" in printed


def test_a_model_goes_to_the_first_hardware_in_its_priority_order(capsys: pytest.CaptureFixture[str]) -> None:
    told = answer(capsys, "--model", "vit")
    assert (told["family"], told["architecture"], told["asked"]) == ("vision", "vit", "auto")
    assert told["order"][0] == "cuda"
    assert (told["hardware"], told["torch_device"], told["passed_over"]) == ("cuda", "cuda:0", {})


def test_without_gpus_a_vision_model_goes_to_openvino_not_to_emulation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    del machine.here[Backend.CUDA]
    told = answer(capsys, "--model", "google/vit-base-patch16-224")
    assert (told["hardware"], told["torch_device"]) == ("openvino", "cpu")
    assert told["passed_over"] == {"cuda": "no cuda", "rocm": "no rocm", "mps": "no mps"}
    del machine.here[Backend.OPENVINO]
    told = answer(capsys, "--model", "vit", "--refresh")
    assert told["hardware"] == "cpu"
    assert "emulated" in told["passed_over"]["qnn"]
    printed = shown(capsys, monkeypatch, "--model", "vit")
    assert "order: the design documents' priority of vision" in printed
    assert "no openvino" in printed
    assert "it is not a device of PyTorch" in printed


@pytest.mark.parametrize(
    ("device", "hardware", "torch"),
    [("cuda", "cuda", "cuda:0"), ("qnn", "qnn", "cpu"), ("cpu", "cpu", "cpu"), ("openvino", "openvino", "cpu"), ("mps", "cpu", "cpu")],
)
def test_a_requested_device_is_tried_first(capsys: pytest.CaptureFixture[str], device: str, hardware: str, torch: str) -> None:
    told = answer(capsys, "--model", "bert", "--device", device)
    assert (told["asked"], told["hardware"], told["torch_device"]) == (device, hardware, torch)
    assert told["order"][0] == device
    assert (device in told["passed_over"]) == (device != hardware)


@pytest.mark.parametrize(
    ("model", "device", "order", "reason"),
    [
        ("bert", "cuda", ["cuda", "rocm", "mps", "cpu"], "priority of"),
        ("vit", "mps", ["mps", "openvino", "qnn", "cpu"], "priority of vision"),
        ("bert", "webgpu", ["webgpu", "webnn", "cpu"], "the chain of webgpu"),
        ("nobody-knows-it", "cuda", ["cuda", "openvino", "cpu"], "the chain of cuda"),
    ],
)
def test_after_the_requested_device_the_order_is_that_of_hwmatrix_test(
    capsys: pytest.CaptureFixture[str], model: str, device: str, order: list[str], reason: str
) -> None:
    told = answer(capsys, "--model", model, "--device", device)
    assert told["order"] == order == list(order_of(classify(model), preferred=device))
    assert told["order_reason"].startswith(f"{device} was requested; after it: ")
    assert reason in told["order_reason"]


@pytest.mark.parametrize(("priority", "models"), [("high", ["vit", "bert"]), ("all", ["bert", "vit", "whisper"])])
def test_the_models_of_the_first_suite(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, priority: str, models: list[str]
) -> None:
    told = answer(capsys, "--priority", priority, "--device", "auto")
    assert [(each["model"], each["torch_device"]) for each in told] == [(model, "cuda:0") for model in models]
    printed = shown(capsys, monkeypatch, "--priority", priority)
    assert all(model in printed for model in models)


def test_a_model_that_is_only_a_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = answer(capsys, "--model", "nobody-knows-it")
    assert (told["family"], told["confidence"], told["hardware"]) == (None, 0.0, "cuda")
    (tmp_path / "matrix.yaml").unlink()  # outside a project, the name still gives evidence
    assert answer(capsys, "--model", "bert-base-uncased")["family"] == "embedding"
    assert "not known" in shown(capsys, monkeypatch, "--model", "nobody-knows-it")


def test_expected_compatibility_is_labeled(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without measurements, expectations are shown and labeled as such."""
    told = answer(capsys, "--hardware-compatibility")
    assert told["database"] is None
    rows = {(row["family"], row["architecture"]): row["hardware"] for row in told["rows"]}
    assert rows["embedding", None]["cuda"]["basis"] == "prior"
    printed = shown(capsys, monkeypatch, "--hardware-compatibility")
    assert "measurements: there are none here" in printed
    assert "(High)" in printed
    assert "qnn" not in printed  # for which there are no expectations


MEASUREMENTS = {
    "place": "latest",
    "where": "reports/latest/matrix.duckdb",
    "cells": 5,
    "first": "2026-01-02T03:04:05",
    "last": "2026-01-03T03:04:05",
    "versions": {"torch": ["2.13.0"]},
}


def test_measured_levels_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    def cell(basis: str, levels: dict[str, int], execution: str | None = None) -> dict[str, Any]:
        return {"basis": basis, "levels": levels, "execution": execution, "level": None, "compatible": None}

    kinds = {kind.value: cell("none", {}) for kind in Backend}
    own = {"cpu": cell("measured", {"High": 3, "none": 1}, "hardware"), "qnn": cell("measured", {"Medium": 1}, "emulated")}
    unclear = {"cuda": cell("prior", {})}
    rows = [{"family": "vision", "architecture": None, "hardware": kinds | own | unclear}]
    device_tables.show_compatibility({"database": "matrix.duckdb", "evidence": [MEASUREMENTS], "rows": rows})
    printed = capsys.readouterr().out
    assert "3 High, 1 none" in printed
    assert "Medium*" in printed
    assert "(unclear)" in printed
    assert "openvino" not in printed
    assert "reports/latest/matrix.duckdb: 5 cells, executed 2026-01-02 to 2026-01-03, with torch 2.13.0" in printed


def test_the_cache_is_used_and_can_be_cleared(capsys: pytest.CaptureFixture[str], machine: Machine, tmp_path: Path) -> None:
    assert hwmatrix() == 0
    assert (tmp_path / "cache" / "hardware.json").is_file()
    machine.take()
    assert hwmatrix() == 0
    assert "openvino" not in machine.take()
    assert hwmatrix("--refresh") == 0
    assert "openvino" in machine.take()
    capsys.readouterr()
    assert hwmatrix("--clear-cache") == 0
    assert hwmatrix("--clear-cache") == 0
    assert capsys.readouterr().out.split("\n")[:2] == ["cache deleted", "there was no cache"]
    assert not (tmp_path / "cache" / "hardware.json").exists()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--list-devices", "--model", "bert"), "--model: it cannot be used together with --list-devices"),
        (("--clear-cache", "--list-devices"), "cannot be used together"),
        (("--device", "cuda"), "--device cuda: it needs a model"),
        (("--list-devices", "--device", "cuda"), "it needs a model"),
        (("--model", "bert", "--device", "tpu"), "'tpu' is not a hardware name"),
        (("--model", "bert", "--device", "cudaa"), "did you mean"),
        (("--priority", "low"), "'low' is not one of"),
        (("--model", "a b"), "is not a valid model name"),
        (("--model", "./nowhere"), "is not a folder"),
        (("--model", "bert", "--matrix", "other.yaml"), "other.yaml: cannot be read"),
        (("--priority", "high", "--matrix", "other.yaml"), "other.yaml: cannot be read"),
    ],
)
def test_wrong_arguments_are_reported(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], told: str) -> None:
    assert hwmatrix(*argv) == 2
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("backend", list(Backend))
def test_every_backend_can_be_requested(capsys: pytest.CaptureFixture[str], backend: Backend) -> None:
    assert answer(capsys, "--model", "bert", "--device", backend.value)["order"][0] == backend.value


def test_a_backend_of_another_package_is_refused_with_that_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_from_elsewhere", lambda: {"abacus": "abacus:DESCRIPTOR"})
    assert hwmatrix("--model", "bert", "--device", "abacus") == 2
    assert "'abacus' is a backend of another package" in " ".join(capsys.readouterr().err.split())


def test_a_broken_cache_is_not_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "hardware.json").write_text("{", encoding="ascii")
    assert answer(capsys)["best_available"] == "cuda"
    assert "will be rebuilt" in caplog.text
