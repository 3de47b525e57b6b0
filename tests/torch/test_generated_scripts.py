"""Generated tests as programs of their own, and tests that somebody else's generator renders from the templates: written and run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.generate.model_tests import generate_test
from hwmatrix.generate.rendering import write_templates
from hwmatrix.generate.test_plan import Wish
from hwmatrix.matrix.load import load

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
SPEC = load(ROOT / "matrix.yaml").spec
BLOCKED = """
import runpy
import sys
sys.modules["websocket"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
RENDERED = [
    ("bert-base-uncased", "hf_embedding_template.py", "masked_lm"),
    ("gpt2", "hf_text_generation_template.py", "causal_lm"),
    ("vit", "hf_vision_template.py", "image_classifier"),
    ("nobody/nothing", "hf_other_template.py", None),
]


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> Path:
    return shared_cache


@pytest.fixture
def python(tmp_path: Path, cache: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python in a folder that is not the project's."""
    source = os.pathsep.join([str(ROOT / "harness"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": source, "HWMATRIX_CACHE": str(cache), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)

    return run


def test_a_generated_file_is_a_program(tmp_path: Path, python: Callable[..., Any]) -> None:
    made = generate_test("bert", spec=SPEC, folder=tmp_path, wish=Wish())
    told = python(str(made.path), "--device", "cpu", "--batch-size", "3", "--save")
    assert told.returncode == 0, told.stdout + told.stderr
    kept = json.loads((tmp_path / "test_hf_bert.results.json").read_text(encoding="utf-8"))
    assert (kept["schema"], kept["model"], kept["batch_size"]) == ("hwmatrix/generated-test/1", "bert", 3)
    assert [(place["device"], place["hardware"]["available"]) for place in kept["places"]] == [("cpu", True)]
    assert set(kept["counts"]) == {"passed"}
    assert len(kept["tests"]) == kept["counts"]["passed"] >= 7
    assert all(test["seconds"] > 0 for test in kept["tests"])
    (placed,) = [test["placement"] for test in kept["tests"] if "placement" in test]
    assert placed.startswith("cpu: ")


def test_what_is_not_installed_is_skipped_with_the_reason(tmp_path: Path, python: Callable[..., Any]) -> None:
    """Here the websocket that browsers are driven through, on a device that the file does not list."""
    made = generate_test("bert", spec=SPEC, folder=tmp_path, wish=Wish(device="cpu"))
    told = python("-c", BLOCKED, str(made.path), "--device", "webgpu", "--save")
    assert told.returncode == 6, told.stdout + told.stderr
    kept = json.loads((tmp_path / "test_hf_bert.results.json").read_text(encoding="utf-8"))
    assert set(kept["counts"]) == {"skipped"}
    assert all("not installed in" in test["reason"] and "websocket" in test["reason"] for test in kept["tests"])


@pytest.mark.long
def test_what_another_generator_renders_runs_as_well(tmp_path: Path, python: Callable[..., Any]) -> None:
    """As the design documents do it. What is only a name here is skipped, and says so."""
    import jinja2

    write_templates(tmp_path / "templates")
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(tmp_path / "templates"))  # noqa: S701 - as they do
    for name, template, subfamily in RENDERED:
        text = environment.get_template(template).render(
            model_name=name,
            model_family=template.removeprefix("hf_").removesuffix("_template.py"),
            model_subfamily=subfamily,
            recommended_hardware="cpu",
            resource_requirements={"min_memory_mb": 900, "recommended_memory_mb": None},
            torch_device="cpu",
        )
        (tmp_path / f"test_hf_{name.replace('/', '_').replace('-', '_')}.py").write_text(text, encoding="utf-8")
    told = python("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(tmp_path))
    assert told.returncode == 0, told.stdout + told.stderr
    assert "1 skipped" in told.stdout.splitlines()[-1]
    assert "is only a name" in told.stdout
    assert int(told.stdout.splitlines()[-1].split(" passed")[0].split()[-1]) >= 20
