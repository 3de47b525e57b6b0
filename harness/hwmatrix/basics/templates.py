"""The Jinja2 environments of all templates: an undefined variable is an error, and block tags leave no blank lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hwmatrix.basics import text
from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import jinja2

HINT: Final = "pip install 'hwmatrix[host]'"


def environment(
    package: str | None = None,
    folder: str = "templates",
    *,
    autoescape: bool,
    also: Path | None = None,
    filters: Mapping[str, Any] | None = None,
    functions: Mapping[str, Any] | None = None,
    hint: str = HINT,
    **options: Any,
) -> jinja2.Environment:
    """Return an environment for the templates in a package's folder (None: no folder, only strings), and in the folder ``also``.

    ``functions`` are what templates can call by name. ``options`` are more options of ``jinja2.Environment``. Images do not have jinja2, so
    code that runs there must not import this module.

    Raises:
        ConfigError: jinja2 is not installed. ``hint`` says what to do.
    """
    try:
        import jinja2
    except ImportError as error:
        what = f"templates cannot be filled in, since the package jinja2 is not installed: {error}"
        raise ConfigError([Problem(where="jinja2", what=what, hint=hint)]) from error
    loaders: list[jinja2.BaseLoader] = [jinja2.PackageLoader(package, folder)] if package else []
    loaders += [jinja2.FileSystemLoader(also)] if also else []
    settings = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    made = jinja2.Environment(loader=jinja2.ChoiceLoader(loaders), autoescape=autoescape, **{**settings, **options})  # noqa: S701 - who calls decides
    made.filters |= {"commit": text.commit, **(filters or {})}
    made.globals |= functions or {}
    return made


def markdown(
    package: str,
    *,
    filters: Mapping[str, Any] | None = None,
    functions: Mapping[str, Any] | None = None,
    hint: str = HINT,
) -> jinja2.Environment:
    """Return an environment for a package's Markdown templates: everything that they print is escaped (``basics/escape``).

    ``autoescape`` tracks what is escaped already. Templates have the filters ``code``, ``fence``, ``html`` and ``short``.

    Raises:
        ConfigError: jinja2 is not installed. ``hint`` says what to do.
    """
    made = environment(package, autoescape=True, functions=functions, hint=hint)

    from hwmatrix.basics import escape  # needs a package that comes with jinja2

    made.finalize = escape.finalize
    made.filters |= {"code": escape.code, "fence": escape.fence, "html": escape.html, "short": escape.short, **(filters or {})}
    return made
