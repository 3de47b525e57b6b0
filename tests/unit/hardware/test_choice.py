"""The choice of PyTorch's device, on fake machines with GPUs: detections are given, nothing is queried."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from hwmatrix.errors import ConfigError
from hwmatrix.hardware import torch_build, visible
from hwmatrix.hardware.assignments import constants
from hwmatrix.hardware.choice import Circumstances, choose, parse
from hwmatrix.hardware.torch_build import TorchBuild
from hwmatrix.records import Backend, Detection

RECORDED = Path(__file__).parents[1] / "recorded" / "torch"
CPU_BUILD = TorchBuild(version="2.13.0+cpu", cuda=None, hip=None)
CUDA_BUILD = TorchBuild(version="2.13.0+cu130", cuda="13.0", hip=None)
ROCM_BUILD = TorchBuild(version="2.13.0+rocm7.2", cuda=None, hip="7.2.26015")
MAC_BUILD = TorchBuild(version="2.13.0", cuda=None, hip=None)


def here(kind: Backend, **features: Any) -> Detection:
    return Detection(hardware_type=kind.value, available=True, name=f"a {kind.value}", features=features, reason=None, detected_at="now")


def nvidia(count: int = 2, cuda: str = "13.3") -> Detection:
    gpus = [{"index": index, "uuid": f"GPU-{index}a", "name": "B200"} for index in range(count)]
    return here(Backend.CUDA, gpus=gpus, driver="610.43", cuda=cuda)


def amd(count: int = 1) -> Detection:
    return here(Backend.ROCM, gpus=[{"index": index, "uuid": f"GPU-{index}b"} for index in range(count)])


def given(*found: Detection, torch: TorchBuild | None = CUDA_BUILD, **environment: str) -> Circumstances:
    known = {Backend(each.hardware_type): each for each in found}

    def ask(kind: Backend) -> Detection:
        absent = Detection(hardware_type=kind.value, available=False, name=None, features={}, reason=f"no {kind.value}", detected_at="now")
        return known.get(kind, absent)

    return Circumstances(ask=ask, torch=torch, environment=environment)


@pytest.fixture(autouse=True)
def _nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def device(priorities: list[str], circumstances: Circumstances, index: int = 0) -> str:
    return choose(parse(priorities), index, circumstances).torch_device


@pytest.mark.parametrize(
    ("priorities", "index", "expected"),
    [
        (["cuda", "mps", "cpu"], 1, "cuda:1"),
        (["cuda:1", "cpu"], 0, "cuda:1"),
        (["cuda:0", "cpu"], 1, "cuda:0"),
        (["mps", "cuda"], 0, "cuda:0"),
        (["cpu", "cuda"], 1, "cpu"),
        (["auto"], 0, "cuda:0"),
        (["openvino", "cuda", "cpu"], 0, "cuda:0"),
    ],
)
def test_the_first_usable_entry_is_chosen(priorities: list[str], index: int, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert device(priorities, given(nvidia()), index) == expected
    assert caplog.messages == []


def test_skipped_entries_are_reported() -> None:
    choice = choose(parse(["openvino", "rocm", "cuda"]), 0, given(nvidia()))
    assert (choice.hardware, choice.torch_device, choice.reason) == ("cuda", "cuda:0", "a cuda is here")
    assert choice.passed_over == (("openvino", "it is not a device of PyTorch: its own runtime executes models"), ("rocm", "no rocm"))


@pytest.mark.parametrize(("priorities", "index"), [(["cuda"], 2), (["cuda:7"], 1)])
def test_a_missing_index_becomes_0_with_a_warning(priorities: list[str], index: int, caplog: pytest.LogCaptureFixture) -> None:
    assert device(priorities, given(nvidia()), index) == "cuda:0"
    (message,) = caplog.messages
    assert "only 2: using device 0" in message


@pytest.mark.parametrize("index", [-1, True, 1.0, "1"])
def test_an_invalid_index_is_an_error(index: Any) -> None:
    with pytest.raises(ConfigError, match=r"preferred_index: .* is not a valid device number"):
        choose(parse(["cpu"]), index, given())


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("cudda", "did you mean 'cuda'"),
        ("CUDA", "did you mean 'cuda'"),
        ("gpu", "known: cpu, openvino"),
        ("", "known: cpu"),
        ("cuda:", "such as cuda:1"),
        ("cuda:x", "'cuda:x' has no device number"),
        ("cuda:-1", "has no device number"),
    ],
)
def test_an_unknown_name_is_an_error_that_suggests_the_closest(entry: str, told: str) -> None:
    with pytest.raises(ConfigError, match="priority_list") as caught:
        parse(["cuda", entry])
    assert told in str(caught.value)


@pytest.mark.parametrize("priorities", [["rocm", "mps"], ["openvino", "qnn", "webgpu", "webnn"], []])
def test_without_any_usable_entry_it_is_the_cpu(priorities: list[str], caplog: pytest.LogCaptureFixture) -> None:
    assert device(priorities, given(nvidia())) == "cpu"
    assert [message.endswith("using the CPU") for message in caplog.messages] == [True] * bool(priorities)


@pytest.mark.parametrize(
    ("machine", "torch", "expected", "why"),
    [
        (nvidia(), CPU_BUILD, "cpu", "built for CPUs only, not for CUDA"),
        (nvidia(), ROCM_BUILD, "cpu", "built for ROCm 7.2.26015, not for CUDA"),
        (nvidia(), CUDA_BUILD, "cuda:0", None),
        (nvidia(), None, "cuda:0", None),
        (nvidia(cuda="12.8"), CUDA_BUILD, "cpu", "built for CUDA 13.0, but driver 610.43 runs CUDA up to 12.8"),
        (nvidia(cuda="13.0"), CUDA_BUILD, "cuda:0", None),
        (amd(), ROCM_BUILD, "cuda:0", None),
        (amd(), None, "cuda:0", None),
        (amd(), CUDA_BUILD, "cpu", "built for CUDA 13.0, not for ROCm"),
        (here(Backend.MPS), MAC_BUILD, "mps", None),
        (here(Backend.MPS), None, "mps", None),
        (here(Backend.MPS), TorchBuild(version="1.11.0", cuda=None, hip=None), "cpu", "has no MPS"),
    ],
)
def test_only_devices_of_this_pytorch_build_are_chosen(
    machine: Detection, torch: TorchBuild | None, expected: str, why: str | None
) -> None:
    choice = choose(parse(["auto"]), 0, given(machine, torch=torch))
    assert choice.torch_device == expected
    assert why is None or why in dict(choice.passed_over)[machine.hardware_type]


def test_a_rocm_machine_is_not_cuda() -> None:
    """Although PyTorch calls its devices that."""
    choice = choose(parse(["cuda", "rocm"]), 0, given(amd(), torch=ROCM_BUILD))
    assert (choice.hardware, choice.torch_device) == ("rocm", "cuda:0")


@pytest.mark.parametrize(
    ("variable", "count"),
    [
        ("", 0),
        ("-1", 0),
        ("0", 1),
        ("1,0", 2),
        ("0,2,1", 1),  # 2 does not exist and ends the list
        ("0,-1,1", 1),
        ("0,0", 0),
        ("GPU-1", 1),
        ("GPU-9", 0),
        ("MIG-1,MIG-2", 2),
        ("none", 0),
    ],
)
def test_hidden_gpus_are_not_chosen(variable: str, count: int) -> None:
    machine = nvidia()
    assert len(visible.cuda_gpus(machine.features["gpus"], {"CUDA_VISIBLE_DEVICES": variable})) == count
    choice = choose(parse(["cuda", "cpu"]), 0, given(machine, CUDA_VISIBLE_DEVICES=variable))
    assert choice.torch_device == ("cuda:0" if count else "cpu")
    assert count or dict(choice.passed_over)["cuda"] == f"hidden by CUDA_VISIBLE_DEVICES={variable!r}"


def test_the_order_is_that_of_the_variable() -> None:
    gpus = nvidia().features["gpus"]
    assert [gpu["index"] for gpu in visible.cuda_gpus(gpus, {"CUDA_VISIBLE_DEVICES": "1,0"}) if gpu] == [1, 0]
    assert visible.cuda_gpus(gpus, {}) == gpus


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({}, [0, 1, 2]),
        ({"HIP_VISIBLE_DEVICES": "2"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, [1, 2]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-2b"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [0]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_amds_variables(environment: dict[str, str], shown: list[int]) -> None:
    assert [gpu["index"] for gpu in visible.rocm_gpus(amd(3).features["gpus"], environment) if gpu] == shown
    choice = choose(parse(["rocm"]), 0, given(amd(3), torch=ROCM_BUILD, **environment))
    assert choice.torch_device == ("cuda:0" if shown else "cpu")


def test_an_initialized_pytorch_determines_its_device_count(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = types.ModuleType("torch")
    torch.version = types.SimpleNamespace(__version__="2.13.0+cu130", cuda="13.0", hip=None)  # type: ignore[attr-defined]
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert device(["cuda"], given(nvidia(4)), 3) == "cuda:0"


@pytest.mark.parametrize(
    ("file", "expected", "purpose"),
    [
        ("version-2.13.0-cu130", TorchBuild(version="2.13.0+cu130", cuda="13.0", hip=None), "CUDA 13.0"),
        (
            "version-2.3.0-rocm6.0",
            TorchBuild(version="2.3.0.dev20240308+rocm6.0", cuda=None, hip="6.0.32830-d62f6a171"),
            "ROCm 6.0.32830-d62f6a171",
        ),
    ],
)
def test_the_build_of_a_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, expected: TorchBuild, purpose: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')", encoding="ascii")
    (tmp_path / "torch" / "version.py").write_bytes((RECORDED / file).read_bytes())
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = torch_build.torch_build()
    assert found == expected
    assert found.purpose == purpose
    assert "torch" not in sys.modules


def test_a_folder_called_torch_is_not_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert torch_build.torch_build() is None
    (tmp_path / "torch").mkdir()
    assert torch_build.torch_build() is None
    monkeypatch.setitem(sys.modules, "torch", None)  # makes importing it fail
    assert torch_build.torch_build() is None


def test_an_imported_pytorch_is_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", module)
    assert torch_build.torch_build() is None  # its import has not finished
    assert torch_build.imported() is None
    module.version = types.SimpleNamespace(__version__="3.0", cuda=None, hip="8.0")  # type: ignore[attr-defined]
    assert torch_build.torch_build() == TorchBuild(version="3.0", cuda=None, hip="8.0")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("13.0", (13, 0)),
        ("2.3.0.dev20240308+rocm6.0", (2, 3, 0)),
        ("6.0.32830-d62f6a171", (6, 0, 32830)),
        ("", ()),
        (None, ()),
        ("None", ()),
    ],
)
def test_version_numbers_are_parsed(text: str | None, numbers: tuple[int, ...]) -> None:
    assert torch_build.number(text) == numbers


def test_assignments_are_read_and_nothing_is_executed(tmp_path: Path) -> None:
    file = tmp_path / "version.py"
    file.write_text("a: int = 1\nb = c = 'x'\nd = print('executed')\ndef f(): e = 2\ng: str\n", encoding="ascii")
    assert constants(file) == {"a": 1, "b": "x", "c": "x"}
    file.write_bytes(b"a = \x00")
    assert constants(file) == {}
    assert constants(tmp_path / "missing") == {}
