"""The requirements of an image: the same files, layer by layer, for the image and for its virtual environment."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Final

from hwmatrix.errors import ConfigError, Problem
from hwmatrix.matrix.shipped import CONSTRAINTS, IMAGES, image_files

PYTHON_STAGE: Final = "python"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """One step of an installation. The optional ``index_file`` is installed first, without dependencies: see images/base."""

    name: str
    requirements: Path
    index_file: Path | None
    constraints: Path

    @property
    def digest(self) -> str:
        """The SHA-256 of everything that decides what this layer installs, in hexadecimal."""
        total = hashlib.sha256()
        for path in (self.constraints, self.index_file, self.requirements):
            content = path.read_bytes() if path else b""
            total.update(f"{len(content)}:".encode() + content)
        return total.hexdigest()


def layers(project_root: Path, *, base: str, image: str) -> tuple[Layer, ...]:
    """Return the layers of an image, from the bottom up: ``python``, the stage ``base``, and the image's own.

    A stage with another build of PyTorch has its own constraints, ``constraints-<base>.txt``. Files beside the matrix.yaml in
    ``project_root`` override those that come with hwmatrix.

    Raises:
        ConfigError: a file is missing. The message names it.
    """
    files = image_files(project_root)

    def named(name: str) -> Path:
        return files.get(name, project_root / IMAGES / name)

    wanted = [(PYTHON_STAGE, named("base") / f"{PYTHON_STAGE}.txt")]
    if base != PYTHON_STAGE:
        wanted.append((base, named("base") / f"{base}.txt"))
    wanted.append((image, named(image) / "requirements.txt"))
    common, own = named(CONSTRAINTS), named(f"constraints-{base}.txt")
    constraints = own if own.is_file() else common
    missing = [path for path in (common, *(path for _, path in wanted)) if not path.is_file()]
    if missing:
        hint = "every target's `image` is a folder of images/, and its `base` a stage of images/base; see docs/images.md"
        raise ConfigError([Problem(where=str(path), what="there is no such file", hint=hint) for path in missing])
    found = []
    for name, requirements in wanted:
        index_file = requirements.with_name(f"{name}.index.txt")
        found.append(
            Layer(
                name=name,
                requirements=requirements,
                index_file=index_file if index_file.is_file() else None,
                constraints=common if name == PYTHON_STAGE else constraints,
            )
        )
    return tuple(found)
