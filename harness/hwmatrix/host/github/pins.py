"""Updates of pinned versions: actions of the workflows, packages of the images, the digest of the base image.

Each value comes from outside and is checked before it is written: a commit, a version, a digest. Only the pins in the texts are changed.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.errors import ConfigError, EngineError, HwmatrixError, Problem, StoreError
from hwmatrix.host.github.jobs import AskingError, get
from hwmatrix.host.github.render import ACTIONS, ActionPin, action_pins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hwmatrix.matrix.load import LoadedMatrix

CONSTRAINTS: Final = (Path("images/constraints.txt"), Path("images/constraints-host.txt"))
"""Both files together are one resolution: the packages of the images, and those that machines install around them."""
FOLLOWING: Final = "images/constraints-torch-*.txt"
"""Constraints of other builds of PyTorch. They share versions with the resolution, but PyTorch itself is chosen by hand."""
_BY_HAND: Final = "torch"
_PIN: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<sign>={2,3})(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)(?P<marker>\s*;.*)?"
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_INSPECT_S: Final = 120.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """A pin that has changed."""

    file: str
    name: str
    old: str
    new: str


def newest_action(name: str, asking: Callable[[str], dict[str, Any]]) -> ActionPin:
    """Look up the commit and the version of an action's latest release. ``asking`` gets a path of GitHub's API.

    Raises:
        HwmatrixError: the API's answer cannot be used as a pin.
    """
    try:
        version = asking(f"/repos/{name}/releases/latest").get("tag_name")
        if not isinstance(version, str) or not re.fullmatch(r"v\d+(\.\d+){0,2}", version):
            raise ConfigError([Problem(where=name, what=f"its latest release is {version!r}", hint="pin it by hand")])
        found = asking(f"/repos/{name}/git/ref/tags/{version}").get("object", {})
        if found.get("type") == "tag":  # an annotated tag is a separate object
            found = asking(f"/repos/{name}/git/tags/{found.get('sha')}").get("object", {})
        return ActionPin(commit=str(found.get("sha")), version=version)
    except (AskingError, AttributeError) as error:
        raise HwmatrixError(f"{name}: {error}", advice="Try again, or pin it by hand.") from error


def repinned_actions(text: str, newest: dict[str, ActionPin]) -> tuple[str, list[Change]]:
    """Return the text of actions.yaml with new pins, and the changes."""
    changes = []
    for name, pin in action_pins().items():
        new = newest[name]
        if new != pin:
            text = text.replace(f"{{commit: {pin.commit}, version: {pin.version}}}", f"{{commit: {new.commit}, version: {new.version}}}")
            changes.append(Change(file=ACTIONS, name=name, old=pin.version, new=new.version))
    return text, changes


def repinned_constraints(texts: Mapping[str, str], compiled: str) -> dict[str, tuple[str, list[Change]]]:
    """Return the texts of constraints files with the versions of a resolution. Names, comments and markers stay.

    ``texts`` is by path: those of :data:`CONSTRAINTS` have the whole resolution between them, the others have the versions they share with
    it. PyTorch has one line for Linux with a local version (``+cpu``), and one without for other systems. Packages that only other versions
    of Python need are not in the resolution: lines with a marker of ``python_version`` stay as they are.

    Raises:
        ConfigError: the resolution has other packages, which needs a decision by a person.
    """
    new = _versions(compiled)
    old = {name for path in map(str, CONSTRAINTS) for name in _versions(texts[path])}
    if new.keys() != old:
        added, gone = (", ".join(sorted(names)) for names in (new.keys() - old, old - new.keys()))
        what = "; ".join(text for text in (f"it also has {added}" if added else "", f"it lacks {gone}" if gone else "") if text)
        hint = "docs/images.md says how to refresh them by hand"
        raise ConfigError([Problem(where=" and ".join(map(str, CONSTRAINTS)), what=f"the resolution differs: {what}", hint=hint)])
    return {path: _repinned(path, text, new) for path, text in texts.items()}


def _repinned(path: str, text: str, new: Mapping[str, str]) -> tuple[str, list[Change]]:
    follows = path not in map(str, CONSTRAINTS)
    lines, changes = [], []
    for line in text.splitlines():
        found = _PIN.fullmatch(line.strip())
        name = _normal(found["name"]) if found else ""
        if found is None or name not in new or (follows and name == _BY_HAND):
            lines.append(line)
            continue
        before = found["version"]
        after = new[name].partition("+")[0] + ("" if "+" not in before else "+" + before.partition("+")[2])
        lines.append(f"{found['name']}{found['sign']}{after}{found['marker'] or ''}")
        if after != before:
            changes.append(Change(file=path, name=found["name"], old=before, new=after))
    return "\n".join(lines) + "\n", changes


def repinned_base(text: str, line: int | None, base: str, digest: str) -> tuple[str, list[Change]]:
    """Return the text of matrix.yaml with a new digest of its base image, and the change.

    Raises:
        ConfigError: the digest is malformed, or the image is not on its line.
    """
    if not _DIGEST.fullmatch(digest):
        raise ConfigError([Problem(where="images.base", what=f"{digest[:80]!r} is not a digest", hint="sha256: and 64 hexadecimal digits")])
    name = base.partition("@")[0]
    new = f"{name}@{digest}"
    if new == base or line is None:
        return text, []
    lines = text.splitlines(keepends=True)
    if base not in lines[line - 1]:
        raise ConfigError([Problem(where=f"matrix.yaml:{line}", what="images.base is written in a way that cannot be changed here")])
    lines[line - 1] = lines[line - 1].replace(base, new, 1)
    return "".join(lines), [Change(file="matrix.yaml", name=name, old=base.partition("@")[2][:19] or "by tag", new=digest[:19])]


def refresh(loaded: LoadedMatrix, root: Path, *, api: str, token: str | None, compiled: Path | None, write: bool) -> list[Change]:
    """Look up all pins, and write the changed ones. Without a resolution (``compiled``), packages are left alone.

    Raises:
        HwmatrixError: something cannot be looked up or written. Then nothing is written.
    """
    source = root / "harness/hwmatrix/host/github" / ACTIONS
    here = Path(str(resources.files(__package__).joinpath(ACTIONS)))
    actions = source if source.is_file() else here
    newest = {name: newest_action(name, lambda path: get(api + path, token)) for name in action_pins()}
    base = loaded.spec.images.base
    try:
        found = [
            (actions, *repinned_actions(actions.read_text(encoding="utf-8"), newest)),
            (
                loaded.path,
                *repinned_base(loaded.path.read_text(encoding="utf-8"), loaded.lines.get(("images", "base")), base, digest_of(base)),
            ),
        ]
        if compiled is not None:
            places = [*CONSTRAINTS, *(path.relative_to(root) for path in sorted(root.glob(FOLLOWING)))]
            texts = {str(place): (root / place).read_text(encoding="utf-8") for place in places}
            repinned = repinned_constraints(texts, compiled.read_text(encoding="utf-8"))
            found += [(root / place, *new) for place, new in repinned.items()]
        for path, text, changes in found:
            if changes and write:
                path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise StoreError(f"a pin cannot be read or written: {error}") from error
    return [change for _, _, changes in found for change in changes]


def digest_of(image: str) -> str:
    """Look up the digest that the image's registry has for its name.

    Raises:
        EngineError: it cannot be looked up.
    """
    command = ["docker", "buildx", "imagetools", "inspect", image.partition("@")[0], "--format", "{{.Manifest.Digest}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSPECT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or str(error)
        raise EngineError(
            f"{image}: its digest cannot be looked up: {told.strip()}",
            advice="Check that docker buildx is installed and that the registry is reachable.",
        ) from error
    return done.stdout.strip()


def _versions(text: str) -> dict[str, str]:
    """The package versions by name, without comments and other versions of Python. Of several lines for a package, the last counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        pin = _PIN.fullmatch(line.partition("#")[0].strip())
        if pin is not None and "python_version" not in (pin["marker"] or ""):
            found[_normal(pin["name"])] = pin["version"]
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
