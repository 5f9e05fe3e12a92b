"""AWQ and GPTQ checkpoints: a folder as transformers writes it, or one safetensors file with its configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.quantize.grid import Array
from cuvil_onnx.quantize.sources import awq, gptq
from cuvil_onnx.quantize.sources.packed import WORD
from cuvil_onnx.quantize.sources.safetensors_file import Tensors, files_of, read_json
from cuvil_onnx.quantize.sources.source import Source, SourceWeight

_PARTS = (".qweight", ".qzeros", ".scales", ".g_idx")
_CONFIGS = ("config.json", "quantize_config.json", "quant_config.json")


def open_checkpoint(path: str | Path, config: Mapping[str, Any] | None = None) -> Source:
    """The layers and other tensors of a checkpoint.

    Args:
        path: a folder with *.safetensors, or one such file.
        config: its ``quantization_config``; by default that of config.json, quantize_config.json or quant_config.json
            in the folder.

    Raises:
        ModelLoadError: nothing to read, no configuration, a method other than "awq" and "gptq", a layout that is not
            known, or tensors that do not fit together.
    """
    path = Path(path)
    tensors = Tensors(files_of(path))
    found = dict(config) if config is not None else _config(path if path.is_dir() else path.parent)
    method = str(found.get("quant_method") or ("awq" if "version" in found else "gptq")).lower()
    if method not in ("awq", "gptq"):
        raise ModelLoadError(f"{path}: quant_method is {method!r}; 'awq' and 'gptq' can be read")
    bits = int(found.get("bits", found.get("w_bit", 4)))
    group_size = int(found.get("group_size", found.get("q_group_size", -1)))
    if group_size == 0 or group_size < -1:
        raise ModelLoadError(f"{path}: group_size is {group_size}; a positive number is required, or -1 for all rows")
    read: Callable[[str], SourceWeight]
    if method == "awq":
        layout = str(found.get("version", "gemm")).lower()
        if layout != "gemm" or bits != awq.BITS:
            raise ModelLoadError(f"{path}: AWQ with {bits} bits and version {layout!r}; 4 and 'gemm' can be read")
        read = functools.partial(_awq, tensors, group_size)
    else:
        if bits not in gptq.BITS:
            raise ModelLoadError(f"{path}: GPTQ with {bits} bits; 2, 4 or 8 can be read")
        version = _gptq_version(path, found)
        read = functools.partial(_gptq, tensors, bits, group_size, version)
    layers = sorted(name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight"))
    if not layers:
        raise ModelLoadError(f"{path}: no tensor is called *.qweight: no {method.upper()} checkpoint")
    for layer in layers:
        for part in _PARTS[:3]:
            if layer + part not in tensors:
                raise ModelLoadError(f"{path}: layer {layer!r} has no {layer}{part}")
    of_layers = {layer + part for layer in layers for part in _PARTS}
    return Source(
        str(path),
        method,
        {layer: (_shape(tensors, layer, method, bits), functools.partial(read, layer)) for layer in layers},
        {n: (tensors.shape(n), functools.partial(tensors.__getitem__, n)) for n in tensors if n not in of_layers},
    )


def _config(folder: Path) -> dict[str, Any]:
    for name in _CONFIGS:
        if (folder / name).is_file():
            content = read_json(folder / name)
            inner = content.get("quantization_config", content if name != "config.json" else None)
            if isinstance(inner, dict):
                return inner
    raise ModelLoadError(
        f"{folder}: no quantization_config in config.json, and no quantize_config.json or quant_config.json; give it "
        "as config={'quant_method': ..., 'bits': ..., 'group_size': ...}"
    )


def _gptq_version(path: Path, config: Mapping[str, Any]) -> int:
    """Which zero points a GPTQ checkpoint stores; files of before the field are version 1."""
    layout = str(config.get("checkpoint_format") or config.get("format") or "gptq").lower()
    if layout not in ("gptq", "gptq_v2"):
        raise ModelLoadError(f"{path}: checkpoint_format is {layout!r}; 'gptq' and 'gptq_v2' can be read")
    return 2 if layout == "gptq_v2" else 1


def _shape(tensors: Tensors, layer: str, method: str, bits: int) -> tuple[int, int]:
    shape = tensors.shape(f"{layer}.qweight")
    if len(shape) != 2:
        raise ModelLoadError(f"layer {layer!r}: qweight has the shape {list(shape)}, two dimensions are required")
    rows, columns = shape
    return (rows, columns * WORD // bits) if method == "awq" else (rows * WORD // bits, columns)


def _awq(tensors: Tensors, group_size: int, layer: str) -> SourceWeight:
    qweight, qzeros, scales = (tensors[layer + part] for part in _PARTS[:3])
    return awq.decode(layer, qweight, qzeros, scales, group_size=group_size)


def _gptq(tensors: Tensors, bits: int, group_size: int, version: int, layer: str) -> SourceWeight:
    qweight, qzeros, scales = (tensors[layer + part] for part in _PARTS[:3])
    g_idx: Array | None = tensors.get(f"{layer}.g_idx")
    return gptq.decode(layer, qweight, qzeros, scales, g_idx, bits=bits, group_size=group_size, version=version)
