"""Chooses, finds or builds the base image, and reports the choice in one line."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ImageBuildError
from hwmatrix.host.process import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import docker

    from hwmatrix.host.engine import Engine

MADE_TAG: Final = "hwmatrix/os:bookworm"
RELEASE: Final = "bookworm"  # Debian 12 has Python 3.11, like the default base image
PACKAGES: Final = ("ca-certificates", "python3", "python3-venv")
REGISTRY_TIMEOUT_S: Final = 8
IMPORT_TIMEOUT_S: Final = 600


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseImage:
    """An image that this engine has: its name, its id, why it was chosen, and its digest in the registry that it came from."""

    reference: str
    digest: str
    reason: str
    registry_digest: str | None = None


def resolve(engine: Engine, *, requested: str | None, default: str, on_line: Callable[[str], None]) -> BaseImage:
    """Find the base image: the requested one, or ``default`` (local or pulled), or else one built on this machine.

    A registry that does not answer costs at most 8 seconds (:data:`REGISTRY_TIMEOUT_S`).

    Raises:
        ImageBuildError: there is none. The message says what was tried and what to install.
        EngineError: the engine is gone.
    """
    client = engine.client(timeout_s=REGISTRY_TIMEOUT_S)
    try:
        chosen = _requested(client, engine, requested, on_line) if requested else _default(client, engine, default, on_line)
        chosen = dataclasses.replace(chosen, registry_digest=_registry_digest(client, chosen.reference))
    finally:
        client.close()
    on_line(f"base image: {chosen.reference} ({chosen.reason})")
    return chosen


def _requested(client: docker.DockerClient, engine: Engine, name: str, on_line: Callable[[str], None]) -> BaseImage:
    found = image_digest(client, name)
    if found:
        return BaseImage(reference=name, digest=found, reason="requested, and already here")
    problem = _registry_problem(client, name)
    if problem is None:
        return _pull(engine, name, "requested, and pulled", on_line)
    raise ImageBuildError(
        f"the base image {name} is not on this machine, and cannot be pulled from its registry",
        command=("docker", "pull", name),
        code=None,
        output=problem,
        advice="Load it (docker load, docker import), or leave the choice out: `hwmatrix base` makes one without a registry.",
    )


def _default(client: docker.DockerClient, engine: Engine, name: str, on_line: Callable[[str], None]) -> BaseImage:
    found = image_digest(client, name)
    if found:
        return BaseImage(reference=name, digest=found, reason="here already")
    problem = _registry_problem(client, name)
    if problem is None:
        return _pull(engine, name, "pulled", on_line)
    found = image_digest(client, MADE_TAG)
    if found:
        return BaseImage(reference=MADE_TAG, digest=found, reason=f"built here before; {name} cannot be pulled: {problem}")
    if shutil.which("mmdebstrap", path=engine.environment.get("PATH")):
        on_line(f"{name} cannot be pulled ({problem}): making {MADE_TAG} from Debian's packages")
        made = make_base(engine, on_line=on_line)
        return dataclasses.replace(made, reason=f"built here now; {name} cannot be pulled: {problem}")
    raise ImageBuildError(
        f"no base image: {name} is not on this machine, cannot be pulled from its registry, and mmdebstrap is not installed",
        command=("docker", "pull", name),
        code=None,
        output=problem,
        advice=f"Install mmdebstrap and run `hwmatrix base`, or `docker load` an image with Python 3.11 and name it: --base-image NAME "
        f"(a local {name} is found automatically).",
    )


def image_digest(client: docker.DockerClient, name: str) -> str | None:
    """Return the id (``sha256:...``) of a local image; None if the engine does not have it."""
    from docker.errors import ImageNotFound

    try:
        return str(client.images.get(name).id)
    except ImageNotFound:
        return None


def _registry_digest(client: docker.DockerClient, name: str) -> str | None:
    """Return the digest under which a registry has a local image; None if it was built here."""
    from docker.errors import ImageNotFound

    try:
        digests = client.images.get(name).attrs.get("RepoDigests") or []
    except ImageNotFound:
        return None
    return str(digests[0]).rpartition("@")[2] if digests else None


def _registry_problem(client: docker.DockerClient, name: str) -> str | None:
    """Request a manifest through the engine, which would also pull. Return None on success, or else the problem."""
    from docker.errors import DockerException

    try:
        client.images.get_registry_data(name)
    except DockerException as error:
        return _first_line(getattr(error, "explanation", None) or str(error))
    except OSError:
        return f"no answer within {REGISTRY_TIMEOUT_S} s"
    return None


def _pull(engine: Engine, name: str, reason: str, on_line: Callable[[str], None]) -> BaseImage:
    from docker.errors import DockerException

    client = engine.client()
    try:
        repository, tag = _split(name)
        _follow(client.api.pull(repository, tag=tag, stream=True, decode=True), on_line)
        digest = image_digest(client, name)
    except (DockerException, OSError) as error:
        raise ImageBuildError(f"pulling {name} failed", command=("docker", "pull", name), code=None, output=str(error)) from error
    finally:
        client.close()
    if digest is None:
        raise ImageBuildError(f"pulling {name} left no image", command=("docker", "pull", name), code=None, output="")
    return BaseImage(reference=name, digest=digest, reason=reason)


def _follow(events: Iterable[dict[str, Any]], on_line: Callable[[str], None]) -> None:
    from docker.errors import APIError

    for event in events:
        if "error" in event:
            raise APIError(str(event["error"]))
        if not event.get("progressDetail"):
            on_line(f"{event.get('id', '')} {event.get('status', '')}".strip())


def _split(name: str) -> tuple[str, str | None]:
    """Split a name into repository and tag. A digest counts as a tag, as in the engine's API; a colon before the last slash is a port.

    Of a name with both, the digest counts: the tag says to people, and to Renovate, what is pinned.
    """
    name, _, digest = name.partition("@")
    head, slash, last = name.rpartition("/")
    repository, _, tag = last.partition(":")
    return f"{head}{slash}{repository}", digest or tag or "latest"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"


def make_base(engine: Engine, *, on_line: Callable[[str], None]) -> BaseImage:
    """Build a minimal Debian with Python and import it as :data:`MADE_TAG`. Needs Debian's packages, but no registry.

    Raises:
        ImageBuildError: mmdebstrap is missing or fails, or the engine rejects the image.
    """
    program = shutil.which("mmdebstrap", path=engine.environment.get("PATH"))
    if program is None:
        advice = "Install it: apt-get install mmdebstrap (Debian, Ubuntu)."
        raise ImageBuildError("mmdebstrap is not installed", command=("mmdebstrap",), code=None, output="", advice=advice)
    with tempfile.TemporaryDirectory(prefix="hwmatrix-base-") as folder:
        Path(folder).chmod(0o755)  # apt downloads as a separate user
        archive = Path(folder) / "base.tar"
        command = [
            program,
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")),
            RELEASE,
            str(archive),
        ]
        with Processes() as processes:
            # Its scratch folders are inside ours, since it leaves some of them behind if interrupted.
            done = processes.run(command, environment={**engine.environment, "TMPDIR": folder}, on_line=on_line)
        if done.code != 0:
            advice = "It needs Debian's package archive, and root or user namespaces."
            raise ImageBuildError("building a base image failed", command=done.command, code=done.code, output=done.output, advice=advice)
        return _import(engine, archive)


def _import(engine: Engine, archive: Path) -> BaseImage:
    from docker.errors import DockerException

    repository, _, tag = MADE_TAG.partition(":")
    client = engine.client(timeout_s=IMPORT_TIMEOUT_S)
    changes = [
        "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        f'LABEL org.opencontainers.image.title="hwmatrix base: Debian {RELEASE} with Python"',
    ]
    try:
        client.api.import_image_from_file(str(archive), repository=repository, tag=tag, changes=changes)
        digest = image_digest(client, MADE_TAG)
    except (DockerException, OSError) as error:
        command = ("docker", "import", str(archive), MADE_TAG)
        raise ImageBuildError("importing the base failed", command=command, code=None, output=str(error)) from error
    finally:
        client.close()
    if digest is None:
        raise ImageBuildError("the engine has no image after the import", command=("docker", "import", MADE_TAG), code=None, output="")
    return BaseImage(reference=MADE_TAG, digest=digest, reason="made here")
