"""Pushes images to a registry of the user's choice, with the SBOM and the provenance that BuildKit attached to them.

Logins are those of the user's docker client (``docker login``). They are in no argument, and in no file written here.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hwmatrix.errors import ConfigError, EngineError, Problem
from hwmatrix.host.engine import Engine, connect
from hwmatrix.host.process import Processes
from hwmatrix.matrix.shipped import image_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hwmatrix.matrix.load import LoadedMatrix

    OnLine = Callable[[str], None]
    Built = tuple[str, str, str]
    """A target, the tag of its image, and the image's id."""

NEVER: Final = "org.hwmatrix.push"
"""A label. With the value ``never``, it keeps an image and all images built on it out of every registry."""
_DECLARED: Final = re.compile(r'^[^#\n]*\borg\.hwmatrix\.push="?never\b', re.MULTILINE)
_DIGEST: Final = re.compile(r"digest: (sha256:[0-9a-f]{64})\b")
"""In the last line that ``docker push`` prints."""
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PREFIX: Final = re.compile(rf"(?P<registry>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{{1,5}})?)(?:/{_PART})*")
"""The registry's host and port, then the parts of a name, as in the distribution specification."""
_ADVICE: Final = "Log in with docker login, and check that the registry responds and that you may push to this name."


def checked_prefix(text: str) -> str:
    """Check ``REGISTRY/PREFIX``, which goes before a target's name, and return it.

    Raises:
        ConfigError: it is malformed.
    """
    found = _PREFIX.fullmatch(text)
    if found is None or (not any(mark in found["registry"] for mark in ".:") and found["registry"] != "localhost"):
        hint = "write the registry's name and a path in lower case: registry.example/team/hwmatrix"
        raise ConfigError([Problem(where="--push", what=f"{text!r} is not a prefix in a registry", hint=hint)])
    return text


def pushable(loaded: LoadedMatrix, targets: Iterable[str]) -> list[str]:
    """Return the targets whose images a release builds and pushes. Of several targets with one image, only the first.

    Native targets have no image of their own. Images are left out if their Dockerfile is missing or declares that they are never pushed.
    """
    first: dict[tuple[str, str], str] = {}
    for name in targets:
        spec = loaded.spec.targets[name]
        if not spec.native and (text := _dockerfile(loaded, name)) is not None and not _DECLARED.search(text):
            first.setdefault((spec.base, spec.image), name)
    return list(first.values())


def never_pushed(loaded: LoadedMatrix, targets: Iterable[str]) -> list[str]:
    """Return the targets whose Dockerfile declares that their image is never pushed."""
    return [name for name in targets if _DECLARED.search(_dockerfile(loaded, name) or "")]


def _dockerfile(loaded: LoadedMatrix, target: str) -> str | None:
    """The text of a target's Dockerfile; None: it has none."""
    folder = image_files(loaded.path.absolute().parent).get(loaded.spec.targets[target].image)
    return (folder / "Dockerfile").read_text(encoding="utf-8") if folder and (folder / "Dockerfile").is_file() else None


def refuse(targets: Sequence[str]) -> None:
    """Reject targets whose images are never pushed.

    Raises:
        ConfigError: there are such targets.
    """
    if targets:
        hint = "its license does not allow redistribution: every machine builds it itself"
        raise ConfigError(
            [Problem(where=f"--targets {it}", what=f"the label {NEVER}=never forbids pushing it", hint=hint) for it in targets]
        )


def publish(built: Sequence[Built], *, prefix: str, environment: Mapping[str, str], say: OnLine, detail: OnLine) -> None:
    """Push images as ``PREFIX/TARGET:VERSION``. ``detail`` gets the output of the pushes.

    In a step of a workflow, the name and the digest of a single image become outputs of the step.

    Raises:
        ConfigError: the label of an image, which it may have from the image that it is built on, forbids it; then nothing is pushed.
        EngineError: the engine or the registry refuses.
    """
    engine = connect(environment)
    with contextlib.closing(engine.client()) as client:
        refuse([target for target, _, image_id in built if client.images.get(image_id).labels.get(NEVER, "").strip().lower() == "never"])
    if not engine.keeps_attestations:
        say("pushing without SBOM and provenance: they need docker buildx and an engine with containerd's image store")
    pushed = []
    for target, tag, image_id in built:
        name, version = f"{prefix}/{target}", tag.rpartition(":")[2]
        digest = push(engine, image_id, f"{name}:{version}", detail)
        say(f"pushed {name}:{version} as {digest}")
        pushed.append(f"name={name}\ndigest={digest}\n")
    if len(pushed) == 1 and (outputs := environment.get("GITHUB_OUTPUT")):
        with Path(outputs).open("a", encoding="utf-8") as file:
            file.write(pushed[0])


def push(engine: Engine, image_id: str, reference: str, on_line: OnLine) -> str:
    """Push an image under a name, which the engine forgets again. Return the digest in the registry.

    Raises:
        EngineError: the registry rejects it or does not answer.
    """
    repository, _, version = reference.rpartition(":")
    with contextlib.closing(engine.client()) as client, Processes() as processes:
        client.images.get(image_id).tag(repository, tag=version)
        try:
            command = (str(engine.builder), "push", reference)
            done = processes.run(command, environment=engine.command_environment(), on_line=lambda line: on_line(f"{reference}: {line}"))
        finally:
            client.images.remove(reference, noprune=True)
    digest = _DIGEST.search(done.output)
    if done.code != 0 or digest is None:
        raise EngineError(f"pushing {reference} failed: {done.output.rpartition(chr(10))[2]}", advice=_ADVICE)
    return digest[1]
