"""Weight-only quantization: schemes, calibration, sources, and the pass that puts quantized weights into a model."""
