"""Output shapes, as far as they follow from the inputs' shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

Dim = int | ir.SymbolicDim


def shape(dims: Sequence[Dim]) -> ir.Shape:
    """A shape of concrete and symbolic dimensions."""
    return ir.Shape(list(dims))


def unknown() -> ir.SymbolicDim:
    """A dimension of which nothing is known."""
    return ir.SymbolicDim(None)


def window(size: Dim, kernel: int, stride: int, pad: int, dilation: int, *, ceil: bool = False) -> Dim:
    """The number of positions of a sliding window; `pad` counts both ends."""
    if not isinstance(size, int):
        return unknown()
    span = size + pad - (dilation * (kernel - 1) + 1)
    return (-(-span // stride) if ceil else span // stride) + 1


def channels_axis(layout: str, rank: int) -> int:
    """Where the channels are in a tensor of `rank`."""
    return 1 if layout == "NCHW" else rank - 1


def sliding(x: ir.Shape, attrs: dict[str, Any] | Any, channels: Dim, *, ceil: bool = False) -> ir.Shape:
    """The shape of a convolution's or a pool's output in the node's own layout."""
    rank = len(attrs["kernel_shape"]) + 2
    first = 2 if attrs["layout"] == "NCHW" else 1
    pads = attrs["pads"]
    spatial: list[Dim] = []
    for i in range(rank - 2):
        pad = pads[i] + pads[i + rank - 2]
        spatial.append(
            window(x[first + i], attrs["kernel_shape"][i], attrs["strides"][i], pad, attrs["dilations"][i], ceil=ceil)
        )
    return shape([x[0], channels, *spatial] if first == 2 else [x[0], *spatial, channels])


def to_nchw(rank: int) -> list[int]:
    """The permutation from [N, spatial..., C] to [N, C, spatial...]."""
    return [0, rank - 1, *range(1, rank - 1)]


def to_nhwc(rank: int) -> list[int]:
    """The permutation from [N, C, spatial...] to [N, spatial..., C]."""
    return [0, *range(2, rank), 1]


def broadcast(shapes: Sequence[ir.Shape]) -> ir.Shape | None:
    """The NumPy broadcast of `shapes`; dimensions that differ only symbolically give an unknown one.

    None when two concrete dimensions contradict each other.
    """
    rank = max((len(s) for s in shapes), default=0)
    dims: list[Dim] = []
    for axis in range(-rank, 0):
        found: list[Dim] = [s[axis] for s in shapes if len(s) >= -axis and s[axis] != 1]
        numbers = {d for d in found if isinstance(d, int)}
        if len(numbers) > 1:
            return None
        names = {d.value for d in found if not isinstance(d, int)}
        if numbers:
            dims.append(numbers.pop())
        elif not found:
            dims.append(1)
        elif len(names) == 1 and None not in names:
            dims.append(found[0])
        else:
            dims.append(unknown())
    return shape(dims)
