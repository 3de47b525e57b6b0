"""This interpreter and its installed packages: evidence for every row."""

from __future__ import annotations

import platform
import sys
import uuid
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

from hwmatrix.store.shard import ShardIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hwmatrix.records import TargetPlan


class Order(Protocol):
    """What every order of the host says of the place it runs in."""

    @property
    def target(self) -> TargetPlan:
        """The target."""

    @property
    def host(self) -> str:
        """The machine's identity."""

    @property
    def image(self) -> str | None:
        """The image's tag; None outside a container."""

    @property
    def image_digest(self) -> str | None:
        """The digest of what it runs in."""


def interpreter() -> str:
    """Implementation, version and build: the same packages run at other speeds on another build."""
    build, date = platform.python_build()
    return f"{platform.python_implementation()} {platform.python_version()} ({build}, {date}; {platform.python_compiler()}; {sys.platform})"


def packages() -> dict[str, str]:
    """Every installed distribution and its version."""
    return dict(sorted((distribution.metadata["Name"], distribution.version) for distribution in metadata.distributions()))


def shard_identity(
    order: Order, needed: Iterable[str], *, warm_up_ms: float | None, versions: Mapping[str, str] | None = None
) -> ShardIdentity:
    """What a shard's rows are made by and on. ``needed`` packages matter for the target; ``versions`` are of what is no package."""
    installed = packages()
    return ShardIdentity(
        shard_id=uuid.uuid4().hex[:12],
        target=order.target.name,
        image=order.image,
        image_digest=order.image_digest,
        host=order.host,
        interpreter=interpreter(),
        versions={name: installed[name] for name in ("hwmatrix", *needed) if name in installed} | dict(versions or {}),
        packages=installed,
        warm_up_ms=warm_up_ms,
    )
