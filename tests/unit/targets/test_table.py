from __future__ import annotations

import importlib.util
import inspect

import pytest

from hwmatrix.records import Backend
from hwmatrix.targets.protocol import Target
from hwmatrix.targets.table import REQUIRES, TARGETS, target_class

MEMBERS = sorted(name for name in {*vars(Target), *Target.__annotations__} if not name.startswith("_"))


def test_every_backend_has_a_target() -> None:
    assert TARGETS.keys() == REQUIRES.keys() == set(Backend)


@pytest.mark.torch
@pytest.mark.parametrize("backend", TARGETS, ids=lambda backend: backend.value)
def test_a_target_has_all_that_the_protocol_asks_for(backend: Backend) -> None:
    missing = [module for module in REQUIRES[backend] if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    found = target_class(backend)
    assert [name for name in MEMBERS if not hasattr(found, name)] == []
    for name in MEMBERS:
        wanted = getattr(Target, name, None)
        if inspect.isfunction(wanted):
            asked, given = (list(inspect.signature(member).parameters) for member in (wanted, getattr(found, name)))
            assert given == asked, name
