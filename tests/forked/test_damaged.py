"""Files that are damaged at random are refused, or read as if they were whole. tests/bench/damaged.py does the same for hours."""

from __future__ import annotations

import collections
import shutil
import sys
from typing import TYPE_CHECKING

import factory_plans as make
import pytest
from damages import REFUSED, UNCHANGED, Format, case, formats, in_child

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="each file is read in a forked process")
CASES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(scope="module")
def made(folder: Path) -> dict[str, Format]:
    return formats(folder)


@pytest.mark.parametrize("name", ["shard", "shard with a forged checksum", "sidecar", "plan", "database", "matrix.yaml", "messages"])
def test_a_damaged_file_is_refused_or_whole(made: dict[str, Format], folder: Path, name: str) -> None:
    outcomes = {number: case(made[name], folder, f"{name} {number}") for number in range(CASES)}
    assert {number: outcome for number, outcome in outcomes.items() if outcome not in {REFUSED, UNCHANGED}} == {}
    assert collections.Counter(outcomes.values())[REFUSED] > 0


def test_the_check_notices_a_sample_that_was_changed(made: dict[str, Format], folder: Path) -> None:
    place = folder / "forged"
    shutil.copytree(made["shard"].folder, place)
    make.rewrite(place / made["shard"].files[0], "UPDATE samples SET wall_ns = wall_ns + 1")
    assert "SilentError: samples" in in_child(made["shard"].check, place)
