"""Options that select cells: two of them together select what both do, or are refused."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest

from hwmatrix.errors import ConfigError, NothingSelectedError
from hwmatrix.matrix.load import LoadedMatrix, load
from hwmatrix.matrix.plan import RunFacts, Selection, make_plan
from hwmatrix.records import Dtype, Isolation, Size

if TYPE_CHECKING:
    from pathlib import Path

FACTS = RunFacts(run_id="r1", created_at="", command="", hwmatrix_version="0.1", commit=None, isolation=Isolation.VENV)
TEXT = """\
version: 1
sizes: {tiny: {}, full: {}}
tolerances:
  float32: {relative_error: 1.0e-3, reason: rounding}
  float16: {relative_error: 1.0e-2, reason: more rounding}
targets:
  cpu: {backend: cpu, image: cpu}
  gpu: {backend: openvino, image: openvino, dtypes: [float32, float16], execution: emulated, options: {device: GPU}}
models:
  vit: {family: vision, architecture: vit, class: ViTModel}
  bert: {family: embedding, architecture: bert, class: BertModel}
  deberta: {family: embedding, architecture: bert, class: BertModel}
suites:
  default: {models: all}
  smoke: {models: [bert, vit]}
  speed: {size: full, models: [bert]}
"""

OPTIONS: dict[str, dict[str, Any]] = {
    "--all": {"everything": True},
    "--suite default": {"suite": "default"},
    "--suite smoke": {"suite": "smoke"},
    "--suite speed": {"suite": "speed"},
    "--models bert": {"models": ("bert",)},
    "--models vit deberta": {"models": ("vit", "deberta")},
    "--architectures bert": {"architectures": ("bert",)},
    "--targets gpu": {"targets": ("gpu",)},
    "--dtypes float16": {"dtypes": (Dtype.FLOAT16,)},
    "--size full": {"size": Size.FULL},
    "--size tiny": {"size": Size.TINY},
}


MINE = {"extra": (make.model_plan("mine", size=Size.FULL, matrix_line=None),)}
PAIRS = [(one, other) for one, other in itertools.combinations(OPTIONS, 2) if one.split()[0] != other.split()[0]]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> LoadedMatrix:
    path: Path = tmp_path_factory.mktemp("matrix") / "matrix.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return load(path)


def selected(matrix: LoadedMatrix, **options: Any) -> set[tuple[str, str, str]]:
    """The cells of a selection as model, target and precision: the size follows from the suite."""
    return {(cell.model, cell.target, cell.settings.dtype) for cell in make_plan(matrix, Selection(**options), FACTS).cells}


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_options_select_what_both_select(matrix: LoadedMatrix, one: str, other: str) -> None:
    try:
        together = selected(matrix, **OPTIONS[one], **OPTIONS[other])
    except (ConfigError, NothingSelectedError):
        return
    assert together == selected(matrix, **OPTIONS[one]) & selected(matrix, **OPTIONS[other])


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS["--all"] | OPTIONS["--models bert"],
        OPTIONS["--all"] | MINE,
        OPTIONS["--all"] | OPTIONS["--suite smoke"],
        OPTIONS["--suite smoke"] | MINE,
        OPTIONS["--suite speed"] | OPTIONS["--models vit deberta"],
    ],
)
def test_contradictions_are_usage_errors(matrix: LoadedMatrix, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        selected(matrix, **options)
