"""Conclusions from measurements: where a model works, what it needs, which hardware to choose, and what to try next."""
