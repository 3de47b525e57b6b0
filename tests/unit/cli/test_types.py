"""``hwmatrix types``: its table and its JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import fake_types as fake
import jsonschema
import pytest

from hwmatrix.app import types_document
from hwmatrix.cli import main
from hwmatrix.models.factory.pins import PinnedList, PinnedType
from hwmatrix.models.factory.rules import Override
from hwmatrix.records import Family

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PINS = PinnedList(
    version=fake.VERSION,
    types={
        "bert": PinnedType(**{"class": "BertForMaskedLM"}, family=Family.EMBEDDING, status="pass", inputs=("text",)),
        "gpt2": PinnedType(**{"class": "GPT2Model"}, family=Family.TEXT_GENERATION, status="pass", inputs=("text",)),
        "gemma3": PinnedType(
            **{"class": "Gemma3ForConditionalGeneration"}, family=Family.MULTIMODAL, status="no_inputs", message="it wants \x1b[1m<b>"
        ),
        "gone": PinnedType(**{"class": "GoneModel"}, family=Family.VIDEO, status="pass", inputs=("video",)),
    },
)


@pytest.fixture(autouse=True)
def _types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fake.install(monkeypatch, tmp_path)
    overrides = {
        "gemma3": Override(reason="its images are square", config={"image_size": 64}, text_path="it has too many tokens"),
        "timesfm": Override(reason="for this test", impossible="it needs time"),
    }
    fake.override_all(monkeypatch, overrides)
    monkeypatch.setattr(types_document, "overrides", lambda: overrides)
    monkeypatch.setattr(types_document, "pinned", {fake.VERSION: PINS}.get)
    monkeypatch.setattr(types_document, "newest", lambda: PINS)
    monkeypatch.setattr(types_document, "pinned_versions", lambda: (fake.VERSION,))
    monkeypatch.setenv("COLUMNS", "200")
    yield
    fake.override_all(monkeypatch, {})


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main.main(["types", *arguments]) == code
    caught = capsys.readouterr()
    return caught.out if code == 0 else caught.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    found = json.loads(printed(capsys, *arguments, "--format", "json"))
    jsonschema.validate(found, types_document.json_schema())
    return found


def test_one_row_per_type(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    for words in (
        "BertForMaskedLM",
        "MASKED_LM",
        "pass: text",
        "no_inputs: it wants ",
        "override of config: its images are square",
        "text only: it has too many tokens",
        "override: for this test",
        "impossible: it needs time",
        "not in a pinned list",
        "5 types of transformers 9.9.0; by the pinned list, 2 of them passed",
    ):
        assert words in text
    assert "\x1b" not in text


def test_selecting_types_and_a_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert [kind["name"] for kind in document(capsys, "gpt2", "bert")["types"]] == ["bert", "gpt2"]
    assert [kind["name"] for kind in document(capsys, "--family", "text_generation")["types"]] == ["gpt2", "mamba2"]
    assert document(capsys, "bert", "--family", "video")["types"] == []


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "gemma3")
    assert found == {
        "schema": "hwmatrix/types/1",
        "version": fake.VERSION,
        "installed": True,
        "note": None,
        "pinned": fake.VERSION,
        "types": [
            {
                "name": "gemma3",
                "model_class": "Gemma3ForConditionalGeneration",
                "mapping": "IMAGE_TEXT_TO_TEXT",
                "family": "multimodal",
                "status": "no_inputs",
                "inputs": [],
                "message": "it wants \x1b[1m<b>",
                "override": {
                    "reason": "its images are square",
                    "sets": ["config"],
                    "impossible": None,
                    "text_path": "it has too many tokens",
                },
            }
        ],
        "compared_with": None,
        "differences": None,
    }
    unknown = document(capsys, "mamba2")["types"][0]
    assert (unknown["status"], unknown["inputs"], unknown["message"], unknown["override"]) == (None, None, None, None)


@pytest.mark.parametrize("arguments", [("--compare",), ("--compare", "newest"), ("--compare", fake.VERSION)])
def test_changes_since_a_version(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert printed(capsys, *arguments).splitlines() == [
        "new: mamba2 (Mamba2ForCausalLM)",
        "new: timesfm (TimesFmModelForPrediction)",
        "gone: gone (GoneModel) (it passed)",
        "another class: gpt2: GPT2LMHeadModel instead of GPT2Model (it passed)",
        "transformers 9.9.0 and the pinned list of 9.9.0: 2 new, 1 gone, 1 of another class, 0 of another family",
    ]


def test_changes_since_a_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--compare")
    assert found["compared_with"] == fake.VERSION
    assert found["differences"][2:] == [
        {"name": "gone", "what": "gone", "before": "GoneModel", "now": None, "passed": True},
        {"name": "gpt2", "what": "class", "before": "GPT2Model", "now": "GPT2LMHeadModel", "passed": True},
    ]


def test_unreadable_tables_are_compared_with_a_note(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.install(monkeypatch, tmp_path, "MAPPINGS = load()\n")
    monkeypatch.setattr(types_document.listing.__globals__["importlib"].util, "find_spec", lambda _name: object())
    text = printed(capsys, "--compare")
    assert text.startswith("transformers 9.9.0 stores its tables of models in a form that hwmatrix cannot read: the types are those of ")
    assert document(capsys, "--compare")["installed"] is False


def test_a_version_without_a_list(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types_document, "pinned", {}.get)
    assert "5 types of transformers 9.9.0, which has no pinned list (hwmatrix types --compare says what" in printed(capsys)
    assert document(capsys)["pinned"] is None
    assert "new: mamba2" in printed(capsys, "--compare")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("brt", "gpt3"), "error: brt: transformers 9.9.0 has no such type (did you mean 'bert'? allowed: bert, gemma3, "),
        (("--compare", "1.0"), "error: --compare: there is no pinned list of transformers '1.0' (allowed: 9.9.0)"),
        (("--compare", "9.9.1"), "(did you mean '9.9.0'? allowed: 9.9.0)"),
        (("--family", "words"), "words"),
    ],
)
def test_invalid_arguments_are_refused(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    assert said in printed(capsys, *arguments, code=2)
