"""A backend of its own package: a bundle's ONNX export, executed by the interpreter that comes with the package onnx."""
