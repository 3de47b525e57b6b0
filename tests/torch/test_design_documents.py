"""The Python examples of the design documents, executed as they stand but for the modules that they import from.

The documents are no part of this repository. They are looked for beside it, or in the folder that HWMATRIX_DESIGN_DOCUMENTS names.
Checkpoints that an example loads from the hub are small ones here, in local folders of those names.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import hwmatrix
from hwmatrix.records import Backend, Family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
NAMED = os.environ.get("HWMATRIX_DESIGN_DOCUMENTS")
FOLDER = Path(NAMED) if NAMED else ROOT / ".." / "shared" / "seeds"
DOCUMENTS = sorted(path for path in FOLDER.glob("*") if path.suffix in {".md", ".txt"})
PUBLIC = set(hwmatrix.__all__)
HARDWARE = {backend.value for backend in Backend}
FAMILIES = {family.value for family in Family}
NEEDS = {"min_memory_mb", "recommended_memory_mb", "cpu_cores", "disk_space_mb", "batch_size"}
EXAMPLES = 17

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not NAMED and not FOLDER.is_dir(),
        reason="the design documents do not lie beside this clone: name their folder in HWMATRIX_DESIGN_DOCUMENTS",
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ran:
    """An example that was executed: its code, the names after it, those that it set, and what it printed."""

    code: str
    names: dict[str, Any]
    new: dict[str, Any]
    printed: str

    def dicts(self, key: str) -> list[dict[str, Any]]:
        """The answers that it kept which have this key."""
        return [value for value in self.new.values() if isinstance(value, dict) and key in value]

    def one(self, key: str) -> dict[str, Any]:
        (answer,) = self.dicts(key)
        return answer


def examples(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def with_our_imports(code: str) -> str:
    """The same code, importing from hwmatrix what it imports from modules that are none of this installation."""
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} <= PUBLIC:
            assert node.lineno == node.end_lineno
            lines[node.lineno - 1] = re.sub(r"from \S+ import", "from hwmatrix import", lines[node.lineno - 1])
    return "\n".join(lines)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, with one target, and templates as a program of one's own would have them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("RESOURCE_POOL_LOW_MEMORY", "0")  # an example may set it; afterwards it is as it was
    ours = yaml.safe_load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
    small = {"version": 1, "models": ours["models"], "targets": {"cpu": ours["targets"]["cpu"]}}
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(small), encoding="utf-8")
    hwmatrix.write_templates(tmp_path / "templates")
    pool = hwmatrix.get_global_resource_pool()
    pool.clear()
    yield tmp_path
    pool.clear()


def checkpoint(name: str) -> None:
    """A small checkpoint in a folder called like the hub's."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=64, max_position_embeddings=32, **sizes)).save_pretrained(name)


def run(document: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Ran]:
    """Every example of a document, in order; each knows the names of those before it."""
    from transformers import AutoModel

    for name in set(re.findall(r'from_pretrained\("([^"]+)"\)', "".join(examples(document)))):
        checkpoint(name)
    names: dict[str, Any] = {name: getattr(hwmatrix, name) for name in PUBLIC} | {"AutoModel": AutoModel}
    for number, example in enumerate(examples(document), 1):
        before = dict(names)
        capsys.readouterr()
        exec(compile(with_our_imports(example), f"{document.name}, example {number}", "exec"), names)  # noqa: S102 - the point of it
        new = {name: value for name, value in names.items() if name not in before or before[name] is not value}
        yield Ran(code=example, names=names, new=new, printed=capsys.readouterr().out)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def check_classifications(ran: Ran) -> None:
    """What a model is, where it works, and what it needs, with every documented key."""
    answers = ran.dicts("hardware_profile")
    assert answers or ran.names.get("classification")
    for answer in answers:
        assert answer["family"] in FAMILIES | {None}
        assert 0 <= answer["confidence"] <= 1
        assert answer["recommended_hardware"] in HARDWARE
        assert answer["recommended_template"] == (f"hf_{answer['family']}_template.py" if answer["family"] else None)
        assert set(answer["hardware_profile"]) == HARDWARE
        assert re.fullmatch(r"cpu|mps|cuda(:\d+)?", answer["torch_device"])
        assert set(answer["resource_requirements"]) >= NEEDS
        if answer["family"]:
            assert all(is_number(answer["resource_requirements"][key]) for key in NEEDS)
    if ran.printed and ".classify_model(" in ran.code:
        answer = answers[-1]
        needs = [str(answer["resource_requirements"][key]) for key in NEEDS]
        assert answer["recommended_hardware"] in ran.printed
        assert all(number in ran.printed for number in needs)


def check_printed_classification(ran: Ran) -> None:
    answer = ran.dicts("hardware_profile")[-1]
    if ran.printed.count("\n") > 1:
        for key in ("family", "recommended_hardware", "recommended_template", "resource_requirements"):
            assert str(answer[key]) in ran.printed
    assert answer["family"] == "embedding"


def check_override(ran: Ran) -> None:
    answer = ran.one("hardware_profile")
    (given,) = [value for value in ran.new.values() if isinstance(value, dict) and set(value) < HARDWARE]
    assert {name: answer["hardware_profile"][name]["compatible"] for name in given} == {n: e["compatible"] for n, e in given.items()}
    peaks = {name: entry["memory_usage"]["peak"] for name, entry in given.items() if "memory_usage" in entry}
    assert peaks
    assert {name: answer["hardware_profile"][name]["memory_usage"]["peak"] for name in peaks} == peaks
    assert given.get(answer["recommended_hardware"], {"compatible": True})["compatible"]


def check_task(ran: Ran) -> None:
    answer = ran.one("recommendations")
    assert answer["recommendations"]
    for model in answer["recommendations"]:
        assert model["family"] == "text_generation"
        assert model["recommended_hardware"] in answer["hardware_constraints"]
        assert is_number(model["resource_requirements"]["recommended_memory_mb"])
        if ran.printed:
            assert all(text in ran.printed for text in (answer["task"], model["model_name"], f"{model['confidence']:.2f}"))


def check_pool_config(ran: Ran) -> None:
    answer = ran.one("resource_pool_config")
    settings, advice = answer["resource_pool_config"], answer["hardware_recommendations"]
    needs = answer["resource_requirements"]["max_memory_mb"]
    assert isinstance(settings["low_memory_mode"], bool)
    assert is_number(settings["recommended_timeout_mins"])
    assert is_number(needs)
    assert advice["preferred_hardware"] in HARDWARE
    assert re.fullmatch(r"cpu|mps|cuda(:\d+)?", advice["torch_device"])
    if ran.printed:
        assert f"{needs} MB" in ran.printed
        assert advice["preferred_hardware"] in ran.printed
        assert json.loads(Path("resource_pool_config.json").read_text(encoding="utf-8")) == json.loads(json.dumps(answer))


def check_compatible(ran: Ran) -> None:
    lists = [value for value in ran.new.values() if isinstance(value, list)]
    asked = max(lists, key=len)
    found = [each for each in lists if each is not asked]
    assert len(found) == 3
    for models in found:
        assert models == [name for name in asked if name in models]
        assert str(models) in ran.printed
    assert any(len(models) < len(asked) for models in found)
    assert all("gpt2" in models for models in found)


def check_pool(ran: Ran) -> None:
    """What the pool gives is what was constructed, and the pool keeps it."""
    pool = hwmatrix.get_global_resource_pool()
    entries = {entry["name"] for entry in pool.get_stats()["entries"]}
    for family, name in re.findall(r'get_model\(\s*(classification\["family"\]|"\w+"),\s*"([^"]+)"', ran.code):
        assert name in entries
        word = ran.names["classification"]["family"] if family.startswith("classification") else family.strip('"')
        assert any(pool.get_model(word, name) is value for value in ran.new.values())


def check_detection(ran: Ran) -> None:
    (found,) = ran.dicts("best_available")
    assert set(found["hardware"]) == HARDWARE
    (details,) = ran.dicts("device_count")
    assert details["available"] is (details["device_count"] > 0)
    devices = {value for value in ran.new.values() if isinstance(value, str)}
    assert all(re.fullmatch(r"cpu|mps|cuda:\d+", device) for device in devices - {"cpu"})
    assert found["torch_device"] in devices
    (model,) = [value for value in ran.new.values() if isinstance(value, dict) and "subfamily" in value]
    assert model["family"] == "embedding"


def check_reporter(ran: Ran) -> None:
    texts = [value for value in ran.new.values() if isinstance(value, str)]
    (document,) = [text for text in texts if text.startswith("{")]
    assert json.loads(document)["schema"].startswith("hwmatrix/")
    pages = [text for text in texts if text.startswith("#")]
    assert len(pages) == 2  # the report and the matrix
    assert all("|" in page for page in pages)
    (saved,) = Path().glob("*.md")
    assert saved.read_text(encoding="utf-8") in pages


def check_generated_file(ran: Ran) -> None:
    (path,) = Path("generated_tests").iterdir()
    assert path.name in ran.printed
    assert path.name == "test_hf_bert_base_uncased.py"
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    assert "bert-base-uncased" in text


def check_needs_alone(ran: Ran) -> None:
    """The keys of a list of needs that stands alone are those of an answer."""
    (needs,) = [value for value in ran.new.values() if isinstance(value, dict)]
    assert set(needs) == NEEDS


CHECKS: dict[str, Callable[[Ran], None]] = {
    "HardwareCompatibilityReporter(": check_reporter,
    "hw_compat_override=": check_override,
    "get_hardware_aware_model_classification(": check_printed_classification,
    "recommend_model_for_task(": check_task,
    "get_optimal_resource_pool_config(": check_pool_config,
    "get_compatible_models_for_hardware(": check_compatible,
    ".get_model(": check_pool,
    "detect_available_hardware(": check_detection,
    ".classify_model(": check_classifications,
    ".get_template(": check_generated_file,
}
"""What must be in an example's code for a check to hold of it."""


def test_every_example_is_found() -> None:
    assert sum(len(examples(document)) for document in DOCUMENTS) == EXAMPLES


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if examples(path)], ids=lambda path: path.stem)
def test_the_examples_run_and_their_answers_make_sense(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ran in run(document, capsys):
        checks = [check for words, check in CHECKS.items() if words in ran.code]
        for check in checks or [check_needs_alone]:
            check(ran)
