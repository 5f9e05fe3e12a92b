"""``cuvil_onnx.quantize.from_gguf`` and ``from_safetensors``: quantized checkpoints in ONNX models."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cuvil_onnx.passes.load import load
from cuvil_onnx.passes.signature import Signature
from cuvil_onnx.quantize.opset import raised
from cuvil_onnx.quantize.sources.apply import apply_source
from cuvil_onnx.quantize.sources.checkpoint import open_checkpoint
from cuvil_onnx.quantize.sources.gguf import open_gguf
from cuvil_onnx.quantize.sources.matching import scopes_of
from cuvil_onnx.quantize.sources.source import Source
from cuvil_onnx.report import Report, collect
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace

if TYPE_CHECKING:
    from cuvil_onnx.api import Optimized


def from_gguf(
    model: Any,
    path: str | os.PathLike[str],
    *,
    names: Callable[[str], str | None] | None = None,
    strict: bool = True,
    output: str | os.PathLike[str] | None = None,
) -> Optimized:
    """A model with the weights of a GGUF file: Q4_0, Q4_1, Q5, Q8_0 and K types stay quantized, bit for bit.

    Args:
        model: a path, an onnx.ModelProto, or what else ``optimize`` takes: the same network in floats, as torch exports
            it. Layers are found by the names of their weights or nodes.
        path: the file.
        names: tensor's name in the file -> parameter's name in the model, None for those to leave out. By default
            transformers' names, for Llama-like architectures.
        strict: whether a tensor that has no place in the model is an error; it is a warning otherwise.
        output: where to write the result.

    Returns:
        The model; ``report.quantization`` says for each layer how far the weights are from those the model had.

    Raises:
        ModelLoadError: a file that cannot be read, tensors without a place in the model or of other shapes.
        UnsupportedModelError: the model cannot be converted to opset 21.
    """
    return _imported(model, open_gguf(os.fspath(path), names), strict, output)


def from_safetensors(
    model: Any,
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, Any] | None = None,
    strict: bool = True,
    output: str | os.PathLike[str] | None = None,
) -> Optimized:
    """A model with the weights of an AWQ or GPTQ checkpoint, whose codes, scales and zero points stay as they are.

    Norms, biases and whatever else the checkpoint holds in floats is taken over too, since AWQ scales them. Act-order
    (a ``g_idx`` that is not sorted) costs a Gather of each such input's channels; ``optimize`` moves it into the
    projection that computes them where there is one.

    Args:
        model: see :func:`from_gguf`.
        path: the checkpoint's folder, or one safetensors file.
        config: its ``quantization_config`` where no config.json tells.
        strict: see :func:`from_gguf`.
        output: where to write the result.

    Returns:
        See :func:`from_gguf`.

    Raises:
        ModelLoadError, UnsupportedModelError: see :func:`from_gguf`.
    """
    return _imported(model, open_checkpoint(os.fspath(path), config), strict, output)


def _imported(model: Any, source: Source, strict: bool, output: str | os.PathLike[str] | None) -> Optimized:
    from cuvil_onnx.api import Optimized

    loaded = load(model)
    before = collect(loaded.model)
    scopes = scopes_of(loaded.model)
    raised_model = raised(loaded.model)
    signature = Signature.of(raised_model)
    trace = Trace()
    summary = apply_source(GraphContext(raised_model), source, scopes, strict=strict, trace=trace)
    signature.restore(raised_model)
    report = Report(before, collect(raised_model), trace, quantization=summary)
    result = Optimized(raised_model, report, loaded)
    if output is not None:
        result.save(output)
    return result
