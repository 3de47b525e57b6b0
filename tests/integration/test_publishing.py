"""Listing an image's parts and pushing it: a small image, this machine's engine, our own registry on loopback."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import secrets
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for registry_server

from registry_server import Registry, serving

from hwmatrix.errors import ConfigError, EngineError
from hwmatrix.host import base_image, publishing
from hwmatrix.host.engine import Engine, connect
from hwmatrix.matrix.spec import ImagesSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.containers


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return connect(dict(os.environ), need_builder=False)
    except EngineError as error:
        pytest.skip(str(error))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as running:
        yield running


def imported(engine: Engine, name: str, *labels: str) -> str:
    """Import an image of one small file, and return its id."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("stamp")
        entry.size = len(name)
        tar.addfile(entry, io.BytesIO(name.encode()))
    with contextlib.closing(engine.client()) as client:
        repository, _, tag = name.partition(":")
        client.api.import_image_from_data(
            archive.getvalue(), repository=repository, tag=tag, changes=[f"LABEL {label}" for label in labels]
        )
        return str(client.images.get(name).id)


@pytest.fixture
def name(engine: Engine) -> Iterator[str]:
    name = f"hwmatrix-test-publishing:{secrets.token_hex(4)}"
    yield name
    with contextlib.closing(engine.client()) as client:
        client.images.remove(name)


def described(name: str, image_id: str, folder: Path) -> publishing.Described:
    document = {"metadata": {"component": {"name": name}}}
    (folder / "sbom-small.cdx.json").write_text(json.dumps(document))
    return publishing.Described(target="small", tag=name, image_id=image_id, size=1, packages=0, sbom="sbom-small.cdx.json")


def test_an_image_is_really_pushed(engine: Engine, registry: Registry, name: str, tmp_path: Path) -> None:
    image_id = imported(engine, name, "org.opencontainers.image.title=small")
    lines: list[str] = []
    pushed = publishing.push(engine, described(name, image_id, tmp_path), f"{registry.address}/team/hwmatrix", tmp_path, lines.append)
    tag = name.rpartition(":")[2]
    assert pushed.pushed == f"{registry.address}/team/hwmatrix/small:{tag}"
    _, raw = registry.manifests["team/hwmatrix/small", tag]
    assert pushed.digest == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    manifest = json.loads(raw)
    assert manifest["config"]["digest"] == image_id, "the registry must have exactly the tested image"
    config = json.loads(registry.blobs[manifest["config"]["digest"]])
    assert config["config"]["Labels"] == {"org.opencontainers.image.title": "small"}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(registry.blobs[manifest["layers"][0]["digest"]]))) as layer:
        assert layer.getnames() == ["stamp"]
    properties = json.loads((tmp_path / pushed.sbom).read_text())["metadata"]["component"]["properties"]
    assert properties == [{"name": "hwmatrix:image:digest", "value": f"{registry.address}/team/hwmatrix/small@{pushed.digest}"}]
    assert lines
    with contextlib.closing(engine.client()) as client:
        assert client.images.get(image_id).tags == [name], "the registry's name must be removed again"


def test_a_push_refused_by_the_registry_is_reported(engine: Engine, registry: Registry, name: str, tmp_path: Path) -> None:
    image_id = imported(engine, name)
    registry.refuse = True
    with pytest.raises(EngineError, match="denied"):
        publishing.push(engine, described(name, image_id, tmp_path), f"{registry.address}/x", tmp_path, print)
    assert not registry.manifests
    with contextlib.closing(engine.client()) as client:
        assert client.images.get(image_id).tags == [name]


def test_an_unreachable_registry_is_reported(engine: Engine, name: str, tmp_path: Path) -> None:
    image_id = imported(engine, name)
    with pytest.raises(EngineError, match="failed"):
        publishing.push(engine, described(name, image_id, tmp_path), "127.0.0.1:9/x", tmp_path, print)


def test_an_image_that_may_not_be_pushed_and_one_built_on_it(engine: Engine, name: str) -> None:
    image_id = imported(engine, name, "org.hwmatrix.push=never")
    above = f"{name}-above"
    with contextlib.closing(engine.client()) as client:
        container = client.containers.create(name, ["none"])
        try:
            container.commit(repository=above.partition(":")[0], tag=above.partition(":")[2])
        finally:
            container.remove()
        try:
            built = [("qnn", name, image_id), ("mine", above, str(client.images.get(above).id))]
            assert publishing.sort_out(engine, built, named=()) == ([], ["qnn", "mine"])
            with pytest.raises(ConfigError, match="never forbids"):
                publishing.sort_out(engine, built, named=["mine"])
        finally:
            client.images.remove(above)


def test_packages_are_listed_inside_an_image(engine: Engine, tmp_path: Path) -> None:
    """The base image has dpkg and Python but not hwmatrix, so the module is passed as a file."""
    from hwmatrix.host.containers import Limits, Mount, running
    from hwmatrix.runner import packages

    base = base_image.resolve(engine, requested=None, default=ImagesSpec().base, on_line=print).reference
    program = tmp_path / "packages.py"
    program.write_bytes(Path(packages.__file__).read_bytes())
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    program.chmod(0o644)
    mounts = (Mount(source=program, target="/packages.py"),)
    limits = Limits(memory_mb=256, pids=32)
    with running(
        engine, image=base, argv=(), entrypoint=("python3", "/packages.py"), limits=limits, mounts=mounts, name="sbom"
    ) as container:
        facts: list[dict[str, Any]] = [json.loads(line) for line in container.lines()]
        assert container.wait() == 0, container.stderr_tail
    assert facts[0]["kind"] == "system"
    assert {"libc6", "ca-certificates"} <= {fact["name"] for fact in facts if fact["kind"] == "deb"}
