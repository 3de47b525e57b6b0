"""The container engine: where it listens, what it supports, and which client on this machine can build with it."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.json_text import read_json
from hwmatrix.errors import EngineError

if TYPE_CHECKING:
    import docker

PROBE_TIMEOUT_S: Final = 5
TRIAL_TIMEOUT_S: Final = 15
INSTALL_ADVICE: Final = (
    "Install and start Docker (on Debian: apt-get install docker.io), or name a running engine in DOCKER_HOST, "
    "or run without containers: --isolation venv."
)
BUILDER_ADVICE: Final = (
    "Install the buildx plug-in beside the docker client (docker-buildx-plugin or docker-buildx), or a docker client before version 23 "
    "(Debian 12: docker.io), which has BuildKit built in."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine that answered, and the facts that decide how it is used.

    ``builder`` is the docker client that proved, by building, that it can use BuildKit with this engine. If there is none,
    ``builder_problem`` says what each client on this machine lacks. ``networks`` are the drivers of the engine's networks.
    ``keeps_attestations``: its image store can hold an image's SBOM and provenance. ``environment`` is the environment of this program,
    which docker commands get.
    """

    url: str
    version: str
    api_version: str
    operating_system: str
    cgroup_version: int
    rootless: bool
    networks: frozenset[str]
    keeps_attestations: bool = False
    builder: Path | None
    builder_problem: str
    environment: Mapping[str, str] = dataclasses.field(repr=False)

    @property
    def has_bridge(self) -> bool:
        """Whether the containers of a build can have a network of their own."""
        return "bridge" in self.networks

    def client(self, *, timeout_s: int = 60) -> docker.DockerClient:
        """Open a new connection. The caller closes it.

        Raises:
            EngineError: the engine is gone.
        """
        return _connect(self.url, self.environment, timeout_s)

    def command_environment(self) -> dict[str, str]:
        """The environment for a docker command that uses this engine with BuildKit."""
        return {
            **self.environment,
            "DOCKER_HOST": self.url,
            "DOCKER_BUILDKIT": "1",
            "BUILDX_BUILDER": "default",  # the engine's own BuildKit: another builder would not see local base images
            "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",  # attestations have timestamps, and would change the digest of equal inputs
        }


def connect(environment: Mapping[str, str], *, need_builder: bool = True) -> Engine:
    """Find an engine that answers: DOCKER_HOST, the docker client's current context, or a common socket.

    It takes well under a second whether or not there is an engine. ``need_builder=False`` skips the trial build and leaves ``builder``
    empty.

    Raises:
        EngineError: none answers. The message says what was tried.
    """
    tried: list[str] = []
    for url in engine_urls(environment):
        try:
            client = _connect(url, environment, PROBE_TIMEOUT_S)
        except EngineError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            tried.append(f"{url}: {error.message}")
            continue
        try:
            return _facts(client, url, environment, need_builder=need_builder)
        except (OSError, _docker_exception()) as error:
            tried.append(f"{url}: {error}")
        finally:
            client.close()
    what = "; ".join(tried) if tried else "DOCKER_HOST is not set and no usual socket exists"
    denied = "Permission denied" in what
    advice = "Add this user to the group of the socket (usually docker), or run --isolation venv." if denied else INSTALL_ADVICE
    raise EngineError(f"no container engine answers ({what})", advice=advice)


def engine_urls(environment: Mapping[str, str]) -> list[str]:
    """Return where an engine may listen. An explicit choice is the only candidate: it must not fall back to another engine."""
    if environment.get("DOCKER_HOST"):
        return [environment["DOCKER_HOST"]]
    home = Path(environment.get("HOME", "/"))
    chosen = _context_url(Path(environment.get("DOCKER_CONFIG", home / ".docker")), environment)
    if chosen:
        return [chosen]
    runtime = environment.get("XDG_RUNTIME_DIR")
    sockets = [
        Path("/var/run/docker.sock"),
        *([Path(runtime) / "docker.sock"] if runtime else []),
        home / ".docker/run/docker.sock",
        home / ".colima/default/docker.sock",
    ]
    return [f"unix://{path}" for path in sockets if path.exists()]


def _context_url(folder: Path, environment: Mapping[str, str]) -> str | None:
    """The endpoint of the docker client's current context, as set by `docker context use`; None for the default."""
    try:
        name = environment.get("DOCKER_CONTEXT") or read_json((folder / "config.json").read_text()).get("currentContext")
        if not name or name == "default":
            return None
        digest = hashlib.sha256(name.encode()).hexdigest()
        meta = read_json((folder / "contexts" / "meta" / digest / "meta.json").read_text())
        return str(meta["Endpoints"]["docker"]["Host"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise EngineError(
            f"the docker client's settings in {folder} cannot be read: {error!r}", advice="Fix them, or set DOCKER_HOST."
        ) from error


def _docker_exception() -> type[Exception]:
    from docker.errors import DockerException

    return DockerException


def _connect(url: str, environment: Mapping[str, str], timeout_s: int) -> docker.DockerClient:
    try:
        import docker
    except ImportError as error:
        raise EngineError("the Python package docker is not installed", advice="pip install 'hwmatrix[host]'") from error
    try:
        if url.startswith("unix://"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:  # the SDK leaks a socket that cannot connect
                probe.settimeout(timeout_s)
                probe.connect(url.removeprefix("unix://"))
        return docker.from_env(environment={**environment, "DOCKER_HOST": url}, version="auto", timeout=timeout_s)
    except (docker.errors.DockerException, OSError) as error:
        raise EngineError(f"the engine does not answer: {error}", advice=INSTALL_ADVICE) from error


def _facts(client: docker.DockerClient, url: str, environment: Mapping[str, str], *, need_builder: bool) -> Engine:
    info: dict[str, Any] = client.info()
    engine = Engine(
        url=url,
        version=str(info["ServerVersion"]),
        api_version=str(client.api.api_version),
        operating_system=str(info.get("OperatingSystem", "")),
        cgroup_version=int(info.get("CgroupVersion") or 1),
        rootless=any("rootless" in option for option in info.get("SecurityOptions") or ()),
        networks=frozenset(str(network.attrs["Driver"]) for network in client.networks.list()),
        keeps_attestations=["driver-type", "io.containerd.snapshotter.v1"] in (info.get("DriverStatus") or []),
        builder=None,
        builder_problem="not looked for",
        environment=dict(environment),
    )
    if not need_builder:
        return engine
    builder, problem = find_builder(engine)
    return dataclasses.replace(engine, builder=builder, builder_problem=problem)


def find_builder(engine: Engine) -> tuple[Path | None, str]:
    """Return the first docker client on PATH that can build with BuildKit on this engine, or else what each of them lacks."""
    problems: list[str] = []
    for client in docker_clients(engine.environment):
        problem = _trial_build(client, engine)
        if problem is None:
            return client, ""
        problems.append(f"{client}: {problem}")
    return None, "; ".join(problems) or "there is no docker client on PATH"


def docker_clients(environment: Mapping[str, str]) -> list[Path]:
    """Every distinct docker client on PATH, in order. Often the first one cannot build."""
    found: dict[Path, Path] = {}
    for folder in environment.get("PATH", "").split(os.pathsep):
        name = shutil.which("docker", path=folder) if folder else None
        if name:
            found.setdefault(Path(name).resolve(), Path(name))
    return list(found.values())


def _trial_build(client: Path, engine: Engine) -> str | None:
    """Run a trivial build and keep nothing. ``--output`` exists only with BuildKit, so success proves it."""
    command = [str(client), "build", "--output", "type=cacheonly", "-"]
    try:
        done = subprocess.run(  # noqa: PLW1510 - the exit code is the answer
            command,
            input="FROM scratch\nLABEL hwmatrix=1\n",
            env=engine.command_environment(),
            capture_output=True,
            text=True,
            timeout=TRIAL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return next((line for line in lines if "ERROR" in line or "error" in line), lines[0] if lines else f"exit code {done.returncode}")
