"""Latency comparisons against stock ONNX Runtime, and their recorded results."""
