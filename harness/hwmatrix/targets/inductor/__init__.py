"""TorchInductor: models compiled by ``torch.compile`` into C++ for this machine's CPU."""
