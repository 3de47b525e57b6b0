"""Many processes share one cache of classifications: none fails, and what was kept can be read."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

from cache_workers import ROUNDS, answer, work

from hwmatrix.classifier.cache import ClassificationCache, Question

if TYPE_CHECKING:
    from pathlib import Path

PROCESSES = 4


def run(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(path, number)) for number in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES


def test_processes_that_share_a_new_cache(tmp_path: Path) -> None:
    path = tmp_path / "models.duckdb"
    run(path)
    cache = ClassificationCache(path)
    names = [f"shared-{each}" for each in range(ROUNDS)] + [f"own-{n}-{each}" for n in range(PROCESSES) for each in range(ROUNDS)]
    kept = [name for name in names if cache.get(Question(model_name=name)) == answer(name)]
    assert len(kept) > len(names) // 2  # one that could not be written in time is only slower the next time
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["models.duckdb", "models.duckdb.lock"]


def test_processes_that_find_a_broken_cache(tmp_path: Path) -> None:
    path = tmp_path / "models.duckdb"
    path.write_bytes(b"broken" * 10_000)
    run(path)
    assert path.with_name("models.duckdb.broken").read_bytes() == b"broken" * 10_000
    assert ClassificationCache(path).get(Question(model_name="shared-0")) in {None, answer("shared-0")}
