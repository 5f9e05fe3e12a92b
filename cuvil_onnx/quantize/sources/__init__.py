"""Weights that others quantized: GGUF files, AWQ and GPTQ checkpoints. A module a format; none loses a bit."""
