"""The command ``hwmatrix``. argv, the environment and the exit code are handled here; other modules get parsed values."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from typer.core import TyperGroup

from hwmatrix import __version__
from hwmatrix.basics.interrupts import INTERRUPTED, forget_interrupt, interrupt_on_sigterm
from hwmatrix.basics.text import visible
from hwmatrix.cli.closed_pipe import lasting_outputs
from hwmatrix.cli.terminal import echo
from hwmatrix.errors import ConfigError, HwmatrixError, Problem

_COMMANDS: Final = (
    "matrix",
    "cluster",
    "init",
    "show",
    "why",
    "diff",
    "gate",
    "history",
    "report",
    "badges",
    "merge",
    "publish",
    "devices",
    "detect",
    "classify",
    "types",
    "fit",
    "evidence",
    "test",
    "generate",
    "errors",
    "groups",
    "ops",
    "images",
    "plan",
    "bundles",
    "run",
    "artifacts",
    "runner",
    "wait",
    "collect",
    "summary",
    "assets",
    "workflow",
    "schema",
)
"""Commands, in the order of the help. Running one command imports only its own module."""

CLOSED_PIPE: Final = 128 + signal.SIGPIPE
"""The exit code that a shell reports for a program that wrote to a closed pipe."""
_DEFAULT_VALUES: Final = {"--compare": "newest"}
"""Options that may be given without a value, and the value that they get then."""
_CONTINUED: Final = frozenset({"matrix", "ops"})
"""Commands with the option --resume."""
_TOLD_ON_IMPORT: Final = ("torchao", "torch.utils._pytree")
"""Loggers that warn when torchao is imported, about GPUs and classes of its own. transformers imports it wherever it is installed."""
_UsageError: Final[Any] = typer.BadParameter.__mro__[1]
"""click's UsageError. Some versions of typer include their own click."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit code (docs/cli.md lists them). If the reader of the output goes, the work is done all the same."""
    with lasting_outputs() as unread:
        try:
            return _main(argv) or (CLOSED_PIPE if unread() else 0)
        except SystemExit as error:  # as click ends after a broken pipe: here that of another connection
            if isinstance(error.__context__, BrokenPipeError):
                raise error.__context__ from None
            raise


def _main(argv: list[str] | None) -> int:
    interrupt_on_sigterm()
    stderr = Console(stderr=True)
    words = sys.argv[1:] if argv is None else argv
    try:
        _log_at(os.environ.get("LOGLEVEL", "WARNING"))
        result = program(words[0] if words else None)(words, standalone_mode=False)
        if result == INTERRUPTED:  # some versions of typer turn Ctrl-C into an exit code themselves
            raise KeyboardInterrupt  # noqa: TRY301 - handled below
    except HwmatrixError as error:
        _print_error(error, stderr)
        return error.exit_code
    except _UsageError as error:
        error.message = error.message.replace("Value error, ", "")  # typer 0.29 shows how pydantic words it
        error.show()
        return ConfigError.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "hwmatrix":
            raise
        missing = Problem(where=error.name, what="this command needs that package", hint="pip install 'hwmatrix[host]'")
        _print_error(ConfigError([missing]), stderr)
        return ConfigError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        forget_interrupt()
        stderr.print(f"interrupted{': finished work is kept; continue with --resume' if _can_continue(words) else ''}", markup=False)
        return INTERRUPTED
    return result if isinstance(result, int) else 0


class _Commands(TyperGroup):
    """The commands, in the order above: the most common first. Their options may take several words."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the words name, and its own words."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, rest if command is None else spread(rest, command)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands."""
        there = super().list_commands(ctx)
        return [name for name in _COMMANDS if name in there]


def _print_error(error: HwmatrixError, stderr: Console) -> None:
    """Print an error. On a GitHub runner, print annotations too, and escape everything that could be a workflow command."""
    text = visible(f"error: {error}", keep="\n\t")  # may contain untrusted names with terminal control sequences
    if os.environ.get("GITHUB_ACTIONS") == "true":
        from hwmatrix.basics.github_log import annotation, harmless

        text = harmless(text)
        for problem in error.problems if isinstance(error, ConfigError) else ():
            file, _, line = problem.where.rpartition(":")
            if file and line.isdecimal():
                stderr.print(annotation("error", str(problem), file=file, line=int(line)), markup=False, highlight=False, soft_wrap=True)
    stderr.print(text, markup=False, highlight=False, soft_wrap=True)


def program(command: str | None = None) -> typer.Typer:
    """The program with one command, or with all if ``command`` is unknown."""
    app = typer.Typer(
        name="hwmatrix",
        cls=_Commands,
        help="Find out which Hugging Face models work on which hardware, how well and how fast; and why others do not.",
        callback=_always_named,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    for name in (command,) if command in _COMMANDS else _COMMANDS:
        importlib.import_module(f"hwmatrix.cli.{name}").add_to(app)
    return app


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer's signature
    if asked:
        echo(f"hwmatrix {__version__}")
        raise typer.Exit


def _always_named(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)] = False
) -> None:
    """Without this callback, typer treats a single command as the program itself."""


def _log_at(level: str) -> None:
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise ConfigError([Problem(where="LOGLEVEL", what=f"{level!r} is not a log level", hint=f"one of {', '.join(known)}")])
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s")
    if known[level.upper()] >= logging.WARNING:
        for name in _TOLD_ON_IMPORT:
            logging.getLogger(name).setLevel(logging.ERROR)


def _can_continue(words: list[str]) -> bool:
    """Whether the command of these words has the option --resume."""
    return bool(words) and words[0] in _CONTINUED


def spread(words: list[str], command: Any) -> list[str]:
    """Repeat an option that takes several words before each of them, as click requires: ``--models bert vit``.

    Such an option is declared as a list, with a metavar that ends with an ellipsis. It takes every word up to the next option, but leaves
    the last ones to arguments that the command requires: ``fit --hw cpu cuda bert``.

    Raises:
        ConfigError: such an option has no value: ignoring it would select everything.
    """
    nested = getattr(command, "commands", {})
    if words and words[0] in nested:
        return [words[0], *spread(words[1:], nested[words[0]])]
    named = {name: each for each in command.params for name in each.opts if name.startswith("-")}
    lists = {name for name, each in named.items() if each.multiple and (each.metavar or "").endswith("...")}
    lacking = sum(each.required for each in command.params if each.param_type_name == "argument") if "--" not in words else 0
    result: list[str] = []
    repeated: list[int] = []  # where the last such option was repeated
    spreading, value, options = "", False, words[: words.index("--")] if "--" in words else words
    for index, word in enumerate(options):
        if word.startswith("-"):
            empty = index + 1 == len(options) or options[index + 1].startswith("-")
            if word in lists:
                if empty:
                    raise ConfigError([Problem(where=word, what="no value is given", hint=f"name one or more: {word} A B")])
                repeated = []
            spreading, value = word if word in lists else "", word in named and not named[word].is_flag
            result += [word, _DEFAULT_VALUES[word]] if empty and word in _DEFAULT_VALUES else [word]
            continue
        if not value and spreading:
            repeated.append(len(result))
            result.append(spreading)
        lacking -= not value and not spreading
        value = False
        result.append(word)
    for at in reversed(repeated[-lacking:] if lacking > 0 else ()):
        del result[at]
    return [*result, *words[len(options) :]]


if __name__ == "__main__":
    sys.exit(main())
