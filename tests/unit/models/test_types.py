"""The types of suite ``all``, from the installed transformers, whatever the format of its tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import fake_types as fake
import pytest

from hwmatrix.models import types
from hwmatrix.models.factory import pins
from hwmatrix.models.factory.pins import PinnedList, PinnedType
from hwmatrix.models.factory.rules import Override
from hwmatrix.models.types import compare, is_type, listing, model_types
from hwmatrix.records import Family

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BEFORE = PinnedList(
    version="9.8.0",
    types={
        "bert": PinnedType(**{"class": "BertForMaskedLM"}, family=Family.EMBEDDING, status="pass", inputs=("text",)),
        "gpt2": PinnedType(**{"class": "GPT2Model"}, family=Family.TEXT_GENERATION, status="pass", inputs=("text",)),
        "gemma3": PinnedType(**{"class": "Gemma3ForConditionalGeneration"}, family=Family.VISION, status="no_inputs"),
        "gone": PinnedType(**{"class": "GoneModel"}, family=Family.VIDEO, status="pass", inputs=("video",)),
        "lost": PinnedType(**{"class": "LostModel"}, family=Family.VIDEO, status="build_failed"),
    },
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    types._types_of.cache_clear()


def test_types_have_the_class_of_the_first_mapping_of_their_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake.install(monkeypatch, tmp_path)
    found = listing()
    assert (found.version, found.installed, found.note) == (fake.VERSION, True, "")
    assert [(kind.name, kind.model_class, kind.mapping, kind.family) for kind in found.types] == [
        ("bert", "BertForMaskedLM", "MASKED_LM", Family.EMBEDDING),
        ("gemma3", "Gemma3ForConditionalGeneration", "IMAGE_TEXT_TO_TEXT", Family.MULTIMODAL),
        ("gpt2", "GPT2LMHeadModel", "CAUSAL_LM", Family.TEXT_GENERATION),
        ("mamba2", "Mamba2ForCausalLM", "CAUSAL_LM", Family.TEXT_GENERATION),
        ("timesfm", "TimesFmModelForPrediction", "TIME_SERIES_PREDICTION", Family.OTHER),
    ]
    assert model_types() == found.types
    assert (is_type("bert"), is_type("type:bert"), is_type("berd")) == (True, True, False)


@pytest.mark.parametrize(
    ("tables", "name", "family", "model_class"),
    [
        ({"IMAGE_TEXT_TO_TEXT": {"quux": "QuuxForConditionalGeneration"}}, "quux", Family.MULTIMODAL, "QuuxForConditionalGeneration"),
        ({"CTC": {"quux": "QuuxForCTC"}, "MODEL": {"quux": "QuuxModel"}}, "quux", Family.AUDIO, "QuuxForCTC"),
        ({"CAUSAL_LM": {"quux": "QuuxForCausalLM"}, "MODEL": {"quux": "QuuxModel"}}, "quux", Family.TEXT_GENERATION, "QuuxForCausalLM"),
        ({"IMAGE_CLASSIFICATION": {"quux": ("QuuxForImageClassification", "QuuxB")}}, "quux", Family.VISION, "QuuxForImageClassification"),
        ({"MODEL": {"quux_vision_model": "QuuxVisionModel"}}, "quux_vision_model", Family.VISION, "QuuxVisionModel"),
        ({"MODEL": {"quux": "QuuxModel"}}, "quux", Family.OTHER, "QuuxModel"),
        ({"NEVER_HEARD_OF": {"quux": "QuuxForSomething"}}, "quux", Family.OTHER, "QuuxForSomething"),
    ],
)
def test_a_type_missing_in_the_taxonomy_is_classified_like_any_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, tables: fake.Tables, name: str, family: Family, model_class: str
) -> None:
    fake.install(monkeypatch, tmp_path, fake.text_of(tables))
    (kind,) = listing().types
    assert (kind.name, kind.family, kind.model_class) == (name, family, model_class)


def test_an_override_names_another_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake.install(monkeypatch, tmp_path)
    fake.override_all(monkeypatch, {"bert": Override(reason="for this test", model_class="BertModel")})
    assert listing().by_name["bert"].model_class == "BertModel"


def test_without_transformers_the_newest_pinned_list_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    found, newest = listing(), pins.newest()
    assert (found.version, found.installed) == (newest.version, False)
    assert found.note == f"transformers is not installed here: the types are those of {newest.version}"
    assert {kind.name: (kind.model_class, kind.family, kind.mapping) for kind in found.types} == {
        name: (entry.model_class, entry.family, None) for name, entry in newest.types.items()
    }


@pytest.mark.parametrize(
    "text",
    ["", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = tables('causal')\n", "MODEL_MAPPING_NAMES = {'bert': 'BertModel'}\n", "def broken(:\n", "\0"],
    ids=["empty", "made by a function", "another form", "no Python", "no text"],
)
def test_unreadable_tables_give_a_note_and_the_pinned_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    fake.install(monkeypatch, tmp_path, text)
    monkeypatch.setattr(types.importlib.util, "find_spec", lambda _name: object())
    found = listing()
    assert (found.version, found.installed) == (pins.newest().version, False)
    assert found.note.startswith(
        "transformers 9.9.0 stores its tables of models in a form that hwmatrix cannot read: the types are those of "
    )


def test_missing_tables_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = fake.text_of(fake.TABLES).replace("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_TEXT_LM_MAPPING_NAMES")
    fake.install(monkeypatch, tmp_path, text)
    found = listing()
    assert found.note.startswith("transformers 9.9.0 has no tables CAUSAL_LM: their types are missing, or are built by another class")
    assert found.installed
    assert found.by_name["mamba2"].model_class == "Mamba2Model"


def test_an_empty_entry_does_not_count_as_a_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake.install(monkeypatch, tmp_path, fake.text_of({"MODEL": {"bert": ()}, "MASKED_LM": {"bert": "BertForMaskedLM"}, "CTC": {"x": ()}}))
    assert [(kind.name, kind.model_class) for kind in listing().types] == [("bert", "BertForMaskedLM")]


def test_changes_since_a_pinned_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake.install(monkeypatch, tmp_path)
    assert [str(difference) for difference in compare(BEFORE, listing().types)] == [
        "new: mamba2 (Mamba2ForCausalLM)",
        "new: timesfm (TimesFmModelForPrediction)",
        "gone: gone (GoneModel) (it passed)",
        "gone: lost (LostModel)",
        "another family: gemma3: multimodal instead of vision",
        "another class: gpt2: GPT2LMHeadModel instead of GPT2Model (it passed)",
    ]


def test_no_changes_since_the_list_of_the_same_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert compare(pins.newest(), listing().types) == ()
