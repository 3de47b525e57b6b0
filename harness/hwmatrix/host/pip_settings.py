"""The package-index settings of this machine's pip, as ``pip config`` reports them, to be passed to builds."""

from __future__ import annotations

import ast
import configparser
import dataclasses
import functools
import importlib.util
import io
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# The options that decide where packages come from. Other pip settings concern only this machine.
LIST_KEYS: Final = ("extra-index-url", "find-links", "trusted-host")
SINGLE_KEYS: Final = ("index-url", "no-index", "proxy", "timeout", "retries")
ALIASES: Final = {"default-timeout": "timeout", "pypi-url": "index-url"}
# The system certificates of common distributions, which usually include a company's own authority.
SYSTEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
NO_PIP: Final = "pip is not installed for {python}, so its configuration files are not read: only the variables PIP_* count"
BUNDLE_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipSettings:
    """Where packages come from. ``single`` and ``lists`` use pip's own option names; ``certificates`` is a PEM file.

    ``problem`` says why pip's configuration files were not read; it is empty if they were.
    """

    single: dict[str, str] = dataclasses.field(default_factory=dict, repr=False)  # may hold passwords: never printed
    lists: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, repr=False)
    certificates: Path | None = None
    problem: str = ""

    @property
    def names_loopback(self) -> bool:
        """Whether an index or proxy is a server on this machine, which a build can reach only on the host's network."""
        urls = [*self.single.values(), *self.lists.get("extra-index-url", ()), *self.lists.get("find-links", ())]
        return any(is_loopback(url) for url in urls)

    def render(self, *, certificates: str | None) -> str:
        """Render a pip.conf. ``certificates`` is the bundle's path inside the build."""
        parser = configparser.RawConfigParser()
        parser["global"] = {**self.single, **{key: "\n" + "\n".join(values) for key, values in self.lists.items() if values}}
        if certificates:
            parser["global"]["cert"] = certificates
        text = io.StringIO()
        parser.write(text)
        return text.getvalue()


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine by a loopback address."""
    host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")


def read(environment: Mapping[str, str], *, ask: Callable[..., str] | None = None) -> PipSettings:
    """Read the settings of pip's files and the PIP_* variables. A variable overrides ``[install]``, which overrides ``[global]``.

    This is the order of pip's own option parser. ``ask`` runs ``pip config`` with the given arguments and returns its output. If this
    Python has no pip, only the variables count, and ``problem`` says so.

    Raises:
        ConfigError: pip cannot read its configuration files.
    """
    problem = ""
    if ask is None:
        if importlib.util.find_spec("pip") is None:
            problem = NO_PIP.format(python=sys.executable)
        ask = functools.partial(_pip_config, frozenset(environment.items()))
    sections = {} if problem else _sections(ask)
    variables = {name[4:]: value for name, value in environment.items() if name.startswith("PIP_") and name != "PIP_CONFIG_FILE"}
    merged: dict[str, str] = {}
    for settings in (sections.get("global", {}), sections.get("install", {}), variables):
        merged |= {_key(name): value for name, value in settings.items() if value}
    return PipSettings(
        single={key: merged[key] for key in SINGLE_KEYS if merged.get(key)},
        lists={key: tuple(merged[key].split()) for key in LIST_KEYS if merged.get(key)},
        certificates=_certificates(merged.get("cert"), environment),
        problem=problem,
    )


def _sections(ask: Callable[..., str]) -> dict[str, dict[str, str]]:
    """Return the settings of pip's files by section: ``[global]``, and one for each pip command."""
    values: dict[str, str] = {}
    for name, value in _listed(ask("list")):
        if values.setdefault(name, value) != value:  # newer versions list every file, sorted by path: only pip itself knows which one wins
            values[name] = ask("get", name).rstrip("\n")
    sections: dict[str, dict[str, str]] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return sections


def _listed(text: str) -> Iterator[tuple[str, str]]:
    """Parse the lines ``section.name='value'`` of ``pip config list``, without those of variables (``:env:``)."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if not name.startswith(":env:"):
            yield name, ast.literal_eval(value)


@functools.cache  # pip takes half a second to start
def _pip_config(environment: frozenset[tuple[str, str]], *arguments: str) -> str:
    command = (sys.executable, "-m", "pip", "config", *arguments)
    files = {name: value for name, value in environment if not name.startswith("PIP_") or name == "PIP_CONFIG_FILE"}
    # A configuration file may set quiet or verbose, which change what is printed.
    plain = {"PIP_QUIET": "0", "PIP_VERBOSE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, env={**files, **plain}, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        what = f"pip's settings cannot be read: {' '.join(done.stderr.split())}"
        raise ConfigError([Problem(where="pip config", what=what, hint="see `pip config debug`")])
    return done.stdout


def _key(name: str) -> str:
    name = name.lower().replace("_", "-").removeprefix("--")
    return ALIASES.get(name, name)


def _certificates(from_pip: str | None, environment: Mapping[str, str]) -> Path | None:
    """Return the certificate bundle that pip trusts here, or else the system's. An image's own would lack a company's authority."""
    named = [from_pip, *(environment.get(name) for name in BUNDLE_VARIABLES), *SYSTEM_BUNDLES]
    return next((Path(name) for name in named if name and Path(name).is_file()), None)
