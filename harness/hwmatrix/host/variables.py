"""The environment of processes that run models without a container: without access to secrets or the runner.

A container gets no variables of this machine. A virtual environment, or this interpreter, needs some (PATH, HOME, those that select
devices). So anything that looks like a secret is removed, as are the variables that control GitHub's runner.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDINGS: Final = ("TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "KEY", "KEYS")
_WORDS: Final = frozenset({"PASS", "AUTH", "COOKIE", "PAT", "DSN", "KUBECONFIG", "NETRC"})
_FAMILIES: Final = ("ACTIONS_", "PIP_", "DOCKER_", "NPM_CONFIG_", "SSH_")
"""Prefixes of variables: the runner's own services, package indexes with passwords, the engine and its logins, the user's keys."""
_OBEYED: Final = frozenset({"GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STATE", "GITHUB_STEP_SUMMARY", "BASH_ENV", "ENV"})
"""Variables that name files which a later workflow step, or a shell, executes or reads settings from."""
_LOGIN: Final = re.compile(r"://[^/@\s]+@")
"""Matches a user or a password in a URL, as in proxy settings."""


def for_models(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process running a stranger's model may see."""
    return {name: value for name, value in environment.items() if not is_secret(name, value)}


def is_secret(name: str, value: str) -> bool:
    """Whether a variable must be withheld, because of its name or a login in its value."""
    upper = name.upper()
    if upper in _OBEYED or upper.startswith(_FAMILIES) or _LOGIN.search(value):
        return True
    return any(word in _WORDS or word.endswith(_ENDINGS) for word in upper.split("_"))
