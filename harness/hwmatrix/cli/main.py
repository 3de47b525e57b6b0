"""The command ``hwmatrix``. Here argv, the environment and the exit code are handled; everything inward gets values."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console

from hwmatrix.cli import inspecting, operators, running, storing
from hwmatrix.errors import ConfigError, HwmatrixError, Problem
from hwmatrix.matrix.load import near_miss

if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED: Final = 128 + signal.SIGINT
_LISTS: Final = frozenset({"--models", "--targets", "--architectures"})
"""Options that take several words: ``--models bert vit``."""
_UsageError: Final[Any] = typer.BadParameter.__mro__[1]
"""click's UsageError, wherever this version of typer has it: some bring a click of their own."""

app = typer.Typer(
    name="hwmatrix",
    help="Which Hugging Face models work on which hardware, how well, how fast, and where they don't, why.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
running.add_to(app)
operators.add_to(app)
inspecting.add_to(app)
storing.add_to(app)


def main(argv: list[str] | None = None) -> int:
    """Run one command; give its exit code (docs/cli.md lists them)."""
    signal.signal(signal.SIGTERM, _interrupt)
    stderr = Console(stderr=True)
    try:
        _log_at(os.environ.get("LOGLEVEL", "WARNING"))
        result = app(spread(sys.argv[1:] if argv is None else argv), standalone_mode=False)
        if result == INTERRUPTED:  # some versions of typer turn Ctrl-C into an exit code themselves
            raise KeyboardInterrupt  # noqa: TRY301 - told in one place
    except HwmatrixError as error:
        stderr.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return error.exit_code
    except _UsageError as error:
        error.show()
        return ConfigError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        stderr.print("interrupted: what is finished is kept; continue with --resume", markup=False)
        return INTERRUPTED
    return result if isinstance(result, int) else 0


def _log_at(level: str) -> None:
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise ConfigError([Problem(where="LOGLEVEL", what=f"{level!r} is no level", hint=near_miss(level.upper(), known))])
    logging.basicConfig(level=level.upper(), format="%(levelname)s %(name)s: %(message)s")


def spread(argv: list[str]) -> list[str]:
    """Repeat an option that takes several words before each of them, which is how click wants it.

    Raises:
        ConfigError: such an option stands without any: to leave it out would select everything.
    """
    spreading: str | None = None
    words: list[str] = []
    for index, word in enumerate(argv):
        if word in _LISTS:
            spreading = word
            if index + 1 == len(argv) or argv[index + 1].startswith("-"):
                raise ConfigError([Problem(where=word, what="no value is given", hint=f"name one or more: {word} A B")])
        elif word.startswith("-"):
            spreading = None
            words.append(word)
        elif spreading is not None:
            words += [spreading, word]
        else:
            words.append(word)
    return words


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
