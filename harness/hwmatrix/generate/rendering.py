"""Templates for Python files: names, messages and settings are inserted only as literals or comments."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics.files import write_atomically
from hwmatrix.basics.templates import environment
from hwmatrix.errors import ConfigError, Problem
from hwmatrix.generate.literals import WIDTH, literal, plain

if TYPE_CHECKING:
    import jinja2


_TESTS: Final = Path(__file__).parent / "templates" / "tests"


def render(name: str, **values: Any) -> str:
    """Fill in a template of ``templates/``. An undefined variable is an error.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    return _environment().get_template(name).render(**values)


def comment(text: object, prefix: str = "# ") -> str:
    """Text as comment lines of at most 140 columns, each begun by ``prefix``; what is not printable becomes a question mark."""
    lines: list[str] = []
    for line in str(text).splitlines() or [""]:
        shown = "".join(character if character.isprintable() else "?" for character in line)
        lines += textwrap.wrap(shown, WIDTH - len(prefix), break_on_hyphens=False) or [""]
    return "\n".join(f"{prefix}{line}".rstrip() for line in lines)


def rows(value: list[Any], indent: int = 0, column: int = 0) -> str:
    """Numbers in rows that fill each line, for long tables."""
    flat = literal(value, column=-(10**9))
    if column + len(flat) + 1 <= WIDTH:
        return flat
    lines = textwrap.wrap(flat, WIDTH - indent - 4)
    return "\n".join(["", *(f"{' ' * (indent + 4)}{line}" for line in lines), " " * indent])


@functools.cache
def _environment() -> jinja2.Environment:
    # The output is Python, where HTML escapes would be wrong.
    filters = {"literal": literal, "plain": plain, "comment": comment, "rows": rows}
    return environment("hwmatrix.generate", autoescape=False, also=_TESTS, filters=filters)


def write_templates(folder: Path | str) -> tuple[Path, ...]:
    """Write the templates of tests into a folder, for a test generator of one's own; give the files.

    They are called as ``recommended_template`` of a classification says (``hf_vision_template.py``), and any Jinja2 environment that
    loads from the folder renders them: with ``model_name``, ``model_family``, ``model_subfamily``, ``recommended_hardware``,
    ``resource_requirements`` and ``torch_device``, of which only the first must be given. What comes out looks the model up by its name
    when it runs. A file of the same name with other contents is not replaced.

    Raises:
        ConfigError: the folder cannot be written, or has such a file.
    """
    texts = {Path(folder) / _outside(path.name): path.read_text(encoding="utf-8") for path in sorted(_TESTS.glob("*.j2"))}
    try:
        foreign = [path for path, text in texts.items() if path.exists() and path.read_text(encoding="utf-8") != text]
        if foreign:
            hint = "name another folder, or move what is there"
            raise ConfigError([Problem(where=str(path), what="is there, and differs from the template", hint=hint) for path in foreign])
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_atomically(path, text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(where=str(folder), what=f"cannot be written: {error}", hint="name another folder")]) from error
    return tuple(texts)


def _outside(name: str) -> str:
    """A template's name outside: the parts that several share keep theirs, by which the others call them."""
    return name if name.startswith("_") else name.removesuffix(".j2")


MARK: Final = "# hwmatrix: this file was generated for "
_LONGEST: Final = 80
_HASH: Final = 8


def slug(model: str) -> str:
    """A name in lower case, with ``_`` for each run of characters that are neither a-z nor 0-9; of a path only its last part.

    At most 80 characters; a longer one ends with a checksum of the whole. A name without any such character is ``model``.
    """
    last = Path(model).name if _is_path(model) else model
    plain = re.sub(r"[^a-z0-9]+", "_", last.lower()).strip("_") or "model"
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - _HASH - 1]}_{_checksum(model)}"


def file_for(model: str, folder: Path) -> Path:
    """The file of a model's test in a folder: ``test_hf_<slug>.py``.

    Where another model's test has that name (``a-b`` and ``a/b`` share one), a checksum of the name is added. A test that was
    generated for the same model is replaced.

    Raises:
        ConfigError: a file of that name is there, and hwmatrix has not generated it.
    """
    path = folder / f"test_hf_{slug(model)}.py"
    for candidate in (path, path.with_name(f"test_hf_{slug(model)}_{_checksum(model)}.py")):
        owner = _owner(candidate)
        if owner is None or owner == model:
            return candidate
    raise ConfigError([Problem(where=str(path), what="is another model's test", hint="name another folder with --output-dir")])


def mark(model: str) -> str:
    """The line that marks a generated test with its model."""
    return f"{MARK}{model!a}"


def _owner(path: Path) -> str | None:
    """The model that a file was generated for; None if there is no file.

    Raises:
        ConfigError: hwmatrix has not generated the file.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline().rstrip("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            [Problem(where=str(path), what=f"cannot be read: {error}", hint="name another folder with --output-dir")]
        ) from error
    try:
        owner = ast.literal_eval(first.removeprefix(MARK)) if first.startswith(MARK) else None
    except (ValueError, SyntaxError):
        owner = None
    if not isinstance(owner, str):
        hint = "move it, or name another folder with --output-dir"
        raise ConfigError([Problem(where=str(path), what="already exists, and was not generated by hwmatrix", hint=hint)])
    return owner


def _is_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or "\\" in model


def _checksum(model: str) -> str:
    return hashlib.sha256(model.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
