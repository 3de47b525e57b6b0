"""A child in a new interpreter, for systems where a process with loaded frameworks cannot be forked (macOS).

There a forked child can use neither Metal nor Accelerate: between fork and exec, Apple allows only what is safe in a signal
handler. So each child must import its frameworks again.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from hwmatrix.runner.child import work_and_exit

if TYPE_CHECKING:
    from collections.abc import Callable

    Send = Callable[[dict[str, Any]], None]


def spawn(work: Callable[[Send], None], *, messages: int, log: int, settings: dict[str, Any]) -> int:
    """Start ``work(send)`` in a new interpreter with its own process group; return its process id.

    ``work`` is pickled, as in multiprocessing: a function of a module, or a partial of one. ``messages`` and ``log`` are the
    descriptors that the child writes to, ``settings`` the limits that it sets for itself.
    """
    with tempfile.TemporaryFile() as order:
        pickle.dump((work, settings), order)
        order.seek(0)
        os.set_inheritable(messages, True)  # noqa: FBT003 - the function takes no keyword
        actions = [(os.POSIX_SPAWN_DUP2, order.fileno(), 0), (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        command = [sys.executable, "-m", __name__, str(messages)]
        return os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setpgroup=0)


def main() -> None:
    """Run the child's side, which reads its work from standard input."""
    messages = int(sys.argv[1])
    work, settings = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our own parent to an unnamed file
    work_and_exit(work, messages, **settings)


if __name__ == "__main__":
    main()
