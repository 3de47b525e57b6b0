"""CI runners: their labels, checks and the placement of targets, on fake machines."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_engine import engine

from hwmatrix.cli import main
from hwmatrix.cli import runner as runners
from hwmatrix.errors import ConfigError
from hwmatrix.hardware.container import Surroundings
from hwmatrix.host.ci_machines import checking, facts, placing
from hwmatrix.host.ci_machines.checking import State
from hwmatrix.host.ci_machines.facts import Facts, Node, Space
from hwmatrix.host.ci_machines.labels import labels
from hwmatrix.host.pip_settings import PipSettings
from hwmatrix.matrix.load import load
from hwmatrix.records import Backend, Detection

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[4]
SPEC = load(ROOT / "matrix.yaml").spec


def found(here: Mapping[Backend, tuple[str | None, dict[str, Any]]]) -> dict[Backend, Detection]:
    def one(kind: Backend) -> Detection:
        name, features = here.get(kind, (None, {}))
        reason = None if kind in here else f"no {kind.value} here"
        return Detection(hardware_type=kind.value, available=kind in here, name=name, features=features, reason=reason, detected_at="now")

    return {kind: one(kind) for kind in (Backend.CUDA, Backend.ROCM, Backend.MPS, Backend.OPENVINO)}


def machine(**changes: Any) -> Facts:
    """A Linux machine with everything that targets without a GPU need."""
    given = Facts(
        system="Linux",
        machine="x86_64",
        python="3.12.1",
        venv=True,
        git="/usr/bin/git",
        pip="the public package index",
        pip_problem="",
        engine=engine(),
        engine_problem="",
        runtimes=frozenset({"runc"}),
        images=frozenset(),
        engine_space=Space(folder=Path("/var/lib/docker"), free_mb=100_000),
        cache_space=Space(folder=Path("/cache"), free_mb=100_000),
        around=Surroundings(inside=None, nodes=(), toolkit=(), cdi=(), runtimes=()),
        found=found({}),
        nodes={path: (Node(path=path, exists=False, usable=False, group=None),) for path in ("/dev/kfd", "/dev/dri")},
    )
    return dataclasses.replace(given, **changes)


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


def findings(report: checking.Report) -> dict[str, checking.Finding]:
    return {finding.what: finding for finding in report.findings}


def missing(target: str, **changes: Any) -> tuple[str, ...]:
    (ready,) = checking.check(SPEC, [target], machine(**changes)).targets
    assert ready.ready == (not ready.missing)
    return ready.missing


def test_a_machine_without_a_gpu_runs_targets_that_need_none() -> None:
    report = checking.check(SPEC, list(SPEC.targets), machine())
    assert {it.target for it in report.targets if it.ready} == {
        "cpu",
        "openvino",
        "onnxruntime",
        "inductor",
        "executorch",
        "qnn",
        "webgpu",
        "webnn",
    }
    for finding in report.findings:
        assert (finding.mend is not None) == (finding.state is not State.OK), finding


TOOLKIT = Surroundings(inside=None, nodes=(), toolkit=("nvidia-ctk",), cdi=(), runtimes=())
CDI = dataclasses.replace(TOOLKIT, cdi=("nvidia.com/gpu",))
KFD = {"/dev/kfd": (Node(path="/dev/kfd", exists=True, usable=True, group="render"),)}
DRI = {"/dev/dri": (Node(path="/dev/dri/renderD128", exists=True, usable=True, group="render"),)}
DENIED = {"/dev/dri": (Node(path="/dev/dri/renderD128", exists=True, usable=False, group="render"),)}


@pytest.mark.parametrize(
    ("target", "changes", "expected"),
    [
        ("cpu", {}, ()),
        ("cpu", {"git": None}, ("git",)),
        ("cpu", {"pip": None, "pip_problem": "broken"}, ("pip",)),
        ("cpu", {"engine": None, "engine_problem": "no socket"}, ("engine",)),
        ("cpu", {"engine": engine(builder=None, builder_problem="old")}, ("builder",)),
        ("cpu", {"engine_space": Space(folder=Path("/d"), free_mb=100)}, ("space for images",)),
        ("cpu", {"engine_space": Space(folder=Path("/d"), free_mb=100), "images": frozenset({"cpu"})}, ()),
        ("cpu", {"engine_space": None}, ()),
        ("cpu", {"cache_space": Space(folder=Path("/c"), free_mb=3)}, ("space for the cache",)),
        ("cuda", {}, ("cuda hardware", "container toolkit")),
        ("cuda", {"found": found(GPU)}, ("container toolkit",)),
        ("cuda", {"found": found(GPU), "around": TOOLKIT}, ("container toolkit",)),
        ("cuda", {"found": found(GPU), "around": CDI}, ()),
        ("cuda", {"found": found(GPU), "runtimes": frozenset({"nvidia"})}, ()),
        ("rocm", {}, ("rocm hardware", "/dev/kfd", "/dev/dri")),
        ("rocm", {"found": found(AMD), "nodes": KFD | DRI}, ()),
        ("rocm", {"found": found(AMD), "nodes": KFD | DENIED}, ("/dev/dri",)),
        ("mps", {"engine": None, "engine_problem": "no socket"}, ("mps hardware",)),
        ("mps", {"venv": False, "found": found({Backend.MPS: ("M4", {})})}, ("venv",)),
    ],
)
def test_missing_requirements_of_a_target_are_named(target: str, changes: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert missing(target, **changes) == expected


def test_groups_to_join_are_named() -> None:
    report = checking.check(SPEC, ["rocm"], machine(found=found(AMD), nodes=KFD | DENIED))
    assert "usermod -aG render" in str(findings(report)["/dev/dri"].mend)


def test_a_root_engine_is_advised_against_and_a_rootless_one_is_not() -> None:
    assert findings(checking.check(SPEC, ["cpu"], machine()))["rights"].state is State.ADVICE
    assert findings(checking.check(SPEC, ["cpu"], machine(engine=engine(rootless=True))))["rights"].state is State.OK


def test_pip_settings_are_reported_without_their_values() -> None:
    told = facts._pip(PipSettings(single={"index-url": "https://me:s3cret@index.example/simple"}, problem="no pip here"))
    assert "index-url" in told
    assert "s3cret" not in told
    assert "no pip here" in told


def test_device_nodes_are_checked_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "dri" / "by-path").mkdir(parents=True)
    (tmp_path / "dri" / "card0").touch()
    assert [node.path for node in facts.nodes(tmp_path / "dri")] == [str(tmp_path / "dri" / "card0")]
    assert [node.exists for node in facts.nodes(tmp_path / "kfd")] == [False]


def test_free_space_is_that_of_the_folder_s_disk(tmp_path: Path) -> None:
    free = facts.space(tmp_path / "not" / "yet").free_mb
    assert free is not None
    assert free > 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 0),
        (["--targets", "cpu", "openvino"], 0),
        (["--targets", "cpu", "cuda"], 6),
        (["--targets", "nothing"], 2),
    ],
)
def test_the_exit_code_of_check(arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners.facts, "gather", lambda *_: machine())
    assert main.main(["runner", "check", "--matrix", str(ROOT / "matrix.yaml"), *arguments]) == code


def test_check_without_a_target_that_can_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(runners.facts, "gather", lambda *_: machine(git=None))
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


def where(*given: str, targets: tuple[str, ...] = ("cpu", "cuda", "rocm")) -> dict[str, placing.Placement]:
    return {it.target: it for it in placing.place(SPEC, [placing.runner_of(text) for text in given], targets)}


def test_a_target_runs_on_a_runner_with_all_its_labels() -> None:
    placed = where("box:Self-Hosted,Linux,X64,cuda", "amd:self-hosted,linux,x64", "other:self-hosted,linux")
    assert placed["cuda"].runners == ("box",)
    assert (placed["rocm"].runners, placed["rocm"].nearest, placed["rocm"].missing) == ((), "box", ("rocm",))
    assert (placed["cpu"].hosted, placed["cpu"].nearest) == (True, None)


def test_a_self_hosted_runner_comes_before_a_hosted_one() -> None:
    assert where("mine:ubuntu-24.04")["cpu"].runners == ("mine",)
    assert not where("mine:ubuntu-24.04")["cpu"].hosted


@pytest.mark.parametrize("text", ["box", "box:", "box: , ", ":cuda", "box:cu da", "box:$(id)", "b\nx:cuda", "box:cuda;id"])
def test_an_invalid_runner_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        placing.runner_of(text)


def test_runners_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "runners.yaml"
    file.write_text("runners:\n  cuda-box: [self-hosted, linux, x64, cuda]\n  mac:\n    - self-hosted\n    - macos\n")
    assert placing.read_runners(file) == (
        placing.Runner(name="cuda-box", labels=("self-hosted", "linux", "x64", "cuda")),
        placing.Runner(name="mac", labels=("self-hosted", "macos")),
    )


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "not a mapping"),
        ("runners: {}\n", 1, "no runner"),
        ("runner:\n  box: [a]\n", 1, "did you mean 'runners'"),
        ("runners:\n  box: cuda\n", 2, "not a list of strings"),
        ("runners:\n  box: [a]\n  box: [b]\n", 3, "appears twice"),
        ("runners:\n  box: []\n", 2, "has no label"),
        ("runners:\n  ok: [a]\n  box: ['${{ secrets.X }}']\n", 3, "is not a valid label"),
        ("runners:\n  box: [a\n", 3, "not YAML"),
        ("runners:\n  box: !!python/object/apply:os.system [id]\n", 2, "is not a valid label|not a list"),
        ("runners: 3\n", 1, "not a mapping"),
    ],
)
def test_an_invalid_file_of_runners_is_reported_with_the_line(text: str, line: int, what: str, tmp_path: Path) -> None:
    file = tmp_path / "runners.yaml"
    file.write_text(text)
    if "python/object" in text:
        assert placing.read_runners(file)[0].labels == ("id",), "a YAML tag must not create an object"
        return
    with pytest.raises(ConfigError, match=what) as caught:
        placing.read_runners(file)
    assert caught.value.problems[0].where == f"{file}:{line}"


def test_the_plan_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runners.yaml"
    file.write_text("runners:\n  box: [self-hosted, linux, x64, cuda]\n")
    command = ["runner", "plan", "--matrix", str(ROOT / "matrix.yaml"), "--targets", "cuda", "rocm", "--runners", str(file)]
    assert main.main(command) == 0
    assert "no runner for: rocm" in capsys.readouterr().out
    assert main.main([*command, "amd:self-hosted,linux,x64,rocm", "--format", "json"]) == 0
    assert [it["runners"] for it in json.loads(capsys.readouterr().out)] == [["box"], ["amd"]]
    assert main.main(["runner", "plan", "--matrix", str(ROOT / "matrix.yaml"), "--runners", str(tmp_path / "none.yaml")]) == 2
