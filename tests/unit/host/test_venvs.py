from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Self

import pytest

from hwmatrix.errors import ImageBuildError
from hwmatrix.host import venvs
from hwmatrix.host.process import Finished
from hwmatrix.matrix.load import load

ROOT = Path(__file__).parents[3]


class FakeProcesses:
    """Records commands, creates the folders that ``python -m venv`` would create, and fails on request."""

    commands: list[tuple[str, ...]]
    environments: list[dict[str, str]]
    fail_on: str | None

    def __init__(self) -> None:
        self.commands, self.environments, self.fail_on = [], [], None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, command: tuple[str, ...], *, environment: dict[str, str], on_line: Any) -> Finished:
        self.commands.append(tuple(command))
        self.environments.append(dict(environment))
        if "venv" in command:
            venvs._Venv(folder=Path(command[-1]), below=()).site.mkdir(parents=True)
        failed = self.fail_on is not None and any(self.fail_on in part for part in command)
        on_line("said")
        return Finished(command=tuple(command), code=1 if failed else 0, output="the reason")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeProcesses:
    processes = FakeProcesses()
    monkeypatch.setattr(venvs, "Processes", lambda: processes)
    monkeypatch.setattr(venvs, "build_wheel", lambda _root, folder: _wheel(folder, b"wheel"))
    return processes


def _wheel(folder: Path, content: bytes) -> Path:
    path = folder / "hwmatrix-0-py3-none-any.whl"
    path.write_bytes(content)
    return path


def ensure(cache: Path, target: str = "cpu") -> venvs.VenvTarget:
    spec = load(ROOT / "matrix.yaml").spec
    environment = {"PATH": "/bin", "PYTHONPATH": "/elsewhere", "PIP_INDEX_URL": "https://packages.example/simple"}
    return venvs.ensure_venv(
        project_root=ROOT,
        spec=spec,
        target=target,
        cache_dir=cache,
        environment=environment,
        on_line=lambda line: assert_prefixed(line, target),
    )


def assert_prefixed(line: str, target: str) -> None:
    assert line.startswith(f"[{target}] ")


def made(processes: FakeProcesses) -> list[str]:
    return [Path(command[-1]).name.rsplit("-", 1)[0] for command in processes.commands if "venv" in command]


def test_layers_are_made_once_and_shared_by_targets(fake: FakeProcesses, tmp_path: Path) -> None:
    cpu = ensure(tmp_path)
    assert made(fake) == ["python", "torch-cpu", "cpu", "cpu-harness"]
    assert ensure(tmp_path) == cpu
    assert len(made(fake)) == 4
    openvino = ensure(tmp_path, "openvino")
    assert made(fake)[4:] == ["openvino", "openvino-harness"]
    assert cpu.digest != openvino.digest
    assert cpu.environment["HF_HUB_OFFLINE"] == "1"


def test_upper_layers_see_the_ones_below_nearest_first(fake: FakeProcesses, tmp_path: Path) -> None:
    target = ensure(tmp_path)
    site = venvs._Venv(folder=target.python.parents[1], below=()).site
    below = (site / "hwmatrix-layers.pth").read_text().splitlines()
    assert [Path(path).relative_to(tmp_path / "venvs").parts[0].rsplit("-", 1)[0] for path in below] == ["cpu", "torch-cpu", "python"]
    assert made(fake)


def test_a_new_harness_needs_only_one_new_layer(fake: FakeProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ensure(tmp_path)
    monkeypatch.setattr(venvs, "build_wheel", lambda _root, folder: _wheel(folder, b"another"))
    after = ensure(tmp_path)
    assert made(fake)[4:] == ["cpu-harness"]
    assert after.digest != before.digest


def test_pytorch_s_index_is_used_only_for_pytorch_and_with_a_short_timeout(fake: FakeProcesses, tmp_path: Path) -> None:
    ensure(tmp_path)
    with_index = [command for command in fake.commands if any("index.txt" in part for part in command)]
    assert len(with_index) == 1
    assert {"--no-deps", "--retries", "--timeout"} <= set(with_index[0])
    assert all("--constraint" in command for command in fake.commands if "--requirement" in command)


def test_pip_gets_the_caller_s_settings_but_not_its_packages(fake: FakeProcesses, tmp_path: Path) -> None:
    ensure(tmp_path)
    assert all("PYTHONPATH" not in environment and environment["PYTHONNOUSERSITE"] == "1" for environment in fake.environments)
    assert all(environment["PIP_INDEX_URL"] == "https://packages.example/simple" for environment in fake.environments)


def test_a_failure_leaves_no_unfinished_layer(fake: FakeProcesses, tmp_path: Path) -> None:
    fake.fail_on = "torch-cpu.txt"
    with pytest.raises(ImageBuildError, match="the reason") as caught:
        ensure(tmp_path)
    assert caught.value.code == 1
    assert sorted(path.name.rsplit("-", 1)[0] for path in (tmp_path / "venvs").glob("*-*")) == ["python"]
    fake.fail_on = None
    ensure(tmp_path)


def test_an_unfinished_layer_is_rebuilt(fake: FakeProcesses, tmp_path: Path) -> None:
    target = ensure(tmp_path)
    folder = target.python.parents[1]
    (folder / venvs.MARKER).unlink()
    (folder / "rubbish").touch()
    ensure(tmp_path)
    assert made(fake)[4:] == ["cpu-harness"]
    assert not (folder / "rubbish").exists()


def test_two_processes_build_a_layer_once(fake: FakeProcesses, tmp_path: Path) -> None:
    threads = [threading.Thread(target=ensure, args=(tmp_path,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made(fake)) == ["cpu", "cpu-harness", "python", "torch-cpu"]
