"""What the integration tests share."""

from __future__ import annotations

import os

import pytest

from hwmatrix.errors import EngineError
from hwmatrix.host.engine import Engine, connect


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The container engine. Without one, a test is skipped, except in CI."""
    try:
        return connect(dict(os.environ))
    except EngineError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"this test must run in CI: {error}")
        pytest.skip(str(error))
