"""Models for stock ONNX Runtime at its best: ``python -m cuvil_onnx.bench.prepare MODEL FOLDER PRECISION``.

Its own tools make them: the float16 converter and the transformer optimizer. They run in a process of their own with
stock ONNX Runtime. Prints one JSON list of [label, path]; a tool that fails on the model is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import onnx


def candidates(model_path: str, folder: Path, precision: str) -> list[tuple[str, str]]:
    """Label and path of each candidate. The model as given is always one: converted to fp16, a model of casts and
    shape arithmetic can be slower than before, and may lose CUDA Graph."""
    found = [_attempt("transformer optimizer", folder, lambda: _transformer(model_path, precision))]
    if precision == "fp16":
        found.append(_attempt("float16 converter", folder, lambda: _convert(onnx.load(model_path))))
    return [("as given", model_path), *(entry for entry in found if entry is not None)]


def _attempt(label: str, folder: Path, make: Callable[[], onnx.ModelProto | None]) -> tuple[str, str] | None:
    try:
        model = make()
    except Exception as error:
        print(f"{label}: {error}", file=sys.stderr)
        return None
    if model is None:
        return None
    path = folder / f"stock_{label.replace(' ', '_')}.onnx"
    onnx.save(model, path)
    return label, str(path)


def _convert(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    converted: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=True)
    return converted


def _transformer(model_path: str, precision: str) -> onnx.ModelProto | None:
    """The transformer optimizer's result, or None where it fuses neither attention nor a residual norm."""
    from onnxruntime.transformers.optimizer import optimize_model

    optimized = optimize_model(model_path, model_type="bert", use_gpu=True, opt_level=0)
    fused = optimized.get_fused_operator_statistics()
    if not any(fused.get(op) for op in ("Attention", "MultiHeadAttention", "SkipLayerNormalization")):
        return None
    if precision == "fp16":
        optimized.convert_float_to_float16(keep_io_types=True)
    model: onnx.ModelProto = optimized.model
    return model


def main() -> None:
    model_path, folder, precision = sys.argv[1:4]
    print(json.dumps(candidates(model_path, Path(folder), precision)))


if __name__ == "__main__":
    main()
