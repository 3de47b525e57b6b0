"""Pruning images on this machine's engine: images of one small file, make_image for the test and removed afterwards."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import tarfile
from typing import TYPE_CHECKING

import pytest

import hwmatrix
from hwmatrix.errors import EngineError
from hwmatrix.host.ci_machines import pruning
from hwmatrix.host.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    import docker

    from hwmatrix.host.ci_machines.pruning import Item

pytestmark = pytest.mark.containers


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    try:
        engine = connect(dict(os.environ), need_builder=False)
    except EngineError as error:
        pytest.skip(str(error))
    with contextlib.closing(engine.client(timeout_s=600)) as connected:
        yield connected


def make_image(client: docker.DockerClient, tag: str | None, label: str = "hwmatrix prune-test") -> str:
    """Make an image of one small file, and return its id."""
    archive, content = io.BytesIO(), secrets.token_bytes(16)
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("stamp")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    name = tag or f"hwmatrix-prune-test:{secrets.token_hex(4)}"
    repository, _, version = name.partition(":")
    client.api.import_image_from_data(
        archive.getvalue(), repository=repository, tag=version, changes=[f'LABEL {pruning.TITLE}="{label}"', 'CMD ["none"]']
    )
    number = str(client.images.get(name).id)
    if tag is None:  # an image loses its name when another image gets it
        make_image(client, name, label)
        assert client.images.get(number).tags == []
        client.images.remove(name)
    return number


def listed(client: docker.DockerClient) -> dict[str, Item]:
    return {client.images.get(item.places[0]).id: item for item in pruning.images(client.df()["Images"])}


def test_only_our_untagged_images_are_removed(client: docker.DockerClient) -> None:
    version = secrets.token_hex(4)
    mine, strangers = make_image(client, None), make_image(client, None, label="somebody's")
    used, current = make_image(client, None), make_image(client, f"hwmatrix/prune-test-{version}:{hwmatrix.__version__}")
    older = make_image(client, f"hwmatrix/prune-test-{version}:0.0.1")
    container = client.containers.create(used)
    try:
        items = listed(client)
        assert strangers not in items
        assert items[mine].kept is items[older].kept is items[used].kept is None
        assert "is current" in str(items[current].kept)
        assert "the engine keeps it" in str(pruning.remove(items[used], client))
        assert pruning.remove(items[mine], client) is pruning.remove(items[older], client) is None
        assert not {mine, older} & listed(client).keys()
        assert {used, current} <= listed(client).keys()
    finally:
        container.remove()
        for number in (strangers, used, current):
            client.images.remove(number)
