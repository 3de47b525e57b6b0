"""Models in a real headless Chromium: what comes out, and what happens when a browser goes away under a cell."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
from fault_runs import PROJECT, rows
from matrix_command import Command, document, matrix, statuses

from hwmatrix.errors import EngineError
from hwmatrix.host.engine import Engine, connect

pytestmark = pytest.mark.containers

TARGETS = """
  webgpu-gpu: {backend: webgpu, image: webgpu, base: python, options: {adapter: hardware}}
  webnn-npm: {backend: webnn, image: webnn, base: python, execution: software, options: {browser: sparticuz}}
  webnn-gpu: {backend: webnn, image: webnn, base: python, options: {browser: sparticuz, device: gpu}}
"""
GONE = "import os, psutil, sys\nfor process in psutil.process_iter(['cmdline']):\n    line = process.info['cmdline'] or []\n"
KILL_BROWSER = GONE + "    if '--headless=new' in line and not any(word.startswith('--type=') for word in line): os.kill(process.pid, 9)"
KILL_GPU = GONE + "    if '--type=gpu-process' in line: os.kill(process.pid, 9)"
ORDERED = "SELECT model, status, error_type FROM cells WHERE role = 'model' ORDER BY started_at"
OWN_MS = 1000.0
"""What a cell may take beyond what its page takes: connecting, a tab, reading the bundle, comparing."""


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return connect(dict(os.environ))
    except EngineError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"these tests must run in CI: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def project(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001 - no engine, no project
    """This project, with more targets in its matrix.yaml."""
    root = tmp_path_factory.mktemp("project")
    for name in ("harness", "images", "pyproject.toml", "README.md", "LICENSE"):
        (root / name).symlink_to(PROJECT / name)
    text = (PROJECT / "matrix.yaml").read_text(encoding="utf-8")
    (root / "matrix.yaml").write_text(text.replace("\ntargets:\n", f"\ntargets:{TARGETS}", 1), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"HWMATRIX_CACHE": str(tmp_path_factory.mktemp("cache"))}


def flags(project: Path, output: Path, targets: tuple[str, ...], models: tuple[str, ...]) -> list[str]:
    chosen = [*(part for name in targets for part in ("--targets", name)), *(part for name in models for part in ("--models", name))]
    return ["--matrix", str(project / "matrix.yaml"), "--isolation", "container", "--output-dir", str(output), *chosen]


@pytest.fixture(scope="module")
def output(project: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run over all browser targets."""
    folder = tmp_path_factory.mktemp("reports")
    targets = ("webgpu", "webgpu-gpu", "webnn", "webnn-npm", "webnn-gpu")
    matrix(*flags(project, folder, targets, ("bert", "vit")), environment=environment, expect=0, timeout_s=580)
    return folder


def cell(output: Path, model: str, target: str) -> dict[str, Any]:
    (found,) = [cell for cell in document(output)["cells"] if (cell["model"], cell["target"]) == (model, target)]
    return dict(found)


@pytest.mark.parametrize("target", ["webgpu", "webnn-npm"])
@pytest.mark.parametrize("model", ["bert", "vit"])
def test_a_model_passes_with_parity_and_placement(output: Path, model: str, target: str) -> None:
    found = cell(output, model, target)
    assert (found["status"], found["execution"], found["level"]) == ("pass", "software", "Medium"), found["error"]
    assert found["placement"]["on_target"] > 0.95
    assert found["parity"]["relative_error"] < 1e-5
    assert found["latency"]["samples"] >= 3


def test_the_placement_names_the_adapter_or_the_graphs_devices(output: Path) -> None:
    assert "swiftshader" in cell(output, "vit", "webgpu")["placement"]["detail"]
    assert "devices of 1 graphs: cpu" in cell(output, "vit", "webnn-npm")["placement"]["detail"]


def test_a_browser_without_webnn_makes_it_unavailable_in_its_own_words(output: Path) -> None:
    found = cell(output, "vit", "webnn")
    assert (found["status"], found["error"]["type"]) == ("unavailable", "webnn_unavailable")
    assert "WebNN is not supported on this platform" in found["error"]["message"]


@pytest.mark.skipif(Path("/dev/dri").exists(), reason="a GPU may be here")
@pytest.mark.parametrize(("target", "told"), [("webgpu-gpu", "a software adapter, where hardware was asked for"), ("webnn-gpu", "cpu")])
@pytest.mark.parametrize("model", ["bert", "vit"])
def test_software_in_place_of_a_gpu_is_a_fallback(output: Path, model: str, target: str, told: str) -> None:
    found = cell(output, model, target)
    assert (found["status"], found["placement"]["on_target"]) == ("fallback", 0.0), found["error"]
    assert told in found["placement"]["detail"]


def test_a_cell_takes_little_beyond_what_its_page_takes(output: Path) -> None:
    """The stages load and compare, less the page's own loading: the rest of the time is the page's."""
    query = """
        SELECT c.model, sum(s.wall_ms) FILTER (s.stage IN ('load', 'compare')) - any_value(c.load_ms) AS own_ms
        FROM cells c JOIN stages s USING (cell_id) WHERE c.target = 'webgpu' AND c.role = 'model' GROUP BY c.model
    """
    taken = {row["model"]: row["own_ms"] for row in rows(output / "matrix.duckdb", query)}
    assert set(taken) == {"bert", "vit"}
    assert max(taken.values()) < OWN_MS


def kill(engine: Engine, command: Command, code: str) -> None:
    """Kill processes in the container of a command's webgpu shard."""
    with contextlib.closing(engine.client()) as client:
        (container,) = client.containers.list(
            filters={"label": ["hwmatrix=1"], "name": f"hwmatrix-webgpu-{command.process.pid}-"}, ignore_removed=True
        )
        assert container.exec_run(["python", "-c", code]).exit_code == 0


def test_a_browser_or_gpu_process_that_goes_away_costs_one_cell(
    project: Path, environment: dict[str, str], engine: Engine, output: Path, tmp_path: Path
) -> None:
    assert statuses(output)[("vit", "webgpu")] == "pass"  # what is killed below works otherwise
    models = ("bert", "gpt2", "vit", "swin", "videomae")
    with Command(*flags(project, tmp_path, ("webgpu",), models), environment=environment) as command:
        for done, code in (("[1/5]", KILL_BROWSER), ("[3/5]", KILL_GPU)):
            command.wait_for(done)
            time.sleep(2.5)  # the next cell is making its session, or running for the first time
            kill(engine, command, code)
        assert command.end() == 0, command.output
    found = [(row["model"], row["status"], row["error_type"]) for row in rows(tmp_path / "matrix.duckdb", ORDERED)]
    assert [status for _, status, _ in found] == ["pass", "crash", "pass", "crash", "pass"], found
    assert found[1][2] == "browser_lost"
    assert found[3][2] == "webgpu_device_lost"
