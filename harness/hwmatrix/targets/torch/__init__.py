"""PyTorch on CPUs and GPUs."""
