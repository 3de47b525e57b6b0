"""Pinned lists: reading, writing and comparing them, and the packaged list."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwmatrix.errors import StoreError
from hwmatrix.models.factory import pins
from hwmatrix.models.factory.pins import PinnedList, PinnedType, better, parse, short, worse, written
from hwmatrix.records import Family

ROOT = Path(__file__).parents[4]


def pin(status: str = "pass", *inputs: Any, **changes: Any) -> PinnedType:
    values: dict[str, Any] = {"class": "BertModel", "family": Family.EMBEDDING, "status": status, "inputs": inputs or ()}
    return PinnedType(**(values | changes))


NAMES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,20}", fullmatch=True)
PINS = st.builds(
    pin,
    st.sampled_from(["pass", "build_failed", "no_inputs"]),
    message=st.none() | st.text(min_size=1, max_size=80),
    inputs=st.sets(st.sampled_from(["audio", "image", "text", "video"])).map(lambda kinds: tuple(sorted(kinds))),
)


@given(types=st.dictionaries(NAMES, PINS, max_size=8), version=st.sampled_from(["5.23.0", "5.23", "6.0.0rc1", "5.1.0.dev0"]))
def test_a_written_list_can_be_read(types: dict[str, PinnedType], version: str) -> None:
    made = PinnedList(version=version, types=types)
    assert parse(written(made), where="x") == made
    assert written(parse(written(made), where="x")) == written(made)


def test_a_list_has_one_type_per_line_sorted_by_name() -> None:
    text = written(PinnedList(version="5.23.0", types={"vit": pin("pass", "image"), "on": pin("no_inputs", message='it needs "x":\n- y')}))
    head, *lines = text.partition("version:")[2].splitlines()
    assert head == ' "5.23.0"'
    assert lines == [
        "types:",
        r'  "on": {class: BertModel, family: embedding, status: no_inputs, message: "it needs \"x\":\n- y"}',
        "  vit: {class: BertModel, family: embedding, status: pass, inputs: [image]}",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: '1'\ntypes: {", "x.yaml: not YAML"),
        ("- 1", "x.yaml: "),
        ("", "x.yaml: "),
        ("types: {}", "version"),
        ("version: '5.23.0'\ntypes: {bert: {class: BertModel, family: embedding}}", "at types.bert.status"),
        ("version: '5.23.0'\ntypes: {bert: {class: BertModel, family: words, status: pass}}", "at types.bert.family"),
        ("version: '5.23.0'\ntypes: {bert: {class: a b, family: embedding, status: pass}}", "at types.bert.class"),
        ("version: '5.23.0'\ntypes: {bert: {class: A, family: embedding, status: pass, inputs: [smell]}}", "at types.bert.inputs.0"),
        ("version: '5.23.0'\ntypes: {bert: {class: A, family: embedding, status: pass, more: 1}}", "at types.bert.more"),
        ("version: 5.23\ntypes: {}", "version"),
    ],
)
def test_a_damaged_list_is_refused_with_advice(text: str, said: str) -> None:
    with pytest.raises(StoreError) as caught:
        parse(text, where="x.yaml")
    assert said in str(caught.value)
    assert "nox -s types -- --write" in str(caught.value)


def test_versions_are_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ["5.23.0", "5.9.1", "6.0.0", "6.0.0rc1", "5.23.1"]
    (tmp_path / "pinned").mkdir()
    for name in names:
        (tmp_path / "pinned" / f"{name}.yaml").write_text(written(PinnedList(version=name, types={})), encoding="utf-8")
    monkeypatch.setattr(pins.importlib.resources, "files", lambda _package: tmp_path)
    pins.pinned.cache_clear()
    try:
        assert pins.pinned_versions() == ("5.9.1", "5.23.0", "5.23.1", "6.0.0rc1", "6.0.0")
        assert pins.newest().version == "6.0.0"
        assert pins.pinned("4.0.0") is None
        (tmp_path / "pinned" / "6.0.0.yaml").write_text(written(PinnedList(version="5.0.0", types={})), encoding="utf-8")
        pins.pinned.cache_clear()
        with pytest.raises(StoreError, match=r"6\.0\.0\.yaml: its version is 5\.0\.0"):
            pins.newest()
        for file in (tmp_path / "pinned").iterdir():
            file.unlink()
        with pytest.raises(StoreError, match="no pinned list"):
            pins.newest()
    finally:
        pins.pinned.cache_clear()


@pytest.mark.parametrize(
    ("before", "now", "lost", "won"),
    [
        (pin("pass", "text"), pin("pass", "text"), None, None),
        (pin("pass", "text"), pin("build_failed", message="no"), "it passed, and now has build_failed: no", None),
        (pin("pass", "text"), pin("died"), "it passed, and now has died: no message", None),
        (
            pin("pass", "image", "text"),
            pin("pass", "text"),
            "it got image and text, and no longer gets image",
            None,
        ),
        (pin("pass", "text"), pin("pass", "image", "text"), None, "it gets image now"),
        (pin("pass", "image"), pin("pass", "text"), "it got image, and no longer gets image", "it gets text now"),
        (pin("no_inputs"), pin("pass", "text"), None, "it passes now"),
        (pin("no_inputs"), pin("build_failed"), None, None),
    ],
)
def test_changes_for_the_worse_and_the_better(before: PinnedType, now: PinnedType, lost: str | None, won: str | None) -> None:
    assert (worse(before, now), better(before, now)) == (lost, won)


def test_a_new_passing_type_is_reported() -> None:
    assert better(None, pin("pass", "text")) == "it is new and passes"
    assert better(None, pin("no_inputs")) is None


def test_messages_are_short_and_the_same_in_every_run() -> None:
    message = "Fails in /tmp/tmpab12/model/x.py:\n  at 0x7f00aabbccdd  with " + "x" * 400
    assert short(message).startswith("Fails in ...: at 0x... with xxx")
    assert len(short(message)) == 200
    assert short(message).endswith("...")


def test_the_images_version_of_transformers_has_a_pinned_list() -> None:
    found = re.search(r"^transformers==(\S+)", (ROOT / "images" / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert found[1] in pins.pinned_versions(), "nox -s types -- --write writes the list of this version"
    assert pins.newest().version == found[1]


@pytest.mark.parametrize("version", pins.pinned_versions())
def test_packaged_lists_have_the_format_that_is_written(version: str) -> None:
    found = pins.pinned(version)
    assert found is not None
    file = Path(pins.__file__).parent / "pinned" / f"{version}.yaml"
    assert file.read_text(encoding="utf-8") == written(found)
    assert len(found.types) > 500
    assert all(entry.inputs == tuple(sorted(set(entry.inputs))) for entry in found.types.values())
    assert [name for name, entry in found.types.items() if entry.passes and entry.message] == []
    assert [name for name, entry in found.types.items() if not entry.passes and not entry.message] == []
