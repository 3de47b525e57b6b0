"""Starts the members of a cluster, and connects to one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from typing import TYPE_CHECKING, Any, Final

import dask
import psutil
from distributed import Client, Nanny, Scheduler, SpecCluster
from distributed.comm.core import connect
from distributed.security import Security

from hwmatrix.basics.cache_folder import needed_cache_folder
from hwmatrix.basics.log_level import logged_from
from hwmatrix.basics.near_miss import near_miss
from hwmatrix.errors import ConfigError, EngineError, Problem, chain_of
from hwmatrix.host.cluster.keys import security
from hwmatrix.host.cluster.offers import CORES_VARIABLE, MEMORY_VARIABLE
from hwmatrix.measure.cores import usable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PORT: Final = 8786
"""Dask's usual port for schedulers."""
PRELOAD: Final = "hwmatrix.host.cluster.preload"
SETTINGS: Final[dict[str, Any]] = {
    "distributed.scheduler.no-workers-timeout": "60s",  # of a part that no worker can run any more
    "distributed.worker.memory.target": 0.5,  # bundles that wait for their parts are moved to the disk
    "distributed.worker.memory.spill": False,  # the other limits are for the worker's process: models run in processes with their own
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}
"""The settings of every member. A scheduler or worker that another program starts should have them too: docs/cluster.md."""
_NO_DASHBOARD: Final[dict[str, Any]] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""A member's unencrypted web server, which Dask always starts: only this machine reaches it, at a port that is free."""
_HELD_IN_MEMORY: Final = "1 GiB"
"""The limit of the bundles of a run that a worker holds; half of it is in memory, and the rest on the disk."""
_CONNECT_S: Final = 10.0
_SCHEMES: Final = frozenset({"tls"})


def checked(address: str) -> str:
    """Check the address of a scheduler, and return it.

    Raises:
        ConfigError: it is not one, or its traffic would not be encrypted.
    """
    scheme, separator, place = address.partition("://")
    if not separator:
        scheme, place = "tls", address
    if scheme not in _SCHEMES:
        hint = near_miss(scheme, _SCHEMES) if scheme != "tcp" else "use tls://: whoever reaches a scheduler without keys can run code on it"
        raise ConfigError([Problem(where=address, what=f"members of a cluster do not speak {scheme}://", hint=hint)])
    host, colon, port = place.rpartition(":")
    if not colon:
        host, port = place, str(PORT)
    if not host or not port.isdecimal():
        raise ConfigError([Problem(where=address, what="it is not the address of a scheduler", hint=f"write tls://HOST:{PORT}")])
    return f"tls://{host}:{port}"


@contextlib.contextmanager
def connected(address: str, keys: Path) -> Iterator[Client]:
    """A connection to a scheduler.

    Raises:
        ConfigError: the address or the keys are not usable.
        EngineError: no scheduler answers there, or it has other keys.
    """
    where, secure = checked(address), security(keys)
    with dask.config.set(SETTINGS), logged_from(logging.CRITICAL, "distributed"):
        try:
            asyncio.run(_check_answer(where, secure))
            client = Client(where, security=secure, timeout=_CONNECT_S, set_as_default=False)
        except (TimeoutError, OSError, ssl.SSLError) as error:
            raise EngineError(f"{where}: {_reason(error)}", advice="Start one there: hwmatrix cluster scheduler.") from error
        with client:
            yield client


async def _check_answer(where: str, secure: Security) -> None:
    """Check that a scheduler answers: Dask's client waits without a limit for one that accepts a connection and then says nothing.

    Raises:
        TimeoutError: it does not answer in time.
        OSError: it cannot be reached, or has other keys.
    """
    try:
        async with asyncio.timeout(_CONNECT_S + 1.0):  # Dask's own limit, for all but the answer, comes first: its error says more
            comm = await connect(where, timeout=_CONNECT_S, **secure.get_connection_args("client"))
    except TimeoutError as error:
        raise TimeoutError("it accepts connections, but says nothing") from error
    await comm.close()


@contextlib.contextmanager
def local_cluster(workers: int, variables: Mapping[str, str]) -> Iterator[Client]:
    """A cluster of worker processes on this machine, with keys of its own, for as long as the block runs.

    Each worker has its share of the machine's memory and cores, at least one core.
    """
    secure = Security.temporary()
    memory_mb = psutil.virtual_memory().total // 2**20 // workers
    common = _worker_options(variables) | {"host": "127.0.0.1", "security": secure, "silence_logs": logging.CRITICAL}
    specs = {
        index: {
            "cls": Nanny,
            "options": common
            | {"name": f"worker-{index + 1}", "env": {**variables, CORES_VARIABLE: share, MEMORY_VARIABLE: str(memory_mb)}},
        }
        for index, share in enumerate(_shares_of_cores(workers))
    }
    options = {"host": "127.0.0.1", "port": 0, "protocol": "tls://", "security": secure, **_NO_DASHBOARD}
    with (
        dask.config.set(SETTINGS),
        logged_from(logging.CRITICAL, "distributed"),
        SpecCluster(
            workers=specs, scheduler={"cls": Scheduler, "options": options}, security=secure, silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster, security=secure, set_as_default=False) as client,
    ):
        client.wait_for_workers(workers, timeout=60)
        yield client


def _worker_options(variables: Mapping[str, str]) -> dict[str, Any]:
    """The options of every worker. Dask deletes the folder of a worker with it, or when the next one starts there."""
    folder = str(needed_cache_folder(variables) / "cluster")
    return {"nthreads": 1, "memory_limit": _HELD_IN_MEMORY, "preload": [PRELOAD], "local_directory": folder, **_NO_DASHBOARD}


async def serve_scheduler(host: str | None, port: int, keys: Path) -> None:
    """Run a scheduler until it is told to stop.

    Raises:
        ConfigError: the keys are not usable, or the address is in use.
    """
    secure = security(keys)
    with dask.config.set(SETTINGS):
        try:
            async with Scheduler(host=host, port=port, protocol="tls://", security=secure, **_NO_DASHBOARD) as scheduler:
                await scheduler.finished()
        except OSError as error:
            raise ConfigError([Problem(where=f"port {port}", what=f"cannot be used: {error}", hint="choose another --port")]) from error


async def serve_worker(address: str, keys: Path, *, name: str | None, cores: str | None, memory_mb: int | None) -> None:
    """Run a worker, and restart it when it dies, until the scheduler ends or this process is told to stop.

    Raises:
        ConfigError: the address or the keys are not usable.
    """
    secure: Security = security(keys)
    share = {CORES_VARIABLE: cores, MEMORY_VARIABLE: None if memory_mb is None else str(memory_mb)}
    environment = {**os.environ, **{variable: value for variable, value in share.items() if value is not None}}
    with dask.config.set(SETTINGS):
        async with Nanny(
            checked(address),
            security=secure,
            name=name,
            env=environment,
            death_timeout=60,
            **_worker_options(environment),
        ) as nanny:
            await nanny.finished()


def _shares_of_cores(workers: int) -> list[str]:
    """The cores of each worker on this machine. If there are more workers than cores, several share one."""
    mine = usable()
    share = max(1, len(mine) // workers)
    return [",".join(str(mine[(index * share + offset) % len(mine)]) for offset in range(share)) for index in range(workers)]


def _reason(error: BaseException) -> str:
    """Why a connection failed. Other keys show as an error of TLS somewhere in the causes."""
    for cause in chain_of(error):
        if isinstance(cause, ssl.SSLError):
            return f"its keys are not those of this cluster, or it has none ({cause.reason or cause})"
    return f"no scheduler answers there ({error})"
