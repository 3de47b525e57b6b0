"""ONNX Runtime on the CPU, and what all targets that execute ONNX graphs share."""
