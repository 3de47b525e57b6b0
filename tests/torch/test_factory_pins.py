"""What passed when the pinned list was written still passes: every day another twentieth of the types is really built and run.

HWMATRIX_PINS_PART=7/20 repeats the part of a failure, 0/1 builds all (which takes minutes).
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import pytest
from type_parts import requested_part

from hwmatrix.models.factory.pins import PinnedList, PinnedType, parse, written
from hwmatrix.models.factory.rules import overrides
from hwmatrix.models.types import installed_version, pinned
from hwmatrix.records import Family

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[1] / "bench" / "factory.py"
VARIABLE = "HWMATRIX_PINS_PART"
IMPOSSIBLE = next(name for name, entry in overrides().items() if entry.impossible is not None)
"""A type that cannot be built here, and whose override says why."""


def built(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The developers' own command, in a process of its own: this one has computed, and what is forked from it could hang."""
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.long
def test_a_part_of_what_passed_still_passes(capsys: pytest.CaptureFixture[str]) -> None:
    part, parts = requested_part(os.environ, VARIABLE, day=dt.datetime.now(dt.UTC).date().toordinal())
    with capsys.disabled():
        sys.stdout.write(f"\npinned types, part {part} of {parts}; {VARIABLE}={part}/{parts} repeats it\n")
    done = built("--part", f"{part}/{parts}")
    lost = [line for line in done.stdout.splitlines() if line.startswith("WORSE")]
    assert done.returncode == 0, "\n".join([f"{VARIABLE}={part}/{parts}", *lost, done.stderr[-3000:]])
    chosen = done.stdout.splitlines()[0].partition(": ")[2].split()
    assert len(chosen) > 400 / parts
    assert all(f"ok    {name} (" in done.stdout for name in chosen)


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    """A list by which bert was given an image, and a type passed that cannot be built."""
    version = installed_version()
    real = pinned(str(version))
    assert real is not None, f"transformers {version} has no pinned list: nox -s types -- --write"
    bert = PinnedType(**{"class": "BertForMaskedLM"}, family=Family.EMBEDDING, status="pass", inputs=("image", "text"))
    impossible = PinnedType(**{"class": "SomeModel"}, family=Family.OTHER, status="pass", inputs=("text",))
    file = tmp_path / "pins.yaml"
    file.write_text(written(PinnedList(version=real.version, types={"bert": bert, IMPOSSIBLE: impossible})), encoding="utf-8")
    return file


def test_what_is_lost_is_told_by_name_with_its_error(pins: Path) -> None:
    done = built("bert", IMPOSSIBLE, "mamba2", "--against", str(pins))
    assert done.returncode == 1, done.stderr
    of = f"in the pinned list of {installed_version()}"
    assert f"WORSE than {of}: bert: it got image and text, and no longer gets image" in done.stdout
    assert f"WORSE than {of}: {IMPOSSIBLE}: it passed, and now has unbuildable: " in done.stdout
    assert f"better than {of}: mamba2: it is new and passes" in done.stdout


@pytest.mark.long
def test_a_list_is_written_of_what_was_built_and_keeps_the_rest(pins: Path) -> None:
    done = built("bert", "mamba2", "--against", str(pins), "--write")
    assert done.returncode == 0, done.stderr
    made = parse(pins.read_text(encoding="utf-8"), where="pins.yaml")
    assert sorted(made.types) == sorted(["bert", IMPOSSIBLE, "mamba2"])
    assert made.types["bert"].inputs == ("text",)
    assert made.types[IMPOSSIBLE].status == "pass"
    assert pins.read_text(encoding="utf-8") == written(made)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("berd",), "transformers has no such type: berd"),
        (("--part", "20/20"), "give a part and the number of parts"),
        (("--part", "x"), "give a part and the number of parts"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_built(arguments: tuple[str, ...], said: str) -> None:
    done = built(*arguments)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
