"""Waiting for the jobs of a run: for which, how long, and with an API that fails."""

from __future__ import annotations

import http.server
import json
import threading
from typing import TYPE_CHECKING, Any

import factory_plans as make
import pytest

from hwmatrix.cli import main
from hwmatrix.errors import ConfigError
from hwmatrix.host.github.collect import read_states
from hwmatrix.host.github.jobs import AskingError, Patience, Reached, RunAddress, State, ask, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LABELS = {"cpu": ["ubuntu-24.04"], "cuda": ["self-hosted", "cuda"]}
PATIENCE = Patience(runner_s=1800, whole_s=12600, every_s=20)
NO_RUNNER = "no runner with the labels self-hosted, cuda took the job within 30 minutes"


def job(target: str, status: str, conclusion: str | None = None, prefix: str = "") -> dict[str, Any]:
    return {"name": f"{prefix}on {target}", "status": status, "conclusion": conclusion}


class World:
    """A fake clock, and jobs whose states depend on it."""

    def __init__(self, jobs: Callable[[float], list[dict[str, Any]]]) -> None:
        self.now, self.jobs, self.said = 0.0, jobs, list[str]()

    def wait(self) -> dict[str, Reached]:
        def sleep(seconds: float) -> None:
            self.now += seconds

        return wait(LABELS, lambda: self.jobs(self.now), PATIENCE, clock=lambda: self.now, sleep=sleep, say=self.said.append)


def test_waits_until_all_have_ended() -> None:
    world = World(
        lambda now: [
            job("cpu", "completed", "success") if now > 300 else job("cpu", "in_progress"),
            job("cuda", "queued") if now < 900 else job("cuda", "completed", "failure") if now > 4000 else job("cuda", "in_progress"),
        ]
    )
    assert world.wait() == {"cpu": Reached(state=State.DONE), "cuda": Reached(state=State.FAILED, reason="its job ended with failure")}
    assert 4000 < world.now < 4100
    assert world.said == ["cpu: running", "cpu: done", "cuda: running", "cuda: its job ended with failure"]


def test_waiting_ends_for_a_job_that_no_runner_takes() -> None:
    world = World(lambda _now: [job("cpu", "completed", "success", "ci / "), job("cuda", "queued", prefix="ci / ")])
    assert world.wait()["cuda"] == Reached(state=State.UNCLAIMED, reason=NO_RUNNER)
    assert world.now == 1800


def test_a_job_that_never_starts_or_never_ends() -> None:
    assert World(lambda _now: [job("cpu", "completed", "success")]).wait()["cuda"] == Reached(
        state=State.SKIPPED, reason="no job was started for it within 30 minutes"
    )
    endless = World(lambda _now: [job("cpu", "in_progress"), job("cuda", "completed", "skipped")])
    assert endless.wait() == {"cpu": Reached(state=State.RUNNING), "cuda": Reached(state=State.SKIPPED, reason="its job was skipped")}
    assert endless.now == 12600


def test_skipped_jobs_are_known_at_once() -> None:
    skipped = {"name": "on ${{ matrix.target }}", "status": "completed", "conclusion": "skipped"}
    world = World(lambda _now: [job("cpu", "completed", "success"), skipped])
    assert world.wait()["cuda"].state is State.SKIPPED
    assert world.now == 0


def test_a_failing_api_is_retried_and_finally_given_up() -> None:
    def stumbling(now: float) -> list[dict[str, Any]]:
        if now < 500:
            raise AskingError("the API answers 502 Bad Gateway")
        return [job("cpu", "completed", "success"), job("cuda", "completed", "success")]

    assert {each.state for each in World(stumbling).wait().values()} == {State.DONE}

    def gone(_now: float) -> list[dict[str, Any]]:
        raise AskingError("the API cannot be reached")

    world = World(gone)
    assert {each.state for each in world.wait().values()} == {State.UNKNOWN}
    assert world.now == pytest.approx(620)

    def refused(_now: float) -> list[dict[str, Any]]:
        raise AskingError("the API answers 401 Unauthorized", final=True)

    world = World(refused)
    world.wait()
    assert world.now == 0


class Server:
    """A server with prepared answers, which records the requests."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[tuple[str, str | None]] = []
        mine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mine.asked.append((self.path, self.headers["Authorization"]))
                code, body = mine.answers.pop(0)
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: Any) -> None: ...

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def address(self) -> RunAddress:
        api = f"http://127.0.0.1:{self.server.server_address[1]}"
        return RunAddress(api=api, repository="owner/name", run="7", attempt="2", token="secret")  # noqa: S106 - of the test


@pytest.fixture
def server(loopback: None) -> Iterator[Server]:  # noqa: ARG001 - allows it
    found = Server()
    yield found
    found.server.shutdown()
    found.server.server_close()


def listed(*jobs: dict[str, Any]) -> bytes:
    return json.dumps({"total_count": len(jobs), "jobs": jobs}).encode()


def test_all_pages_are_requested(server: Server) -> None:
    many = [job(str(index), "queued") for index in range(100)]
    server.answers = [(200, listed(*many)), (200, listed(job("cpu", "queued")))]
    assert len(ask(server.address)) == 101
    where = "/repos/owner/name/actions/runs/7/attempts/2/jobs?per_page=100&page="
    assert server.asked == [(f"{where}1", "Bearer secret"), (f"{where}2", "Bearer secret")]


@pytest.mark.parametrize(
    ("code", "body", "what", "final"),
    [
        (401, b"{}", "401", True),
        (404, b"{}", "404", True),
        (403, b"{}", "403", False),  # also the answer to too many requests
        (502, b"", "502", False),
        (200, b"<html>", "cannot be reached", False),
        (200, b"[]", "not a mapping", False),
        (200, b'{"jobs": [1]}', "lists no jobs", False),
        (200, b'{"jobs": [{"name": null}]}', "lists no jobs", False),
    ],
)
def test_invalid_answers(server: Server, code: int, body: bytes, what: str, *, final: bool) -> None:
    server.answers = [(code, body)]
    with pytest.raises(AskingError, match=what) as caught:
        ask(server.address)
    assert caught.value.final is final
    assert "secret" not in str(caught.value)


def test_the_run_is_that_of_the_environment() -> None:
    with pytest.raises(ConfigError) as caught:
        RunAddress.of({"GITHUB_REPOSITORY": "owner/name"})
    assert [problem.where for problem in caught.value.problems] == ["GITHUB_API_URL", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_TOKEN"]
    elsewhere = RunAddress(api="file:///etc/passwd", repository="o/n", run="7", attempt="1", token="t")  # noqa: S106 - of the test
    with pytest.raises(AskingError, match="cannot be reached"):
        ask(elsewhere)


MATRIX = """\
version: 1
sizes: {tiny: {}, full: {}}
tolerances: {float32: {relative_error: 1.0e-3, reason: rounding}}
targets:
  cpu: {backend: cpu, image: cpu}
  cuda: {backend: cuda, image: cuda, gpus: true, runs_on: [self-hosted, cuda]}
models: {bert: {family: embedding, architecture: bert, class: BertModel}}
suites: {default: {models: all}}
"""


def test_the_command_stores_the_states_and_prints_the_jobs_that_no_runner_took(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    folder = make.run_folder(tmp_path, make.plan(targets=("cpu", "cuda")))
    address = server.address
    for name, value in {
        "GITHUB_API_URL": address.api,
        "GITHUB_REPOSITORY": address.repository,
        "GITHUB_RUN_ID": address.run,
        "GITHUB_RUN_ATTEMPT": address.attempt,
        "GITHUB_TOKEN": address.token,
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }.items():
        monkeypatch.setenv(name, value)
    server.answers = [(200, listed(job("cpu", "in_progress"), job("cuda", "queued")))]
    server.answers += [(502, b""), (200, listed(job("cpu", "completed", "success"), job("cuda", "queued")))]
    states = tmp_path / "states.json"
    argv = ["--matrix", str(tmp_path / "matrix.yaml"), "--states", str(states), "--every", "0.1", "--runner-minutes", "0"]
    assert main.main(["wait", str(folder), *argv]) == 0
    reason = "no runner with the labels self-hosted, cuda took the job within 0 minutes"
    assert read_states(states) == {"cpu": Reached(state=State.DONE), "cuda": Reached(state=State.UNCLAIMED, reason=reason)}
    assert (tmp_path / "output").read_text(encoding="utf-8") == "waiting=cuda\n"
    printed = capsys.readouterr().out
    assert f"::warning title=cuda%3A no verdicts::{reason}" in printed
    assert "secret" not in printed
