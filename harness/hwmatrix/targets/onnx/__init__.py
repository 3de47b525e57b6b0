"""ONNX Runtime on the CPU, and the parts shared by all targets that execute ONNX graphs."""
