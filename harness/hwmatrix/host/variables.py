"""The environment of processes that run models without a container: nothing that gives access to secrets or to the runner.

A container gets no variable of this machine at all. A virtual environment, or this interpreter, needs some of them (PATH, HOME, what
chooses devices), so what looks like a secret is left out, and so is what GitHub's runner obeys.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDINGS: Final = ("TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "KEY", "KEYS")
_WORDS: Final = frozenset({"PASS", "AUTH", "COOKIE", "PAT", "DSN", "KUBECONFIG", "NETRC"})
_FAMILIES: Final = ("ACTIONS_", "PIP_", "DOCKER_", "NPM_CONFIG_", "SSH_")
"""The runner's own services, package indexes with their passwords, the engine and its logins, the user's keys."""
_OBEYED: Final = frozenset({"GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STATE", "GITHUB_STEP_SUMMARY", "BASH_ENV", "ENV"})
"""Files that a later step of a workflow, or a shell, does what they say."""
_LOGIN: Final = re.compile(r"://[^/@\s]+@")
"""A user or a password within an address, as proxies have them."""


def for_models(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be told to a process which runs a stranger's model."""
    return {name: value for name, value in environment.items() if not is_secret(name, value)}


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is one to keep: by its name, or by a login within its value."""
    upper = name.upper()
    if upper in _OBEYED or upper.startswith(_FAMILIES) or _LOGIN.search(value):
        return True
    return any(word in _WORDS or word.endswith(_ENDINGS) for word in upper.split("_"))
