"""Real containers on this machine's engine, from the base image of all images."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from hwmatrix.basics.processes import own_mark
from hwmatrix.errors import EngineError
from hwmatrix.host import base_image, containers
from hwmatrix.host.containers import Limits, Mount, prepare_writable, remove_leftovers, running
from hwmatrix.host.engine import Engine, connect
from hwmatrix.matrix.spec import ImagesSpec

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.containers

LIMITS = Limits(memory_mb=256, pids=32, cpus=1.0)
FACTS = """
import json, os, resource, socket
def writable(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "uid": os.getuid(), "effective": status["CapEff"], "bounding": status["CapBnd"], "no_new_privs": status["NoNewPrivs"],
    "interfaces": sorted(os.listdir("/sys/class/net")), "core": resource.getrlimit(resource.RLIMIT_CORE),
    "root": writable("/file"), "in": writable("/in/file"), "out": writable("/out/file"), "tmp": writable("/tmp/file"),
    "init": os.getpid() != 1, "tmp_options": [line.split()[3] for line in open("/proc/mounts") if line.split()[1] == "/tmp"][0],
}))
"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return connect(dict(os.environ))
    except EngineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    return base_image.resolve(engine, requested=None, default=ImagesSpec().base, on_line=print)


def names(engine: Engine) -> list[str]:
    """The names of the containers that this process owns."""
    with contextlib.closing(engine.client()) as client:
        found = client.containers.list(all=True, filters={"label": f"{containers.OWNER_LABEL}={own_mark()}"})
        return [str(container.name) for container in found]


def test_a_container_is_hardened(engine: Engine, image: str, tmp_path: Path) -> None:
    out = prepare_writable(tmp_path / "out", engine)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)  # pytest creates folders that only this user can read
    mounts = (Mount(source=tmp_path, target="/in"), Mount(source=out, target="/out", read_only=False))
    with running(engine, image=image, argv=("-c", FACTS), entrypoint=("python3",), limits=LIMITS, mounts=mounts) as container:
        (line,) = list(container.lines())
        assert container.wait() == 0, container.stderr_tail
        assert not container.oom_killed
    facts = json.loads(line)
    assert facts["uid"] != 0 or engine.rootless
    assert int(facts["effective"], 16) == int(facts["bounding"], 16) == 0
    assert facts["no_new_privs"] == "1"
    assert facts["interfaces"] == ["lo"]
    assert facts["core"] == [0, 0]
    assert (facts["root"], facts["in"], facts["out"], facts["tmp"]) == (False, False, True, True)
    assert facts["init"]
    assert {"noexec", "nosuid", "nodev"} <= set(facts["tmp_options"].split(","))
    assert (out / "file").is_file()
    assert names(engine) == []


def test_output_exit_code_and_stderr_come_through(engine: Engine, image: str) -> None:
    code = "import sys, time\nfor i in range(3): print('line', i, flush=True); time.sleep(0.2)\nsys.stderr.write('why'); sys.exit(3)"
    times: list[float] = []
    with running(engine, image=image, argv=("-c", code), entrypoint=("python3",), limits=LIMITS) as container:
        lines = []
        for line in container.lines():
            lines.append(line)
            times.append(time.monotonic())
        assert lines == ["line 0", "line 1", "line 2"]
        assert times[2] - times[0] > 0.3  # as they are printed, not at the end
        assert container.wait() == 3
        assert container.stderr_tail == "why"


def test_memory_beyond_the_limit_is_detected(engine: Engine, image: str) -> None:
    argv = ("-c", "x = bytearray(1 << 30); print(len(x))")
    with running(engine, image=image, argv=argv, entrypoint=("python3",), limits=LIMITS) as container:
        assert container.wait() == 128 + signal.SIGKILL
        assert container.oom_killed


def test_processes_beyond_the_limit_are_refused(engine: Engine, image: str) -> None:
    code = """
import os, time
for number in range(100):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except BlockingIOError:
        print("refused", number, flush=True)
        break
"""
    with running(engine, image=image, argv=("-c", code), entrypoint=("python3",), limits=LIMITS) as container:
        assert next(container.lines()).startswith("refused")


def test_a_container_is_stopped_from_another_thread(engine: Engine, image: str) -> None:
    argv = ("-c", "import time; print('up', flush=True); time.sleep(600)")
    with running(engine, image=image, argv=argv, entrypoint=("python3",), limits=LIMITS) as container:
        lines = container.lines()
        assert next(lines) == "up"
        timer = threading.Timer(0.1, container.stop, (1,))
        timer.start()
        assert list(lines) == []
        assert container.wait() in {128 + signal.SIGTERM, 128 + signal.SIGKILL}
        timer.join()


def test_leaving_the_block_always_removes_the_container(engine: Engine, image: str) -> None:
    argv = ("-c", "import time; print('up', flush=True); time.sleep(600)")
    with (
        contextlib.suppress(ZeroDivisionError),
        running(engine, image=image, argv=argv, entrypoint=("python3",), limits=LIMITS) as container,
    ):
        assert names(engine) == [container.name]
        raise ZeroDivisionError
    assert names(engine) == []


def test_an_interrupt_while_reading_removes_the_container(engine: Engine, image: str) -> None:
    argv = ("-c", "import time; print('up', flush=True); time.sleep(600)")
    main = threading.main_thread().ident
    assert main is not None

    def read() -> None:
        with running(engine, image=image, argv=argv, entrypoint=("python3",), limits=LIMITS) as container:
            for _ in container.lines():
                threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        read()
    assert names(engine) == []


@pytest.mark.parametrize("what", ["image", "program"])
def test_a_failed_start_is_an_engine_error_or_an_exit_code_and_leaves_nothing(engine: Engine, image: str, what: str) -> None:
    if what == "image":
        with (
            pytest.raises(EngineError, match="hwmatrix-test/none"),
            running(engine, image="hwmatrix-test/none:0", argv=(), limits=LIMITS),
        ):
            pytest.fail("it started")
    else:
        with running(engine, image=image, argv=(), entrypoint=("/no/such/program",), limits=LIMITS) as container:
            assert container.wait() == 127
    assert names(engine) == []


def test_only_containers_of_dead_owners_are_removed(engine: Engine, image: str) -> None:
    name = f"hwmatrix-test-{os.getpid()}"
    labels = {containers.LABEL: "1", containers.HOST_LABEL: containers.process_namespace()}
    owners = {f"{name}-dead": "1:12.00", f"{name}-alive": own_mark()}
    with contextlib.closing(engine.client()) as client:
        try:
            for full, owner in owners.items():
                client.containers.create(image, ["python3"], name=full, labels={**labels, containers.OWNER_LABEL: owner})
            client.containers.create(image, ["python3"], name=f"{name}-foreign")
            assert f"{name}-dead" in remove_leftovers(engine)
            left = {str(container.name) for container in client.containers.list(all=True)}
            assert {f"{name}-alive", f"{name}-foreign"} <= left
            assert f"{name}-dead" not in left
        finally:
            for full in (f"{name}-dead", f"{name}-alive", f"{name}-foreign"):
                containers._remove(client, full)
