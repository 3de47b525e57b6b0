"""Runs one hardened container: starts it, reads its output line by line, waits for it, and always removes it."""

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
from hwmatrix.basics.text import visible
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
LINE_BYTES: Final = 1024 * 1024  # a model that prints endlessly must not fill the host's memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of this machine, mounted at ``target`` in the container. The source must exist."""

    source: Path
    target: str
    read_only: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a container: MiB of memory (no swap beyond it), processes and threads, CPUs, MiB in /tmp.

    ``cpus`` may be fractional (1.5), ``cpuset`` names cores ("0-1"); None means all. /tmp counts as memory.
    """

    memory_mb: int
    pids: int = 1024
    cpus: float | None = None
    cpuset: str | None = None
    tmp_mb: int = 1024
    executable_tmp: bool = False


class RunningContainer:
    """A started container. One thread reads its output; :meth:`stop` may be called from any other."""

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
        """The last 64 KiB of stderr read so far, decoded."""
        return visible(self._stderr.decode("utf-8", "replace"), keep="\n\t")

    def lines(self) -> Iterator[str]:
        """Yield each line of stdout as it arrives, without its newline, until the container closes its output.

        Bytes that are not UTF-8 and control characters are replaced. 1 MiB without a newline counts as a line.

        Raises:
            EngineError: the engine is gone.
        """
        rest = b""
        for chunk in self._chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            yield from map(_line, whole)
            if len(rest) > LINE_BYTES:
                yield _line(rest)
                rest = b""
        if rest:
            yield _line(rest)

    def _chunks(self) -> Iterator[bytes]:
        with _engine_errors("reading the container's output failed"):
            for out, err in self._stream:
                if err:
                    self._stderr = (self._stderr + err)[-STDERR_TAIL_BYTES:]
                if out:
                    yield out

    def wait(self) -> int:
        """Wait for the end, read the remaining output, and return the exit code (128 + N after signal N).

        Raises:
            EngineError: the engine is gone.
        """
        for _ in self.lines():
            pass  # an unread pipe would block the container
        with _engine_errors("waiting for the container failed"):
            return int(self._container.wait(timeout=None)["StatusCode"])

    def stop(self, grace_s: int = 10) -> None:
        """Ask the container to terminate (SIGTERM), and kill it after ``grace_s`` seconds.

        Raises:
            EngineError: the engine is gone.
        """
        with _engine_errors("stopping the container failed"):
            self._container.stop(timeout=grace_s)

    @property
    def oom_killed(self) -> bool:
        """Whether the kernel killed a process of the container at its memory limit. Known only after the end.

        Raises:
            EngineError: the engine is gone.
        """
        with _engine_errors("inspecting the container failed"):
            self._container.reload()
        return bool(self._container.attrs["State"]["OOMKilled"])


def _line(data: bytes) -> str:
    return visible(data.decode("utf-8", "replace"), keep="\t")


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
    """Run a container for the duration of the block. It is removed however the block ends.

    It has no network, a read-only root, a tmpfs on /tmp, no capabilities, no new privileges and no root user, and only the given
    ``devices`` (paths such as /dev/dri). ``gpus`` requests all GPUs from the container toolkit.

    ``argv`` follows the image's entry point, or ``entrypoint`` if given. ``name`` is the readable part of the container's name.

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
                labels={**(labels or {}), LABEL: "1", OWNER_LABEL: own_mark(), HOST_LABEL: process_namespace()},
                **options,
            )
            # Attached before the start, so that no output is missed and the engine need not store any.
            stream = client.api.attach(full_name, stdout=True, stderr=True, stream=True, logs=False, demux=True)
            container.start()
        yield RunningContainer(container, stream)
    finally:
        try:
            _remove(client, full_name)  # by name, because an interrupt may have come before the engine's answer to create
        finally:
            if stream is not None:
                stream.close()
                # The SDK's close() leaves the socket's file object, and so the socket, open.
                stream._response.close()  # type: ignore[attr-defined]  # noqa: SLF001
            client.close()


def _options(engine: Engine, *, limits: Limits, mounts: tuple[Mount, ...], devices: tuple[str, ...], gpus: bool) -> dict[str, Any]:
    """The docker SDK options that sandbox a container."""
    from docker.types import DeviceRequest, LogConfig, Ulimit
    from docker.types import Mount as BindMount

    missing = [str(mount.source) for mount in mounts if not mount.source.exists()]
    if missing:
        raise EngineError(f"cannot be mounted, because it does not exist: {', '.join(missing)}")
    executable = "exec" if limits.executable_tmp else "noexec"
    return {
        "user": container_user(engine),
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "init": True,  # reaps orphans and forwards signals, which the runner as process 1 would not do
        # noexec mostly works: oneDNN's and OpenVINO's just-in-time compilers map anonymous memory. TorchInductor loads what g++ wrote.
        "tmpfs": {"/tmp": f"rw,nosuid,nodev,{executable},mode=1777,size={limits.tmp_mb}m"},  # noqa: S108 - the container's
        "mounts": [BindMount(target=m.target, source=str(m.source.absolute()), type="bind", read_only=m.read_only) for m in mounts],
        "mem_limit": f"{limits.memory_mb}m",
        "memswap_limit": f"{limits.memory_mb}m",
        "pids_limit": limits.pids,
        "nano_cpus": round(limits.cpus * 1e9) if limits.cpus else None,
        "cpuset_cpus": limits.cpuset,
        "devices": [f"{device}:{device}:rwm" for device in devices],
        "device_requests": [DeviceRequest(count=-1, capabilities=[["gpu"]])] if gpus else [],
        "group_add": _groups(devices),
        "ulimits": [Ulimit(name="core", soft=0, hard=0)],  # a crashing model is a result, but its core file is useless
        "log_config": LogConfig(type=LogConfig.types.NONE),
    }


def _groups(devices: tuple[str, ...]) -> list[str]:
    """The groups that may use the devices. For a folder (/dev/dri), those of the nodes in it, because the folder belongs to root."""
    paths = [Path(device) for device in devices]
    nodes = [node for path in paths for node in (path.iterdir() if path.is_dir() else (path,)) if not node.is_dir()]
    return sorted({str(node.stat().st_gid) for node in nodes})


def container_user(engine: Engine) -> str:
    """Return the ``uid:gid`` that containers run as.

    This is the invoking user, who then owns the written files, or the image's own user if the invoking one is root. A rootless engine maps
    its root to the invoking user, who is not root outside.
    """
    if engine.rootless:
        return "0:0"
    return f"{IMAGE_USER}:{IMAGE_USER}" if os.getuid() == 0 else f"{os.getuid()}:{os.getgid()}"


def prepare_writable(folder: Path, engine: Engine) -> Path:
    """Create a folder, and give it and its contents to the user of containers, so that a container can write there.

    Owners are changed only for root: other users' containers run as those users. A folder that containers own already is left as it is:
    what root adds to it belongs to them, too (:func:`hwmatrix.models.folder.give`). The folder itself comes last, so that no container can
    replace what is being changed; no link is followed in any case.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0 and not engine.rootless and folder.stat().st_uid != IMAGE_USER:
        for _, folders, files, descriptor in os.fwalk(folder, topdown=False):
            for name in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):  # another run removed it, such as an unfinished bundle in the cache
                    os.chown(name, IMAGE_USER, IMAGE_USER, dir_fd=descriptor, follow_symlinks=False)
        os.chown(folder, IMAGE_USER, IMAGE_USER)
    return folder


def remove_leftovers(engine: Engine) -> tuple[str, ...]:
    """Remove our containers on this machine whose owner process is dead (killed, or after a power failure).

    Returns the names of the removed containers. A container whose owner is alive belongs to another run.

    Raises:
        EngineError: the engine is gone.
    """
    removed: list[str] = []
    client = engine.client()
    try:
        with _engine_errors("looking for left-over containers failed"):
            labels = [f"{LABEL}=1", f"{HOST_LABEL}={process_namespace()}"]
            found = client.containers.list(all=True, filters={"label": labels}, ignore_removed=True)
        for container in found:
            if living(container.labels.get(OWNER_LABEL, "")) is None:
                _remove(client, str(container.name))
                removed.append(str(container.name))
    finally:
        client.close()
    return tuple(removed)


def process_namespace() -> str:
    """Where this machine's process IDs are valid: the host's name, and on Linux the namespace of process IDs."""
    namespace = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()} {namespace.readlink() if namespace.is_symlink() else ''}".rstrip()


def _remove(client: docker.DockerClient, name: str) -> None:
    """Kill and remove a container with its volumes. It is fine if it is gone, or being removed."""
    from docker.errors import APIError

    with _engine_errors(f"removing the container {name} failed"):
        try:
            client.api.remove_container(name, force=True, v=True)
        except APIError as error:
            if error.status_code not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise


@contextlib.contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    """Turn the SDK's exceptions (its own, and its HTTP library's, which are OSErrors) into EngineError."""
    from docker.errors import DockerException

    try:
        yield
    except (DockerException, OSError) as error:
        raise EngineError(f"{what}: {getattr(error, 'explanation', None) or error}") from error
