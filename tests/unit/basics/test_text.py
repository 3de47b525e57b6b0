"""Long texts are cut in the middle, and say how much is missing."""

from __future__ import annotations

from hwmatrix.basics.text import cut


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    kept = cut("begin " + "x" * 1000 + " end", 100)
    assert kept.startswith("begin xxx")
    assert kept.endswith("xxx end")
    assert "[910 characters left out]" in kept
    assert cut("short", 100) == "short"
