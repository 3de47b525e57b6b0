"""The configuration of records that are read from files."""

from __future__ import annotations

from typing import Final

import pydantic

STRICT: Final = pydantic.with_config(extra="forbid", allow_inf_nan=False)
"""Makes an unknown key an error, and NaN and infinity, also in nested records. What is written has neither."""
