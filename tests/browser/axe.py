"""axe-core: automated accessibility checks, fetched by npm, checked against the integrity that axe-core.txt names."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from chromium import Page

LIST: Final = Path(__file__).with_name("axe-core.txt")
GRAVE: Final = frozenset({"serious", "critical"})
_RUN: Final = """
(async () => {
  const found = await axe.run(document, {resultTypes: ["violations"], ...OPTIONS});
  return found.violations.map(each => ({
    rule: each.id, impact: each.impact, help: each.help,
    nodes: each.nodes.slice(0, 5).map(node => `${node.target.join(" ")}: ${node.failureSummary}`),
  }));
})()
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Violation:
    """A rule that a page breaks, how much that matters, and where."""

    rule: str
    impact: str
    help: str
    nodes: tuple[str, ...]


def fetch(cache: Path) -> str:
    """The text of axe-core, from the cache or from npm.

    Raises:
        OSError: npm is not here.
        subprocess.CalledProcessError: npm cannot fetch it.
        ValueError: the package is not the one that is named.
    """
    package, integrity, name = (line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#"))
    kept = cache / f"{package}.tgz"
    if not kept.is_file():
        npm = shutil.which("npm")
        if npm is None:
            raise OSError("npm is not installed")
        with tempfile.TemporaryDirectory() as scratch:  # npm pack fetches an archive and runs nothing of it
            command = [npm, "pack", "--ignore-scripts", "--pack-destination", scratch, package]
            subprocess.run(command, check=True, capture_output=True, cwd=scratch, timeout=300)
            (archive,) = Path(scratch).glob("*.tgz")
            cache.mkdir(parents=True, exist_ok=True)
            whole = cache / f".{package}.{os.getpid()}.tmp"
            whole.write_bytes(archive.read_bytes())
            whole.replace(kept)  # another process may fetch it too
    content = kept.read_bytes()
    found = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != integrity:
        kept.unlink(missing_ok=True)
        raise ValueError(f"{package} has the integrity {found}, and {LIST.name} names {integrity}")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive_file:
        stream = archive_file.extractfile(name)
        assert stream is not None
        return stream.read().decode()


def violations(page: Page, axe: str, *rules: str) -> list[Violation]:
    """Every rule that a page breaks as it stands, of these or of all."""
    page.evaluate(f"if (!window.axe) {{ {axe} }}")
    found = page.evaluate(_RUN.replace("OPTIONS", json.dumps({"runOnly": rules} if rules else {})))
    return [Violation(rule=each["rule"], impact=each["impact"], help=each["help"], nodes=tuple(each["nodes"])) for each in found]
