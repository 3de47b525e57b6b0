"""The SBOM of an image as CycloneDX 1.6, collected inside the image, in a container without network."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from typing import TYPE_CHECKING, Any, Final

import hwmatrix
from hwmatrix.basics.files import write_atomically
from hwmatrix.errors import EngineError
from hwmatrix.host.containers import Limits, running

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cyclonedx.model.component import Component

    from hwmatrix.host.engine import Engine

_LISTING: Final = ("python", "-m", "hwmatrix.runner.packages")
_LIMITS: Final = Limits(memory_mb=512, pids=64)
_NAMESPACE: Final = uuid.UUID("9b0f5d0e-3b1c-5b8e-9d53-0a5f5b6f6a11")
"""The namespace of serial numbers, which are made from an image's id: the same image has the same number."""
_SEPARATORS: Final = re.compile(r"[-_.]+")


def packages(engine: Engine, image: str) -> list[dict[str, Any]]:
    """Return the output of :mod:`hwmatrix.runner.packages` inside an image.

    Raises:
        EngineError: the container cannot be started, or the image has no such module.
    """
    with running(engine, image=image, argv=(), entrypoint=_LISTING, limits=_LIMITS, name="sbom") as container:
        lines = list(container.lines())
        code = container.wait()
        told = container.stderr_tail
    if code != 0:
        raise EngineError(f"listing the packages of {image} ended with {code}: {told.strip()}", advice="Build the image again.")
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise EngineError(f"listing the packages of {image} gave no JSON: {error}", advice="Build the image again.") from error


def document(name: str, image: Mapping[str, Any], facts: Iterable[Mapping[str, Any]], *, digest: str | None = None) -> str:
    """Return the SBOM of an image as JSON. ``image`` has the engine's attributes, ``digest`` is the manifest's digest, once pushed.

    The same image and packages give the same bytes: time and serial number are the image's.
    """
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output.json import JsonV1Dot6

    facts = list(facts)
    system = next((fact for fact in facts if fact["kind"] == "system"), {"id": None, "version": None})
    identity = str(image["Id"])
    labels = image["Config"].get("Labels") or {}
    about = Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=str(labels.get("org.opencontainers.image.version") or identity),
        bom_ref=identity,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=identity.removeprefix("sha256:"))],
        properties=[
            Property(name="hwmatrix:image:id", value=identity),
            *([Property(name="hwmatrix:image:digest", value=digest)] if digest else []),
            *(Property(name=f"hwmatrix:image:label:{key}", value=value) for key, value in sorted(labels.items()) if value),
        ],
    )
    tool = Component(type=ComponentType.APPLICATION, name="hwmatrix", version=hwmatrix.__version__)
    made = BomMetaData(component=about, timestamp=_time(str(image["Created"])), tools=ToolRepository(components=[tool]))
    parts = [_component(fact, system) for fact in facts if fact["kind"] != "system"]
    bom = Bom(metadata=made, components=parts, serial_number=uuid.uuid5(_NAMESPACE, identity))
    bom.register_dependency(about, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def write(path: Path, text: str) -> Path:
    """Write an SBOM atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    return path


def _component(fact: Mapping[str, Any], system: Mapping[str, Any]) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    name, version = str(fact["name"]), str(fact["version"])
    namespace, qualifiers = None, {}
    if fact["kind"] == "deb":
        namespace = str(system["id"] or "debian")
        qualifiers = {"arch": str(fact["architecture"])}
        if system["id"] and system["version"]:
            qualifiers["distro"] = f"{system['id']}-{system['version']}"
        plain = name
    elif fact["kind"] == "npm":
        namespace, _, plain = name.rpartition("/")
    else:
        plain = _SEPARATORS.sub("-", name).lower()  # normalized as in PEP 503 and in purls of PyPI
    url = PackageURL(type=str(fact["kind"]), namespace=namespace or None, name=plain, version=version, qualifiers=qualifiers)
    return Component(type=ComponentType.LIBRARY, name=name, version=version, purl=url, bom_ref=url.to_string(), licenses=_licenses(fact))


def _licenses(fact: Mapping[str, Any]) -> list[Any]:
    """A license expression if the package has one, otherwise the name that it gives, if any."""
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression

    if isinstance(fact.get("license"), str):
        return [LicenseExpression(fact["license"])]
    if fact.get("license_name"):
        return [DisjunctiveLicense(name=fact["license_name"])]
    return []


def _time(text: str) -> dt.datetime:
    """Parse the engine's times, without their nanoseconds, which Python does not support."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    return dt.datetime.fromisoformat(f"{found[1]}{found[2]}") if found else dt.datetime.fromtimestamp(0, dt.UTC)
