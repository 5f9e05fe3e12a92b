"""Writes AWQ and GPTQ checkpoints bit by bit, as the formats define them and independently of the code that reads them.

A word of 32 bits is a sum of codes times powers of two. Nothing is vectorised.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

AWQ_FIELDS = {0: 0, 1: 4, 2: 1, 3: 5, 4: 2, 5: 6, 6: 3, 7: 7}
"""Where in a word, counted in codes, AWQ keeps the column that is i-th of its eight."""


class Layer:
    """A random linear layer: codes, zero points and scales as plain numbers."""

    def __init__(self, k: int, n: int, group: int, bits: int = 4, seed: int = 0, symmetric: bool = False) -> None:
        rng = np.random.default_rng([seed, k, n])
        self.k, self.n, self.bits = k, n, bits
        self.group = k if group < 0 else group
        groups = -(-k // self.group)
        self.codes = rng.integers(0, 1 << bits, (k, n))
        self.zeros = rng.integers(1, 1 << bits, (groups, n))
        if symmetric:
            self.zeros[:] = 1 << (bits - 1)
        self.scales = rng.uniform(0.005, 0.02, (groups, n)).astype(np.float16)
        self.groups_of_rows = np.arange(k) // self.group

    def scatter(self, seed: int = 0) -> None:
        """Act-order: which group a row belongs to is shuffled."""
        self.groups_of_rows = np.random.default_rng(seed).permutation(self.groups_of_rows)

    def weight(self) -> np.ndarray:
        """float32 [K, N], by the definition."""
        result = np.empty((self.k, self.n), np.float32)
        for row, g in enumerate(self.groups_of_rows):
            result[row] = (self.codes[row] - self.zeros[g]) * self.scales[g].astype(np.float32)
        return result


def words(codes: np.ndarray, bits: int, along: int) -> np.ndarray:
    """int32: field i of a word holds the i-th of the codes along an axis."""
    codes = codes if along == 1 else codes.T
    per_word = 32 // bits
    result = np.zeros((codes.shape[0], -(-codes.shape[1] // per_word)), np.int64)
    for row in range(codes.shape[0]):
        for column in range(codes.shape[1]):
            word, field = divmod(column, per_word)
            result[row, word] += int(codes[row, column]) * 2 ** (bits * field)
    result = result.astype(np.uint32).view(np.int32)
    return result if along == 1 else np.ascontiguousarray(result.T)


def awq_words(codes: np.ndarray) -> np.ndarray:
    """int32, eight columns a word in AWQ's order."""
    result = np.zeros((codes.shape[0], codes.shape[1] // 8), np.int64)
    for row in range(codes.shape[0]):
        for column in range(codes.shape[1]):
            result[row, column // 8] += int(codes[row, column]) * 16 ** AWQ_FIELDS[column % 8]
    return result.astype(np.uint32).view(np.int32)


def gptq_tensors(name: str, layer: Layer, version: int) -> dict[str, np.ndarray]:
    """The four tensors of a layer. Version 1: the packed zero points minus a word of ones, as GPTQModel writes it."""
    zeros = words(layer.zeros, layer.bits, along=1)
    if version == 1:
        ones = sum(2**shift for shift in range(0, 32, layer.bits))
        zeros = ((zeros.view(np.uint32).astype(np.int64) - ones) % 2**32).astype(np.uint32).view(np.int32)
    return {
        f"{name}.qweight": words(layer.codes, layer.bits, along=0),
        f"{name}.qzeros": zeros,
        f"{name}.scales": layer.scales,
        f"{name}.g_idx": layer.groups_of_rows.astype(np.int32),
    }


def awq_tensors(name: str, layer: Layer) -> dict[str, np.ndarray]:
    """The three tensors of a layer."""
    return {
        f"{name}.qweight": awq_words(layer.codes),
        f"{name}.qzeros": awq_words(layer.zeros),
        f"{name}.scales": layer.scales,
    }


_NAMES = {"int32": "I32", "float16": "F16", "float32": "F32"}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        place = [len(data), len(data) + array.nbytes]
        head[name] = {"dtype": _NAMES[str(array.dtype)], "shape": list(array.shape), "data_offsets": place}
        data += array.tobytes()
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_folder(folder: Path, tensors: dict[str, np.ndarray], files: int = 1, **config: Any) -> Path:
    """A checkpoint as transformers saves it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": config}))
    names = list(tensors)
    if files == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    weight_map = {}
    for i in range(files):
        file = f"model-{i + 1:05}-of-{files:05}.safetensors"
        write_safetensors(folder / file, {name: tensors[name] for name in names[i::files]})
        weight_map |= dict.fromkeys(names[i::files], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
