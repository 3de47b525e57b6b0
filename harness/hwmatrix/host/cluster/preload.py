"""Prepares a worker. ``dask worker --preload hwmatrix.host.cluster.preload`` imports this module.

https://distributed.dask.org/en/stable/plugins.html describes such modules: ``dask_setup`` is called before the worker registers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from hwmatrix.host.cluster.offers import cores_of, offer

if TYPE_CHECKING:
    from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Announce to the scheduler what can run on this machine, keep to the worker's cores, and leave Ctrl-C to the parent process.

    A terminal sends the signal to all processes of a command. The client of a local cluster needs its workers a little longer: it collects
    what they have finished. The parent of a worker ends it.
    """
    resources = offer(os.environ).resources
    worker.state.total_resources.update(resources)
    worker.state.available_resources.update(resources)
    cores = cores_of(os.environ)
    if cores and sys.platform.startswith("linux"):
        os.sched_setaffinity(0, cores)  # the threads and processes that this one starts inherit it
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: None)  # a handler, since new processes would inherit SIG_IGN
