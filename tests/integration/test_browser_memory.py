"""The memory of a real browser's processes, if one is installed. test_browser.py tests the image's browser."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("websocket")

from hwmatrix.errors import UnavailableError
from hwmatrix.hardware.browser import Installed
from hwmatrix.measure.memory import Meter
from hwmatrix.targets.browser.chromium import Chromium
from hwmatrix.targets.browser.devtools import DevTools, Page

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory of browser processes is available only on Linux")
TAKEN_MB = 200
TAKE = f"new Uint8Array({TAKEN_MB} << 20).fill(1).reduce((sum, one) => sum + one, 0)"


@pytest.fixture
def service() -> Iterator[Chromium]:
    try:
        Installed().command()
    except UnavailableError as missing:
        pytest.skip(str(missing))
    chromium = Chromium(Installed(), flags=("--disable-gpu",), shares_device=False)
    yield chromium
    chromium.stop()


def test_a_page_s_memory_is_counted_in_the_browser_and_only_in_its_own_cell(service: Chromium) -> None:
    """A page that allocates and frees memory raises the peak of its cell, but not of the next cell in the same browser."""
    address = service.start()
    own = Meter()
    with DevTools(str(address["url"])) as browser:
        page = Page.open(browser)
        meter = Meter(int(address["process"]))
        meter.loaded()
        assert page.evaluate(TAKE) == TAKEN_MB << 20
        use = meter.ran()
        assert use.detail is not None
        assert "processes of the browser" in use.detail
        assert use.delta_mb is not None
        assert TAKEN_MB * 0.9 < use.delta_mb < TAKEN_MB * 2

        browser.call("Target.closeTarget", targetId=page.target)
        page = Page.open(browser)
        meter = Meter(int(address["process"]))
        meter.loaded()
        assert page.evaluate("1 + 1") == 2
        after = meter.ran()
        assert after.delta_mb is not None
        assert after.delta_mb < TAKEN_MB / 2
    beside = own.ran()
    assert beside.delta_mb is not None
    assert beside.delta_mb < TAKEN_MB / 4


def test_a_browser_that_has_ended_has_no_memory(service: Chromium) -> None:
    address = service.start()
    meter = Meter(int(address["process"]))
    service.stop()
    use = meter.ran()
    assert use.peak_mb is None
    assert use.detail is not None
    assert use.detail.startswith("not measured: ")
