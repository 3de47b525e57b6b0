from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IN_A_TEXT = """
import os, signal, time

TEXT = "os.kill(os.getpid(), signal.SIGINT)\\ntime.sleep(60)"  # a dataclass executes such a text when it is imported


def work(*_words, **_options):
    exec(TEXT)
"""
COMMAND = """
import sys

from hwmatrix.cli import main

main.program = lambda _command: work
sys.exit(main.main(["version"]))
"""
RUNNER = """
import argparse
import sys

from hwmatrix.runner import __main__ as runner


class Parser:
    def parse_args(self, _argv):
        return argparse.Namespace(work=work)


runner._parser = Parser
sys.exit(runner.main([]))
"""


@pytest.mark.parametrize("program", [COMMAND, RUNNER], ids=["command", "runner"])
def test_an_interrupt_in_an_executed_text_still_gives_the_exit_code(tmp_path: Path, program: str) -> None:
    """CPython notes such an interrupt as unhandled, and would end ``python -m`` by SIGINT although it was caught."""
    package = tmp_path / "interrupted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(IN_A_TEXT + program, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'harness'}"}
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
