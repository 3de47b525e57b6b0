"""The constraints contain the exact version of every installed package: the requested ones and their dependencies."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hwmatrix.host.github.render import action_pins
from hwmatrix.matrix.load import load

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
    """The versions by package name. PyTorch has one for Linux and one for other systems."""
    found: dict[str, set[str]] = {}
    for name in PINS:
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if pin := re.fullmatch(r"([a-z0-9._-]+)==(\S+)( ;.*)?", line):
                found.setdefault(canonicalize_name(pin[1]), set()).add(pin[2])
    return found


def of_the_project(extras: Iterable[str]) -> list[str]:
    """The requirements in pyproject.toml. They are not read from the installed metadata, which can be older."""
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
    """The requirements in noxfile.py's install calls, and in the lists that these use."""
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
    """The packages that the workflows' scripts install by name."""
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        for line in re.findall(r"pip install (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            words = re.sub(r'--constraint \S+|--\S+|"\S*"', "", line).split()
            yield from words


ASKED = sorted({*of_the_project(["host", "cluster", "dev", "bench"]), *of_a_file(".github/tools.txt"), *of_nox(), *of_workflows()})


def closure(asked: Iterable[str]) -> dict[str, set[str]]:
    """The version specifiers for every required package, on any of the machines. Packages not installed here are not followed."""
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


def test_the_requested_packages_match_the_files() -> None:
    assert {"zizmor>=1.32", "nox>=2025.5", "nox", "onnxscript", "hatchling>=1.27", "docker>=7.1"} <= set(ASKED)
    assert not [text for text in ASKED if "/" in text or text.startswith("-")]


def test_every_installed_package_has_a_version() -> None:
    pinned = pins()
    missing = {name: sorted(specifiers) for name, specifiers in closure(ASKED).items() if name not in pinned}
    assert not missing, "docs/images.md: Refreshing the versions"


def test_dependencies_are_followed() -> None:
    """No file of ours requests these packages; docker needs them."""
    found = closure(["hwmatrix[host]"])
    assert {"requests", "urllib3", "certifi"} <= found.keys()


def test_every_version_satisfies_its_requirements() -> None:
    pinned = pins()
    wrong = [
        f"{name}=={version} is not {specifier}"
        for name, specifiers in closure(ASKED).items()
        for version in pinned.get(name, ())
        for specifier in specifiers
        if specifier and not Requirement(f"{name}{specifier}").specifier.contains(version, prereleases=True)
    ]
    assert not wrong


def test_every_name_is_in_only_one_of_the_files() -> None:
    names = [{pin[1] for line in of_a_file(name) if (pin := re.match(r"([a-z0-9._-]+)==", line))} for name in PINS]
    assert not names[0] & names[1]
    assert (ROOT / PINS[1]).read_text(encoding="utf-8").count("--constraint constraints.txt\n") == 1


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_no_workflow_installs_without_constraints(path: Path) -> None:
    for line in re.findall(r"pip install (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        assert "constraints-host.txt" in line


def test_renovate_finds_every_action_the_base_image_and_the_constraints() -> None:
    settings = json.loads((ROOT / "renovate.json").read_text(encoding="utf-8"))
    found = {}
    for manager in settings["customManagers"]:
        ((pattern,), (path,)) = manager["matchStrings"], manager["managerFilePatterns"]
        (file,) = (name for name in ("matrix.yaml", "harness/hwmatrix/host/github/actions.yaml") if re.search(path.strip("/"), name))
        matches = re.finditer(pattern.replace("(?<", "(?P<"), (ROOT / file).read_text(encoding="utf-8"))
        found |= {each["depName"]: each["currentDigest"] for each in matches}
    base = load(ROOT / "matrix.yaml").spec.images.base
    name, _, digest = base.partition("@")
    assert found == {action: pin.commit for action, pin in action_pins().items()} | {name.rpartition(":")[0]: digest or None}
    patterns = [pattern.strip("/") for pattern in settings["pip_requirements"]["managerFilePatterns"]]
    assert all(any(re.search(pattern, name) for pattern in patterns) for name in (*PINS, "images/cpu/requirements.txt"))
