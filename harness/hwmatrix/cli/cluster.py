"""``hwmatrix cluster``: the keys, the scheduler and the workers of a cluster, and what its members offer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Annotated, Final

import platformdirs
import typer

from hwmatrix.cli.options import Format, FormatOption
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import ConfigError, Problem

KEYS: Final = platformdirs.user_config_path("hwmatrix", appauthor=False) / "cluster"
"""Where the keys of a cluster are, unless another folder is named."""

Keys = Annotated[Path, typer.Option("--keys", help="The folder with the cluster's keys.", metavar="DIR")]
Scheduler = Annotated[str, typer.Argument(help="The scheduler's address, such as tls://10.0.0.5:8786.", metavar="ADDRESS")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    cluster = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Run the matrix on several machines: keys, scheduler, workers, members."
    )
    cluster.command("keys")(keys_command)
    cluster.command("scheduler")(scheduler_command)
    cluster.command("worker")(worker_command)
    cluster.command("members")(members_command)
    app.add_typer(cluster, name="cluster")


def needed() -> None:
    """Check that Dask is installed.

    Raises:
        ConfigError: it is not.
    """
    try:
        import cryptography  # noqa: F401 - is it there?
        import distributed  # noqa: F401 - is it there?
    except ImportError as error:
        what = f"{error.name} is not installed"
        raise ConfigError([Problem(where="cluster", what=what, hint="pip install 'hwmatrix[host,cluster]'")]) from error


def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where to write them.", metavar="DIR")] = KEYS,
    days: Annotated[int, typer.Option("--days", min=1, help="For how many days they are valid.", metavar="N")] = 365,
) -> None:
    """Make the keys of a cluster. Copy the folder to every machine of it: who has it can run code on all of them.

    For example:

        hwmatrix cluster keys

        scp -r ~/.config/hwmatrix/cluster box2:.config/hwmatrix/
    """
    needed()
    from hwmatrix.host.cluster.keys import make_keys

    make_keys(folder, days=days)
    echo(f"wrote the keys of a cluster into {folder}; copy this folder to every machine of it")


def scheduler_command(
    *,
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on. [default: all]", metavar="HOST")] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port to listen on.", metavar="PORT")] = 8786,
    keys: Keys = KEYS,
) -> None:
    """Run a scheduler, until it is stopped.

    For example:

        hwmatrix cluster scheduler --port 8786
    """
    needed()
    from hwmatrix.host.cluster.connection import serve_scheduler

    asyncio.run(serve_scheduler(host, port, keys))


def worker_command(
    scheduler: Scheduler,
    *,
    keys: Keys = KEYS,
    name: Annotated[str | None, typer.Option("--name", help="Its name in messages. [default: its address]", metavar="NAME")] = None,
    cores: Annotated[
        str | None, typer.Option("--cores", help="The cores that it may use, such as 0,1. [default: all]", metavar="N,N,...")
    ] = None,
    memory_mb: Annotated[
        int | None, typer.Option("--memory-mb", min=1, help="The memory that it may use, in MiB. [default: all]", metavar="MB")
    ] = None,
) -> None:
    """Run a worker on this machine, until it or the scheduler is stopped. It announces which targets can run here.

    For example:

        hwmatrix cluster worker tls://10.0.0.5:8786
    """
    needed()
    if cores is not None and not all(core.isdecimal() for core in cores.split(",")):
        raise ConfigError([Problem(where="--cores", what=f"{cores!r} is not a list of cores", hint="write --cores 0,1")])
    from hwmatrix.host.cluster.connection import connected, serve_worker

    with connected(scheduler, keys):  # says at once what is wrong with the address or the keys
        pass
    asyncio.run(serve_worker(scheduler, keys, name=name, cores=cores, memory_mb=memory_mb))


def members_command(scheduler: Scheduler, *, keys: Keys = KEYS, output: FormatOption = Format.TABLE) -> None:
    """List the workers of a cluster: what each can run, its cores and memory, and why one gets no work.

    For example:

        hwmatrix cluster members tls://10.0.0.5:8786
    """
    needed()
    from hwmatrix.app.cluster import members_of
    from hwmatrix.host.cluster.connection import connected

    with connected(scheduler, keys) as client:
        members = members_of(client)
    if output is Format.JSON:
        offers = {address: {"name": members.names.get(address), **dataclasses.asdict(offer)} for address, offer in members.offers.items()}
        echo(json.dumps({"members": offers, "refused": members.refused}, indent=1))
        return
    for address, offer in members.offers.items():
        how = "virtual environments" if offer.no_engine else "containers"
        name = members.names.get(address, address)
        where = address if name == address else f"{name} ({address})"
        echo(f"{offer.host}  {where}  {offer.cores} cores, {offer.memory_mb / 1024:.0f} GiB, {how}")
        echo(f"  {', '.join(f'{target} ({name})' if name else target for target, name in offer.devices.items())}")
    for address, reason in members.refused.items():
        echo(f"gets no work: {address}: {reason}")
