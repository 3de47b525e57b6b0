"""Console output during a run: a live view on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from hwmatrix.basics.github_log import END_OF_GROUP, group, harmless
from hwmatrix.basics.text import plural, visible
from hwmatrix.records import Status

if TYPE_CHECKING:
    from types import TracebackType

_SHOWN_LINES: Final = 8
_WORDS: Final = {Status.PASS: "green", Status.MISMATCH: "red", Status.ERROR: "red", Status.CRASH: "red", Status.INFRA_ERROR: "magenta"}


class View(Protocol):
    """Shows the steps of a run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def say(self, text: str) -> None:
        """Show a step, or a decision that the user should know about."""

    def detail(self, text: str) -> None:
        """Show a line of a build's output, which matters only while it is new."""

    def begin(self, target: str, count: int, noun: str = "cells") -> None:
        """A target, or the building of bundles, starts or continues. ``count`` is the number of things to do in the whole run."""

    def event(self, target: str, event: dict[str, Any]) -> None:
        """Show an event of a target's runner."""

    def end(self, target: str) -> None:
        """A target is done, entirely or for now."""


def view(console: Console, *, verbose: bool = False, on_github: bool = False) -> View:
    """Return the view that suits the console. ``on_github``: the output is the log of a GitHub Actions runner."""
    live = console.is_terminal and not verbose and not on_github
    return LiveView(console) if live else PlainView(console, verbose=verbose, on_github=on_github)


def describe(event: dict[str, Any]) -> str:
    """Describe a finished cell in one line, such as ``pass      0.38 ms   bert/tiny/cpu/float32/b1-s16-t1``."""
    p50 = f"{event['p50_ms']:.3g} ms" if event.get("p50_ms") is not None else ""
    line = f"{event['status']:<13} {p50:>9}  {event['key']}"
    if event["status"] not in {Status.PASS.value, Status.UNAVAILABLE.value} and event.get("error"):
        line += f"  ({event['stage']}: {event['error'].splitlines()[0][:120]})"
    return line


def describe_again(event: dict[str, Any]) -> str:
    """Say why a bundle or an export of it is retried, and when."""
    return f"{event['model']} ({event['size']}) will be retried alone when the rest is done: {event['message']}"


def describe_operators(event: dict[str, Any]) -> str:
    """Describe the progress of the operator tests, such as ``100/1884  90 pass, 10 unsupported``."""
    counts = ", ".join(f"{count} {status}" for status, count in event["counts"].items())
    return f"{event['done']}/{event['total']}  {counts}"


def describe_survey(event: dict[str, Any]) -> str:
    """Describe an image's survey, such as ``sees cpu, openvino; 15 of 16 models have a family``."""
    return f"sees {', '.join(event['here']) or 'nothing'}; {event['classified']} of {event['models']} models have a family"


class PlainView:
    """Prints one line per event, for logs and pipes. Build output is shown only if ``verbose``, or as the only sign of life.

    With ``on_github``, the output of a target is a group that can be collapsed (one at a time, since GitHub does not nest groups), and text
    is escaped so that it is never a command.
    """

    def __init__(self, console: Console, *, verbose: bool, on_github: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._on_github = on_github
        self._group: str | None = None
        self._quiet_since = time.monotonic()
        self._done: dict[str, int] = {}
        self._total: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Set up nothing."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Clean up nothing."""

    def say(self, text: str) -> None:
        """Print the text."""
        self._quiet_since = time.monotonic()
        shown = visible(text, keep="\n\t")
        self._console.print(Text(harmless(shown) if self._on_github else shown), soft_wrap=True)

    def detail(self, text: str) -> None:
        """Print it if ``verbose``, or after half a minute of silence, which looks like a hang."""
        if self._verbose or time.monotonic() - self._quiet_since > 30:  # noqa: PLR2004
            self.say(f"  {text}")

    def begin(self, target: str, count: int, noun: str = "cells") -> None:
        """Print how much there is to do."""
        done = self._done.setdefault(target, 0)
        self._total[target] = count
        counted = plural(count, "cell") if noun == "cells" else f"{count} {noun}"
        title = f"{target}: {counted if count else noun}"
        if done:
            title = f"{target}: continuing after {done} of {count}"
        if self._on_github and self._group is None:
            self._group = target
            self._console.print(Text(group(title)), soft_wrap=True)
        else:
            self.say(title)

    def event(self, target: str, event: dict[str, Any]) -> None:
        """Print a line for each finished cell and each failed bundle."""
        if event["event"] == "cell" and event["role"] == "model":
            self._done[target] += 1
            self.say(f"  [{self._done[target]}/{self._total[target]}] {describe(event)}")
        elif event["event"] == "cell" and event["role"] == "adapted":
            self.say(f"  adapted: {describe(event)}")
        elif event["event"] == "bundle":
            self._done[target] += 1
            if not event["ok"]:
                self.say(f"  no bundle for {event['model']} ({event['size']}): {event['message']}")
        elif event["event"] == "bundle_again":
            self.say(f"  {describe_again(event)}")
        elif event["event"] == "operators":
            self.say(f"  {describe_operators(event)}")
        elif event["event"] == "operators_refused":
            self.say(f"  no operator tests on {target}: {event['message']}")
        elif event["event"] == "survey":
            self.say(f"  {describe_survey(event)}")

    def end(self, target: str) -> None:
        """Print that the target is done, entirely or for now."""
        done, total = self._done[target], self._total[target]
        self.say(f"{target}: {done} of {total} done" if 0 < done < total else f"{target}: done")
        if self._group == target:
            self._group = None
            self._console.print(Text(END_OF_GROUP), soft_wrap=True)


class LiveView:
    """Shows one bar per target with the cells done, the current one, and the time left; below, the latest lines."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<10}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[running]}", markup=False),
            console=console,
        )
        self._tasks: dict[str, Any] = {}
        self._lines: list[Text] = []
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render, transient=True)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop drawing."""
        self._live.stop()

    def say(self, text: str) -> None:
        """Print the text above the bars, where it stays."""
        self._live.console.print(Text(visible(text, keep="\n\t")), soft_wrap=True)

    def detail(self, text: str) -> None:
        """Show the text until newer lines replace it."""
        self._lines = [*self._lines[1 - _SHOWN_LINES :], Text(f"  {visible(text)}", style="dim", no_wrap=True, overflow="ellipsis")]

    def begin(self, target: str, count: int, noun: str = "cells") -> None:
        """Add a bar, or update an existing one."""
        self._lines = []
        if target in self._tasks:
            self._progress.update(self._tasks[target], total=count, running=noun)
        else:
            self._tasks[target] = self._progress.add_task(target, total=count, running=noun)

    def event(self, target: str, event: dict[str, Any]) -> None:
        """Advance the bar. Print a line for each finished cell."""
        task = self._tasks[target]
        if event["event"] == "cell_started":
            self._progress.update(task, running=event["key"])
        elif event["event"] == "bundle_started":
            self._progress.update(task, running=event["model"])
        elif event["event"] == "bundle":
            self._progress.advance(task)
            if not event["ok"]:
                self.say(f"no bundle for {event['model']} ({event['size']}): {event['message']}")
        elif event["event"] == "bundle_again":
            self.say(describe_again(event))
        elif event["event"] == "cell":
            self._cell(task, event)
        elif event["event"] == "operators":
            self._progress.update(task, completed=event["done"], total=event["total"], running=describe_operators(event))
        elif event["event"] == "operators_refused":
            self.say(f"no operator tests on {target}: {event['message']}")
        elif event["event"] == "survey":
            self._progress.update(task, completed=1, total=1)
            self.say(f"{target}: {describe_survey(event)}")

    def _cell(self, task: Any, event: dict[str, Any]) -> None:
        """Print a line for a finished cell. The bar does not count adapted cells, and canaries are not shown."""
        if event["role"] == "model":
            self._progress.advance(task)
            line = Text(describe(event))
            line.stylize(_WORDS.get(Status(event["status"]), "yellow"), 0, len(event["status"]))
            self._live.console.print(line, soft_wrap=True)
        elif event["role"] == "adapted":
            self._live.console.print(Text(f"adapted: {describe(event)}"), soft_wrap=True)

    def end(self, target: str) -> None:
        """Leave the full bar."""
        self._progress.update(self._tasks[target], running="")

    def _render(self) -> Group:
        return Group(self._progress, *self._lines)
