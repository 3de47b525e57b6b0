"""The addresses of schedulers, and how a machine is shared among workers."""

from __future__ import annotations

import os

import pytest

from hwmatrix.errors import ConfigError
from hwmatrix.host.cluster import connection


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("tls://10.0.0.5:8786", "tls://10.0.0.5:8786"),
        ("box1:9000", "tls://box1:9000"),
        ("box1", "tls://box1:8786"),
        ("tls://box1", "tls://box1:8786"),
    ],
)
def test_an_address(given: str, address: str) -> None:
    assert connection.checked(given) == address


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("tcp://box1:8786", r"tcp://box1:8786: members of a cluster do not speak tcp:// \(use tls://: whoever reaches"),
        ("tsl://box1", r"do not speak tsl:// \(did you mean 'tls'"),
        ("tls://:8786", r"it is not the address of a scheduler \(write tls://HOST:8786\)"),
        ("tls://box1:port", "it is not the address of a scheduler"),
    ],
)
def test_what_is_no_address(given: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        connection.checked(given)


@pytest.mark.parametrize(
    ("workers", "shares"),
    [
        (1, ["0,1,2,5"]),
        (2, ["0,1", "2,5"]),
        (3, ["0", "1", "2"]),
        (8, ["0", "1", "2", "5", "0", "1", "2", "5"]),
    ],
)
def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch, workers: int, shares: list[str]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 0, 2, 1})
    assert connection._shares_of_cores(workers) == shares
