"""The environment variables of processes that run models: never a secret, with any isolation."""

from __future__ import annotations

import contextlib
import fnmatch
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwmatrix.host import containers
from hwmatrix.host.executors import ContainerExecutor, Job, LocalExecutor, VenvExecutor, Workshop
from hwmatrix.host.images import BuiltImage
from hwmatrix.host.process import Finished
from hwmatrix.host.variables import ALLOWED, for_models
from hwmatrix.host.venvs import VenvTarget
from hwmatrix.matrix.load import load

if TYPE_CHECKING:
    from collections.abc import Iterator

BASE = "base:1"
SPEC = load(Path(__file__).parents[3] / "matrix.yaml").spec
SECRETS = {
    "GITHUB_TOKEN": "t0p",
    "HF_TOKEN": "t0p",
    "HF_TOKEN_PATH": "/t0p",
    "AWS_SECRET_ACCESS_KEY": "t0p",
    "OPENAI_API_KEY": "t0p",
    "MY_PASSWORD": "t0p",
    "npm_config_userconfig": "t0p",
    "PIP_INDEX_URL": "https://user:t0p@index.example",
    "HTTPS_PROXY": "http://user:t0p@proxy.example:3128",
    "ACTIONS_RUNTIME_URL": "https://t0p",
    "ACTIONS_ID_TOKEN_REQUEST_URL": "https://t0p",
    "GITHUB_ENV": "/t0p",
    "GITHUB_PATH": "/t0p",
    "SSH_AUTH_SOCK": "/t0p",
    "DOCKER_HOST": "unix:///t0p",
    "KUBECONFIG": "/t0p",
    "MYSQL_PWD": "t0p",
    "GIT_ASKPASS": "/t0p",
    "CI_JOB_JWT": "t0p",
    "AZURE_STORAGE_CONNECTION_STRING": "t0p",
    "DATABASE_URL": "postgres:///?password=t0p",
    "no_proxy_login": "t0p",
    "http_proxy": "user:t0p@proxy.example:3128",
}
KEPT = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "LANG": "C.UTF-8",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "0",
    "HTTP_PROXY": "http://proxy.example:3128",
    "OMP_NUM_THREADS": "1",
}


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_not_passed(name: str) -> None:
    assert for_models({name: SECRETS[name]}) == {}


@settings(deadline=None)
@given(st.dictionaries(st.text(string.ascii_letters + string.digits + "_", min_size=1), st.text(), min_size=50, max_size=50))
def test_of_a_random_environment_only_listed_variables_arrive(environment: dict[str, str]) -> None:
    arrived = for_models(environment | KEPT)
    assert arrived.keys() >= KEPT.keys()
    assert all(any(fnmatch.fnmatchcase(name, pattern) for pattern in ALLOWED) for name in arrived)
    assert arrived == {name: (environment | KEPT)[name] for name in arrived}


def test_variables_that_programs_need_are_passed() -> None:
    assert for_models(SECRETS | KEPT) == KEPT


class Recording:
    """Replaces the processes of an executor, and records their environment."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}

    def run(self, command: tuple[str, ...], *, environment: dict[str, str], on_line: Any) -> Finished:
        del on_line
        self.environment = dict(environment)
        return Finished(command=command, code=0, output="")


@pytest.mark.parametrize("kind", [VenvExecutor, LocalExecutor])
def test_no_secret_reaches_a_runner_outside_containers(kind: type[VenvExecutor | LocalExecutor], tmp_path: Path) -> None:
    executor, processes = kind(workshop(tmp_path)), Recording()
    executor._processes = processes  # type: ignore[assignment]
    if isinstance(executor, VenvExecutor):
        executor._venvs["cpu"] = VenvTarget(
            target="cpu", python=tmp_path / "python", digest="sha256:0", environment={"HF_HUB_OFFLINE": "1"}
        )
    ended = executor.run(Job(target="cpu", work="run", plan_dir=tmp_path, cache=tmp_path, out=tmp_path), lambda _line: None)
    assert ended.code == 0
    assert processes.environment.keys() >= KEPT.keys()
    assert not processes.environment.keys() & SECRETS.keys()
    assert not any("t0p" in value for value in processes.environment.values())


def workshop(tmp_path: Path) -> Workshop:
    return Workshop(
        project_root=tmp_path,
        spec=SPEC,
        cache_dir=tmp_path,
        environment=SECRETS | KEPT,
        base_image=None,
        commit=None,
        say=lambda _line: None,
        detail=lambda _line: None,
    )


class Container:
    """A container that ends immediately."""

    stderr_tail = ""
    oom_killed = False

    def lines(self) -> list[str]:
        return []

    def wait(self) -> int:
        return 0


def test_a_container_gets_no_variable_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def running(_engine: object, **options: Any) -> Iterator[Container]:
        started.append(options)
        yield Container()

    monkeypatch.setattr(containers, "running", running)
    monkeypatch.setattr(containers, "prepare_writable", lambda folder, _engine: folder)
    executor = ContainerExecutor(workshop(tmp_path), object(), BASE)  # type: ignore[arg-type]
    executor._images["cpu"] = BuiltImage(
        target="cpu", tag="hwmatrix/cpu:1", content_tag="hwmatrix/cpu:1-0", digest="sha256:0", seconds=0, rebuilt=False
    )
    executor.run(Job(target="cpu", work="run", plan_dir=tmp_path, cache=tmp_path, out=tmp_path), lambda _line: None)
    (options,) = started
    assert "environment" not in options
    assert "t0p" not in repr(options)
