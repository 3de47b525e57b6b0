"""Mutation testing of the code that decides verdicts: every small change of it must make a test fail.

``modules.yaml`` lists the modules and their tests, ``survivors.yaml`` the mutants that no test kills, with the reasons. An unlisted
survivor fails the run, and so does a listed one that a test now kills. mutmut makes the mutants and runs the tests, in a copy of the tree
whose source root has the name that mutmut expects.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
MODULES: Final = HERE / "modules.yaml"
SURVIVORS: Final = HERE / "survivors.yaml"
COPIED: Final = ("pyproject.toml", "matrix.yaml", "images", "tests")
KILLED: Final = frozenset({"killed", "timeout", "segfault"})
"""States that count as killed: a mutant that hangs or crashes the interpreter is noticed by anyone who runs the tests."""
SQL: Final = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|ATTACH|DETACH|WHERE|FROM|UNION)\b")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutant:
    """A small change of a function, identified by the changed lines: unlike mutmut's numbers, they don't depend on other lines."""

    function: str
    was: str
    becomes: str

    @property
    def changes_only_case_of_sql(self) -> bool:
        """Whether it only spells SQL in capitals or small letters, which mean the same."""
        return self.was.casefold() == self.becomes.casefold() and SQL.search(self.was) is not None

    def __str__(self) -> str:
        """The entry for survivors.yaml, ready to be copied."""
        fields = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in dataclasses.asdict(self).items()]
        return "      - " + "\n        ".join(fields)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result for a module. A function may have two identical mutants, so surviving ones are counted.

    Survivors that only change the case of SQL are not counted: they are no other program.
    """

    module: str
    total: int
    alive: Counter[Mutant]

    @property
    def share_killed(self) -> float:
        """The share of mutants that made a test fail."""
        return 1 - self.alive.total() / self.total


def main() -> int:
    """Test the given modules, or all. Return 0 if exactly the listed mutants survive, and few enough."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="files below harness/, such as hwmatrix/measure/parity.py; default: all listed ones")
    parser.add_argument("--workers", type=int, default=2, help="how many mutants are tested in parallel")
    parser.add_argument("--folder", type=Path, required=True, help="where the copy of the tree is made, in a folder `tree`")
    arguments = parser.parse_args()
    settings = yaml.safe_load(MODULES.read_text(encoding="utf-8"))
    known = list(settings["modules"])
    if unknown := sorted(set(arguments.modules) - set(known)):
        parser.error(f"not in {MODULES.name}: {', '.join(unknown)}; there are {', '.join(known)}")
    listed = yaml.safe_load(SURVIVORS.read_text(encoding="utf-8")) or {}
    good = True
    for module in arguments.modules or known:
        outcome = try_module(module, settings["modules"][module], arguments.folder.absolute() / "tree", arguments.workers)
        good &= judge(outcome, listed.get(module) or [], settings["least_killed"])
    return 0 if good else 1


def try_module(module: str, tests: Sequence[str], folder: Path, workers: int) -> Outcome:
    """Run a module's tests against each of its mutants."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "harness", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    (folder / "setup.cfg").write_text(configuration(module, tests), encoding="utf-8")
    say(f"{module} ...")
    mutmut(folder, "run", "--max-children", str(workers))
    states = dict(read_results(mutmut(folder, "results", "--all", "true")))
    living = {name: mutant_of(name, mutmut(folder, "show", name)) for name, state in states.items() if state not in KILLED}
    if not states or "not checked" in states.values():
        raise SystemExit(f"{module}: mutmut did not try all mutants; its copy of the tree is {folder}")
    equal = [name for name, mutant in living.items() if mutant.changes_only_case_of_sql]
    alive = Counter(mutant for name, mutant in living.items() if name not in equal)
    return Outcome(module=module, total=len(states) - len(equal), alive=alive)


def configuration(module: str, tests: Sequence[str]) -> str:
    """mutmut's configuration. Its generous default time limits are kept, so that a busy machine does not kill a survivor."""
    lines = {
        "source_paths": ["src"],
        "only_mutate": [f"src/{module}"],
        "also_copy": COPIED,
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", "no:xdist"],
    }
    return "\n".join(["[mutmut]", *(f"{key}=" + "".join(f"\n    {value}" for value in values) for key, values in lines.items())]) + "\n"


def mutmut(folder: Path, *arguments: str) -> str:
    """Run mutmut in a copy of the tree, and return its output."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run([mutmut_command(), *arguments], cwd=folder, env=plain, text=True, capture_output=True, check=False)
    if ended.returncode:
        raise SystemExit(f"mutmut {' '.join(arguments)} ended with {ended.returncode}:\n{ended.stdout[-8000:]}\n{ended.stderr[-8000:]}")
    return ended.stdout


def mutmut_command() -> str:
    """The path of the mutmut installed for this Python."""
    found = shutil.which("mutmut", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise SystemExit("mutmut is not installed: nox -s mutants installs it")
    return found


def read_results(text: str) -> Iterator[tuple[str, str]]:
    """The mutants and their states, from lines such as ``    hwmatrix.measure.parity.x_compare__mutmut_1: killed``."""
    for line in text.splitlines():
        name, found, state = line.strip().rpartition(": ")
        if found and "__mutmut_" in name:
            yield name, state


def mutant_of(name: str, shown: str) -> Mutant:
    """The mutant in a diff printed by mutmut."""
    lines = [line for line in shown.splitlines() if not line.startswith(("---", "+++", "#"))]
    was, becomes = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    mangled = name.rpartition(".")[2].partition("__mutmut_")[0]  # x_function or xǁClassǁmethod
    function = mangled.removeprefix("x_") if mangled.startswith("x_") else mangled[2:].replace("ǁ", ".")
    return Mutant(function=function, was=was, becomes=becomes)


def judge(outcome: Outcome, groups: Iterable[dict[str, Any]], least: float) -> bool:
    """Print the survivors and the reasons. Return whether exactly the listed ones survive, and enough mutants are killed."""
    listed: Counter[Mutant] = Counter()
    killed = outcome.total - outcome.alive.total()
    say(f"{outcome.module}: {killed} of {outcome.total} mutants killed ({outcome.share_killed:.1%})")
    for group in groups:
        mutants = [Mutant(**mutant) for mutant in group["mutants"]]
        listed.update(mutants)
        say(f"  {len(mutants)} survive: {group['reason']}")
    new, gone = outcome.alive - listed, listed - outcome.alive
    for mutant in new.elements():
        say(f"  NEW SURVIVOR:\n{mutant}")
    for mutant in gone.elements():
        say(f"  LISTED, BUT KILLED OR NO MORE:\n{mutant}")
    if outcome.share_killed < least:
        say(f"  fewer than {least:.0%} are killed")
    return not new and not gone and outcome.share_killed >= least


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
