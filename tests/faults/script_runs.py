"""Runs scripts as programs: in a new interpreter, or in a child of one that has imported PyTorch and transformers already.

The imports take longer than most of the scripts.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

_IMPORTED: Final = ["torch", "transformers", "transformers.modeling_utils"]
_LONGEST_S: Final = 500


def ran(path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in its folder as somebody who has never heard of hwmatrix."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, str(path)], check=False, capture_output=True, text=True, cwd=path.parent, env=environment)


def ran_warm(path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script as :func:`ran` does, without the time that its imports take."""
    printed = [path.with_name(f"{path.name}.{name}") for name in ("stdout", "stderr")]
    process = _imported().Process(target=_run, args=(str(path), *map(str, printed)))
    process.start()
    process.join(_LONGEST_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    code = process.exitcode
    assert code is not None
    return subprocess.CompletedProcess([str(path)], code, *(each.read_text(encoding="utf-8") for each in printed))


@functools.cache
def _imported() -> ForkServerContext:
    """What starts children of a process that imported the packages; it ends with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def _run(path: str, stdout: str, stderr: str) -> None:
    for number, name in ((1, stdout), (2, stderr)):
        with open(name, "wb") as file:  # noqa: PTH123 - for its descriptor
            os.dup2(file.fileno(), number)
    folder = os.path.dirname(path)  # noqa: PTH120
    os.chdir(folder)
    sys.argv, sys.path[0] = [path], folder
    runpy.run_path(path, run_name="__main__")
