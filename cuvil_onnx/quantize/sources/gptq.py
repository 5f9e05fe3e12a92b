"""Linear layers of GPTQ checkpoints, as AutoGPTQ, GPTQModel and transformers write them.

For a layer of K inputs and N outputs with b bits: qweight int32 [K * b / 32, N], words along K; scales [groups, N];
qzeros int32 [groups, N * b / 32], words along N; g_idx int32 [K], the group of each row. weight = (q - z) * scale.
checkpoint_format "gptq" (version 1) stores z - 1, "gptq_v2" z itself.
Source: the format's definition in AutoGPTQ's and GPTQModel's documentation of quantize_config.json.
"""

from __future__ import annotations

import numpy as np

from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.quantize.grid import Array
from cuvil_onnx.quantize.sources.packed import WORD, add_to_each, quantized, unpack
from cuvil_onnx.quantize.sources.source import SourceWeight

BITS = (2, 4, 8)


def decode(
    name: str,
    qweight: Array,
    qzeros: Array,
    scales: Array,
    g_idx: Array | None,
    *,
    bits: int,
    group_size: int,
    version: int,
) -> SourceWeight:
    """One layer; rows that act-order scattered over the groups are put together, with the order beside them.

    Args:
        name: the layer, for messages.
        qweight: see the module's text; likewise qzeros, scales and g_idx.
        bits: of BITS; codes of 2 bits are stored in 4 here.
        group_size: rows of a group; -1: all.
        version: 1 or 2.

    Raises:
        ModelLoadError: arrays that do not fit together, or groups of uneven size.
    """
    k, n = qweight.shape[0] * WORD // bits, qweight.shape[1]
    rows = k if group_size < 0 else group_size
    groups = -(-k // rows)
    for what, array, shape in (
        ("scales", scales, (groups, n)),
        ("qzeros", qzeros, (groups, -(-n * bits // WORD))),
        ("g_idx", g_idx, (k,)),
    ):
        if array is not None and array.shape != shape:
            raise ModelLoadError(
                f"layer {name!r}: {what} has the shape {list(array.shape)}, {list(shape)} is required for a qweight of "
                f"{list(qweight.shape)} with {bits} bits in groups of {rows}"
            )
    codes = unpack(qweight, bits, axis=0)
    zero_points = unpack(add_to_each(qzeros, bits) if version == 1 else qzeros, bits, axis=1)[:, :n]
    order = None if g_idx is None else _order(name, g_idx, rows)
    if order is not None:
        codes = codes[order]
    numbers, grid = quantized(name, codes, np.ascontiguousarray(zero_points), scales, bits, group_size)
    return SourceWeight(numbers, grid, order)


def _order(name: str, g_idx: Array, rows: int) -> Array | None:
    """The permutation that makes each group's rows neighbours; None when they are."""
    wanted = np.arange(len(g_idx)) // rows
    if np.array_equal(g_idx, wanted):
        return None
    order = np.argsort(g_idx, kind="stable")
    if not np.array_equal(g_idx[order], wanted):
        sizes = np.unique(np.bincount(np.maximum(g_idx, 0)))
        raise ModelLoadError(
            f"layer {name!r}: g_idx makes groups of {sizes.min()} to {sizes.max()} rows, {rows} each are required"
        )
    return order.astype(np.int64)
