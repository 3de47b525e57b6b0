"""PyTorch on processors and GPUs."""
