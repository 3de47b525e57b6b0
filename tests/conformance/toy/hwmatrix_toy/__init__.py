"""A backend in its own package: executes a bundle's ONNX export with the reference interpreter of the package onnx."""
