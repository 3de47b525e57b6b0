"""The configuration of records that are read from files."""

from __future__ import annotations

from typing import Final

import pydantic

STRICT: Final = pydantic.with_config(extra="forbid")
"""Makes an unknown key an error, also in nested records."""
