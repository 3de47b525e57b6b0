"""How well models are classified: the numbers of docs/classification.md, measured again on the installed transformers."""

from __future__ import annotations

import dataclasses
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.models import mappings
from hwmatrix.models.classify import classify
from hwmatrix.models.families import family_of
from hwmatrix.models.taxonomy import taxonomy

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "classification.md"
KINDS = [field.name for field in dataclasses.fields(taxonomy().confidence)]
GOALS = {"configuration": 0.95, "architecture": 0.95, "class": 0.95, "name": 0.8, "made-up name": 0.8}
# What the rules give without an entry for the type, less a little: a change for the worse must not go unnoticed.
HELD_OUT = {"configuration": 0.8, "architecture": 0.65, "class": 0.8, "name": 0.7}
NEWER = {"configuration": 0.62, "architecture": 0.44, "class": 0.62, "name": 0.5}
MARGIN_OF_KINDS, MARGIN_OF_RANGES, ENOUGH = 0.03, 0.05, 100


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The module that measures, from where it stands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tests" / "bench")
        yield importlib.import_module("classification")


@pytest.fixture(scope="module")
def results(bench: Any) -> Any:
    return bench.measure()


def wrong(answers: list[Any]) -> list[str]:
    return [f"{each.question}: {each.said}, not {each.true}" for each in answers if not each.right]


def test_the_truth_is_about_all_model_types(bench: Any) -> None:
    families = bench.truth.families()
    assert len(families) > 600
    assert len(bench.truth.single(families)) > 400
    assert len(bench.truth.names()) > 450
    unknown = bench.truth.listed().keys() - bench.truth.FAMILY.keys() - bench.truth.OUTSIDE
    heads = "MULTIPLE_CHOICE QUESTION_ANSWERING SEQUENCE_CLASSIFICATION TABLE_QUESTION_ANSWERING TOKEN_CLASSIFICATION"
    assert unknown == {"MODEL", "PRETRAINING", *heads.split()}


@pytest.mark.parametrize("what", GOALS)
def test_goals(bench: Any, results: Any, what: str) -> None:
    assert bench.score(results.whole[what]).accuracy >= GOALS[what], wrong(results.whole[what])


@pytest.mark.parametrize("what", HELD_OUT)
def test_types_that_the_table_lacks(bench: Any, results: Any, what: str) -> None:
    assert bench.score(results.held_out[what]).accuracy >= HELD_OUT[what]
    assert bench.score(results.newer[what]).accuracy >= NEWER[what]
    assert bench.score(results.newer[what]).precision >= 0.7  # silence is better than an error


@pytest.mark.parametrize("kind", KINDS)
def test_the_stated_confidence_is_the_measured_one(bench: Any, results: Any, kind: str) -> None:
    counted, stated = bench.score(results.kinds[kind]), getattr(taxonomy().confidence, kind)
    assert counted.answered >= ENOUGH
    assert stated <= 0.98
    assert abs(counted.precision - stated) <= MARGIN_OF_KINDS


def test_equals_are_believed_in_the_order_of_the_table() -> None:
    stated = [getattr(taxonomy().confidence, kind) for kind in KINDS]
    assert stated == sorted(stated, reverse=True)


@pytest.mark.parametrize("which", ["held_out", "newer", "alone", "whole"])
def test_calibration(bench: Any, results: Any, which: str) -> None:
    """In every range of stated confidence. With the whole table, in which every type stands, it may be right more often than stated."""
    ranges = [each for each in bench.reliability(getattr(results, which)) if each[2].answered >= ENOUGH]
    assert len(ranges) >= 3
    for span, stated, counted in ranges:
        lower = MARGIN_OF_RANGES if which in {"held_out", "whole"} else 3 * MARGIN_OF_RANGES
        assert counted.precision >= stated - lower, (span, counted)
        if which == "held_out":
            assert counted.precision <= stated + MARGIN_OF_RANGES, (span, counted)


def test_the_table_has_every_type(bench: Any) -> None:
    assert bench.missing() == {}, "put them into taxonomy.yaml: see docs/classification.md"


def test_types_of_several_families_are_put_into_one_of_them(bench: Any) -> None:
    counted = bench.several()
    assert min(each.asked for each in counted) > 0
    assert [each for each in counted if each.accuracy < 0.9] == []


def test_the_answer_is_the_same_without_transformers(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [pair for pair in bench.truth.classes() if pair[0] not in taxonomy().outside]
    assert len(pairs) > 1500

    def said() -> list[Any]:
        return [(family_of(*pair), classify("x", architecture=pair[0]), classify("x", model_class=pair[1])) for pair in pairs]

    before = said()
    monkeypatch.setattr(mappings, "installed", dict)
    changed = [pair for pair, one, other in zip(pairs, before, said(), strict=True) if one[:2] != other[:2]]
    assert changed == []


def test_what_the_page_says(bench: Any, results: Any) -> None:
    """Everything measured but the date."""
    page = PAGE.read_text(encoding="utf-8")
    written = page.partition(bench.BEGIN)[2].partition(bench.END)[0].strip()
    dated = re.compile(r"^Measured on \S+ ")
    assert dated.sub("", written) == dated.sub("", bench.render(results)), "run tests/bench/classification.py --write"


def test_no_framework_is_imported() -> None:
    program = (
        "import sys; from hwmatrix import classify_model; "
        "classify_model('xyzzy', 'BrandNewForConditionalGeneration', ['fill-mask'], ['generate']); classify_model('bert'); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
