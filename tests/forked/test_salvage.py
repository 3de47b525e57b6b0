"""A partial shard that a runner still writes is not sealed: its engine may be gone while its container goes on."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import factory_plans as make
import pytest

from hwmatrix.errors import StoreError
from hwmatrix.store.shard import ShardWriter, salvage

if TYPE_CHECKING:
    from pathlib import Path


def test_a_shard_that_is_still_written_is_not_sealed_and_the_error_says_what_to_wait_for(tmp_path: Path) -> None:
    plan = make.plan()
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        with ShardWriter(tmp_path, plan, make.identity()) as shard:
            shard.add_cell(make.result(plan.cells[0]), command="hwmatrix matrix")
            os.write(writing, b"1")
            signal.pause()
        os._exit(0)
    try:
        os.read(reading, 1)
        with pytest.raises(StoreError, match="cannot be sealed now") as caught:
            salvage(tmp_path)
        assert "A runner still writes to it" in str(caught.value)
        assert "--resume" in str(caught.value)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
    (sealed,) = salvage(tmp_path)
    assert sealed.name == "cpu-0123456789ab.duckdb"
