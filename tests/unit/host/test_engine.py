from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
from fake_engine import engine

from hwmatrix.errors import EngineError
from hwmatrix.host import engine as engines


def context(folder: Path, name: str, host: str) -> None:
    (folder / "config.json").write_text(json.dumps({"currentContext": name}))
    meta = folder / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Endpoints": {"docker": {"Host": host}}}))


def test_docker_host_is_the_only_candidate() -> None:
    assert engines.engine_urls({"DOCKER_HOST": "tcp://10.0.0.1:2376", "HOME": "/root"}) == ["tcp://10.0.0.1:2376"]


def test_the_current_context_is_the_only_candidate(tmp_path: Path) -> None:
    context(tmp_path, "colima", "unix:///colima.sock")
    assert engines.engine_urls({"DOCKER_CONFIG": str(tmp_path)}) == ["unix:///colima.sock"]
    assert engines.engine_urls({"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "default"}) != ["unix:///colima.sock"]


def test_a_rootless_socket_is_a_candidate(tmp_path: Path) -> None:
    (tmp_path / "docker.sock").touch()
    assert f"unix://{tmp_path}/docker.sock" in engines.engine_urls({"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)})


def test_broken_client_settings_are_reported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(EngineError, match=str(tmp_path)):
        engines.engine_urls({"DOCKER_CONFIG": str(tmp_path)})


def test_without_an_engine_the_error_says_what_was_tried_and_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    with pytest.raises(EngineError) as caught:
        engines.connect({"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "HOME": str(tmp_path)})
    assert "none.sock" in caught.value.message
    assert "--isolation venv" in caught.value.advice


def test_without_the_package_the_advice_is_to_install_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(EngineError) as caught:
        engines.connect({"DOCKER_HOST": "unix:///nowhere"})
    assert caught.value.advice == "pip install 'hwmatrix[host]'"


def test_every_distinct_client_on_path_is_found_once_in_order(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "docker").write_text("")
        (tmp_path / name / "docker").chmod(0o755)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/docker").symlink_to(tmp_path / "a/docker")
    (tmp_path / "d").mkdir()
    path = ":".join(str(tmp_path / name) for name in ("b", "a", "c", "d"))
    assert engines.docker_clients({"PATH": f"{path}:"}) == [tmp_path / "b/docker", tmp_path / "a/docker"]
    assert engines.docker_clients({}) == []


def test_the_first_client_that_can_build_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [Path("/one/docker"), Path("/two/docker")]
    monkeypatch.setattr(engines, "docker_clients", lambda _: clients)
    monkeypatch.setattr(engines, "_trial_build", lambda client, _: None if client == clients[1] else "buildx is missing")
    assert engines.find_builder(engine()) == (clients[1], "")
    monkeypatch.setattr(engines, "_trial_build", lambda *_: "buildx is missing")
    assert engines.find_builder(engine()) == (None, "/one/docker: buildx is missing; /two/docker: buildx is missing")


def test_docker_commands_get_this_engine_and_its_own_buildkit() -> None:
    environment = engine(environment={"PATH": "/bin", "DOCKER_HOST": "other"}).command_environment()
    assert environment["DOCKER_HOST"] == "unix:///engine.sock"
    assert environment["DOCKER_BUILDKIT"] == "1"
    assert environment["PATH"] == "/bin"


def test_an_engine_does_not_print_its_environment() -> None:
    assert "hunter2" not in repr(engine(environment={"PASSWORD": "hunter2"}))
