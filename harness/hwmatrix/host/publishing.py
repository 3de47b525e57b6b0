"""Pushes images to a registry of the user's choice: tags, pushes, and records digest, size and SBOM.

Logins are those of the user's docker client (``docker login``). They are in no argument, and in no file written here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.files import write_atomically
from hwmatrix.errors import ConfigError, EngineError, Problem
from hwmatrix.host import sbom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from hwmatrix.host.engine import Engine

    Built = tuple[str, str, str]
    """A target, the tag of its image, and the image's id."""

NEVER: Final = "org.hwmatrix.push"
"""A label. With the value ``never``, it keeps an image and all images built on it out of every registry."""
RECORD: Final = "images.json"
RECORD_SCHEMA: Final = "hwmatrix/images/1"
_DECLARED: Final = re.compile(r'^[^#\n]*\borg\.hwmatrix\.push="?never\b', re.MULTILINE)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
PUSH_TIMEOUT_S: Final = 3600
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PREFIX: Final = re.compile(rf"(?P<registry>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{{1,5}})?)(?:/{_PART})*")
"""The registry's host and port, then the parts of a name, as in the distribution specification."""
_ADVICE: Final = "Log in with docker login, and check that the registry responds and that you may push to this name."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """An image and its parts: ``sbom`` is a file name, ``digest`` that of the manifest in the registry, once pushed."""

    target: str
    tag: str
    image_id: str
    size: int
    packages: int
    sbom: str
    pushed: str | None = None
    digest: str | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)


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


def refuse_declared(dockerfiles: dict[str, Path]) -> None:
    """Reject targets whose Dockerfile declares that their image is never pushed, before a needless build.

    The image's own label decides in the end: see :func:`sort_out`.

    Raises:
        ConfigError: there are such targets.
    """
    _refuse([target for target, path in dockerfiles.items() if is_never_pushed(path)])


def is_never_pushed(dockerfile: Path) -> bool:
    """Whether a Dockerfile declares that its image is never pushed."""
    return dockerfile.is_file() and _DECLARED.search(dockerfile.read_text(encoding="utf-8")) is not None


def _refuse(targets: Sequence[str]) -> None:
    if targets:
        hint = "its license does not allow redistribution: every machine builds it itself"
        raise ConfigError(
            [Problem(where=f"--targets {it}", what=f"the label {NEVER}=never forbids pushing it", hint=hint) for it in targets]
        )


def sort_out(engine: Engine, built: Iterable[Built], *, named: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split targets by the labels of their images: those that may be pushed, and those that may not.

    Raises:
        ConfigError: a target that may not be pushed was requested by name.
        EngineError: the engine is gone.
    """
    may: list[str] = []
    never: list[str] = []
    for target, _, image_id in built:
        labels = inspect(engine, image_id)["Config"].get("Labels") or {}
        (never if str(labels.get(NEVER, "")).strip().lower() == "never" else may).append(target)
    _refuse([target for target in never if target in named])
    return may, never


def describe(engine: Engine, built: Built, folder: Path) -> Described:
    """Write an image's SBOM into a folder. Return the description of the image.

    Raises:
        EngineError: the engine is gone, or the image cannot list its packages.
    """
    target, tag, image_id = built
    facts = sbom.packages(engine, image_id)
    told = inspect(engine, image_id)
    file = sbom.write(folder / f"sbom-{target}.cdx.json", sbom.document(tag, told, facts))
    return Described(
        target=target,
        tag=tag,
        image_id=image_id,
        size=int(told["Size"]),
        packages=sum(fact["kind"] != "system" for fact in facts),
        sbom=file.name,
        labels=dict(told["Config"].get("Labels") or {}),
    )


def push(engine: Engine, image: Described, prefix: str, folder: Path, on_line: Callable[[str], None]) -> Described:
    """Push an image, and add the registry's digest to its SBOM. The registry tag is removed again.

    Raises:
        EngineError: the registry rejects it or does not answer.
    """
    from docker.errors import DockerException

    repository, version = f"{prefix}/{image.target}", image.tag.rpartition(":")[2]
    reference = f"{repository}:{version}"
    try:
        with contextlib.closing(engine.client(timeout_s=PUSH_TIMEOUT_S)) as client:
            client.images.get(image.image_id).tag(repository, tag=version)
            try:
                digest = _pushed(client.api.push(repository, tag=version, stream=True, decode=True), reference, on_line)
            finally:
                client.images.remove(reference, noprune=True)
    except (DockerException, OSError) as error:
        raise EngineError(f"pushing {reference} failed: {getattr(error, 'explanation', None) or error}", advice=_ADVICE) from error
    document = json.loads((folder / image.sbom).read_bytes())
    properties = document["metadata"]["component"].setdefault("properties", [])
    properties.append({"name": "hwmatrix:image:digest", "value": f"{repository}@{digest}"})
    sbom.write(folder / image.sbom, json.dumps(document, indent=2) + "\n")
    return dataclasses.replace(image, pushed=reference, digest=digest)


def _pushed(events: Iterable[dict[str, Any]], reference: str, on_line: Callable[[str], None]) -> str:
    """Return the digest from the registry. An engine reports a rejection within the stream, and then ends the stream normally."""
    digest: str | None = None
    for event in events:
        if "error" in event:
            raise EngineError(f"pushing {reference} failed: {event['error']}", advice=_ADVICE)
        digest = (event.get("aux") or {}).get("Digest") or digest
        if event.get("status") and not event.get("progressDetail"):
            on_line(f"{reference}: {event.get('id', '')} {event['status']}".replace(":  ", ": "))
    if digest is None:
        raise EngineError(f"pushing {reference} ended without a digest", advice=_ADVICE)
    if not _DIGEST.fullmatch(digest):
        raise EngineError(f"pushing {reference} gave {digest[:80]!r}, which is not a digest", advice=_ADVICE)
    return digest


def record(folder: Path, images: Iterable[Described], never: Sequence[str] = ()) -> Path:
    """Write images.json: each image with its digest, size and SBOM, and the targets that are never pushed.

    Raises:
        OSError: the folder cannot be written.
    """
    path = folder / RECORD
    told = {"schema": RECORD_SCHEMA, "images": [dataclasses.asdict(image) for image in images], "never_pushed": list(never)}
    write_atomically(path, json.dumps(told, indent=2) + "\n")
    return path


def inspect(engine: Engine, image: str) -> dict[str, Any]:
    """Return the engine's attributes of an image.

    Raises:
        EngineError: it has no such image, or is gone.
    """
    from docker.errors import DockerException

    try:
        with contextlib.closing(engine.client()) as client:
            return dict(client.images.get(image).attrs)
    except (DockerException, OSError) as error:
        raise EngineError(f"the image {image} cannot be inspected: {error}", advice="Build it again: hwmatrix images.") from error
