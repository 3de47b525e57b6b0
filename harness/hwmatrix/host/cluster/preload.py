"""Announces to a scheduler what this worker can run. ``dask worker --preload hwmatrix.host.cluster.preload`` imports it.

https://distributed.dask.org/en/stable/plugins.html describes such modules: ``dask_setup`` is called before the worker registers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hwmatrix.host.cluster.offers import offer

if TYPE_CHECKING:
    from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Add this machine's resources to those of the worker."""
    resources = offer(os.environ).resources
    worker.state.total_resources.update(resources)
    worker.state.available_resources.update(resources)
