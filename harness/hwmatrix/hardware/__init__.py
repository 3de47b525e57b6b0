"""What is here: one module a kind of hardware, and a detector over them."""
