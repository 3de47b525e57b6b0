"""The state of a workflow run's jobs, from GitHub's API: https://docs.github.com/en/rest/actions/workflow-jobs."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PREFIX: Final = "on "
"""The prefix of target jobs in the templates: ``on cuda``, or ``caller / on cuda`` in a called workflow."""
_NOT_EXPANDED: Final = "on ${{ matrix.target }}"
"""GitHub's name for a matrix job whose condition was false."""
_PAGE: Final = 100
_PAGES: Final = 20
_TIMEOUT_S: Final = 30.0
_GIVES_UP_S: Final = 600.0
_QUEUED: Final = frozenset({"queued", "waiting", "pending", "requested"})


class State(enum.StrEnum):
    """The state of a target's job."""

    DONE = "done"
    FAILED = "failed"
    RUNNING = "running"
    UNCLAIMED = "unclaimed"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reached:
    """A target's state, and why it left no shards (empty if it may have left some)."""

    state: State
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunAddress:
    """A workflow run: its API address, and a token that may read it."""

    api: str
    repository: str
    run: str
    attempt: str
    token: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> RunAddress:
        """Return the run that this process belongs to.

        Raises:
            ConfigError: it belongs to none, or has no token.
        """
        names = ("GITHUB_API_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_TOKEN")
        hint = "GitHub's runners set them; the token comes from the step's env: GITHUB_TOKEN: ${{ github.token }}"
        missing = [Problem(where=name, what="it is not set", hint=hint) for name in names if not environment.get(name)]
        if missing:
            raise ConfigError(missing)
        api, repository, run, attempt, token = (environment[name] for name in names)
        return cls(api=api, repository=repository, run=run, attempt=attempt, token=token)


class AskingError(Exception):
    """The API could not be queried, or gave an unusable answer. ``final``: retrying cannot help."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


def ask(address: RunAddress) -> list[dict[str, Any]]:
    """Return all jobs of a run's attempt.

    Raises:
        AskingError: the API does not answer as expected.
    """
    found: list[dict[str, Any]] = []
    for page in range(1, _PAGES + 1):
        where = f"{address.api}/repos/{address.repository}/actions/runs/{address.run}/attempts/{address.attempt}/jobs"
        answer = _get(f"{where}?per_page={_PAGE}&page={page}", address.token)
        jobs = answer.get("jobs")
        if not isinstance(jobs, list) or not all(isinstance(job, dict) and isinstance(job.get("name"), str) for job in jobs):
            raise AskingError("the API's answer lists no jobs")
        found += jobs
        if len(jobs) < _PAGE:
            break
    return found


def _get(address: str, token: str) -> dict[str, Any]:
    """Return the API's answer, which must be a mapping. No redirect is followed, since it would get the token too.

    Raises:
        AskingError: the API does not answer as expected.
    """
    import requests  # of the extra host: the command's help needs none

    headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28", "Authorization": f"Bearer {token}"}
    try:
        answer = requests.get(address, headers=headers, timeout=_TIMEOUT_S, allow_redirects=False)
        answer.raise_for_status()
        data = answer.json()
    except requests.HTTPError as error:
        code = error.response.status_code
        raise AskingError(f"the API answers {code} {error.response.reason}", final=code in {401, 404}) from error
    except requests.RequestException as error:
        raise AskingError(f"the API cannot be reached: {error}") from error
    if not isinstance(data, dict):
        raise AskingError("the API's answer is not a mapping")
    return data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patience:
    """Timeouts in seconds: for a runner to take a job, for everything, and the interval between queries."""

    runner_s: float
    whole_s: float
    every_s: float = 20.0


def wait(
    labels: Mapping[str, Sequence[str]],
    asking: Callable[[], list[dict[str, Any]]],
    patience: Patience,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    say: Callable[[str], None],
) -> dict[str, Reached]:
    """Wait until each target's job has ended, or until no runner has taken it in time. Return the state of each.

    An API that does not answer for ten minutes is given up. Unknown states then stay UNKNOWN, without any claim about the target.

    Args:
        labels: by target, the labels of the runner that its job requests.
        asking: returns the jobs of the run.
        patience: the timeouts.
        clock: monotonic seconds.
        sleep: waits for a number of seconds.
        say: reports changes.
    """
    began = answered = clock()
    states: dict[str, Reached] = {target: Reached(state=State.UNKNOWN) for target in labels}
    while True:
        try:
            jobs = asking()
            answered = clock()
        except AskingError as error:
            say(str(error))
            if error.final or clock() - answered > _GIVES_UP_S:
                return states
        else:
            late = clock() - began >= patience.runner_s
            new = {target: _reached(target, words, jobs, patience, late=late) for target, words in labels.items()}
            for target, reached in new.items():
                if reached != states[target]:
                    say(f"{target}: {reached.reason or reached.state.value}")
            states = new
        open_ones = [target for target, reached in states.items() if reached.state in {State.RUNNING, State.UNKNOWN}]
        if not open_ones or clock() - began >= patience.whole_s:
            return states
        sleep(patience.every_s)


def _reached(target: str, labels: Sequence[str], jobs: list[dict[str, Any]], patience: Patience, *, late: bool) -> Reached:
    minutes = f"{patience.runner_s / 60:g} minutes"
    mine = [job for job in jobs if job["name"].rpartition(" / ")[2] == _PREFIX + target]
    if not mine:
        if any(job["name"].rpartition(" / ")[2] == _NOT_EXPANDED and job.get("conclusion") == "skipped" for job in jobs):
            return Reached(state=State.SKIPPED, reason="jobs on self-hosted runners are not started for this event")
        if late:
            return Reached(state=State.SKIPPED, reason=f"no job was started for it within {minutes}")
        return Reached(state=State.UNKNOWN)
    return _of_job(mine[-1], labels, minutes, late=late)


def _of_job(job: Mapping[str, Any], labels: Sequence[str], minutes: str, *, late: bool) -> Reached:
    status, conclusion = job.get("status"), job.get("conclusion")
    if status in _QUEUED:
        what = f"no runner with the labels {', '.join(labels)} took the job within {minutes}"
        return Reached(state=State.UNCLAIMED, reason=what) if late else Reached(state=State.UNKNOWN)
    if status != "completed":
        return Reached(state=State.RUNNING)
    if conclusion == "success":
        return Reached(state=State.DONE)
    if conclusion == "skipped":
        return Reached(state=State.SKIPPED, reason="its job was skipped")
    return Reached(state=State.FAILED, reason="" if conclusion is None else f"its job ended with {str(conclusion)[:40]}")
