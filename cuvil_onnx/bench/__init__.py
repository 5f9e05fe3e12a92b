"""Comparison with stock ONNX Runtime: measuring, tables, pictures, recorded results."""
