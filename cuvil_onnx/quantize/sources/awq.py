"""Linear layers of AWQ checkpoints in AutoAWQ's GEMM layout.

For a layer of K inputs and N outputs: qweight int32 [K, N / 8], qzeros int32 [groups, N / 8], scales [groups, N].
A word holds eight neighbouring columns; from its lowest bits up these are columns 0, 2, 4, 6, 1, 3, 5, 7.
weight = (q - z) * scale. Source: Lin et al., "AWQ", 2023, and AutoAWQ's WQLinear_GEMM.
"""

from __future__ import annotations

from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.quantize.grid import Array
from cuvil_onnx.quantize.sources.packed import WORD, quantized, unpack
from cuvil_onnx.quantize.sources.source import SourceWeight

BITS = 4
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def decode(name: str, qweight: Array, qzeros: Array, scales: Array, *, group_size: int) -> SourceWeight:
    """One layer.

    Args:
        name: the layer, for messages.
        qweight: see the module's text; likewise qzeros and scales.
        group_size: rows of a group; -1: all.

    Raises:
        ModelLoadError: arrays that do not fit together.
    """
    k, n = qweight.shape[0], qweight.shape[1] * WORD // BITS
    rows = k if group_size < 0 else group_size
    groups = -(-k // rows)
    for what, array, shape in (("scales", scales, (groups, n)), ("qzeros", qzeros, (groups, qweight.shape[1]))):
        if array.shape != shape:
            raise ModelLoadError(
                f"layer {name!r}: {what} has the shape {list(array.shape)}, {list(shape)} is required for a qweight of "
                f"{list(qweight.shape)} in groups of {rows} (only the layout of version 'gemm' can be read)"
            )
    codes = unpack(qweight, BITS, axis=1, order=ORDER)
    zero_points = unpack(qzeros, BITS, axis=1, order=ORDER)
    return SourceWeight(*quantized(name, codes, zero_points, scales, BITS, group_size))
