"""How records are read from files."""

from __future__ import annotations

from typing import Final

import pydantic

STRICT: Final = pydantic.with_config(extra="forbid")
"""An unknown key is an error; also holds for the records within."""
