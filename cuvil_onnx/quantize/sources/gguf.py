"""GGUF files as sources: the names that transformers gives their tensors, and the row order of rotated projections."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.quantize.grid import Array, Quantized
from cuvil_onnx.quantize.sources import gguf_blocks, gguf_file
from cuvil_onnx.quantize.sources.gguf_file import GgufFile, GgufTensor
from cuvil_onnx.quantize.sources.source import Source, SourceWeight

ARCHITECTURES = {"llama": True, "qwen2": False, "qwen3": False}
"""Those whose names are known -> whether llama.cpp reorders the rows of queries and keys."""

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IGNORED = ("rope_freqs.weight",)
"""Computed from the configuration, no parameter of the model."""

Names = Callable[[str], str | None]


def open_gguf(path: str | Path, names: Names | None = None) -> Source:
    """The tensors of a file, linear layers as [K, N].

    Args:
        path: the file.
        names: gives the name in the model of each tensor ("blk.0.ffn_up.weight"), None for those to leave out; tensors
            then are taken as they lie. By default transformers' names, for the architectures that are known.

    Raises:
        ModelLoadError: the file is damaged, its architecture or a tensor type is not known, or a name is taken twice.
    """
    file = gguf_file.read(path)
    reordered = False
    if names is None:
        kind = file.metadata.get("general.architecture")
        if kind not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ModelLoadError(
                f"{path}: architecture {kind!r}; names are known for {known}, give names=... for others"
            )
        names, reordered = transformers_name, ARCHITECTURES[kind]
    quantized: dict[str, tuple[tuple[int, int], Callable[[], SourceWeight]]] = {}
    floats: dict[str, tuple[tuple[int, ...], Callable[[], Array]]] = {}
    for tensor in file.tensors.values():
        name = names(tensor.name)
        if name is None:
            continue
        if tensor.data is None:
            raise ModelLoadError(f"{path}: tensor {tensor.name!r} is of a type that cannot be read ({tensor.kind})")
        if name in floats or name.removesuffix(".weight") in quantized:
            raise ModelLoadError(f"{path}: two tensors are called {name!r}")
        rows = _row_order(file, tensor, name) if reordered else None
        if gguf_blocks.is_quantized(tensor):
            shape = (tensor.shape[1], tensor.shape[0])
            quantized[name.removesuffix(".weight")] = shape, functools.partial(_quantized, tensor, rows)
        else:
            floats[name] = tensor.shape, functools.partial(_floats, tensor, rows)
    return Source(str(path), "gguf", quantized, floats)


def transformers_name(name: str) -> str | None:
    """The name in transformers' models of a tensor of a Llama-like file; an unknown one as it is."""
    if name in _IGNORED:
        return None
    stem, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if layer is not None and layer[2] in _PARTS:
        return f"model.layers.{layer[1]}.{_PARTS[layer[2]]}.{kind}"
    return f"{_WHOLE[stem]}.{kind}" if stem in _WHOLE else name


def halves_from_pairs(heads: int, size: int) -> Array:
    """Which row of a rotated projection in a file is which of transformers', int64 [heads * size].

    llama.cpp rotates elements 2i and 2i + 1 of a head together and stores the rows of queries and keys in that order;
    transformers rotates i and i + size / 2.
    """
    order: Array = np.arange(heads * size).reshape(heads, size // 2, 2).swapaxes(1, 2).reshape(-1)
    return order


def _row_order(file: GgufFile, tensor: GgufTensor, name: str) -> Array | None:
    stem = name.rpartition(".")[0]
    counts = {"q_proj": ("head_count",), "k_proj": ("head_count_kv", "head_count")}.get(stem.rpartition(".")[2])
    if counts is None:
        return None
    found: list[Any] = [file.metadata.get(f"llama.attention.{count}") for count in counts]
    heads = next((h for h in found if isinstance(h, int)), 0)
    rows = tensor.shape[0]
    if heads <= 0 or rows % (2 * heads):
        raise ModelLoadError(f"{file.path}: {rows} rows of {tensor.name!r} are no {heads} heads of an even size")
    return halves_from_pairs(heads, rows // heads)


def _quantized(tensor: GgufTensor, rows: Array | None) -> SourceWeight:
    weight = gguf_blocks.decode(tensor)
    if rows is None:
        return weight
    whole = weight.quantized

    def moved(array: Array) -> Array:
        return np.ascontiguousarray(array[:, rows])

    offsets = None if whole.offsets is None else moved(whole.offsets)
    return SourceWeight(Quantized(moved(whole.codes), moved(whole.scales), offsets=offsets), weight.grid)


def _floats(tensor: GgufTensor, rows: Array | None) -> Array:
    array = gguf_blocks.floats(tensor)
    return array if rows is None else array[rows]
