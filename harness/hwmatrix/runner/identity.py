"""This interpreter and its installed packages: evidence for every row."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import uuid
from typing import TYPE_CHECKING, Any, Protocol

import hwmatrix
from hwmatrix.store.shard import ShardIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hwmatrix.records import TargetPlan


class Order(Protocol):
    """What every order of the host says about where it runs."""

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
        """The digest of the image."""


def interpreter() -> str:
    """Implementation, version and build: the same packages run at different speeds on different builds."""
    build, date = platform.python_build()
    return f"{platform.python_implementation()} {platform.python_version()} ({build}, {date}; {platform.python_compiler()}; {sys.platform})"


def packages() -> dict[str, str]:
    """Every distribution that this interpreter sees, and its version: of two with one name, that which is imported."""
    versions: dict[str, tuple[str, str]] = {}
    for distribution in importlib.metadata.distributions():
        try:
            meta: Any = distribution.metadata  # an email.message.Message, whose protocol type lacks get
        except FileNotFoundError:  # as the package importlib_metadata says it, once a library has imported it
            continue
        name, version = meta.get("Name"), meta.get("Version")
        if name and version:  # what an interrupted installation left has neither
            versions.setdefault(name.lower(), (name, version))
    return dict(versions[key] for key in sorted(versions))


def _with_build(name: str, version: str) -> str:
    """Add what an imported package was built for, which the metadata of PyTorch's wheels may leave out: 2.11.0 is 2.11.0+cu130."""
    told = str(getattr(sys.modules.get(name), "__version__", ""))
    return told if told.startswith(f"{version}+") else version


def shard_identity(
    order: Order, needed: Iterable[str], *, warm_up_ms: float | None, versions: Mapping[str, str] | None = None
) -> ShardIdentity:
    """The origin of a shard's rows. ``needed``: the target's packages; ``versions``: versions of anything else."""
    installed = {"hwmatrix": hwmatrix.__version__} | packages()
    return ShardIdentity(
        shard_id=uuid.uuid4().hex[:12],
        target=order.target.name,
        image=order.image,
        image_digest=order.image_digest,
        host=order.host,
        interpreter=interpreter(),
        versions={name: _with_build(name, installed[name]) for name in ("hwmatrix", *needed) if name in installed} | dict(versions or {}),
        packages=installed,
        warm_up_ms=warm_up_ms,
    )
