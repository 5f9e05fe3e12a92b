"""The quantization schemes, one a module; they are found by themselves (modules named ``_x`` are helpers)."""
