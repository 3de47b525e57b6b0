"""Reports as Markdown. Untrusted text cannot break tables or inject HTML, links or mentions: it is put into code spans or escaped."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    import jinja2


def render(name: str, **values: Any) -> str:
    """A template of ``templates/reporter``, filled in.

    Raises:
        ConfigError: the package that fills templates is not installed.
    """
    return _environment().get_template(name).render(**values).strip() + "\n"


@functools.cache
def _environment() -> jinja2.Environment:
    try:
        import jinja2

        from hwmatrix.basics import escape
    except ImportError as error:
        hint = "pip install hwmatrix[host], or ask for json"
        raise ConfigError([Problem(where="format", what="markdown needs the package jinja2, which is not installed", hint=hint)]) from error

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hwmatrix.reporter"),
        autoescape=False,  # noqa: S701 - what comes out is Markdown; everything printed goes through a filter of ours, or is a number
        finalize=_refuse_none,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"text": escape.md, "code": escape.code, "fence": functools.partial(escape.fence, language="text")}
    return environment


def _refuse_none(value: Any) -> Any:
    if value is None:
        raise TypeError("a template printed a value that is missing")
    return value
