"""Chooses, finds or builds the base image, and reports the choice in one line."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import ImageBuildError
from hwmatrix.host.process import Processes

if TYPE_CHECKING:
    from collections.abc import Callable

    import docker

    from hwmatrix.host.engine import Engine
    from hwmatrix.host.process import Finished

MADE_TAG: Final = "hwmatrix/os:bookworm"
RELEASE: Final = "bookworm"  # Debian 12 has Python 3.11, like the default base image
PACKAGES: Final = ("ca-certificates", "python3", "python3-venv")
IMPORT_TIMEOUT_S: Final = 600
_CHANGES: Final = (
    "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    f'LABEL org.opencontainers.image.title="hwmatrix base: Debian {RELEASE} with Python"',
)


def resolve(engine: Engine, *, requested: str | None, default: str, on_line: Callable[[str], None]) -> str:
    """Find the base image: the requested one, or else ``default``, one built on this machine before, ``default`` pulled, or one built now.

    Returns the name of an image that the engine has.

    Raises:
        ImageBuildError: there is none. The message says what was tried and what to install.
        EngineError: the engine is gone.
    """
    with contextlib.closing(engine.client()) as client:
        reference, reason = _chosen(client, engine, requested, default, on_line)
    on_line(f"base image: {reference} ({reason})")
    return reference


def _chosen(
    client: docker.DockerClient, engine: Engine, requested: str | None, default: str, on_line: Callable[[str], None]
) -> tuple[str, str]:
    """The name of an image that the engine has now, and why it was chosen."""
    name = requested or default
    if image_digest(client, name):
        return name, "requested, and already here" if requested else "here already"
    if not requested and image_digest(client, MADE_TAG):
        return MADE_TAG, "built here before"
    pulled = _pull(engine, name, on_line)
    if pulled.code == 0:
        return name, "requested, and pulled" if requested else "pulled"
    problem = pulled.output.rpartition("\n")[2]
    program = shutil.which("mmdebstrap", path=engine.environment.get("PATH"))
    if not requested and program is not None:
        on_line(f"{name} cannot be pulled ({problem}): making {MADE_TAG} from Debian's packages")
        _make_base(engine, program, on_line)
        return MADE_TAG, "built here now"
    what = f"no base image: {name} is not on this machine, and cannot be pulled from its registry"
    advice = (
        "Load an image with Python 3.11 (docker load, docker import) and name it with --base-image. Or leave that out, and install "
        "mmdebstrap (Debian, Ubuntu: apt-get install mmdebstrap): a base is then made without a registry."
    )
    raise ImageBuildError(what, command=pulled.command, code=pulled.code, output=problem, advice=advice)


def image_digest(client: docker.DockerClient, name: str) -> str | None:
    """Return the id (``sha256:...``) of a local image; None if the engine does not have it."""
    from docker.errors import ImageNotFound

    try:
        return str(client.images.get(name).id)
    except ImageNotFound:
        return None


def _pull(engine: Engine, name: str, on_line: Callable[[str], None]) -> Finished:
    with Processes() as processes:
        command = (str(engine.builder or "docker"), "pull", name)
        return processes.run(command, environment=engine.command_environment(), on_line=on_line)


def _make_base(engine: Engine, program: str, on_line: Callable[[str], None]) -> None:
    """Build a minimal Debian with Python by mmdebstrap, and import it as :data:`MADE_TAG`. Needs Debian's packages, but no registry.

    Raises:
        ImageBuildError: mmdebstrap fails, or the engine rejects the image.
    """
    from docker.errors import DockerException

    with tempfile.TemporaryDirectory(prefix="hwmatrix-base-") as folder, Processes() as processes:
        Path(folder).chmod(0o755)  # apt downloads as a separate user
        archive = str(Path(folder) / "base.tar")
        without = (f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man"))
        command = (program, "--variant=minbase", f"--include={','.join(PACKAGES)}", *without, RELEASE, archive)
        # Its scratch folders are inside ours, since it leaves some of them behind if interrupted.
        done = processes.run(command, environment={**engine.environment, "TMPDIR": folder}, on_line=on_line)
        if done.code != 0:
            advice = "It needs Debian's package archive, and root or user namespaces."
            raise ImageBuildError("building a base image failed", command=done.command, code=done.code, output=done.output, advice=advice)
        repository, _, tag = MADE_TAG.partition(":")
        try:
            with contextlib.closing(engine.client(timeout_s=IMPORT_TIMEOUT_S)) as client:
                client.api.import_image_from_file(archive, repository=repository, tag=tag, changes=list(_CHANGES))
        except (DockerException, OSError) as error:
            imported = ("docker", "import", archive, MADE_TAG)
            raise ImageBuildError("importing the base failed", command=imported, code=None, output=str(error)) from error
