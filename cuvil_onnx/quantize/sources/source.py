"""What every source gives: weights in the layout of cuvil::MatMulInt4, by the names of the checkpoint's parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from cuvil_onnx.quantize.grid import Array, Grid, Quantized, dequantize


@dataclasses.dataclass(frozen=True)
class SourceWeight:
    """A linear layer's weight; weight[order[k], n] is what ``quantized`` stands for in row k.

    Attributes:
        quantized: codes [K, N] with groups along K.
        grid: its bits, group size and symmetry; ``scale_dtype`` holds every scale and offset exactly.
        order: int64 [K], a permutation: row k of the codes belongs to channel ``order[k]`` of the input, as rows of one
            group need not be neighbours in a checkpoint (act-order); None: as they are.
    """

    quantized: Quantized
    grid: Grid
    order: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(K, N): inputs and outputs of the layer."""
        k, n = self.quantized.codes.shape
        return k, n


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint. Tensors are read when they are asked for, one at a time.

    Attributes:
        path: for messages.
        format: "gguf", "gptq" or "awq".
        quantized: shape (K, N) and a function that reads it, by the parameter's name ("model.layers.0.mlp.up_proj").
        floats: likewise the tensors that are not quantized, in the layout of the checkpoint (a linear layer's weight
            is [N, K]), by full name ("model.norm.weight").
    """

    path: str
    format: str
    quantized: Mapping[str, tuple[tuple[int, int], Callable[[], SourceWeight]]]
    floats: Mapping[str, tuple[tuple[int, ...], Callable[[], Array]]]


def dequantized(weight: SourceWeight) -> Array:
    """The float32 weight [K, N] that a source's weight stands for, rows in the order of the input's channels."""
    values = dequantize(weight.quantized, weight.grid, np)
    if weight.order is None:
        return values
    result = np.empty_like(values)
    result[weight.order] = values
    return result
