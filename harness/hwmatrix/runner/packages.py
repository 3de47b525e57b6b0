"""The packages installed in this image, one JSON object per line, for its SBOM.

``python -m hwmatrix.runner.packages`` needs no network, writes no files, and imports none of the packages.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DPKG: Final = ("dpkg-query", "--show", "--showformat=${db:Status-Status}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\n")
_RELEASE: Final = Path("/etc/os-release")
_NPM: Final = Path("/opt/hwmatrix")
_INSTALLED: Final = "installed"


def main() -> None:
    """Print every package of the system, of Python and of npm, with the system's release first."""
    for fact in (release(), *debian(), *python(), *npm(_NPM)):
        print(json.dumps(fact, sort_keys=True))  # noqa: T201 - what this program is for


def release(file: Path = _RELEASE) -> dict[str, Any]:
    """The distribution: ``id`` and ``version`` from /etc/os-release, None where missing."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    values = {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
    return {"kind": "system", "id": values.get("ID"), "version": values.get("VERSION_ID")}


def debian() -> Iterator[dict[str, Any]]:
    """Packages that dpkg has installed; none where there is no dpkg."""
    if shutil.which(_DPKG[0]) is None:
        return
    listed = subprocess.run(_DPKG, capture_output=True, text=True, check=True)
    for line in sorted(listed.stdout.splitlines()):
        status, name, version, architecture, source = line.split("\t")
        if status == _INSTALLED:
            yield {"kind": "deb", "name": name, "version": version, "architecture": architecture, "source": source}


def python() -> Iterator[dict[str, Any]]:
    """Distributions that this interpreter sees. Of two with the same name, the first on the path is the one that is imported."""
    seen: set[str] = set()
    found = []
    for distribution in importlib.metadata.distributions():
        try:
            meta: Any = distribution.metadata  # an email.message.Message, whose protocol type lacks get
        except FileNotFoundError:  # as the package importlib_metadata says it, once a library has imported it
            continue
        name, version = meta.get("Name"), meta.get("Version")
        if name and version and name.lower() not in seen:  # what an interrupted installation left has neither
            seen.add(name.lower())
            found.append(
                {
                    "kind": "pypi",
                    "name": name,
                    "version": version,
                    "license": meta.get("License-Expression"),
                    "license_name": _short(meta.get("License")),
                }
            )
    yield from sorted(found, key=lambda fact: str(fact["name"]).lower())


def npm(root: Path) -> Iterator[dict[str, Any]]:
    """List the npm packages that the image contains parts of: each has its package.json there."""
    for file in sorted(root.glob("*/package.json")):
        package = json.loads(file.read_bytes())
        yield {"kind": "npm", "name": package["name"], "version": package["version"], "license": package.get("license")}


def _short(text: str | None) -> str | None:
    """A license's name; None for the full license text, which some packages put there."""
    line = (text or "").strip()
    return line if line and "\n" not in line and len(line) < 64 and line != "UNKNOWN" else None  # noqa: PLR2004 - a line


if __name__ == "__main__":
    main()
