"""Ends one process of a runner whose cell is at work, seen from its own machine or container: ``python victims.py WHO PLAN``.

WHO is ``cell`` (the child of the cell that runs now), ``page`` (the process of its page), ``gpu`` (the browser's GPU process) or
``browser``. PLAN is the path of the plan that the runner was given. It needs nothing but psutil, which every image has.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil

AT_WORK_S = 3.0
"""CPU seconds of the cell, its page and the GPU process together, after which models that never end are in the middle of it."""
PATIENCE_S = 50.0


class Scene:
    """The processes that work for the cell that runs now."""

    def __init__(self, plan: str) -> None:
        commands = {}
        for process in psutil.process_iter():
            try:
                if pid_namespace(process.pid) == pid_namespace(os.getpid()):  # a container beside this run has a browser of its own
                    commands[process] = process.cmdline()
            except (psutil.Error, OSError):  # it has just ended, or is somebody else's
                continue
        # The runner has forked its child, so that both have the same command.
        children = [process for process, command in commands.items() if plan in command and commands.get(parent_of(process)) == command]
        self.cell = children[0] if children else None
        self.gpu = next((process for process, command in commands.items() if "--type=gpu-process" in command), None)
        self.browser = next((process for process, command in commands.items() if is_browser(command)), None)
        pages = [process for process, command in commands.items() if "--type=renderer" in command and self._is_new(process)]
        # Of the pages that were opened since the cell began: the browser keeps another one ready, which does nothing.
        self.page = max(pages, key=used_s, default=None)

    def _is_new(self, process: psutil.Process) -> bool:
        try:
            return self.cell is not None and process.create_time() >= self.cell.create_time()
        except psutil.NoSuchProcess:
            return False


def pid_namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def parent_of(process: psutil.Process) -> psutil.Process | None:
    """The parent of a process; None of one that has ended."""
    try:
        return process.parent()
    except psutil.NoSuchProcess:
        return None


def is_browser(command: list[str]) -> bool:
    return "--headless=new" in command and not any(word.startswith("--type=") for word in command)


def used_s(process: psutil.Process | None) -> float:
    """CPU seconds of a process; none of one that is not there, or not any more."""
    try:
        return sum(process.cpu_times()[:2]) if process is not None else 0.0
    except psutil.NoSuchProcess:
        return 0.0


def main(who: str, plan: str) -> None:
    scene, until = Scene(plan), time.monotonic() + PATIENCE_S
    before_s = used_s(scene.gpu)  # it may work for all cells of a shard
    while used_s(scene.cell) + used_s(scene.page) + used_s(scene.gpu) - before_s < AT_WORK_S:
        if time.monotonic() > until:
            sys.exit("the cell does not come to its work")
        time.sleep(0.1)
        scene = Scene(plan)
    victim = getattr(scene, who)
    os.kill(victim.pid, signal.SIGSEGV if who == "cell" else signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
