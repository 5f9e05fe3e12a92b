"""Lets equal initializers be one (bit for bit: +0 and -0 differ, NaN payloads count)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.passes.computed import Computed, unmap
from cuvil_onnx.passes.in_file import InFile
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace

SAMPLES = 16
"""Elements compared before two tensors are read in full, so that different weights cost next to nothing."""


def merge_equal_initializers(ctx: GraphContext, trace: Trace) -> int:
    """Merges initializers of the main graph; those that are graph inputs or outputs are left alone.

    So are those that would have to be computed: what they are computed from has been merged.
    """
    buckets: dict[tuple[Any, ...], list[ir.Value]] = {}
    merged = 0
    graph = ctx.model.graph
    for name, value in list(graph.initializers.items()):
        tensor = ctx.tensor(value)
        if tensor is None or value.is_graph_output() or tensor.dtype == ir.DataType.STRING or tensor.size == 0:
            continue
        if isinstance(tensor, Computed):
            continue
        key = (tensor.dtype, tuple(tensor.shape.numpy()), _sample(tensor))
        bucket = buckets.setdefault(key, [])
        twin = next((v for v in bucket if _equal(v.const_value, tensor)), None)
        if twin is None:
            bucket.append(value)
            continue
        for user, index in value.uses():
            user.replace_input_with(index, twin)
        del graph.initializers[name]
        merged += 1
    return merged


def _bits(tensor: ir.TensorProtocol) -> npt.NDArray[np.uint8]:
    array = np.ascontiguousarray(tensor.numpy())
    return array.reshape(-1).view(np.uint8)


def _sample(tensor: ir.TensorProtocol) -> bytes:
    if isinstance(tensor, InFile):
        return b"".join(tensor.read(start, 8) for start in _places(tensor.nbytes))
    bits = _bits(tensor)
    whole = bits.size <= 8 * SAMPLES
    found = bits.tobytes() if whole else b"".join(bits[start : start + 8].tobytes() for start in _places(bits.size))
    del bits
    unmap(tensor)
    return found


@functools.lru_cache(1024)
def _places(size: int) -> tuple[int, ...]:
    """Where to look into tensors of so many bytes."""
    return tuple(int(start) for start in np.linspace(0, size - 8, SAMPLES).astype(np.int64))


def _equal(one: ir.TensorProtocol | None, other: ir.TensorProtocol) -> bool:
    if one is None:
        return False
    equal = np.array_equal(_bits(one), _bits(other))
    unmap(one)
    unmap(other)
    return equal
