"""A fake transformers with the model tables that a test writes. Nothing of the real one is imported or read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwmatrix.models import mappings, types
from hwmatrix.models.factory import rules as factory_rules
from hwmatrix.models.factory.rules import Override, rules

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

VERSION = "9.9.0"
Tables = dict[str, dict[str, str | tuple[str, ...]]]
"""The types of each mapping by its short name (``CAUSAL_LM``), each with its class or classes."""
TABLES: Tables = {
    "MODEL": {"bert": "BertModel", "gpt2": "GPT2Model", "gemma3": "Gemma3Model", "mamba2": "Mamba2Model", "timesfm": "TimesFmModel"},
    "MASKED_LM": {"bert": "BertForMaskedLM"},
    "CAUSAL_LM": {"gpt2": "GPT2LMHeadModel", "gemma3": "Gemma3ForCausalLM", "mamba2": "Mamba2ForCausalLM"},
    "IMAGE_TEXT_TO_TEXT": {"gemma3": "Gemma3ForConditionalGeneration"},
    "TIME_SERIES_PREDICTION": {"timesfm": "TimesFmModelForPrediction"},
}
"""Some types that hwmatrix knows, as the real transformers lists them."""


def text_of(tables: Tables, *, complete: bool = True) -> str:
    """The text of a modeling_auto.py. ``complete``: with all tables that the rules read, empty unless given."""
    names = {name for listed in rules().classes.values() for name in listed} if complete else set()
    lines = ["from collections import OrderedDict", "", ""]
    for name in sorted(names | tables.keys()):
        entries = ", ".join(f"({kind!r}, {classes!r})" for kind, classes in tables.get(name, {}).items())
        lines.append(f"{'MODEL' if name == 'MODEL' else f'MODEL_FOR_{name}'}_MAPPING_NAMES = OrderedDict([{entries}])")
    return "\n".join([*lines, ""])


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str | None = None, version: str = VERSION) -> None:
    """Simulate an installed transformers with this modeling_auto.py and without overrides."""
    file = folder / f"modeling_auto_{version}.py"
    file.write_text(text_of(TABLES) if text is None else text, encoding="utf-8")
    monkeypatch.setattr(mappings, "installed", lambda: mappings.read(file))
    monkeypatch.setattr(types, "installed_version", lambda: version)
    override_all(monkeypatch, {})


def override_all(monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Override]) -> None:
    """Replace all overrides by these."""
    types._types_of.cache_clear()
    monkeypatch.setattr(factory_rules, "overrides", lambda: overrides)
