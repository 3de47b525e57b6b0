"""One hardened container: started, its output read line by line, waited for, and always removed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.processes import living, own_mark
from hwmatrix.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import docker
    from docker.models.containers import Container
    from docker.types import CancellableStream

    from hwmatrix.host.engine import Engine

LABEL: Final = "hwmatrix"
OWNER_LABEL: Final = "hwmatrix.owner"
HOST_LABEL: Final = "hwmatrix.host"
IMAGE_USER: Final = 10001  # the user that images/base/Dockerfile creates
STDERR_TAIL_BYTES: Final = 64 * 1024
LINE_BYTES: Final = 1024 * 1024  # a model that prints without end must not fill the memory of the host


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of this machine at ``target`` in the container. A source that does not exist is an error."""

    source: Path
    target: str
    read_only: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a container may use: MiB of memory (no swap beyond it), processes and threads, CPUs, MiB in /tmp.

    ``cpus`` is a share (1.5), ``cpuset`` names cores ("0-1"); None leaves all. /tmp counts as memory.
    """

    memory_mb: int
    pids: int = 1024
    cpus: float | None = None
    cpuset: str | None = None
    tmp_mb: int = 1024


class RunningContainer:
    """A container that was started. One thread reads it; :meth:`stop` may be called from any other."""

    def __init__(self, container: Container, stream: Iterator[tuple[bytes | None, bytes | None]]) -> None:
        self._container = container
        self._stream = stream
        self._stderr = b""

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self._container.name)

    @property
    def stderr_tail(self) -> str:
        """The last 64 KiB of stderr that were read so far, decoded."""
        return self._stderr.decode("utf-8", "replace")

    def lines(self) -> Iterator[str]:
        """Each line of stdout as it comes, without its newline, until the container closes its output.

        Bytes that are not UTF-8 are replaced; what comes without a newline for 1 MiB counts as a line.

        Raises:
            EngineError: the engine has gone.
        """
        rest = b""
        for chunk in self._chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in whole)
            if len(rest) > LINE_BYTES:
                yield rest.decode("utf-8", "replace")
                rest = b""
        if rest:
            yield rest.decode("utf-8", "replace")

    def _chunks(self) -> Iterator[bytes]:
        with _engine_errors("reading the container's output failed"):
            for out, err in self._stream:
                if err:
                    self._stderr = (self._stderr + err)[-STDERR_TAIL_BYTES:]
                if out:
                    yield out

    def wait(self) -> int:
        """Wait for the end, reading what is left to read, and return the exit code (128 + N after signal N).

        Raises:
            EngineError: the engine has gone.
        """
        for _ in self.lines():
            pass  # an unread pipe would block the container
        with _engine_errors("waiting for the container failed"):
            return int(self._container.wait(timeout=None)["StatusCode"])

    def stop(self, grace_s: int = 10) -> None:
        """Ask the container to end (SIGTERM), and kill it after ``grace_s`` seconds.

        Raises:
            EngineError: the engine has gone.
        """
        with _engine_errors("stopping the container failed"):
            self._container.stop(timeout=grace_s)

    @property
    def oom_killed(self) -> bool:
        """Whether the kernel killed any process of the container for its memory limit. True only after the end.

        Raises:
            EngineError: the engine has gone.
        """
        with _engine_errors("inspecting the container failed"):
            self._container.reload()
        return bool(self._container.attrs["State"]["OOMKilled"])


@contextlib.contextmanager
def running(
    engine: Engine,
    *,
    image: str,
    argv: tuple[str, ...],
    limits: Limits,
    mounts: tuple[Mount, ...] = (),
    devices: tuple[str, ...] = (),
    gpus: bool = False,
    environment: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    entrypoint: tuple[str, ...] | None = None,
    name: str = "cell",
) -> Iterator[RunningContainer]:
    """Start a container for the length of the block; leaving it, by whatever way, removes it.

    No network, a read-only root, a tmpfs on /tmp, no capabilities, no new privileges, not root, and only the ``devices``
    (paths such as /dev/dri) that are named; ``gpus`` asks the container toolkit for all GPUs.
    ``argv`` follows the image's entry point, or ``entrypoint`` where given. ``name`` is the readable part of the container's name.

    Raises:
        EngineError: the image or a mount's source is missing, or the engine cannot start the container.
    """
    full_name = f"hwmatrix-{name}-{os.getpid()}-{secrets.token_hex(4)}"
    options = _options(engine, limits=limits, mounts=mounts, devices=devices, gpus=gpus)
    client = engine.client()
    stream: CancellableStream[tuple[bytes | None, bytes | None]] | None = None
    try:
        with _engine_errors(f"starting a container of {image} failed"):
            container = client.containers.create(
                image,
                list(argv),
                name=full_name,
                entrypoint=list(entrypoint) if entrypoint else None,
                environment=dict(environment or {}),
                labels={**(labels or {}), LABEL: "1", OWNER_LABEL: own_mark(), HOST_LABEL: socket.gethostname()},
                **options,
            )
            # Attached before the start, so that no output is missed and the engine need not store any.
            stream = client.api.attach(full_name, stdout=True, stderr=True, stream=True, logs=False, demux=True)
            container.start()
        yield RunningContainer(container, stream)
    finally:
        try:
            _remove(client, full_name)  # by name: an interrupt may have come before the engine's answer to create
        finally:
            if stream is not None:
                stream.close()
                # The SDK's close() leaves the socket's file object open, and so the socket.
                stream._response.close()  # type: ignore[attr-defined]  # noqa: SLF001
            client.close()


def _options(engine: Engine, *, limits: Limits, mounts: tuple[Mount, ...], devices: tuple[str, ...], gpus: bool) -> dict[str, Any]:
    """What makes a container of ours harmless, in the words of the docker SDK."""
    from docker.types import DeviceRequest, LogConfig, Ulimit
    from docker.types import Mount as BindMount

    missing = [str(mount.source) for mount in mounts if not mount.source.exists()]
    if missing:
        raise EngineError(f"cannot be mounted, because it does not exist: {', '.join(missing)}")
    return {
        "user": container_user(engine),
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "init": True,  # reaps orphans and passes signals on: the runner is not made to be process 1
        # noexec: the just-in-time compilers of PyTorch and OpenVINO for CPUs map anonymous memory, and need no file there.
        "tmpfs": {"/tmp": f"rw,nosuid,nodev,noexec,mode=1777,size={limits.tmp_mb}m"},  # noqa: S108 - of the container
        "mounts": [BindMount(target=m.target, source=str(m.source.absolute()), type="bind", read_only=m.read_only) for m in mounts],
        "mem_limit": f"{limits.memory_mb}m",
        "memswap_limit": f"{limits.memory_mb}m",
        "pids_limit": limits.pids,
        "nano_cpus": round(limits.cpus * 1e9) if limits.cpus else None,
        "cpuset_cpus": limits.cpuset,
        "devices": [f"{device}:{device}:rwm" for device in devices],
        "device_requests": [DeviceRequest(count=-1, capabilities=[["gpu"]])] if gpus else [],
        "group_add": _groups(devices),
        "ulimits": [Ulimit(name="core", soft=0, hard=0)],  # a crashing model is data, its core file is not
        "log_config": LogConfig(type=LogConfig.types.NONE),
    }


def _groups(devices: tuple[str, ...]) -> list[str]:
    """The groups that may use the devices. A folder (/dev/dri) stands for the nodes in it: it itself belongs to root."""
    paths = [Path(device) for device in devices]
    nodes = [node for path in paths for node in (path.iterdir() if path.is_dir() else (path,)) if not node.is_dir()]
    return sorted({str(node.stat().st_gid) for node in nodes})


def container_user(engine: Engine) -> str:
    """The ``uid:gid`` that containers run as.

    The invoking user, who then owns what is written; the image's own user where that would be root. A rootless engine
    maps its root to the invoking user, who is no root outside.
    """
    if engine.rootless:
        return "0:0"
    return f"{IMAGE_USER}:{IMAGE_USER}" if os.getuid() == 0 else f"{os.getuid()}:{os.getgid()}"


def prepare_writable(folder: Path, engine: Engine) -> Path:
    """Make a folder, and give it and all in it to the user of containers, so that a container can write there.

    It changes owners only for root: anyone else's containers run as that person.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0 and not engine.rootless:
        for here, folders, files in os.walk(folder):
            for path in (here, *(os.path.join(here, name) for name in (*folders, *files))):  # noqa: PTH118 - as os.walk gives it
                os.chown(path, IMAGE_USER, IMAGE_USER, follow_symlinks=False)
    return folder


def remove_leftovers(engine: Engine) -> tuple[str, ...]:
    """Remove containers of ours, started on this machine, whose owner is dead (it was killed, or the power failed).

    Returns the names of those that were removed. A container whose owner lives is that run's business.

    Raises:
        EngineError: the engine has gone.
    """
    removed: list[str] = []
    client = engine.client()
    try:
        with _engine_errors("looking for left-over containers failed"):
            found = client.containers.list(
                all=True, filters={"label": [f"{LABEL}=1", f"{HOST_LABEL}={socket.gethostname()}"]}, ignore_removed=True
            )
        for container in found:
            if living(container.labels.get(OWNER_LABEL, "")) is None:
                _remove(client, str(container.name))
                removed.append(str(container.name))
    finally:
        client.close()
    return tuple(removed)


def _remove(client: docker.DockerClient, name: str) -> None:
    """Kill and remove a container with its volumes. One that is gone, or whose removal is under way, is what was wanted."""
    from docker.errors import APIError

    with _engine_errors(f"removing the container {name} failed"):
        try:
            client.api.remove_container(name, force=True, v=True)
        except APIError as error:
            if error.status_code not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise


@contextlib.contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    """Turn what the SDK raises (its own errors, and those of its HTTP library, which are OSErrors) into ours."""
    from docker.errors import DockerException

    try:
        yield
    except (DockerException, OSError) as error:
        raise EngineError(f"{what}: {getattr(error, 'explanation', None) or error}") from error
