"""Which Hugging Face models work on which hardware, how well, how fast, and where they don't, why."""

__version__ = "0.1.0"
