"""Local simplifications, one rule a module, discovered like the rules of ``cuvil_onnx/rules``."""
