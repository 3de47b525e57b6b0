"""Measurements: latency, memory, parity, with the same code for every backend."""
