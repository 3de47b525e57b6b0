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
from hwmatrix.generate.literals import WIDTH, literal, member, plain

if TYPE_CHECKING:
    import jinja2


_TESTS: Final = Path(__file__).parent / "templates" / "tests"


def render(name: str, **values: Any) -> str:
    """Fill in a template of ``templates/``. An undefined variable is an error."""
    return _environment().get_template(name).render(**values)


def comment(text: object, prefix: str = "# ") -> str:
    """Text as comment lines of at most 140 columns, each with ``prefix``; unprintable characters become question marks."""
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
    filters = {"literal": literal, "member": member, "plain": plain, "comment": comment, "rows": rows}
    return environment("hwmatrix.generate", autoescape=False, also=_TESTS, filters=filters)


def write_templates(folder: Path | str) -> tuple[Path, ...]:
    """Write the test templates to a folder, for a test generator of your own; return the files.

    Their names are those of a classification's ``recommended_template`` (``hf_vision_template.py``). Any Jinja2 environment that loads
    from the folder can render them, with ``model_name``, ``model_family``, ``model_subfamily``, ``recommended_hardware``,
    ``resource_requirements`` and ``torch_device``; only the first is required. A rendered test looks up the model by name when it runs.

    Raises:
        ConfigError: the folder cannot be written, or has a file of the same name with other contents, which is not replaced.
    """
    texts = {Path(folder) / _exported_name(path.name): path.read_text(encoding="utf-8") for path in sorted(_TESTS.glob("*.j2"))}
    try:
        foreign = [path for path, text in texts.items() if path.exists() and path.read_text(encoding="utf-8") != text]
        if foreign:
            hint = "name another folder, or move this file"
            raise ConfigError([Problem(where=str(path), what="exists, and differs from the template", hint=hint) for path in foreign])
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_atomically(path, text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(where=str(folder), what=f"cannot be written: {error}", hint="name another folder")]) from error
    return tuple(texts)


def _exported_name(name: str) -> str:
    """A template's name in such a folder. Shared parts keep their names, because other templates include them by name."""
    return name if name.startswith("_") else name.removesuffix(".j2")


MARK: Final = "# hwmatrix: this file was generated for "
_LONGEST: Final = 80
_HASH: Final = 8


def slug(model: str) -> str:
    """A name in lower case, with ``_`` for each run of characters other than a-z and 0-9; of a path, only its last part.

    At most 80 characters; a longer name is cut, and ends with a checksum. A name without any letter or digit becomes ``model``.
    """
    last = Path(model).name if _is_path(model) else model
    plain = re.sub(r"[^a-z0-9]+", "_", last.lower()).strip("_") or "model"
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - _HASH - 1]}_{_checksum(model)}"


def file_for(model: str, folder: Path) -> Path:
    """The file of a model's test in a folder: ``test_hf_<slug>.py``.

    If another model's test has that name (``a-b`` and ``a/b`` share one), a checksum of the name is added. A test of the same model is
    replaced.

    Raises:
        ConfigError: a file of that name exists that hwmatrix did not generate.
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
        ConfigError: hwmatrix did not generate the file.
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
