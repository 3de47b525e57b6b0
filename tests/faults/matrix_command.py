"""The command ``hwmatrix matrix`` in a process of its own, watched line by line."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from fault_runs import PROJECT, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

TIMEOUT_S: Final = 240.0


class Command:
    """One run of the command. Leaving the block ends it, if it still runs. ``within``: what runs it, such as ``ip netns exec``."""

    def __init__(self, *arguments: str, environment: Mapping[str, str], cwd: Path | None = None, within: Sequence[str] = ()) -> None:
        self._argv = [*within, sys.executable, "-m", "hwmatrix", "matrix", *arguments]
        self._environment = {**os.environ, "PYTHONPATH": str(PROJECT / "harness"), "PYTHONUNBUFFERED": "1", **environment}
        self._cwd = cwd or PROJECT
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.output = ""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._argv,
            env=self._environment,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        with stream:
            for line in stream:
                self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, words: str, *, timeout_s: float = TIMEOUT_S) -> str:
        """The next line that holds the words. The test fails if there is none."""
        until = time.monotonic() + timeout_s
        while (line := self._lines.get(timeout=max(0.0, until - time.monotonic()))) is not None:
            self.output += line
            if words in line:
                return line
        raise AssertionError(f"the command ended without saying {words!r}:\n{self.output}")

    def end(self, *, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for its end; give the exit code."""
        until = time.monotonic() + timeout_s
        while (line := self._lines.get(timeout=max(0.0, until - time.monotonic()))) is not None:
            self.output += line
        return self.process.wait(timeout=10)


@contextlib.contextmanager
def cluster_command(*arguments: str, environment: Mapping[str, str], within: Sequence[str] = ()) -> Iterator[None]:
    """A command of ``hwmatrix cluster`` that runs until the block ends. ``within``: as for :class:`Command`."""
    variables = {**os.environ, "PYTHONPATH": str(PROJECT / "harness"), **environment}
    command = [*within, sys.executable, "-m", "hwmatrix", "cluster", *arguments]
    with subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def matrix(*arguments: str, environment: Mapping[str, str], expect: int, cwd: Path | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """Run the command to its end, which must be as expected; give what it printed."""
    with Command(*arguments, environment=environment, cwd=cwd) as command:
        code = command.end(timeout_s=timeout_s)
    assert code == expect, f"exit code {code}:\n{command.output}"
    return command.output


def document(output: Path) -> dict[str, Any]:
    """matrix.json of an output folder."""
    loaded: dict[str, Any] = json.loads((output / "matrix.json").read_text(encoding="utf-8"))
    return loaded


def statuses(output: Path) -> dict[tuple[str, str], str]:
    """The status of each cell, by model and target."""
    return {(cell["model"], cell["target"]): cell["status"] for cell in document(output)["cells"]}


def executions(output: Path) -> dict[str, int]:
    """How often each cell was really executed, over all shards of the run."""
    query = "SELECT cell_key, count(*) AS n FROM cells WHERE role = 'model' AND status <> 'infra_error' GROUP BY cell_key"
    return {row["cell_key"]: row["n"] for row in rows(output / "matrix.duckdb", query)}


def left_behind(output: Path) -> list[str]:
    """What an interrupted writer would leave: temporary names, partial shards, shards without a sidecar."""
    files = [path for path in output.rglob("*") if path.is_file()]
    unfinished = [str(path) for path in files if path.suffix in {".tmp", ".partial", ".wal", ".broken"}]
    shards = [path for path in files if path.parent.name == "shards" and path.suffix == ".duckdb"]
    return unfinished + [str(path) for path in shards if not path.with_name(f"{path.name}.json").exists()]
