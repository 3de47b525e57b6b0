"""What strangers wrote (checkpoints, messages, databases) stays text: in the YAML and Python that commands write, and on the terminal."""

from __future__ import annotations

import ast
import json
import unicodedata
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import hwmatrix.cli
from hwmatrix.cli.terminal import echo, safe_text
from hwmatrix.errors import FactoryError
from hwmatrix.generate.literals import member
from hwmatrix.host.starter import TARGETS, starter_matrix
from hwmatrix.matrix.load import load
from hwmatrix.models.checkpoint import inspect_config
from hwmatrix.models.factory.make import FACTORY
from hwmatrix.records import Family, ModelPlan, Size

SHIPPED = load(Path(__file__).parents[3] / "matrix.yaml").spec
KEYS = ["version", "sizes", "tolerances", "targets", "models", "suites"]
TEXT = st.text() | st.sampled_from(
    ["a\nimages: {base: evil}", "x: y", "# no", "'", '"', "{a: b}", "no", "1", "*a", "&a", "!!python/object:x"]
)


PLANS = st.builds(
    ModelPlan,
    name=TEXT,
    size=st.just(Size.FULL),
    family=st.sampled_from(Family),
    architecture=TEXT,
    model_class=TEXT,
    hub_id=st.none() | TEXT,
    weights=st.just(FACTORY) | TEXT,
    sequence_length=st.integers(1, 999),
)


@settings(deadline=None)
@given(plans=st.lists(PLANS, min_size=1, max_size=3))
def test_every_text_of_a_starter_file_is_read_as_it_is(plans: list[ModelPlan]) -> None:
    document = yaml.safe_load(starter_matrix(plans, TARGETS, SHIPPED))
    assert list(document) == KEYS
    for plan, entry in zip(plans, document["models"].values(), strict=True):
        assert (entry["family"], entry["architecture"], entry["class"]) == (plan.family, plan.architecture, plan.model_class)
        assert (entry.get("hub_id"), entry["weights"]) == (plan.hub_id, plan.weights)
        assert entry.keys() <= {"family", "architecture", "class", "hub_id", "weights", "tiny", "full"}


@settings(deadline=None)
@given(name=TEXT, module=st.sampled_from(["transformers", "diffusers"]))
def test_a_class_in_generated_code_is_only_ever_a_member(name: str, module: str) -> None:
    node = ast.parse(member(name, module), mode="eval").body
    if isinstance(node, ast.Attribute):
        assert (ast.unparse(node.value), node.attr) == (module, unicodedata.normalize("NFKC", name))
    else:
        assert isinstance(node, ast.Call)
        assert [ast.unparse(node.func), ast.unparse(node.args[0]), ast.literal_eval(node.args[1])] == ["getattr", module, name]


@pytest.mark.parametrize("field", ["model_type", "architectures"])
@pytest.mark.parametrize("text", ["bert\nimages: {}", "a b", "", "\x1b[2J", "a(b)"])
def test_a_checkpoint_names_its_type_and_class_as_identifiers(tmp_path: Path, field: str, text: str) -> None:
    config = {"model_type": "bert", "architectures": ["BertModel"]} | {field: [text] if field == "architectures" else text}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(FactoryError):
        inspect_config(tmp_path)


@settings(deadline=None)
@given(message=st.text())
def test_no_control_character_is_printed(message: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        printed: list[str] = []
        patched.setattr("hwmatrix.cli.terminal.typer.echo", lambda text, **_: printed.append(text))
        echo(message)
    for text in (*printed, safe_text(message).plain):
        assert not {character for character in text if unicodedata.category(character) == "Cc"} - {"\n", "\t"}


def test_commands_print_only_so() -> None:
    """Everything that a command prints goes through these two functions."""
    around = []
    for path in Path(hwmatrix.cli.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in {"typer.echo", "Text", "print"} and path.name != "terminal.py":
                around.append(f"{path.name}:{node.lineno}")  # type: ignore[attr-defined]
    assert around == []
