"""Kernels against the card's ceilings, stock ONNX Runtime and PyTorch: ``python -m benchmarks.kernels``."""
