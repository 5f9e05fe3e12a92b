"""Weights that are computed from others: large ones of a file not before they are read, and again each time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

LAZY_BYTES = 1 << 20


class Computed(ir.LazyTensor):
    """A tensor that costs its computation each time it is read."""


def is_lazy(source: ir.TensorProtocol) -> bool:
    """Whether what is computed of a tensor is not to be kept in memory."""
    return isinstance(source, ir.ExternalTensor) and source.nbytes >= LAZY_BYTES


def computed(
    source: ir.TensorProtocol, compute: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], dtype: ir.DataType
) -> ir.TensorProtocol:
    """``compute`` of a tensor's elements, of the same shape.

    A model larger than memory can be converted in this way: no more than one of its weights is there at a time.
    """

    def make() -> ir.TensorProtocol:
        tensor = ir.Tensor(compute(source.numpy()), dtype=dtype)
        if isinstance(source, ir.ExternalTensor):
            source.release()  # or the whole file stays mapped
        return tensor

    if is_lazy(source):
        return Computed(make, dtype=dtype, shape=ir.Shape(source.shape.numpy()))
    return make()


def unmap(tensor: ir.TensorProtocol) -> None:
    """Lets go of a file's pages: each look at a weight would keep megabytes of them in memory."""
    if isinstance(tensor, ir.ExternalTensor):
        with contextlib.suppress(BufferError):  # somebody still looks at it
            tensor.release()
