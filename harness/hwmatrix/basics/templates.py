"""The Jinja2 environments of all templates: an undefined variable is an error, and block tags leave no blank lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2

from hwmatrix.basics import escape, text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def environment(
    package: str | None = None,
    folder: str = "templates",
    *,
    autoescape: bool,
    also: Path | None = None,
    filters: Mapping[str, Any] | None = None,
    functions: Mapping[str, Any] | None = None,
    **options: Any,
) -> jinja2.Environment:
    """Return an environment for the templates in a package's folder (None: no folder, only strings), and in the folder ``also``.

    ``functions`` are what templates can call by name. ``options`` are more options of ``jinja2.Environment``.
    """
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
) -> jinja2.Environment:
    """Return an environment for a package's Markdown templates: everything that they print is escaped (``basics/escape``).

    ``autoescape`` tracks what is escaped already. Templates have the filters ``code``, ``fence``, ``html`` and ``short``.
    """
    made = environment(package, autoescape=True, functions=functions)
    made.finalize = escape.finalize
    made.filters |= {"code": escape.code, "fence": escape.fence, "html": escape.html, "short": escape.short, **(filters or {})}
    return made
