"""The level of a logger for a while."""

from __future__ import annotations

import logging

import pytest

from hwmatrix.basics.log_level import logged_from


@pytest.mark.parametrize("name", [None, "a.library"])
def test_the_level_comes_back_after_an_error(name: str | None, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(name)
    before = logger.level

    def fail() -> None:
        with logged_from(logging.ERROR, name):
            logger.warning("left out")
            logger.error("kept")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert logger.level == before
    logger.warning("afterwards")
    assert [record.getMessage() for record in caplog.records] == ["kept", "afterwards"]
