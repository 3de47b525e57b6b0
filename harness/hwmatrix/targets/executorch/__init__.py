"""ExecuTorch on the CPU: models exported by torch.export, lowered to XNNPACK, and executed by ExecuTorch's runtime."""
