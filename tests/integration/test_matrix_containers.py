"""The main job on real containers: complete, interrupted in different ways, and with missing or broken parts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from fault_runs import ARMED, FAULTS, PROJECT, Case, briefly_timed, make_plan, rows, untrained, write_order
from matrix_command import Command, document, executions, left_behind, matrix, statuses

from hwmatrix.host import containers
from hwmatrix.host.containers import Limits, Mount, prepare_writable, running
from hwmatrix.host.images import image_tag
from hwmatrix.records import Backend, Isolation
from hwmatrix.runner import landlock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hwmatrix.host.engine import Engine

pytestmark = pytest.mark.containers

CONTAINERS = ("--isolation", "container", "--dtypes", "float32")
BOTH = ("cpu", "openvino")
MANY = ("bert", "vit", "gpt2", "roberta", "llama", "videomae")
PROBE = """
import json, os, socket
def fails(action):
    try:
        action()
    except OSError as error:
        return error.strerror
    return None
print(json.dumps({
    "uid": os.getuid(),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "connect": fails(lambda: socket.create_connection(("192.0.2.1", 80), timeout=3)),
    "root": fails(lambda: open("/file", "w")),
    "harness": fails(lambda: open(os.path.join(os.path.dirname(__import__("hwmatrix").__file__), "file"), "w")),
    "plan": fails(lambda: open("/hwmatrix/plan/file", "w")),
    "cache": fails(lambda: open("/hwmatrix/cache/file", "w")),
    "out": fails(lambda: open("/tmp/file", "w")),
}))
"""


@pytest.fixture(scope="module")
def cache(engine: Engine, shared_cache: Path) -> dict[str, str]:  # noqa: ARG001 - no engine, no cache
    """Environment variables for a cache that the tests share."""
    return {"HWMATRIX_CACHE": str(shared_cache)}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The arguments that name a matrix.yaml whose models are not trained, and whose cells are timed for one second."""
    file = tmp_path_factory.mktemp("settings") / "matrix.yaml"
    file.write_text(briefly_timed(untrained()), encoding="utf-8")
    return ("--matrix", str(file))


def ours(engine: Engine, command: Command, *, only_running: bool = False) -> list[str]:
    """The containers that a command has made, or those of them that run."""
    with contextlib.closing(engine.client()) as client:
        found = client.containers.list(all=not only_running, filters={"label": f"{containers.LABEL}=1"}, ignore_removed=True)
        owner = f"{command.process.pid}:"
        return sorted(str(item.name) for item in found if item.labels.get(containers.OWNER_LABEL, "").startswith(owner))


def container_of(engine: Engine, command: Command, target: str) -> str:
    """Wait until a target's container runs, and return its name; one that is only created takes no command yet."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for name in ours(engine, command, only_running=True):
            if name.startswith(f"hwmatrix-{target}-"):
                return name
        time.sleep(0.05)
    raise AssertionError(f"no container of {target} runs:\n{command.output}")


class MainRun:
    """One complete run over two models and all targets, with observations made while it ran."""

    def __init__(self, engine: Engine, output: Path, environment: dict[str, str], settings: tuple[str, ...]) -> None:
        self.output = output
        arguments = ("--models", "bert", "vit", "--targets", *BOTH, *CONTAINERS, *settings, "--output-dir", str(output))
        with Command(*arguments, environment=environment) as command:
            command.wait_for("openvino: 2 cells")
            name = container_of(engine, command, "openvino")
            with contextlib.closing(engine.client()) as client:
                container = client.containers.get(name)
                told = container.exec_run(["python3", "-c", PROBE]).output
                self.facts: dict[str, Any] = json.loads(told if isinstance(told, bytes) else b"".join(told))
                self.settings = container.attrs["HostConfig"]
            assert command.end() == 0, command.output
            self.said = command.output
            self.containers = ours(engine, command)


@pytest.fixture(scope="module")
def main_run(engine: Engine, cache: dict[str, str], settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> MainRun:
    return MainRun(engine, tmp_path_factory.mktemp("main"), cache, settings)


def test_every_planned_cell_has_its_verdict(main_run: MainRun) -> None:
    assert statuses(main_run.output) == {(model, target): "pass" for model in ("bert", "vit") for target in BOTH}
    assert left_behind(main_run.output) == []
    assert main_run.containers == []


def test_the_report_matches_its_schema_and_names_the_images(main_run: MainRun, engine: Engine) -> None:
    found = document(main_run.output)
    jsonschema.validate(found, json.loads((PROJECT / "docs/schemas/matrix-report.schema.json").read_text(encoding="utf-8")))
    assert found["run"]["isolation"] == "container"
    with contextlib.closing(engine.client()) as client:
        known = {str(image.id) for image in client.images.list(all=True)}
    digests = {cell["target"]: cell["evidence"]["image_digest"] for cell in found["cells"]}
    assert len(set(digests.values())) == 2
    assert set(digests.values()) <= known
    assert {target["image"] for target in found["targets"]} == {image_tag("cpu"), image_tag("openvino")}
    assert all(cell["evidence"]["isolation"] == "container" and cell["placement"]["on_target"] == 1.0 for cell in found["cells"])
    assert found["run"]["rejected"] == []


def test_processes_in_a_container_cannot_reach_anything_outside(main_run: MainRun, engine: Engine) -> None:
    facts = main_run.facts
    assert facts["uid"] != 0 or engine.rootless
    assert facts["interfaces"] == ["lo"]
    assert facts["connect"] == "Network is unreachable"
    assert [facts[name] for name in ("root", "plan", "cache")] == ["Read-only file system"] * 3
    assert facts["harness"] in {"Read-only file system", "Permission denied"}
    assert facts["out"] is None  # /tmp is writable
    settings = main_run.settings
    assert (settings["NetworkMode"], settings["ReadonlyRootfs"], settings["CapDrop"]) == ("none", True, ["ALL"])
    assert "no-new-privileges:true" in settings["SecurityOpt"]
    assert 0 < settings["Memory"] == settings["MemorySwap"]
    assert settings["PidsLimit"] > 0


def test_a_complete_run_has_nothing_to_resume(main_run: MainRun, cache: dict[str, str], settings: tuple[str, ...]) -> None:
    before = executions(main_run.output)
    said = matrix("--resume", *settings, "--output-dir", str(main_run.output), environment=cache, expect=0)
    assert "nothing is missing" in said
    assert executions(main_run.output) == before


def run_with_faults(engine: Engine, laid: Any, *, memory_mb: int) -> None:
    """Build the bundles of an order in a container, then run its cells in another one, where models misbehave."""
    folder = laid.plan.parent
    mounts = (
        Mount(source=folder, target="/hwmatrix/plan"),
        Mount(source=prepare_writable(laid.cache, engine), target="/hwmatrix/cache", read_only=False),
        Mount(source=prepare_writable(laid.shards, engine), target="/hwmatrix/out", read_only=False),
        Mount(source=prepare_writable(folder / "bundles", engine), target="/hwmatrix/plan/bundles", read_only=False),
        Mount(source=FAULTS, target="/faults"),
    )
    for work, out, extra, armed in (
        ("bundles", "/hwmatrix/plan/bundles", (), {}),
        ("run", "/hwmatrix/out", ("--target", "cpu", "--host", "test"), ARMED),
    ):
        argv = ("-m", "hwmatrix_faults", work, "--plan", "/hwmatrix/plan/plan.json", "--cache", "/hwmatrix/cache", "--out", out, *extra)
        with running(
            engine,
            image=image_tag("cpu"),
            argv=argv,
            entrypoint=("python3",),
            limits=Limits(memory_mb=memory_mb),
            mounts=mounts,
            environment={"PYTHONPATH": "/faults", **armed},
        ) as container:
            assert container.wait() == 0, container.stderr_tail


def test_faults_inside_a_container_stay_with_their_cells(main_run: MainRun, engine: Engine, tmp_path: Path) -> None:  # noqa: ARG001 - builds the image
    cases = (
        Case(name="good"),
        Case(name="crashes", fault="segfault"),
        Case(name="loops", fault="loop", timeout_s=5),
        Case(name="allocates", fault="allocate", memory_mb=1024),
        Case(name="allocates more than the container has", fault="allocate", memory_mb=64_000),
        Case(name="leaves a process", fault="stray"),
        Case(name="good again"),
    )
    laid = write_order(tmp_path / "run", make_plan(cases, backend=Backend.CPU, isolation=Isolation.CONTAINER))
    run_with_faults(engine, laid, memory_mb=2048)
    (shard,) = laid.shards.glob("*.duckdb")
    query = "SELECT cell_key, status, stage, error_type, signal FROM cells WHERE role = 'model'"
    assert {row.pop("cell_key"): tuple(row.values()) for row in rows(shard, query)} == {
        "good": ("pass", "measure", None, None),
        "crashes": ("crash", "run", "segmentation_fault", signal.SIGSEGV),
        "loops": ("timeout", "run", "timeout", signal.SIGKILL),
        "allocates": ("oom", "run", "memory_pressure", None),
        "allocates more than the container has": ("oom", "run", "oom_killed", signal.SIGKILL),
        "leaves a process": ("pass", "measure", None, None),
        "good again": ("pass", "measure", None, None),
    }


def test_building_a_model_cannot_reach_anything_outside(main_run: MainRun, engine: Engine, tmp_path: Path) -> None:  # noqa: ARG001 - builds the image
    """The bundle job may write to the cache, but a model's code only to a folder of its own."""
    cases = (Case(name="good"), Case(name="reaches out", fault="reach_out", place="init"))
    laid = write_order(tmp_path / "run", make_plan(cases, backend=Backend.CPU, isolation=Isolation.CONTAINER))
    mounts = (
        Mount(source=laid.plan.parent, target="/hwmatrix/plan"),
        Mount(source=prepare_writable(laid.cache, engine), target="/hwmatrix/cache", read_only=False),
        Mount(source=prepare_writable(laid.plan.parent / "bundles", engine), target="/hwmatrix/out", read_only=False),
        Mount(source=FAULTS, target="/faults"),
    )
    argv = (
        "-m",
        "hwmatrix_faults",
        "bundles",
        "--plan",
        "/hwmatrix/plan/plan.json",
        "--cache",
        "/hwmatrix/cache",
        "--out",
        "/hwmatrix/out",
    )
    with running(
        engine,
        image=image_tag("cpu"),
        argv=argv,
        entrypoint=("python3",),
        limits=Limits(memory_mb=4096),
        mounts=mounts,
        environment={"PYTHONPATH": "/faults", **ARMED},
    ) as container:
        assert container.wait() == 0, container.stderr_tail
    index = json.loads((laid.plan.parent / "bundles" / "bundles.json").read_bytes())
    entries = {entry["model"]: entry for entry in index["bundles"]}
    assert entries["good"]["key"] is not None
    told = entries["reaches out"]["message"]
    assert entries["reaches out"]["error_type"] == "build_failed"
    assert "was written" not in told
    assert "/: Read-only file system" in told
    assert "/hwmatrix/plan: Read-only file system" in told
    assert "network: Network is unreachable" in told
    if landlock.version() >= 6:  # the container's kernel is this machine's
        assert "/hwmatrix/cache: Permission denied" in told
        assert "/hwmatrix/out: Permission denied" in told
        assert "memory: Permission denied" in told
        assert "signal: Operation not permitted" in told


def test_a_cell_cannot_change_results(main_run: MainRun, engine: Engine, tmp_path: Path) -> None:  # noqa: ARG001 - builds the image
    """A cell's code runs beside the shard that its parent writes."""
    laid = write_order(
        tmp_path / "run",
        make_plan((Case(name="reaches out", fault="reach_out"), Case(name="good")), backend=Backend.CPU, isolation=Isolation.CONTAINER),
    )
    run_with_faults(engine, laid, memory_mb=4096)
    (shard,) = laid.shards.glob("*.duckdb")
    found = {row["cell_key"]: row for row in rows(shard, "SELECT cell_key, status, message FROM cells WHERE role = 'model'")}
    assert found["good"]["status"] == "pass"
    told = found["reaches out"]["message"]
    assert found["reaches out"]["status"] == "error"
    if landlock.version() >= 6:
        assert "was written" not in told
        assert "/hwmatrix/cache: Permission denied" in told
        assert "/hwmatrix/out: Permission denied" in told
        assert "memory: Permission denied" in told
        assert "signal: Operation not permitted" in told


@pytest.mark.long
def test_an_interrupted_run_keeps_finished_cells_and_resumes_the_rest(
    engine: Engine, cache: dict[str, str], settings: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = ("--models", *MANY[:4], "--targets", *BOTH, *CONTAINERS, "--no-generation", *settings, "--output-dir", str(tmp_path))
    with Command(*arguments, environment=cache) as command:
        command.wait_for("[2/4]")  # some cells of the second target are left even if the engine stops slowly
        command.process.send_signal(signal.SIGINT)
        assert command.end(timeout_s=60) == 130, command.output
        assert ours(engine, command) == []
    assert "interrupted: finished work is kept; continue with --resume" in command.output
    assert left_behind(tmp_path) == []
    found = statuses(tmp_path)
    assert len(found) == 8
    assert set(found.values()) == {"pass", "not_run"}, found
    finished = executions(tmp_path)
    assert len(finished) >= 2

    matrix("--resume", *settings, "--output-dir", str(tmp_path), environment=cache, expect=0)
    assert set(statuses(tmp_path).values()) == {"pass"}
    assert executions(tmp_path) == dict.fromkeys(executions(tmp_path), 1)  # finished cells have not been run again
    assert left_behind(tmp_path) == []


@pytest.mark.long
def test_resuming_a_killed_run_cleans_up_after_it(engine: Engine, cache: dict[str, str], settings: tuple[str, ...], tmp_path: Path) -> None:
    arguments = ("--models", *MANY, "--targets", "cpu", *CONTAINERS, "--no-generation", *settings, "--output-dir", str(tmp_path))
    with Command(*arguments, environment=cache) as command:
        command.wait_for("[1/6]")
        command.process.kill()
        command.end()
        (left,) = ours(engine, command)  # no process is left to remove it
        said = matrix("--resume", *settings, "--output-dir", str(tmp_path), environment=cache, expect=0)
        assert f"removed {left}" in said
        assert ours(engine, command) == []
    assert set(statuses(tmp_path).values()) == {"pass"}
    assert executions(tmp_path) == dict.fromkeys(executions(tmp_path), 1)
    assert left_behind(tmp_path) == []


def test_a_killed_container_is_an_infra_error_of_only_its_target(
    engine: Engine, cache: dict[str, str], settings: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = ("--models", *MANY[:3], "--targets", *BOTH, *CONTAINERS, "--no-generation", *settings, "--output-dir", str(tmp_path))
    with Command(*arguments, environment=cache) as command:
        command.wait_for("[1/3]")
        with contextlib.closing(engine.client()) as client:
            client.containers.get(container_of(engine, command, "cpu")).kill()
        assert command.end() == 5, command.output
        assert ours(engine, command) == []
    found = document(tmp_path)["cells"]
    assert {cell["status"] for cell in found if cell["target"] == "openvino"} == {"pass"}
    cpu = {cell["model"]: cell for cell in found if cell["target"] == "cpu"}
    assert cpu["bert"]["status"] == "pass"
    assert {cell["status"] for cell in cpu.values()} == {"pass", "infra_error"}
    (broken,) = {cell["error"]["type"] for cell in cpu.values() if cell["status"] == "infra_error"}
    assert broken == "infrastructure"
    assert "137" in command.output
    assert left_behind(tmp_path) == []


def test_an_image_that_cannot_be_built_fails_only_its_target(cache: dict[str, str], tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("images", "harness"):
        shutil.copytree(PROJECT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, project / name)
    (project / "matrix.yaml").write_text(briefly_timed(untrained()), encoding="utf-8")
    requirements = project / "images" / "openvino" / "requirements.txt"
    requirements.write_text(requirements.read_text(encoding="utf-8") + "hwmatrix-no-such-package\n", encoding="utf-8")
    output = tmp_path / "out"
    arguments = ("--matrix", str(project / "matrix.yaml"), "--models", "bert", "--targets", *BOTH, *CONTAINERS, "--output-dir", str(output))
    said = matrix(*arguments, environment=cache, expect=4)
    assert "hwmatrix-no-such-package" in said
    assert statuses(output) == {("bert", "cpu"): "pass", ("bert", "openvino"): "infra_error"}
    (broken,) = [cell for cell in document(output)["cells"] if cell["target"] == "openvino"]
    assert broken["error"]["type"] == "image_build_failed"
    assert broken["error"]["recommendations"]
    assert left_behind(output) == []


def test_without_an_engine_containers_are_refused_and_auto_uses_venv_and_says_why(cache: dict[str, str], tmp_path: Path) -> None:
    dead = cache | {"DOCKER_HOST": f"unix://{tmp_path / 'dead.sock'}"}
    arguments = ("--models", "bert", "--targets", "cpu", "--output-dir", str(tmp_path / "out"))
    said = matrix(*arguments, *CONTAINERS, environment=dead, expect=5)
    assert "no container engine answers" in said
    assert "--isolation venv" in said
    assert not (tmp_path / "out").exists()
    with Command(*arguments, "--isolation", "auto", environment=dead) as command:
        command.wait_for("no containers: no container engine answers")
        command.wait_for("isolation: venv")
        command.process.send_signal(signal.SIGINT)  # this test does not need the environment itself
        assert command.end(timeout_s=60) == 130


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A separate file system of the size that the test requests, in KiB."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.getuid() != 0 or mount is None or umount is None:
        pytest.skip("only root can mount a file system of a given size")
    folder = tmp_path / "disk"
    folder.mkdir()
    options = f"size={request.param}k,mode=0755"
    mounted = subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([umount, str(folder)], check=True)


@pytest.mark.parametrize("small_disk", [4, 64, *(pytest.param(size, marks=pytest.mark.long) for size in (600, 1000))], indirect=True)
def test_a_full_disk_is_reported_with_advice_and_the_run_can_be_resumed(
    engine: Engine, cache: dict[str, str], settings: tuple[str, ...], small_disk: Path
) -> None:
    """The disk is full at the run's folder, in the shard's tables, between its cells, or in the merge."""
    output = small_disk / "out"
    arguments = ("--models", "bert", "vit", "--targets", "cpu", *CONTAINERS, *settings, "--output-dir", str(output))
    with Command(*arguments, environment=cache) as command:
        assert command.end() == 7, command.output
        assert ours(engine, command) == []
    assert "No space left on device" in command.output
    assert "Traceback" not in command.output
    if not list(output.glob("runs/*/plan.json")):
        return  # the run did not start
    finished = command.output.count(" pass ")
    subprocess.run([shutil.which("mount") or "mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    said = matrix("--resume", *settings, "--output-dir", str(output), environment=cache, expect=0)
    assert statuses(output) == {("bert", "cpu"): "pass", ("vit", "cpu"): "pass"}
    assert said.count(" pass ") <= 2 - finished  # no cell that was reported is run again; one may be stored that was not reported any more
    assert [name for name in left_behind(output) if not name.endswith(".broken")] == []
