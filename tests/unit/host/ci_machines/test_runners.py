"""CI runners: their labels and checks, on fake machines."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_engine import engine

from hwmatrix.cli import main
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.hardware.container import Surroundings
from hwmatrix.host import pip_settings
from hwmatrix.host.ci_machines import checking
from hwmatrix.host.ci_machines.checking import State
from hwmatrix.host.ci_machines.labels import labels
from hwmatrix.matrix.load import load
from hwmatrix.records import Backend, Detection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmatrix.host.engine import Engine
    from hwmatrix.matrix.spec import MatrixSpec

ROOT = Path(__file__).parents[4]
SPEC = load(ROOT / "matrix.yaml").spec


def found(here: Mapping[Backend, tuple[str | None, dict[str, Any]]]) -> dict[Backend, Detection]:
    def one(kind: Backend) -> Detection:
        name, features = here.get(kind, (None, {}))
        reason = None if kind in here else f"no {kind.value} here"
        return Detection(hardware_type=kind.value, available=kind in here, name=name, features=features, reason=reason, detected_at="now")

    return {kind: one(kind) for kind in (Backend.CUDA, Backend.ROCM, Backend.MPS, Backend.OPENVINO)}


class Machine:
    """A Linux machine with everything that targets without a GPU need, and what a test changes."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.has_engine(engine())
        self.has_hardware({})
        self.has_toolkit(Surroundings(inside=None, nodes=(), toolkit=(), cdi=(), runtimes=()))
        self.info: dict[str, Any] = {"DockerRootDir": str(folder / "docker"), "Runtimes": {"runc": {}}}
        self.built: frozenset[str] = frozenset()
        self.free: dict[Path, int] = {}
        (folder / "docker").mkdir()
        (folder / "bin").mkdir()
        (folder / "bin" / "git").touch(mode=0o755)
        patch.setattr(checking, "connected", lambda *_, **__: (self.engine, *(("", "") if self.engine else ("no socket", "start it"))))
        patch.setattr(checking, "_asked", lambda *_: (self.info if self.engine else {}, self.built))
        patch.setattr(checking, "_free_mb", lambda path: self.free.get(path, 100_000))
        patch.setattr(checking, "detect", lambda kind, **_: self.detections[Backend(kind)])
        patch.setattr(checking.container, "look", lambda **_: self.around)

    def has_engine(self, changed: Engine | None) -> None:
        self.engine = changed

    def has_hardware(self, here: Mapping[Backend, tuple[str | None, dict[str, Any]]]) -> None:
        self.detections = found(here)

    def has_toolkit(self, around: Surroundings) -> None:
        self.around = around

    def check(self, *targets: str, spec: MatrixSpec = SPEC, **variables: str) -> list[checking.Finding]:
        environment = {"PATH": str(self.folder / "bin"), "PIP_CONFIG_FILE": os.devnull, **variables}
        return checking.check(spec, targets, environment, self.folder / "cache")

    def missing(self, target: str, **variables: str) -> tuple[str, ...]:
        return checking.missing(self.check(target, **variables), target)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.setattr(pip_settings, "_pip_config", lambda *_: "")
    return Machine(monkeypatch, tmp_path)


GPU = {Backend.CUDA: ("H200", {"driver": "580.1"})}
AMD = {Backend.ROCM: ("MI300X", {})}


def carried(**options: Any) -> list[str]:
    given = {"found": found({}), "system": "Linux", "machine": "x86_64", "engine": engine(), "engine_problem": ""} | options
    detected = given.pop("found")
    return [label.name for label in labels(detected, **given) if label.carried]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["self-hosted", "linux", "x64", "docker"]),
        ({"machine": "aarch64"}, ["self-hosted", "linux", "arm64", "docker"]),
        ({"system": "Windows", "machine": "AMD64", "engine": None}, ["self-hosted", "windows", "x64"]),
        (
            {"system": "Darwin", "machine": "arm64", "found": found({Backend.MPS: ("M4", {})}), "engine": None},
            ["self-hosted", "macos", "arm64", "mps"],
        ),
        ({"found": found({**GPU, **AMD})}, ["self-hosted", "linux", "x64", "cuda", "rocm", "docker"]),
        (
            {"found": found({Backend.OPENVINO: (None, {"devices": {"CPU": "a", "GPU.0": "Arc", "GPU.1": "Arc", "NPU": "AI Boost"}})})},
            ["self-hosted", "linux", "x64", "openvino-gpu", "openvino-npu", "docker"],
        ),
        ({"engine": engine(builder=None, builder_problem="no buildx")}, ["self-hosted", "linux", "x64"]),
        ({"system": "FreeBSD", "machine": "riscv64"}, ["self-hosted", "docker"]),
    ],
)
def test_labels_are_derived_from_facts(options: dict[str, Any], expected: list[str]) -> None:
    assert carried(**options) == expected


def test_every_label_has_its_evidence() -> None:
    known = {label.name: label for label in labels(found(GPU), system="Linux", machine="x86_64", engine=None, engine_problem="no socket")}
    assert known["cuda"].why == "H200, driver 580.1"
    assert (known["docker"].carried, known["docker"].why) == (False, "no socket")
    assert (known["rocm"].carried, known["rocm"].why) == (False, "no rocm here")


def findings(checked: list[checking.Finding]) -> dict[str, checking.Finding]:
    return {finding.what: finding for finding in checked}


def test_a_machine_without_a_gpu_runs_targets_that_need_none(machine: Machine) -> None:
    checked = machine.check(*SPEC.targets)
    assert {target for target in SPEC.targets if not checking.missing(checked, target)} == {
        "cpu",
        "openvino",
        "onnxruntime",
        "inductor",
        "executorch",
        "qnn",
        "webgpu",
        "webnn",
    }
    for finding in checked:
        assert (finding.mend is not None) == (finding.state is not State.OK), finding


def test_missing_tools_are_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.missing("cpu") == ()
    assert machine.missing("cpu", PATH="/nowhere") == ("git",)
    monkeypatch.setattr(pip_settings, "read", broken)
    assert machine.missing("cpu") == ("pip",)


def broken(_environment: object) -> None:
    raise ConfigError([Problem(where="pip config", what="broken")])


def test_an_engine_must_answer_and_build(machine: Machine) -> None:
    machine.has_engine(engine(builder=None, builder_problem="old"))
    assert machine.missing("cpu") == ("builder",)
    machine.has_engine(None)
    assert machine.missing("cpu") == ("engine",)
    assert machine.missing("mps") == ("mps hardware",)


def test_space_is_needed_for_images_that_are_not_built(machine: Machine) -> None:
    machine.free[machine.folder / "docker"] = 6_000
    machine.has_hardware(GPU)
    checked = machine.check("cpu", "openvino", "cuda")
    assert checking.missing(checked, "cpu") == checking.missing(checked, "openvino") == ()
    assert "space for torch-cuda images" in checking.missing(checked, "cuda")
    machine.free[machine.folder / "docker"] = 100
    assert machine.missing("cpu") == ("space for torch-cpu images",)
    machine.built = frozenset({"cpu"})
    assert machine.missing("cpu") == ()
    machine.built, machine.info = frozenset(), {"DockerRootDir": "/on/another/machine"}
    assert machine.missing("cpu") == ()
    machine.free[machine.folder / "cache"] = 3
    assert machine.missing("cpu") == ("space for the cache",)


def test_the_disk_of_a_remote_engine_is_not_that_of_this_machine(machine: Machine) -> None:
    machine.free[machine.folder / "docker"] = 100
    machine.has_engine(engine(url="ssh://elsewhere"))
    assert machine.missing("cpu") == ()


def test_a_cache_that_cannot_be_looked_at_has_advice(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(checking, "_free_mb", denied)
    finding = findings(machine.check("cpu"))["space for the cache"]
    assert finding.state is State.MISSING
    assert "HWMATRIX_CACHE" in str(finding.mend)


def test_cuda_needs_a_gpu_and_an_engine_that_uses_the_toolkit(machine: Machine) -> None:
    assert machine.missing("cuda") == ("cuda hardware", "container toolkit")
    machine.has_hardware(GPU)
    machine.has_toolkit(dataclasses.replace(machine.around, toolkit=("nvidia-ctk",)))
    assert machine.missing("cuda") == ("container toolkit",)
    machine.info["Runtimes"] = {"nvidia": {}}
    assert machine.missing("cuda") == ()
    machine.info["Runtimes"] = {}
    machine.has_toolkit(dataclasses.replace(machine.around, cdi=("nvidia.com/gpu",)))
    assert machine.missing("cuda") == ()


def test_a_native_target_needs_python_s_venv(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has_hardware({Backend.MPS: ("M4", {})})
    assert machine.missing("mps") == ()
    monkeypatch.setattr(checking.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())
    assert machine.missing("mps") == ("venv",)


def test_device_nodes_are_checked_one_by_one(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has_hardware(AMD)
    assert {"/dev/kfd", "/dev/dri"} <= findings(machine.check("rocm")).keys()
    dri = machine.folder / "dri"
    assert checking.device(dri, ("rocm",)).state is State.MISSING
    (dri / "by-path").mkdir(parents=True)
    (dri / "renderD128").touch()
    usable = checking.device(dri, ("rocm",))
    assert (usable.state, usable.fact) == (State.OK, f"this user may use {dri / 'renderD128'}")
    monkeypatch.setattr(checking.os, "access", lambda *_: False)
    denied = checking.device(dri, ("rocm",))
    assert (denied.state, denied.what) == (State.MISSING, str(dri))
    assert f"usermod -aG {(dri / 'renderD128').stat().st_gid}" in str(denied.mend)


def test_a_root_engine_is_advised_against_and_a_rootless_one_is_not(machine: Machine) -> None:
    assert findings(machine.check("cpu"))["rights"].state is State.ADVICE
    machine.has_engine(engine(rootless=True))
    assert findings(machine.check("cpu"))["rights"].state is State.OK


def test_pip_settings_are_reported_without_their_values(machine: Machine) -> None:
    fact = findings(machine.check("cpu", PIP_INDEX_URL="https://me:s3cret@index.example/simple"))["pip"].fact
    assert "index-url" in fact
    assert "s3cret" not in fact


def test_free_space_is_that_of_the_folder_s_disk(tmp_path: Path) -> None:
    assert checking._free_mb(tmp_path / "not" / "yet") > 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 0),
        (["--targets", "cpu", "openvino"], 0),
        (["--targets", "cpu", "cuda"], 6),
        (["--targets", "nothing"], 2),
    ],
)
def test_the_exit_code_of_check(arguments: list[str], code: int, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine.folder / "bin"))
    assert main.main(["runner", "check", "--matrix", str(ROOT / "matrix.yaml"), *arguments]) == code


@pytest.mark.usefixtures("machine")
def test_check_without_a_target_that_can_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main.main(["runner", "check", "--matrix", str(ROOT / "matrix.yaml"), "--format", "json"]) == 6
    told = json.loads(capsys.readouterr().out)
    assert told["findings"][0] == {
        "what": "git",
        "state": "missing",
        "fact": "not on PATH",
        "mend": "Install git: jobs check the project out with it.",
        "targets": [],
    }
    assert not any(target["ready"] for target in told["targets"])
