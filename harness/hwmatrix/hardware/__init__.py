"""Hardware detection: one module per kind of hardware, and a detector over them."""
