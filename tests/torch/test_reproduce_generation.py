"""Scripts of cells that generate text, run as somebody who has never heard of hwmatrix."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from script_runs import ran_warm

from hwmatrix.generate.reproduction import Reproduction, reproduce

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.torch

PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "matrix.duckdb"


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> Path:
    return shared_cache / "bundles"


def run(made: Reproduction, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(made.script, encoding="utf-8")
    for name, source in made.data.items():
        (path.with_suffix("") / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path.with_suffix("") / name)
    return ran_warm(path)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        *((target, "gpt_neo") for target in ("cpu", "openvino", "onnxruntime")),
        ("cpu", "marian"),
        *(pytest.param(target, "marian", marks=pytest.mark.long) for target in ("openvino", "onnxruntime")),
    ],
)
def test_a_cell_that_passes_does_not_reproduce(tmp_path: Path, cache: Path, target: str, name: str) -> None:
    """gpt_neo is a decoder, whose graph processes prompts, too; marian has an encoder, and two graphs."""
    told = run(reproduce(name, target, database=PUBLISHED, generation=True, force=True, cache=cache), tmp_path)
    assert told.returncode == 0, told.stderr[-2000:]
    assert told.stdout.rstrip().endswith("NOT REPRODUCED: it runs, and the numbers agree")


def test_wrong_numbers_are_reproduced(tmp_path: Path, cache: Path) -> None:
    """The prompts that follow the first one run as well: their logits in the folder are exchanged here."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    database = tmp_path / "m.duckdb"
    database.write_bytes(PUBLISHED.read_bytes())
    with duckdb.connect(str(database)) as connection:
        connection.execute(
            "UPDATE cells SET failing_prompt = 'longer' WHERE model = 'gpt_neo' AND target = 'onnxruntime' AND new_tokens > 0"
        )
    made = reproduce("gpt_neo", "onnxruntime", database=database, generation=True, force=True, cache=cache)
    arrays = load_file(made.data["generation.safetensors"])
    arrays["longer.logits"] = np.ascontiguousarray(arrays["longer.logits"][::-1])
    own = tmp_path / "other.safetensors"
    save_file(arrays, own)
    told = run(Reproduction(cell=made.cell, script=made.script, data={**made.data, "generation.safetensors": own}), tmp_path)
    assert told.returncode == 1, told.stderr[-2000:]
    first, second = [line.partition("): ")[2].split() for line in told.stdout.splitlines() if line.startswith("the ")]
    assert max(map(float, first)) < 1e-4 < max(map(float, second))
    assert told.stdout.rstrip().endswith("REPRODUCED: the numbers are wrong")


def test_an_export_that_fails_fails_again(tmp_path: Path, cache: Path) -> None:
    made = reproduce("dbrx", "openvino", database=PUBLISHED, generation=True, cache=cache)
    told = run(made, tmp_path)
    assert told.returncode == 1
    assert made.cell.error_type == "data_dependent_export"
    assert "GuardOnDataDependentSymNode" in told.stderr


def test_the_command_writes_the_script_and_its_folder(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwmatrix.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(cache.parent))
    command = ["generate", "--reproduce", "marian", "openvino", "--generation", "--force", "--database", str(PUBLISHED)]
    assert main([*command, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["path"] == "reproduce_marian_openvino_generation.py"
    assert found["new_tokens"] == 8
    assert {file.suffix for file in (tmp_path / found["data"]).iterdir()} == {".xml", ".bin", ".safetensors"}
