"""Everything that is installed under the constraints has its exact version there: what was asked for, and what that needs."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[4]
PINS = ("images/constraints.txt", "images/constraints-host.txt")
MACHINES = [
    {"python_version": version, "python_full_version": f"{version}.9", "sys_platform": platform, "platform_system": system}
    for version in ("3.11", "3.12", "3.13")
    for platform, system in (("linux", "Linux"), ("darwin", "Darwin"))
]
PROJECT = "hwmatrix"


def pins() -> dict[str, set[str]]:
    """Names to versions: PyTorch has one for Linux, and one for elsewhere."""
    found: dict[str, set[str]] = {}
    for name in PINS:
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if pin := re.fullmatch(r"([a-z0-9._-]+)==(\S+)( ;.*)?", line):
                found.setdefault(canonicalize_name(pin[1]), set()).add(pin[2])
    return found


def of_the_project(extras: Iterable[str]) -> list[str]:
    """What pyproject.toml asks for: the metadata of an installed hwmatrix can be older."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(each for extra in extras for each in project["project"]["optional-dependencies"][extra]),
    ]


def of_a_file(name: str) -> list[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith(("#", "-"))]


def of_nox() -> Iterator[str]:
    """Texts in noxfile.py's installations, and in the lists that they take."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    named = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    lists = [node.value for node in named if isinstance(node.value, ast.List)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "session.install"]
    assert calls
    for node in [*lists, *calls]:
        given = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        for before, text in zip(["", *given], given, strict=False):
            if before in {"--requirement", "-r"}:
                yield from of_a_file(text)
            elif not text.startswith(("-", ".")) and before not in {"--constraint", "--retries", "--timeout"}:
                yield text


def of_workflows() -> Iterator[str]:
    """What scripts of the workflows install by name."""
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        for line in re.findall(r"pip install (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            words = re.sub(r'--constraint \S+|--\S+|"\S*"', "", line).split()
            yield from words


ASKED = sorted({*of_the_project(["host", "dev"]), *of_a_file(".github/tools.txt"), *of_nox(), *of_workflows()})


def closure(asked: Iterable[str]) -> dict[str, set[str]]:
    """Names to the requirements that ask for them, on any of the machines; what is not installed here is not looked into."""
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(Requirement(text), frozenset({""})) for text in asked]
    while todo:
        requirement, extras = todo.pop()
        if requirement.marker and not any(
            requirement.marker.evaluate({**default_environment(), **machine, "extra": extra}) for machine in MACHINES for extra in extras
        ):
            continue
        name = canonicalize_name(requirement.name)
        if name == PROJECT:
            todo += [(Requirement(text), frozenset({""})) for text in of_the_project(requirement.extras)]
            continue
        found.setdefault(name, set()).add(str(requirement.specifier))
        wanted = frozenset(requirement.extras) | {""}
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            needs = importlib.metadata.requires(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        todo += [(Requirement(text), wanted) for text in needs or ()]
    return found


def test_what_is_asked_for_is_what_the_files_say() -> None:
    assert {"zizmor>=1.32", "nox>=2025.5", "pip-tools", "nox", "onnxscript", "hatchling>=1.27", "docker>=7.1"} <= set(ASKED)
    assert not [text for text in ASKED if "/" in text or text.startswith("-")]


def test_nothing_that_is_installed_is_without_a_version() -> None:
    pinned = pins()
    missing = {name: sorted(specifiers) for name, specifiers in closure(ASKED).items() if name not in pinned}
    assert not missing, "docs/images.md: Refreshing the versions"


def test_what_cyclonedx_and_docker_need_is_looked_into() -> None:
    """The closure is one: these are asked for by no file of ours."""
    found = closure(["hwmatrix[host]"])
    assert {"py-serializable", "packageurl-python", "license-expression", "boolean-py", "defusedxml", "sortedcontainers"} <= found.keys()
    assert {"requests", "urllib3", "certifi"} <= found.keys()


def test_a_version_is_one_that_is_asked_for() -> None:
    pinned = pins()
    wrong = [
        f"{name}=={version} is not {specifier}"
        for name, specifiers in closure(ASKED).items()
        for version in pinned.get(name, ())
        for specifier in specifiers
        if specifier and not Requirement(f"{name}{specifier}").specifier.contains(version, prereleases=True)
    ]
    assert not wrong


def test_a_name_stands_in_one_of_the_files_only() -> None:
    names = [{pin[1] for line in of_a_file(name) if (pin := re.match(r"([a-z0-9._-]+)==", line))} for name in PINS]
    assert not names[0] & names[1]
    assert (ROOT / PINS[1]).read_text(encoding="utf-8").count("--constraint constraints.txt\n") == 1


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_no_workflow_installs_without_constraints(path: Path) -> None:
    for line in re.findall(r"pip install (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        assert "constraints-host.txt" in line
