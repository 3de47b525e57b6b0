"""The package-index settings of this machine's pip, read as pip reads them and passed to builds."""

from __future__ import annotations

import configparser
import dataclasses
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from hwmatrix.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

# What decides where packages come from. Everything else of a pip configuration is a matter of this machine alone.
LIST_KEYS: Final = ("extra-index-url", "find-links", "trusted-host")
SINGLE_KEYS: Final = ("index-url", "no-index", "proxy", "timeout", "retries")
ALIASES: Final = {"default-timeout": "timeout", "pypi-url": "index-url"}
# Where distributions keep the system's certificates. A company's own authority is usually added there.
SYSTEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
BUNDLE_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipSettings:
    """Where packages come from. ``single`` and ``lists`` hold pip's own option names; ``certificates`` is a PEM file."""

    single: dict[str, str] = dataclasses.field(default_factory=dict, repr=False)  # may hold passwords: never printed
    lists: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, repr=False)
    certificates: Path | None = None

    @property
    def names_loopback(self) -> bool:
        """Whether an index or proxy is a server of this very machine, which a build sees only on the host's network."""
        urls = [*self.single.values(), *self.lists.get("extra-index-url", ()), *self.lists.get("find-links", ())]
        return any(is_loopback(url) for url in urls)

    def render(self, *, certificates: str | None) -> str:
        """The text of a pip.conf; ``certificates`` is the bundle's path as the build will see it."""
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


def read(environment: Mapping[str, str]) -> PipSettings:
    """Read pip's configuration files and variables; the later of global, user, environment, PIP_CONFIG_FILE, PIP_* wins.

    The order is the one of pip's ``Configuration`` class. Of each file, ``[install]`` wins over ``[global]``.

    Raises:
        ConfigError: a configuration file of pip cannot be read.
    """
    merged: dict[str, str] = {}
    for path in config_files(environment):
        merged |= _read_file(path)
    for name, value in environment.items():
        if name.startswith("PIP_") and name not in {"PIP_CONFIG_FILE", "PIP_VERSION"} and value:
            merged[_key(name[4:])] = value
    return PipSettings(
        single={key: merged[key] for key in SINGLE_KEYS if merged.get(key)},
        lists={key: tuple(merged[key].split()) for key in LIST_KEYS if merged.get(key)},
        certificates=_certificates(merged.get("cert"), environment),
    )


def config_files(environment: Mapping[str, str]) -> list[Path]:
    """The files that pip would read here, least important first."""
    chosen = environment.get("PIP_CONFIG_FILE", "")
    if chosen == os.devnull:
        return []
    home = Path(environment.get("HOME", "/"))
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    shared = [Path(folder) / "pip" / "pip.conf" for folder in environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    files = [*shared, Path("/etc/pip.conf")]
    if sys.platform == "darwin":
        files.append(Path("/Library/Application Support/pip/pip.conf"))
    if not (chosen and Path(chosen).exists()):
        files += [home / ".pip" / "pip.conf", config / "pip" / "pip.conf"]
        if sys.platform == "darwin":
            files.append(home / "Library/Application Support/pip/pip.conf")
    files.append(Path(sys.prefix) / "pip.conf")
    if chosen:
        files.append(Path(chosen))
    return [path for path in files if path.is_file()]


def _key(name: str) -> str:
    name = name.lower().replace("_", "-").removeprefix("--")
    return ALIASES.get(name, name)


def _read_file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise ConfigError(
            [Problem(where=str(path), what=f"pip's settings cannot be read: {error}", hint="see `pip config debug`")]
        ) from error
    found: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            found |= {_key(name): value for name, value in parser.items(section)}
    return found


def _certificates(from_pip: str | None, environment: Mapping[str, str]) -> Path | None:
    """The bundle that pip trusts here, else the system's: an image's own would not know a company's authority."""
    named = [from_pip, *(environment.get(name) for name in BUNDLE_VARIABLES), *SYSTEM_BUNDLES]
    return next((Path(name) for name in named if name and Path(name).is_file()), None)
