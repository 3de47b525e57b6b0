"""Pushing an image: a small image, this machine's engine, our own registry on loopback."""

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
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for registry_server

from registry_server import Registry, serving

from hwmatrix.errors import EngineError
from hwmatrix.host import publishing
from hwmatrix.host.engine import Engine, connect

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.containers


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return connect(dict(os.environ))
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


def test_an_image_is_really_pushed(engine: Engine, registry: Registry, name: str) -> None:
    image_id = imported(engine, name, "org.opencontainers.image.title=small")
    lines: list[str] = []
    tag = name.rpartition(":")[2]
    digest = publishing.push(engine, image_id, f"{registry.address}/team/hwmatrix/small:{tag}", lines.append)
    _, raw = registry.manifests["team/hwmatrix/small", tag]
    assert digest == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    manifest = json.loads(raw)
    assert manifest["config"]["digest"] == image_id, "the registry must have exactly the tested image"
    config = json.loads(registry.blobs[manifest["config"]["digest"]])
    assert config["config"]["Labels"] == {"org.opencontainers.image.title": "small"}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(registry.blobs[manifest["layers"][0]["digest"]]))) as layer:
        assert layer.getnames() == ["stamp"]
    assert lines
    with contextlib.closing(engine.client()) as client:
        assert client.images.get(image_id).tags == [name], "the registry's name must be removed again"


def test_a_push_refused_by_the_registry_is_reported(engine: Engine, registry: Registry, name: str) -> None:
    image_id = imported(engine, name)
    registry.refuse = True
    with pytest.raises(EngineError, match="denied"):
        publishing.push(engine, image_id, f"{registry.address}/x:1", print)
    assert not registry.manifests
    with contextlib.closing(engine.client()) as client:
        assert client.images.get(image_id).tags == [name]


def test_an_unreachable_registry_is_reported(engine: Engine, name: str) -> None:
    image_id = imported(engine, name)
    with pytest.raises(EngineError, match="failed"):
        publishing.push(engine, image_id, "127.0.0.1:9/x:1", print)
